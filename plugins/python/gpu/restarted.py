#!/usr/bin/env python3
"""A PyTorch program is killed, and a new process computes with its weights, which `gpu-vmm serve` has kept: the same bits at the same
addresses, in a fraction of the time in which they are read from a file in the page cache. A captured graph reads a new epoch.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so \\
        python3 plugins/python/gpu/restarted.py --server target/release/gpu-vmm

It needs PyTorch with CUDA, the package safetensors, and `--gib` (16) GiB of a GPU, of host memory and of disk, twice for a moment. Each process creates its context
and runs a kernel before its time is taken.
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

from harness import GIB, MIB, Checks, Failed, child, environment, gpu_vmm, say, start

PUBLISH, ATTACH, LOAD, GRAPH, RENEW = "publish", "attach", "load", "graph", "renew"
LAYER = 256 * MIB
NAME = "model/rank{}"


def names(given: argparse.Namespace) -> list[str]:
    return [f"layer{number}" for number in range(given.gib * GIB // LAYER)]


def digest(torch: Any, tensors: dict[str, Any]) -> list[int]:
    """Returns a checksum of each tensor, computed on the device from all bits."""
    return [int(torch.sum(tensors[name].view(torch.int32), dtype=torch.int64)) for name in sorted(tensors)]


def compute(torch: Any, tensors: dict[str, Any], x: Any) -> Any:
    """Reads a part of each tensor in a kernel."""
    for name in sorted(tensors):
        x = x + tensors[name][: x.numel()]
    return x


def tensors_of(torch: Any, lease: Any) -> dict[str, Any]:
    return {name: torch.from_dlpack(lease[name]) for name in lease.parts}


def work(given: argparse.Namespace) -> dict[str, Any]:
    import torch
    from safetensors.torch import load_file, save_file

    vmm = gpu_vmm()
    torch.cuda.set_device(given.device)
    x = torch.ones(1024, device="cuda")
    (x + x).sum().item()
    name, done = NAME.format(given.device), {}
    client = vmm.connect(given.socket)
    if given.worker == PUBLISH:
        torch.manual_seed(given.device)
        weights = {layer: torch.randn(LAYER // 4, device="cuda") for layer in names(given)}
        save_file({layer: one.cpu() for layer, one in weights.items()}, given.file)
        gpu_vmm("torch").publish(weights, name, client).close()
        done["digest"] = digest(torch, weights)
        print(json.dumps(done), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.perf_counter()
    if given.worker == LOAD:
        weights = load_file(given.file, device=f"cuda:{given.device}")
    else:
        lease = client.open(name, wait=60)
        weights = tensors_of(torch, lease)
    result = compute(torch, weights, x)
    torch.cuda.synchronize()
    done["seconds"] = time.perf_counter() - began
    done["digest"] = digest(torch, weights)
    done["result"] = float(result.sum())
    if given.worker == GRAPH:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = compute(torch, weights, x)
        graph.replay()
        before, address = float(captured.sum()), lease.address
        words = ["--worker", RENEW, "--socket", given.socket, "--device", given.device, "--gib", given.gib]
        child(sys.argv[0], words, environment(), timeout=300)
        done["event"] = lease.next(60).name
        graph.replay()
        done["kept"] = float(captured.sum()) == before
        lease.apply()
        graph.replay()
        done |= {"epoch": lease.epoch, "before": before, "after": float(captured.sum()), "moved": lease.address != address}
    return done


def renew(given: argparse.Namespace) -> dict[str, Any]:
    """Replaces the first layer by twice its values."""
    import torch

    torch.cuda.set_device(given.device)
    with gpu_vmm().connect(given.socket).open(NAME.format(given.device), "write", wait=60) as lease:
        part = lease[sorted(lease.parts)[0]]
        lease.renew(part.offset, LAYER)
        first = torch.from_dlpack(lease[sorted(lease.parts)[0]])
        first.mul_(2)
        torch.cuda.synchronize()
        return {"epoch": lease.commit()}


@contextlib.contextmanager
def server(command: str, socket: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([command, "serve", "--backend", "cuda", "--socket", socket]) as process:
        until = time.monotonic() + 60
        while not os.path.exists(socket):
            if process.poll() is not None or time.monotonic() > until:
                raise Failed("the server does not start")
            time.sleep(0.01)
        try:
            yield process
        finally:
            process.kill()


def published(words: list[object]) -> dict[str, Any]:
    """Runs the process that publishes and kills itself, and returns what it has printed."""
    command = [sys.executable, sys.argv[0], *map(str, ["--worker", PUBLISH, *words])]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, timeout=600, check=False)
    if done.returncode != -signal.SIGKILL:
        raise Failed(f"exit status {done.returncode} of the process that publishes")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description="A killed program's weights are there for the next process.")
    parser.add_argument("--server", help="the command gpu-vmm")
    parser.add_argument("--gib", type=int, default=16, help="the size of the weights (default: %(default)s)")
    parser.add_argument("--devices", type=int, default=1, help="the number of GPUs, each with its own rank (default: %(default)s)")
    parser.add_argument("--folder", help="where the file is written (default: the folder for temporary files)")
    parser.add_argument("--worker", choices=(PUBLISH, ATTACH, LOAD, GRAPH, RENEW), help=argparse.SUPPRESS)
    parser.add_argument("--device", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps((renew if given.worker == RENEW else work)(given)), flush=True)
        return 0
    if not given.server:
        parser.error("--server: the command gpu-vmm")
    checks = Checks()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder, server(given.server, os.path.join(folder, "socket")):
        for device in range(given.devices):
            words: list[object] = ["--socket", os.path.join(folder, "socket"), "--file", os.path.join(folder, "weights.safetensors")]
            words += ["--gib", given.gib, "--device", device]
            first = published(words)
            found = {part: child(sys.argv[0], ["--worker", part, *words], environment(), timeout=600) for part in (LOAD, ATTACH, GRAPH)}
            attach, load, graph = found[ATTACH], found[LOAD], found[GRAPH]
            say(f"GPU {device}: {given.gib} GiB: attach {attach['seconds']:.3f} s, from the page cache {load['seconds']:.3f} s")
            checks.equal(f"bits after the kill, GPU {device}", first["digest"], attach["digest"])
            checks.equal(f"bits of the file, GPU {device}", first["digest"], load["digest"])
            checks.equal(f"result, GPU {device}", load["result"], attach["result"])
            checks.check(f"seconds to the first kernel's end, GPU {device}", "at most 0.25", attach["seconds"], attach["seconds"] <= 0.25)
            checks.equal(f"event, GPU {device}", "NEW_EPOCH", graph["event"])
            checks.equal(f"the graph before the new epoch is applied, GPU {device}", True, graph["kept"])
            checks.equal(f"epoch and address, GPU {device}", (2, False), (graph["epoch"], graph["moved"]))
            changed = graph["after"] != graph["before"]
            checks.check(f"the graph reads the new epoch, GPU {device}", "another result", graph["after"], changed)
    return checks.end()


if __name__ == "__main__":
    start(main)
