#!/bin/sh
# Runs the program on a GPU with both memories, and under limits of device memory. The logs are in $OUT.
#
#   run.sh [PROGRAM [PART...]]     the parts are transformer, conv and generate; all without an argument
#
# Each run compiles its kernels, so the first steps are slow.
# CUDA_PATH is the folder of the CUDA toolkit, whose headers the kernels include.
set -u
program=${1:-$(dirname "$0")/gpu-vmm-burn}
[ $# -gt 0 ] && shift
parts=${*:-transformer conv generate}
out=${OUT:-.}
export CUDA_PATH="${CUDA_PATH:-/usr/local/cuda}"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+:}$CUDA_PATH/lib64"
# The directory in which cubecl keeps compiled kernels.
export HOME="${HOME:-/tmp}" RUST_BACKTRACE=0
log=$out/summary.txt
: >"$log"

# run NAME TIMEOUT ARGUMENTS: one run, whose output is in NAME.txt. Adds the measurements to the summary.
run() {
    name=$1 seconds=$2
    shift 2
    timeout "$seconds" "$program" "$@" >"$out/$name.txt" 2>&1
    code=$?
    { echo "== $name: $* (exit code $code)"; grep -vE '^(step +[0-9]+:|token|Arguments)' "$out/$name.txt" | cut -c1-400 | head -n 30; } | tee -a "$log"
    return $code
}

# number NAME: the most memory that a run took from the driver, in MiB.
number() { sed -n 's/^most taken from the driver: \([0-9]*\) MiB/\1/p' "$out/$1.txt"; }

# losses NAME: the losses of a run, to the bit.
losses() { sed -n 's/^step \(.*\): .*loss \([^,]*\),.*/\1 \2/p' "$out/$1.txt"; }

# train MODEL: both memories without a limit, then under limits.
train() {
    model=$1
    for memory in own gpu-vmm; do
        run "$model-$memory" 100 --model "$model" --memory $memory train
    done
    losses "$model-own" >"$out/own.losses"
    losses "$model-gpu-vmm" >"$out/gpu-vmm.losses"
    if [ -s "$out/own.losses" ] && cmp -s "$out/own.losses" "$out/gpu-vmm.losses"; then
        same="the same to the bit"
    else
        same="different: see the logs"
    fi
    echo "== $model: the losses of both are $same" | tee -a "$log"
    rm -f "$out/own.losses" "$out/gpu-vmm.losses"
    least=$(number "$model-gpu-vmm")
    [ -n "$least" ] || return
    # Slightly more than gpu-vmm takes.
    limit=$((least * 104 / 100))
    for memory in own gpu-vmm; do
        run "$model-$memory-limit" 100 --model "$model" --memory $memory --limit $limit train
    done
    # How much more cubecl's own pools need.
    for percent in 120 140; do
        limit=$((least * percent / 100))
        run "$model-own-$percent" 100 --model "$model" --memory own --limit $limit train && return
    done
}

# generate: each kind of cache, then those that need no copies under a limit.
generate() {
    run generate-own-joined 60 --memory own --steps 600 generate
    run generate-own-whole 60 --memory own --cache whole --steps 600 generate
    run generate-joined 60 --steps 600 generate
    run generate-growing 60 --cache growing --steps 600 generate
    run generate-own-whole-limit 60 --memory own --cache whole --limit 2048 --steps 600 generate
    run generate-growing-limit 60 --cache growing --limit 2048 --steps 600 generate
}

for part in $parts; do
    case $part in
    transformer | conv) train "$part" ;;
    generate) generate ;;
    *) echo "unknown part $part" >&2; exit 2 ;;
    esac
done
echo "the summary is in $log"
