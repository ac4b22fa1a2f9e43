#!/bin/sh
# Applies foreign-storage.patch to the published source of cubecl-cuda and cubecl-hip, in a folder under target/.
#
#   patches/apply.sh [VERSION]            applies the patch, and fails if it does not apply
#   patches/apply.sh [VERSION] --check    also type-checks both packages
#
# cargo downloads the source. Type-checking needs no CUDA, HIP or LLVM: cubecl's build scripts skip LLVM if DOCS_RS is set.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
version=0.11.3
case "${1:-}" in [0-9]*) version=$1; shift ;; esac
work=$root/target/cubecl-patched/$version
rm -rf "$work/crates" "$work/user"
mkdir -p "$work/crates" "$work/user"

# A package that depends on both, so that cargo fetches them.
cat >"$work/user/Cargo.toml" <<END
[package]
name = "user"
version = "0.0.0"
edition = "2024"
[lib]
path = "lib.rs"
[dependencies]
cubecl-cuda = { version = "=$version", features = ["cpp"] }
cubecl-hip = { version = "=$version", features = ["cpp"] }
cubecl-server = "=$version"
gpu-vmm = { path = "$root", default-features = false, features = ["cuda", "hip", "pool"] }
gpu-vmm-cubecl = { path = "$root/integrations/cubecl" }
[workspace]
END
cp "$here/user.rs" "$work/user/lib.rs"
cargo metadata --quiet --format-version 1 --manifest-path "$work/user/Cargo.toml" >"$work/metadata.json"
python3 - "$work" cubecl-cuda cubecl-hip <<'END'
import json, os, shutil, sys
work, names = sys.argv[1], sys.argv[2:]
for package in json.load(open(f"{work}/metadata.json"))["packages"]:
    if package["name"] in names:
        shutil.copytree(os.path.dirname(package["manifest_path"]), f"{work}/crates/{package['name']}")
END
# Outside of this repository for git, which would skip files that it does not track.
(cd "$work" && GIT_CEILING_DIRECTORIES=$(dirname "$work") git apply "$here/foreign-storage.patch")
echo "foreign-storage.patch applies to cubecl $version"

cat >>"$work/user/Cargo.toml" <<END
[patch.crates-io]
cubecl-cuda = { path = "../crates/cubecl-cuda" }
cubecl-hip = { path = "../crates/cubecl-hip" }
END
case "${1:-}" in
--check) DOCS_RS=1 cargo check --quiet --manifest-path "$work/user/Cargo.toml" --target-dir "$work/target" ;;
"") ;;
*) echo "unknown argument $1; use --check" >&2; exit 2 ;;
esac
