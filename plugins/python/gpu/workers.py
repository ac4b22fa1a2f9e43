#!/usr/bin/env python3
"""A DataLoader whose 4 spawned workers send CUDA tensors: the process that trains sees what it sees with PyTorch's own allocator.

The workers allocate from gpu-vmm too, under a tag of their own. It needs PyTorch with CUDA, 8 GiB of a GPU and about a minute.
"""

import argparse
import contextlib
import json
from typing import Any

import training
from harness import Checks, Failed, child, environment, gpu_vmm, start
from training import NATIVE, VMM

WORKERS, SAMPLES, SIZE = 4, 64, 300_000


class Samples:
    """A dataset on the GPU."""

    def __init__(self, who: str) -> None:
        self.who = who

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        import torch

        tagged = gpu_vmm("torch").pool("samples") if self.who == VMM else contextlib.nullcontext()
        with tagged:
            return torch.full((SIZE,), float(index), device="cuda") + torch.arange(SIZE, device="cuda", dtype=torch.float32)

    def begin(self, _number: int) -> None:
        """Runs in each worker before its first sample."""
        training.enable(self.who)


def work(who: str) -> dict[str, Any]:
    training.enable(who)
    import torch
    from torch.utils.data import DataLoader

    samples: Any = Samples(who)
    sums = []
    for batch_size in (None, 4):
        loader = DataLoader(
            samples, batch_size=batch_size, num_workers=WORKERS, multiprocessing_context="spawn", worker_init_fn=samples.begin
        )
        for number, batch in enumerate(loader):
            assert batch.is_cuda
            # Kernels of this process write to the workers' memory, too.
            batch += number
            sums.append(batch.double().sum().item())
    del batch, loader
    torch.cuda.synchronize()
    return {"sums": sums, "allocated": torch.cuda.memory_allocated()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", choices=(NATIVE, VMM), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(work(given.worker)), flush=True)
        return 0
    checks = Checks()
    results = {}
    for who in (NATIVE, VMM):
        try:
            results[who] = child(__file__, ["--worker", who], environment(), timeout=150)
        except Failed as failed:
            checks.check(f"{who} completes", "no failure", str(failed), False)
    if len(results) == 2:
        expected = SAMPLES + SAMPLES // 4
        seen = training.differences(results[VMM]["sums"], results[NATIVE]["sums"])
        checks.equal("sums of the batches, gpu-vmm to native", f"all {expected} equal", seen)
        checks.equal("memory allocated at the end", results[NATIVE]["allocated"], results[VMM]["allocated"])
    return checks.end()


if __name__ == "__main__":
    start(main)
