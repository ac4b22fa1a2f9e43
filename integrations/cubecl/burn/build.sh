#!/bin/sh
# Builds the program, without LLVM: cubecl compiles its kernels by NVRTC and HIPRTC.
#
#   build.sh [CARGO ARGUMENTS]     for example build.sh --release
#
# cubecl links LLVM in any case, and its build downloads it. DOCS_RS=1 makes its build scripts skip LLVM. The program then
# lacks the functions of LLVM, which it never calls; here each is a function that ends the program with its name.
# CUDARC_CUDA_VERSION is the oldest CUDA version on which the program runs; cudarc's default is its newest.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}/burn
"$here/../patches/apply.sh"
mkdir -p "$target"

export DOCS_RS=1 CUDARC_CUDA_VERSION="${CUDARC_CUDA_VERSION:-13000}"
cargo metadata --quiet --locked --format-version 1 --manifest-path "$here/Cargo.toml" >"$target/metadata.json"
python3 - "$target" <<'END'
import json, pathlib, re, sys
target = pathlib.Path(sys.argv[1])
packages = json.load(open(target / "metadata.json"))["packages"]
names = set()
for package in packages:
    if package["name"] in ("llvm-sys", "cubecl-llvm", "pliron-llvm"):
        for file in pathlib.Path(package["manifest_path"]).parent.glob("src/**/*.rs"):
            for block in re.findall(r'extern "C" \{(.*?)^\s*\}', file.read_text(), re.S | re.M):
                names.update(re.findall(r"\bfn (\w+)\s*\(", block))
if len(names) < 100:
    sys.exit(f"only {len(names)} functions of LLVM were found: the packages have changed")
lines = ["#include <stdio.h>", "#include <stdlib.h>"]
for name in sorted(names):
    lines.append(f'__attribute__((weak)) void {name}(void) {{ fputs("{name}: built without LLVM\\n", stderr); abort(); }}')
(target / "no_llvm.c").write_text("\n".join(lines) + "\n")
END
${CC:-cc} -c -O1 -fPIC -ffunction-sections -w "$target/no_llvm.c" -o "$target/no_llvm.o"
cargo rustc --locked --manifest-path "$here/Cargo.toml" --target-dir "$target" "$@" -- -C link-arg="$target/no_llvm.o"
