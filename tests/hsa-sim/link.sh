#!/bin/sh
# link.sh STATICLIB OUT: links libgpu_vmm_hsa_sim.a into libhsa-runtime64.so.1.
# libamdhip64 binds to hsa_* with the version ROCR_1. rustc links a cdylib with its own version script
# without a version, and the two cannot be combined. So cc links a static library.
set -eu
if [ $# -ne 2 ] || [ ! -f "$1" ]; then
    echo "usage: $0 STATICLIB OUT; build STATICLIB with cargo build -p gpu-vmm-hsa-sim --release" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
# A new file replaces the old one, which may be a link to a file in another folder.
cc -shared -o "$2.new" -Wl,-soname,libhsa-runtime64.so.1 -Wl,--version-script="$here/hsa.map" -Wl,--gc-sections \
    -Wl,--no-undefined -Wl,--whole-archive "$1" -Wl,--no-whole-archive -lgcc_s -lpthread -ldl -lm -lc
mv -f "$2.new" "$2"
