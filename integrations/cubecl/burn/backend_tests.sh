#!/bin/sh
# Builds burn's own tests of its backends for CUDA, over cubecl's own pools or a pool of gpu-vmm.
#
#   backend_tests.sh BURN     BURN is a clone of burn's repository; prints the paths of two programs
#
# MEMORY=gpu-vmm in the environment of a program lets it allocate from a pool. build.sh --release must have run before. The tests are
# those of a commit before burn 0.22.1; backend_tests/left_out.txt names the files that do not compile with 0.22.1.
set -eu
burn=$1
commit=2c06be351
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}/burn
work=$target/backend_tests
rm -rf "$work"
mkdir -p "$work/src"
git -C "$burn" archive "$commit" crates/burn-backend-tests | tar x -C "$work" --strip-components 2
mkdir "$work/macro"
mv "$work/src" "$work/macro/src"
mkdir "$work/src"
cp "$here/backend_tests/preset.rs" "$work/src/lib.rs"
sed -i 's/^fn init_device_settings() {/&\n    burn_tests::preset();/' "$work/tests/common/backend.rs"
grep -q 'burn_tests::preset' "$work/tests/common/backend.rs"
while read -r file; do
    module=$(basename "$file" .rs)
    list=$work/tests/$(dirname "$file")/mod.rs
    grep -q "mod $module;" "$list"
    sed -i "s/^.*\bmod $module;/\/\/ left out: $module/" "$list"
done <"$here/backend_tests/left_out.txt"

cat >"$work/macro/Cargo.toml" <<'END'
[package]
name = "burn-backend-tests"
version = "0.0.0"
edition = "2024"
[lib]
proc-macro = true
[dependencies]
proc-macro2 = "1"
quote = "1"
syn = { version = "2", features = ["full"] }
END
# The manifest of the program beside this script, with the same packages, so that they are built once.
{
    cat <<'END'
[package]
name = "burn-tests"
version = "0.0.0"
edition = "2024"
autotests = false
[[test]]
name = "tensor"
path = "tests/tensor.rs"
[[test]]
name = "autodiff"
path = "tests/autodiff.rs"
[features]
default = ["cuda", "std"]
cuda = []
std = []
[dependencies]
burn-backend-tests = { path = "macro" }
burn-tensor = { version = "=0.22.1", default-features = false, features = ["autodiff", "cuda", "rocm", "std"] }
ctor = "0.10.1"
num-traits = { version = "0.2", default-features = false }
END
    sed -n '/^burn = /,$p' "$here/Cargo.toml" | sed "s#\"../../../target/#\"$root/target/#; s#\"../../..\"#\"$root\"#; s#\"\\.\\.\"#\"$root/integrations/cubecl\"#; /^\[lints/,/^\$/d"
    printf '[profile.release.package.burn-tests]\nopt-level = 0\n'
} >"$work/Cargo.toml"
cp "$here/Cargo.lock" "$work/Cargo.lock"

# no_llvm.o is of build.sh.
export DOCS_RS=1 CUDARC_CUDA_VERSION="${CUDARC_CUDA_VERSION:-13000}"
for test in tensor autodiff; do
    cargo rustc --release --manifest-path "$work/Cargo.toml" --target-dir "$target" --test $test -- -C link-arg="$target/no_llvm.o" --cap-lints allow
    find "$target/release/deps" -name "$test-*" -type f -perm -u+x -newer "$work/Cargo.toml"
done
