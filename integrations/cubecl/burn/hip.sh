#!/bin/sh
# Runs the program over AMD's runtime on the simulator, without a GPU: burn's allocations reach AMD's runtime, and kernels are
# compiled by AMD's compiler and not executed. `cargo test-all setup` must have run before.
#
#   hip.sh PROGRAM [ARGUMENTS]     for example hip.sh target/burn/release/gpu-vmm-burn --size small --steps 2 train
#
# ROCWMMA is the folder of rocWMMA's headers, in which rocwmma.hpp is; the runtime's packages lack them. HIP_VERSION chooses one of
# the runtimes of the setup, otherwise the newest.
set -eu
program=$1
shift
root=$(cd "$(dirname "$0")/../../.." && pwd)
runtimes=${CARGO_TARGET_DIR:-$root/target}/hip-runtime
version=${HIP_VERSION:-$(find "$runtimes" -maxdepth 1 -name "[0-9]*" -printf "%f\n" | sort -V | tail -n 1)}
runtime=$runtimes/$version/usr
libraries=$runtime/lib/x86_64-linux-gnu
# The behavior of ROCr in these versions, which the simulator cannot detect.
case $version in 7.[12].*) export HSA_SIM_KEEPS_MEMORY=1 ;; esac
# The simulator leaves kernels out that it does not know.
export AMD_COMGR_CACHE=0 HSA_SIM_ON_UNKNOWN_KERNEL=skip
# cubecl asks ROCm's hipconfig for the folder of the headers, among which must be rocWMMA's.
tools=${CARGO_TARGET_DIR:-$root/target}/burn/tools
mkdir -p "$tools/include"
ln -sfn "$runtime"/include/* "$tools/include/"
ln -sfn "${ROCWMMA:?name the folder of rocwmma.hpp}" "$tools/include/rocwmma"
printf '#!/bin/sh\ncase $1 in --version) echo %s ;; *) echo %s ;; esac\n' "$version" "$tools" >"$tools/hipconfig"
chmod +x "$tools/hipconfig"
export PATH="$tools:$PATH"
exec "$libraries/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$runtimes/sim:$libraries" "$program" --vendor hip "$@"
