#!/usr/bin/env python3
"""The time of an allocation and a free of memory that PyTorch has cached, through c10::Allocator: native, expandable segments, gpu-vmm; and
the part of it that any allocator takes: PyTorch's current stream, its checks for profilers, and the pointer.

Each allocator runs by turns in processes of its own. It needs PyTorch with CUDA, a C++ compiler, and about a minute.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import training
from harness import MIB, Checks, child, environment, gpu_vmm, start, table
from training import CONF, NATIVE, VMM

SIZES = (512, 64 << 10, 512 << 10, 2 * MIB, 16 * MIB, 100 * MIB)
PAIRS, REPEATS = 20_000, 7


def compiled(torch: Any, folder: str) -> Any:
    """Returns the loop. The first process compiles it, as the allocator class is compiled."""
    file = Path(folder) / "pair.so"
    if not file.exists():
        compiler, flags = gpu_vmm("_torch_build")._command(torch)
        source = Path(__file__).with_suffix(".cpp")
        subprocess.run([*compiler, *flags, "-shared", str(source), "-lc10", "-lc10_cuda", "-o", str(file)], check=True)
    return ctypes.CDLL(str(file))


def work(who: str, folder: str) -> dict[str, Any]:
    training.enable(who)
    import torch

    # Other live blocks, as in a program.
    kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in SIZES for _ in range(20)]
    loops = compiled(torch, folder)
    loops.pair_time.restype = loops.least_time.restype = ctypes.c_double
    loops.pair_time.argtypes, loops.least_time.argtypes = [ctypes.c_size_t, ctypes.c_size_t], [ctypes.c_size_t]
    times = {str(size): [loops.pair_time(size, PAIRS) for _ in range(REPEATS)] for size in SIZES}
    least = [loops.least_time(PAIRS) for _ in range(REPEATS)]
    return {"times": times, "least": least, "kept": len(kept), "device": torch.cuda.get_device_name(), "torch": torch.__version__}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each allocator (default: %(default)s)")
    parser.add_argument("--most", type=float, default=0.15, help="the largest accepted quotient to native (default: %(default)s)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        who, folder = given.worker
        print(json.dumps(work(who, folder)), flush=True)
        return 0
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        results = training.by_turns(
            given.rounds, lambda who: child(__file__, ["--worker", who, folder], environment(CONF[who]), timeout=60), checks
        )
    if not results:
        return checks.end()
    times = {
        who: {size: statistics.median(took for run in runs for took in run["times"][str(size)]) for size in SIZES}
        for who, runs in results.items()
    }
    first = next(iter(results.values()))[0]
    print(f"\n{first['device']}, PyTorch {first['torch']}: a pair in ns, median of {given.rounds} rounds of {REPEATS} times {PAIRS} pairs")
    print(table(("size, KiB", *times), [(size / 1024, *(f"{of[size]:.1f}" for of in times.values())) for size in SIZES]))
    least = statistics.median(took for runs in results.values() for run in runs for took in run["least"])
    print(f"what every allocator of PyTorch does in a pair, without an allocation: {least:.1f} ns\n")
    for size in SIZES if NATIVE in times and VMM in times else ():
        mine, native = times[VMM][size], times[NATIVE][size]
        what = f"a pair of {size / 1024:g} KiB, gpu-vmm to native"
        checks.check(what, f"at most {given.most}", f"{mine / native:.3f} ({mine:.1f} ns of {native:.1f} ns)", mine <= given.most * native)
    return checks.end()


if __name__ == "__main__":
    start(main)
