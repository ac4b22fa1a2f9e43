#!/usr/bin/env python3
"""A small GPT trains on two GPUs by DDP and by FSDP2: the losses and the weights are those with PyTorch's own allocator, to the last bit.

All four runs share the GPUs. It needs PyTorch with CUDA and NCCL, two GPUs and about a minute.
"""

import argparse
import concurrent.futures
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import training
from harness import MIB, Checks, Failed, child, environment, say, start
from train_gpt2 import gpt2
from training import NATIVE, VMM

KINDS = ("DDP", "FSDP2")
RANKS = 2
LAYERS, HEADS, WIDTH, VOCABULARY = 4, 8, 512, 4096


def rank(number: int, who: str, kind: str, steps: int, port: int, folder: str) -> None:
    """Trains as one of the processes."""
    vmm = training.enable(who)
    import torch
    import torch.distributed as dist
    from torch.nn.attention import SDPBackend, sdpa_kernel

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number), WORLD_SIZE=str(RANKS))
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    training.deterministic(torch, 1)
    with device:
        model = gpt2(torch, LAYERS, HEADS, WIDTH, VOCABULARY)
    if kind == "DDP":
        trained = torch.nn.parallel.DistributedDataParallel(model, device_ids=[number])
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        trained = fully_shard(model)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=3e-4)
    draws = torch.Generator().manual_seed(number)
    losses = torch.zeros(steps, device=device)
    with sdpa_kernel(SDPBackend.MATH):
        for step in range(steps):
            length = 64 + 8 * (step * 7 % 25)
            tokens = (torch.rand((8, length + 1), generator=draws) ** 4 * VOCABULARY).long().to(device)
            loss = trained(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses[step] = loss.detach()
    held = vmm.stats()["peak_held"] if vmm else torch.cuda.max_memory_reserved()
    found = {"losses": training.bits(torch, losses), "weights": training.digest(trained), "held": held}
    found["falls"] = bool(losses[-1] < losses[0])
    (Path(folder) / str(number)).write_text(json.dumps(found))
    dist.destroy_process_group()


def work(who: str, kind: str, steps: int) -> dict[str, Any]:
    import torch

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank, (who, kind, steps, port, folder), nprocs=RANKS)
        return {str(number): json.loads((Path(folder) / str(number)).read_text()) for number in range(RANKS)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="training steps (default: %(default)s)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        who, kind = given.worker
        print(json.dumps(work(who, kind, given.steps)), flush=True)
        return 0
    checks = Checks()
    # NCCL may not use NVLink's multicast, which not every machine has.
    variables = environment(None, NCCL_NVLS_ENABLE="0", **training.VARIABLES)

    def run(job: tuple[str, str]) -> Any:
        kind, who = job
        say(kind, who)
        try:
            return child(__file__, ["--worker", who, kind, "--steps", given.steps], variables, timeout=100)
        except Failed as failed:
            checks.check(f"{kind} on {who} completes", "no failure", str(failed), False)
            return None

    jobs = [(kind, who) for kind in KINDS for who in (NATIVE, VMM)]
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(jobs)) as threads:
        found = dict(zip(jobs, threads.map(run, jobs)))
    for kind in KINDS:
        results = {who: found[kind, who] for who in (NATIVE, VMM) if found[kind, who]}
        for number in map(str, range(RANKS)) if len(results) == 2 else ():
            native, ours = results[NATIVE][number], results[VMM][number]
            seen = training.differences(ours["losses"], native["losses"])
            checks.equal(f"{kind}, GPU {number}: losses, gpu-vmm to native", f"all {given.steps} equal", seen)
            checks.equal(f"{kind}, GPU {number}: weights", native["weights"][:16], ours["weights"][:16])
            checks.equal(f"{kind}, GPU {number}: the loss falls", True, ours["falls"])
            most = f"at most {native['held'] / MIB:.0f} MiB"
            checks.check(f"{kind}, GPU {number}: peak held", most, f"{ours['held'] / MIB:.0f} MiB", ours["held"] <= native["held"])
    return checks.end()


if __name__ == "__main__":
    start(main)
