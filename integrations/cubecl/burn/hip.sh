#!/bin/sh
# Runs the program over AMD's runtime on the simulator, without a GPU: burn's allocations reach AMD's runtime, and kernels are
# compiled by AMD's compiler and not executed. `cargo test-all setup` must have run before.
#
#   hip.sh PROGRAM [ARGUMENTS]     for example hip.sh target/burn/release/gpu-vmm-burn --size small --steps 2 train
set -eu
program=$1
shift
root=$(cd "$(dirname "$0")/../../.." && pwd)
runtimes=${CARGO_TARGET_DIR:-$root/target}/hip-runtime
newest=$(ls -d "$runtimes"/[0-9]* | sort -V | tail -n 1)
libraries=$newest/usr/lib/x86_64-linux-gnu
# The behavior of ROCr in these versions, which the simulator cannot detect.
case ${newest##*/} in 7.[12].*) export HSA_SIM_KEEPS_MEMORY=1 ;; esac
# The simulator leaves kernels out that it does not know.
export AMD_COMGR_CACHE=0 HSA_SIM_ON_UNKNOWN_KERNEL=skip
# cubecl asks ROCm's hipconfig for the folder of the headers. Those of rocWMMA, which kernels include too, are not in Debian's
# packages of HIP.
tools=${CARGO_TARGET_DIR:-$root/target}/burn/tools
mkdir -p "$tools/include"
ln -sfn "$newest"/usr/include/* "${ROCWMMA:?name the folder rocwmma of its headers}" "$tools/include/"
printf '#!/bin/sh\ncase $1 in --version) echo %s ;; *) echo %s ;; esac\n' "${newest##*/}" "$tools" >"$tools/hipconfig"
chmod +x "$tools/hipconfig"
export PATH="$tools:$PATH"
exec "$libraries/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$runtimes/sim:$libraries" "$program" --vendor hip "$@"
