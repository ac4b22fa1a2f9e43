#!/usr/bin/env python3
"""NCCL reduces registered memory of two GPUs: a MemPool of gpu-vmm replaces NCCL's own allocator, with equal results, time and memory.

In turns, one run takes tensors from PyTorch's MemPool of ncclMemAlloc (backend.mem_allocator), and one from gpu_vmm.torch.mem_pool(). Both
register the pool (register_mem_pool) and reduce tensors of several sizes in place. The time of a size is the least of the runs' medians.
Multicast stays off in both. It needs PyTorch 2.11 with CUDA and NCCL, two GPUs and about two minutes.
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
from pathlib import Path
from typing import Any

from harness import MIB, Checks, Failed, child, environment, gpu_vmm, say, start, table

NCCL, VMM = "ncclMemAlloc", "gpu-vmm"
RANKS = 2
SIZES = [MIB // 16, MIB, 16 * MIB, 256 * MIB]
SAMPLES, IN_SAMPLE = 30, 10
MOST = 1.02
"""How many times as long as with NCCL's memory a reduction may take."""
# NCCL and PyTorch may make no multicast objects.
VARIABLES = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NCCL_CUMEM_ENABLE": "1",
    "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "0",
}


def timed(torch: Any, reduce: Any) -> float:
    """Returns the median time of a reduction, in microseconds."""
    samples = []
    for _ in range(SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(IN_SAMPLE):
            reduce()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1000 / IN_SAMPLE)
    return float(statistics.median(samples))


def rank(number: int, who: str, port: int, folder: str) -> None:
    """Reduces as one of the processes."""
    vmm = gpu_vmm("torch") if who == VMM else None
    if vmm:
        vmm.enable()
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number), WORLD_SIZE=str(RANKS))
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    backend = dist.distributed_c10d._get_default_group()._get_backend(device)
    pool = vmm.mem_pool("nccl") if vmm else torch.cuda.MemPool(backend.mem_allocator)
    dist.barrier()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.empty(size // 4, dtype=torch.float32, device=device) for size in SIZES]
    taken = before - torch.cuda.mem_get_info()[0]
    segments = pool.snapshot()
    inside = [any(one["address"] <= tensor.data_ptr() < one["address"] + one["total_size"] for one in segments) for tensor in tensors]
    backend.register_mem_pool(pool)
    found: dict[str, Any] = {"taken": taken, "inside": sum(inside), "sums": [], "times": []}
    for tensor in tensors:
        draws = torch.Generator(device).manual_seed(number)
        tensor.copy_(torch.randn(tensor.shape, generator=draws, device=device))
        dist.all_reduce(tensor)
        # The bits, in order: two sums of other numbers would differ.
        bits = tensor.view(torch.int32).long()
        weights = torch.arange(bits.numel(), device=device) % 65521 + 1
        found["sums"].append(int((bits * weights).sum()))
        del bits, weights
    for tensor in tensors:
        tensor.zero_()  # repeated sums of zeros stay finite
        timed(torch, lambda: dist.all_reduce(tensor))
        found["times"].append(timed(torch, lambda: dist.all_reduce(tensor)))
    backend.deregister_mem_pool(pool)
    (Path(folder) / str(number)).write_text(json.dumps(found))
    del tensors
    dist.destroy_process_group()


def work(who: str) -> dict[str, Any]:
    import torch

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank, (who, port, folder), nprocs=RANKS)
        return {str(number): json.loads((Path(folder) / str(number)).read_text()) for number in range(RANKS)}


def compare(checks: Checks, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Checks the results, times and memory of all runs."""
    rows = []
    for number in map(str, range(RANKS)):
        sums = {json.dumps(run[number]["sums"]) for found in runs.values() for run in found}
        checks.equal(f"GPU {number}: different results of all runs", 1, len(sums))
        for who, found in runs.items():
            inside = min(run[number]["inside"] for run in found)
            checks.equal(f"GPU {number}, {who}: tensors in registered segments", len(SIZES), inside)
        taken = {who: min(run[number]["taken"] for run in found) for who, found in runs.items()}
        limit = max(taken[NCCL], sum(SIZES) + 32 * MIB)
        most = f"at most {limit / MIB:.0f} MiB ({NCCL}: {taken[NCCL] / MIB:.0f})"
        checks.check(f"GPU {number}: memory taken", most, f"{taken[VMM] / MIB:.0f} MiB", taken[VMM] <= limit)
        for index, size in enumerate(SIZES):
            times = {who: min(run[number]["times"][index] for run in found) for who, found in runs.items()}
            ratio = times[VMM] / times[NCCL]
            rows.append((f"GPU {number}", f"{size / MIB:g} MiB", f"{times[NCCL]:.1f}", f"{times[VMM]:.1f}", f"{ratio:.3f}"))
            checks.check(f"GPU {number}, {size / MIB:g} MiB: time, gpu-vmm to NCCL", f"at most {MOST}", f"{ratio:.3f}", ratio <= MOST)
    print(table(("", "size", f"{NCCL} [us]", f"{VMM} [us]", "ratio"), rows, left=2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs with each allocator (default: %(default)s)")
    parser.add_argument("--worker", choices=(NCCL, VMM), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(work(given.worker)), flush=True)
        return 0
    checks = Checks()
    variables = environment(None, **VARIABLES)
    runs: dict[str, list[dict[str, Any]]] = {NCCL: [], VMM: []}
    for number in range(given.rounds):
        for who in (NCCL, VMM) if number % 2 == 0 else (VMM, NCCL):
            say(f"round {number + 1}: {who}")
            try:
                runs[who].append(child(__file__, ["--worker", who], variables, timeout=100))
            except Failed as failed:
                checks.check(f"round {number + 1}, {who} completes", "no failure", str(failed), False)
    if all(runs.values()):
        compare(checks, runs)
    return checks.end()


if __name__ == "__main__":
    start(main)
