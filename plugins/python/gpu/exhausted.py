#!/usr/bin/env python3
"""Fills a GPU until torch.OutOfMemoryError, frees all and goes on, 100 times: nothing is lost in the account of PyTorch or of the driver.

It needs PyTorch with CUDA, a GPU that nothing else uses, and about a minute.
"""

import argparse
import gc
import time
from typing import Any

import training
from harness import GIB, MIB, Checks, say, start
from training import VMM

SIZES = (GIB, 64 * MIB, 3 * MIB, 1000)
# Blocks of one size in a round, at most: the memory may never be too short for the smallest.
MOST = 400
FREE = "free on the device"
# What the driver may take for itself. A page of the pool lost in each round would be a hundred times as much.
LENIENT = 16 * MIB


def fill(torch: Any) -> tuple[list[Any], int]:
    """Returns tensors that fill the GPU, and the number of errors on the way."""
    full, errors = [], 0
    for size in SIZES:
        try:
            for _ in range(MOST):
                full.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            errors += 1
    return full, errors


def account(torch: Any) -> dict[str, int]:
    """Returns the amounts once the cache is empty."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    stats = torch.cuda.memory_stats()
    names = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "allocation")
    seen = {name: int(stats[f"{name}.all.current"]) for name in names}
    return {**seen, FREE: int(torch.cuda.mem_get_info()[0])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="times that the GPU is filled (default: %(default)s)")
    given = parser.parse_args()
    training.enable(VMM)
    import torch

    checks = Checks()
    kept = torch.arange(1000, device="cuda")
    # The first round makes what stays: the context, kernels, the pool's own tables.
    torch.empty(10, dtype=torch.uint8, device="cuda").fill_(7)
    checks.equal("a tensor", True, bool((kept == torch.arange(1000, device="cuda")).all()))
    fill(torch)
    gc.collect()
    before, errors, shortest = account(torch), 0, 1 << 62
    began = time.monotonic()
    for number in range(given.rounds):
        full, met = fill(torch)
        errors += met
        shortest = min(shortest, torch.cuda.memory_allocated())
        full[-1].fill_(7)
        del full
        gc.collect()
        # Every other round refills what the pool has kept.
        if number % 20 == 19:
            now = account(torch)
            free, lost = now.pop(FREE), before[FREE] - LENIENT
            checks.equal(f"the account after {number + 1} rounds", {name: before[name] for name in now}, now)
            checks.check(f"free memory of the device after {number + 1} rounds", f"at least {lost}", free, free >= lost)
            say(f"{time.monotonic() - began:.1f} s")
    total = torch.cuda.mem_get_info()[1]
    checks.check("errors of memory", f"at least {given.rounds}", errors, errors >= given.rounds)
    expected = f"at least 0.9 of {total / GIB:.1f} GiB"
    checks.check("memory filled in each round", expected, f"{shortest / GIB:.1f} GiB", shortest >= 0.9 * total)
    checks.equal("errors counted", True, torch.cuda.memory_stats()["num_ooms"] >= errors)
    checks.equal("a tensor from before", True, bool((kept == torch.arange(1000, device="cuda")).all()))
    return checks.end()


if __name__ == "__main__":
    start(main)
