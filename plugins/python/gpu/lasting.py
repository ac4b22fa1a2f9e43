#!/usr/bin/env python3
"""Programs of 20,000 steps hold hardly more memory in the second half than in the first: tensors that pass between two and between four
streams by record_stream, and on two GPUs a small GPT by FSDP2.

Each program repeats the same 500 steps, so that all sizes have occurred early. It also prints what was held in the first 1,000 steps, and
after which step the most was held first. It needs PyTorch with CUDA, 4 GiB of each GPU, and up to `--seconds` for each program.
"""

import argparse
import concurrent.futures
import json
import os
import random
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import training
from harness import MIB, Checks, Failed, child, environment, say, start
from train_gpt2 import gpt2
from training import VMM

PERIOD, FIRST = 500, 1_000
# A tenth, since the GPU is now and then further behind, and more memory waits for it.
MOST = 1.1
PROGRAMS = ("2 streams", "4 streams", "FSDP2")
RANKS = 2


class Watched:
    """What the pool holds, after each period of a program."""

    def __init__(self, vmm: Any, steps: int, seconds: float) -> None:
        self.vmm, self.steps, self.end = vmm, steps, time.monotonic() + seconds
        self.held: list[int] = []

    def goes_on(self, step: int) -> bool:
        if step and step % PERIOD == 0:
            self.held.append(self.vmm.stats()["held"])
        return step < self.steps and (step <= FIRST or time.monotonic() < self.end)

    def found(self, step: int) -> dict[str, Any]:
        half = max(1, len(self.held) // 2)
        stats = self.vmm.stats()
        return {
            "steps": step,
            "begin": max(self.held[: FIRST // PERIOD]),
            "first": max(self.held[:half]),
            "second": max(self.held[half:]),
            "reached": PERIOD * (1 + self.held.index(max(self.held))),
            "mapped": stats["mapped"],
            "reserved": stats["reserved"],
        }


def streams(count: int, steps: int, seconds: float) -> dict[str, Any]:
    """Passes tensors of changing sizes between streams."""
    vmm = training.enable(VMM)
    import torch

    sides = [torch.cuda.Stream() for _ in range(count)]
    draws = random.Random(count)
    sizes = [draws.choice((3_000, 300_000, 3_000_000, 8_000_000)) + draws.randrange(1_000) * 64 for _ in range(PERIOD)]
    kept: list[Any] = [None] * 16
    watched, step = Watched(vmm, steps, seconds), 0
    while watched.goes_on(step):
        at = step % PERIOD
        one, other = sides[step % count], sides[(step + 1 + at % (count - 1 or 1)) % count]
        with torch.cuda.stream(one):
            made = torch.empty(sizes[at], device="cuda").fill_(at)
        other.wait_stream(one)
        with torch.cuda.stream(other):
            sums = made * 2
            made.record_stream(other)
        kept[at * 7 % len(kept)] = (made, sums) if at % 3 else sums
        step += 1
    return watched.found(step)


def rank(number: int, steps: int, seconds: float, port: int, folder: str) -> None:
    """Trains as one of the processes."""
    vmm = training.enable(VMM)
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number), WORLD_SIZE=str(RANKS))
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(1)
    with device:
        model = gpt2(torch, 2, 4, 256, 512)
    for layer in model.layers:
        fully_shard(layer)
    trained = fully_shard(model)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=3e-4)
    watched, step = Watched(vmm, steps, seconds), 0
    go = torch.ones(1, device=device)
    while True:
        goes = watched.goes_on(step)
        if step % PERIOD == 0:
            # All ranks end after the same step.
            go.fill_(float(goes))
            dist.all_reduce(go, op=dist.ReduceOp.MIN)
            if not go.item():
                break
        length = 16 + 8 * (step * 7 % 25)
        tokens = torch.randint(512, (2 + step % 4, length + 1), device=device)
        trained(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
    (Path(folder) / str(number)).write_text(json.dumps(watched.found(step)))
    dist.destroy_process_group()


def fsdp2(steps: int, seconds: float) -> list[dict[str, Any]]:
    import torch

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank, (steps, seconds, port, folder), nprocs=RANKS)
        return [json.loads((Path(folder) / str(number)).read_text()) for number in range(RANKS)]


def work(program: str, steps: int, seconds: float) -> dict[str, Any]:
    return {"ranks": fsdp2(steps, seconds) if program == "FSDP2" else [streams(int(program[0]), steps, seconds)]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="steps of each program (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=480, help="the longest time of a program (default: %(default)s)")
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="a program to run (default: all at the same time)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(work(given.worker, given.steps, given.seconds)), flush=True)
        return 0
    checks = Checks()
    # NCCL may not use NVLink's multicast, which not every machine has.
    variables = environment(None, NCCL_NVLS_ENABLE="0")

    def run(program: str) -> Any:
        words = ["--worker", program, "--steps", given.steps, "--seconds", given.seconds]
        say(program)
        try:
            return child(__file__, words, variables, timeout=given.seconds + 90)
        except Failed as failed:
            checks.check(f"{program} completes", "no failure", str(failed), False)
            return None

    programs = given.only or PROGRAMS
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(programs)) as threads:
        found = dict(zip(programs, threads.map(run, programs)))
    for program, results in found.items():
        for number, seen in enumerate(results["ranks"] if results else ()):
            first, second = seen["first"] / MIB, seen["second"] / MIB
            what = f"{program}, GPU {number}: held in the second half of {seen['steps']} steps"
            checks.check(what, f"at most {first * MOST:.0f} MiB", f"{second:.0f} MiB", second <= first * MOST)
            begin, mapped, reserved = (seen[name] / MIB for name in ("begin", "mapped", "reserved"))
            say(f"at first {begin:.0f} MiB, the most after step {seen['reached']}; mapped {mapped:.0f}, reserved {reserved:.0f} MiB")
    return checks.end()


if __name__ == "__main__":
    start(main)
