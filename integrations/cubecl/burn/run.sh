#!/bin/sh
# Runs the program on a GPU with both memories, and under limits of device memory. The logs are in $OUT.
#
#   run.sh [PROGRAM [PART...]]     the parts are transformer, conv, generate and limits; all without an argument
#
# Each run compiles its kernels, so the first steps are slow. No run starts after $SECONDS_IN_ALL seconds (230).
# CUDA_PATH is the folder of the CUDA toolkit, whose headers the kernels include.
set -u
program=${1:-$(dirname "$0")/gpu-vmm-burn}
[ $# -gt 0 ] && shift
parts=${*:-transformer conv generate limits}
out=${OUT:-.}
export CUDA_PATH="${CUDA_PATH:-/usr/local/cuda}"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+:}$CUDA_PATH/lib64"
export HOME="${HOME:-/tmp}" RUST_BACKTRACE=0
last=$(($(date +%s) + ${SECONDS_IN_ALL:-230}))
steps=${STEPS:-25}
measured='(finished|failed) after|^median step|^most |^the pool|^checksum'
log=$out/summary.txt
mkdir -p "$out"
{
    nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv,noheader
    date -u
} >"$log" 2>&1

# run NAME TIMEOUT ARGUMENTS: one run, whose output is in NAME.txt. Adds the measurements to the summary.
run() {
    name=$1 seconds=$2
    shift 2
    left=$((last - $(date +%s)))
    if [ "$left" -lt 5 ]; then
        echo "== $name: not run, no time is left" | tee -a "$log"
        return 0
    fi
    [ "$seconds" -lt "$left" ] || seconds=$left
    begin=$(date +%s)
    timeout "$seconds" "$program" "$@" >"$out/$name.txt" 2>&1
    code=$?
    {
        echo "== $name: $* (exit code $code, $(($(date +%s) - begin)) s)"
        # cubecl's message contains the source of a kernel that was not compiled.
        sed '/^\[Source\]/,$d' "$out/$name.txt" | grep -vE "^(step +[0-9]+:|token|Arguments)|$measured" | cut -c1-400 | head -n 16
        grep -E "$measured" "$out/$name.txt"
    } | tee -a "$log"
    return $code
}

# number NAME: the most memory that a run took from the driver, in MiB.
number() { sed -n 's/^most taken from the driver: \([0-9]*\) MiB/\1/p' "$out/$1.txt" 2>/dev/null; }

# losses NAME: the losses of a run, to the bit.
losses() { sed -n 's/^step \(.*\): .*loss \([^,]*\),.*/\1 \2/p' "$out/$1.txt" 2>/dev/null; }

# train MODEL: both memories without a limit, then with slightly more than gpu-vmm took.
train() {
    model=$1
    for memory in own gpu-vmm; do
        run "$model-$memory" 60 --model "$model" --memory $memory --steps "$steps" train
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
    limited "$model" own 104
    limited "$model" gpu-vmm 104
}

# limited MODEL MEMORY PERCENT: with a part of the memory that gpu-vmm took from the driver.
limited() {
    least=$(number "$1-gpu-vmm")
    if [ -z "$least" ]; then
        echo "== $1-$2-$3: not run, $1-gpu-vmm printed no measurement" | tee -a "$log"
        return 1
    fi
    run "$1-$2-$3" 60 --model "$1" --memory "$2" --limit $((least * $3 / 100)) --steps "$steps" train
}

# limits: how much cubecl's own pools need, and whether gpu-vmm runs with as much as it took.
limits() {
    limited transformer own 120
    limited conv own 120
    limited transformer gpu-vmm 101
    limited conv gpu-vmm 101
    limited conv own 150
}

# generate: each kind of cache, then those that need no copies under a limit.
generate() {
    tokens=$((steps * 24))
    run generate-own-joined 60 --memory own --steps $tokens generate
    run generate-growing 60 --cache growing --steps $tokens generate
    run generate-own-whole-2048 60 --memory own --cache whole --limit 2048 --steps $tokens generate
    run generate-growing-2048 60 --cache growing --limit 2048 --steps $tokens generate
    run generate-own-whole 60 --memory own --cache whole --steps $tokens generate
    run generate-joined 60 --steps $tokens generate
}

for part in $parts; do
    case $part in
    transformer | conv) train "$part" ;;
    generate | limits) "$part" ;;
    *) echo "unknown part $part" >&2; exit 2 ;;
    esac
done
echo "the summary is in $log"
