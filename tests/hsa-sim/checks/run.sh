#!/bin/sh
# run.sh PREFIX [SIM]: runs capture.c on the HIP runtime in PREFIX, over libhsa-runtime64.so.1 in the folder SIM (PREFIX/sim), and
# compares its results with the recorded ones of its version. Needs a C compiler and HIP's headers in PREFIX. Exit status 0: all
# results are as recorded.
set -eu
[ $# -eq 1 ] || [ $# -eq 2 ] || { echo "usage: $0 PREFIX [SIM]" >&2; exit 2; }
prefix=$(cd "$1" && pwd); here=$(cd "$(dirname "$0")" && pwd); sim=$(cd "${2:-$1/sim}" && pwd)
[ -f "$sim/libhsa-runtime64.so.1" ] || { echo "$sim has no libhsa-runtime64.so.1" >&2; exit 2; }
[ -d "$prefix/usr/include/hip" ] || { echo "$prefix has no headers of HIP (package libamdhip64-dev)" >&2; exit 2; }
lib=$prefix/usr/lib/x86_64-linux-gnu
case $(ls "$lib"/libamdhip64.so.?) in *.so.6) version=6.4.3 ;; *.so.7) version=7.2.4 ;; *) version=unknown ;; esac
[ -f "$here/capture.$version.txt" ] || { echo "nothing is recorded of this version" >&2; exit 2; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
${CC:-cc} -w -D__HIP_PLATFORM_AMD__ -I"$prefix/usr/include" "$here/capture.c" -o "$work/capture" -L"$lib" -lamdhip64 -lpthread \
    -Wl,--unresolved-symbols=ignore-in-shared-libs
HSA_SIM_GPUS=2 "$lib/ld-linux-x86-64.so.2" --library-path "$sim:$lib" "$work/capture" >"$work/answers" || true
# Blanks at the ends of lines are not recorded.
sed 's/ *$//' "$work/answers" | diff "$here/capture.$version.txt" -
