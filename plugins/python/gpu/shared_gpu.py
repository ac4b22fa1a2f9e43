#!/usr/bin/env python3
"""Two PyTorch programs that each need 60 percent of a GPU for half of their time share it by `gpu-vmm serve`: both end with the results that
they have alone. Then three programs by priority, of which one is killed in the middle and one stops answering.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so \\
        python3 plugins/python/gpu/shared_gpu.py --server target/release/gpu-vmm

It needs PyTorch with CUDA, `--gib` (64) GiB of a GPU, and 0.6 times as much memory of the host for each program that rests.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from harness import GIB, MIB, Checks, Failed, environment, gpu_vmm, say, start

LAYER = 256 * MIB
NEEDS = 0.6


def work(given: argparse.Namespace) -> dict[str, Any]:
    """Trains a model of layers by turns with rests, and returns the checksum of all weights."""
    vmm = gpu_vmm("torch")
    if given.socket:
        vmm.enable(server=given.socket, priority=given.priority, wait=given.wait)
    else:
        vmm.enable()
    import torch

    count = int(given.gib * NEEDS) * GIB // LAYER
    if given.socket:
        # Two programs that each had a part and waited for the rest would wait in vain.
        pool = vmm.device_pool()
        pool.reserve(count * LAYER + GIB, given.wait)
    torch.manual_seed(given.seed)
    layers = [torch.randn(LAYER // 4, device="cuda") for _ in range(count)]
    waited, asleep = 0.0, 0
    for phase in range(given.phases):
        for step in range(given.steps):
            for number, layer in enumerate(layers):
                other = layers[(number + 1) % count]
                layer.mul_(0.999).add_(other[: layer.numel()], alpha=1e-3).add_(phase * step * 1e-4)
        torch.cuda.synchronize()
        if given.socket:
            pool.reserve(0)
            vmm.let_sleep()
        print(json.dumps({"phase": phase}), flush=True)
        time.sleep(given.rest)
        if given.socket:
            began = time.monotonic()
            asleep += vmm.wake()
            waited += time.monotonic() - began
    digest = [int(torch.sum(layer.view(torch.int32), dtype=torch.int64)) for layer in layers]
    return {"digest": digest, "waited": waited, "asleep": asleep, "held": vmm.stats()["peak_held"]}


def begin(given: argparse.Namespace, socket: str, priority: int = 0, seed: int = 0, phases: int = 0) -> subprocess.Popen[str]:
    words = [sys.executable, sys.argv[0], "--worker", "--socket", socket, "--gib", given.gib, "--steps", given.steps, "--seed", seed]
    words += ["--phases", phases or given.phases, "--rest", given.rest, "--wait", given.wait, "--priority", priority]
    variables = environment()
    return subprocess.Popen(list(map(str, words)), env=variables, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str], timeout: float = 300) -> dict[str, Any]:
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failed(f"a program took more than {timeout:.0f} s") from None
    if process.returncode:
        raise Failed(f"exit status {process.returncode} of a program, see above")
    return dict(json.loads(out.splitlines()[-1]))


def until_phase(process: subprocess.Popen[str]) -> None:
    """Waits for the end of a program's next phase."""
    assert process.stdout
    if not process.stdout.readline():
        raise Failed("a program has ended early, see above")


@contextlib.contextmanager
def server(given: argparse.Namespace, folder: str) -> Iterator[str]:
    socket = os.path.join(folder, "socket")
    words = [given.server, "serve", "--backend", "cuda", "--socket", socket, "--budget", f"{given.gib}GiB", "--answer-within", "2s"]
    with subprocess.Popen(words) as process:
        until = time.monotonic() + 60
        while not os.path.exists(socket):
            if process.poll() is not None or time.monotonic() > until:
                raise Failed("the server does not start")
            time.sleep(0.01)
        try:
            yield socket
        finally:
            process.kill()


def programs(socket: str) -> list[Any]:
    vmm = gpu_vmm()
    return list(vmm.connect(socket, vmm.open("cuda")).status()["programs"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Programs that together need more than a GPU has share it by a server.")
    parser.add_argument("--server", help="the command gpu-vmm")
    parser.add_argument("--gib", type=int, default=64, help="the memory that the programs share (default: %(default)s)")
    parser.add_argument("--phases", type=int, default=3, help="the number of times that each works and rests (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="the steps of a phase (default: %(default)s)")
    parser.add_argument("--rest", type=float, default=2, help="the seconds of a rest (default: %(default)s)")
    parser.add_argument("--wait", type=float, default=120, help="how long a program waits for memory (default: %(default)s)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--socket", default="", help=argparse.SUPPRESS)
    parser.add_argument("--priority", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(work(given)), flush=True)
        return 0
    if not given.server:
        parser.error("--server: the command gpu-vmm")
    checks = Checks()
    alone = [result(one) for one in [begin(given, "", seed=seed) for seed in (0, 1)]]
    say("each has run alone")
    with tempfile.TemporaryDirectory() as folder, server(given, folder) as socket:
        began = time.monotonic()
        both = [begin(given, socket, seed=seed) for seed in (0, 1)]
        found = [result(one) for one in both]
        say(f"two at once: {time.monotonic() - began:.1f} s, waited {[round(one['waited'], 1) for one in found]} s")
        for number, one in enumerate(found):
            checks.check(f"results of program {number}", "as alone", "as alone" if one["digest"] == alone[number]["digest"] else "others",
                         one["digest"] == alone[number]["digest"])
        back = [one["asleep"] // MIB for one in found]
        checks.check("MiB that went and came back", "more than 0", back, sum(back) > 0)
        # Three by priority: the second is killed after its first phase, and the third stops answering in its first rest.
        low = begin(given, socket, priority=-1, seed=0)
        until_phase(low)
        killed, stopped = begin(given, socket, priority=0, seed=1), None
        until_phase(killed)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        stopped = begin(given, socket, priority=-2, seed=2, phases=1)
        until_phase(stopped)
        os.kill(stopped.pid, signal.SIGSTOP)
        high = begin(given, socket, priority=1, seed=1)
        time.sleep(5)
        waiting = programs(socket)
        late = [one["process"] for one in waiting if not one["answers"]]
        checks.equal("the program that does not answer", [stopped.pid], late)
        os.kill(stopped.pid, signal.SIGCONT)
        ended = [result(one) for one in (stopped, high, low)]
        for name, one, seed in (("stopped", ended[0], 2), ("high", ended[1], 1), ("low", ended[2], 0)):
            if name == "stopped":
                checks.check("the stopped program ends", "a result", "a result", bool(one["digest"]))
                continue
            same = one["digest"] == alone[seed]["digest"]
            checks.check(f"results of the program of {name} priority", "as alone", "as alone" if same else "others", same)
        deadline = time.monotonic() + 20
        while programs(socket) and time.monotonic() < deadline:
            time.sleep(0.1)
        checks.equal("programs that are left", [], programs(socket))
    return checks.end()


if __name__ == "__main__":
    start(main)
