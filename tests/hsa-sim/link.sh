#!/bin/sh
# link.sh STATICLIB OUT: makes libhsa-runtime64.so.1 of libgpu_vmm_hsa_sim.a.
# libamdhip64 binds to hsa_* with the version ROCR_1. rustc links a cdylib with a version script of its own, which
# names no version, and the two cannot be joined: so a static library, linked by cc.
set -eu
if [ $# -ne 2 ] || [ ! -f "$1" ]; then
    echo "usage: $0 STATICLIB OUT, where STATICLIB is there: cargo build -p gpu-vmm-hsa-sim --release makes it" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
# A new file is put in place of the old one, which may be a link to another folder's.
cc -shared -o "$2.new" -Wl,-soname,libhsa-runtime64.so.1 -Wl,--version-script="$here/hsa.map" -Wl,--gc-sections \
    -Wl,--no-undefined -Wl,--whole-archive "$1" -Wl,--no-whole-archive -lgcc_s -lpthread -ldl -lm -lc
mv -f "$2.new" "$2"
