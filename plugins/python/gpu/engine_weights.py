#!/usr/bin/env python3
"""What the load formats for vLLM and SGLang do, without an engine: a process loads a model, repacks and publishes it and is killed; another
one attaches it and captures a graph. Weights that the GPU has no room for twice go through host memory.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so \\
        python3 plugins/python/gpu/engine_weights.py --server target/release/gpu-vmm

It needs PyTorch with CUDA, and fills the GPU for a moment: no other program may use it. `--gib` (16) GiB of weights, of host memory too.
"""

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from harness import GIB, MIB, Checks, Failed, child, environment, gpu_vmm, say, start
from restarted import server

LOAD, ATTACH, FULL = "load", "attach", "full"
WIDTH = 8192
LAYER = WIDTH * WIDTH  # bytes of a repacked layer


def models(torch: Any, layers: int) -> tuple[Any, Any]:
    """Returns functions for a model that was only constructed, and for one that was loaded."""

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(WIDTH, WIDTH, dtype=torch.bfloat16), requires_grad=False)
            self.register_buffer("steps", torch.zeros(4))
            self.is_repacked = False

        def forward(self, x: Any) -> Any:
            return torch.tanh(x @ self.weight.to(x.dtype) * self.scale)

    def built() -> Any:
        return torch.nn.Sequential(*(Layer() for _ in range(layers)))

    def loaded() -> Any:
        torch.manual_seed(1)
        model = torch.nn.Sequential()
        for _ in range(layers):
            with torch.device("cuda"):
                layer = Layer()
            layer.weight = torch.nn.Parameter(torch.randint(-100, 100, (WIDTH, WIDTH), dtype=torch.int8, device="cuda"), requires_grad=False)
            layer.scale, layer.is_repacked, layer.host = 0.0001, True, torch.arange(3.0)
            layer.first = layer.weight.data[0]
            model.append(layer)
        return model

    return built, loaded


def work(given: argparse.Namespace) -> dict[str, Any]:
    import torch

    _engine = gpu_vmm("torch._engine")
    device = torch.device("cuda", 0)
    built, loaded = models(torch, given.gib * GIB // LAYER)
    done: dict[str, Any] = {"loads": 0}

    def load() -> Any:
        done["loads"] += 1
        model = loaded()
        if given.worker == FULL:
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info()[0]
            done["filled"] = torch.empty(free - given.gib * GIB // 2, dtype=torch.uint8, device="cuda")
        return model

    def build() -> Any:
        with torch.device("meta"):
            return built()

    log = logging.getLogger("engine")
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(message)s")
    (torch.ones(4, device=device) + 1).sum().item()
    how = _engine.Loading(load, build, lambda model: model.eval(), lambda model: None, registries=(), complete=True)
    settings = _engine.Settings(given.socket, "auto", 60, False)
    began = time.perf_counter()
    model = _engine.serve(torch, settings, f"engine/{given.gib}{given.worker == FULL}", {}, device, how, log)
    torch.cuda.synchronize()
    done["seconds"] = time.perf_counter() - began
    done.pop("filled", None)
    torch.cuda.empty_cache()
    with torch.no_grad():
        x = torch.linspace(-1, 1, WIDTH, device=device)[None]
        expected = model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(x)
        graph.replay()
        torch.cuda.synchronize()
    done["graph"] = bool(torch.equal(expected, captured))
    done["digest"] = [int(layer.weight.sum(dtype=torch.int64)) for layer in model]
    done["result"] = float(captured.double().sum())
    layer = model[-1]
    done["flags"] = [layer.scale, layer.is_repacked, str(layer.host.device), layer.host.tolist(), layer.first.data_ptr() == layer.weight.data_ptr()]
    done["allocated"] = torch.cuda.memory_allocated()
    layer.steps += 1
    torch.cuda.synchronize()
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description="An engine's weights are there for the next engine.")
    parser.add_argument("--server", help="the command gpu-vmm")
    parser.add_argument("--gib", type=int, default=16, help="the size of the weights (default: %(default)s)")
    parser.add_argument("--worker", choices=(LOAD, ATTACH, FULL), help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(work(given)), flush=True)
        if given.worker == LOAD:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0
    if not given.server:
        parser.error("--server: the command gpu-vmm")
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder, server(given.server, os.path.join(folder, "socket")):
        words: list[object] = ["--socket", os.path.join(folder, "socket"), "--gib", given.gib]
        command = [sys.executable, sys.argv[0], *map(str, ["--worker", LOAD, *words])]
        ended = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, timeout=600, check=False)
        if ended.returncode != -signal.SIGKILL:
            raise Failed(f"exit status {ended.returncode} of the process that loads")
        first = json.loads(ended.stdout.splitlines()[-1])
        second = child(sys.argv[0], ["--worker", ATTACH, *words], environment(), timeout=600)
        say(f"{given.gib} GiB: loaded and published {first['seconds']:.2f} s, attached {second['seconds']:.2f} s")
        command_drop = [given.server, "serve", "drop", f"engine/{given.gib}False", "--socket", os.path.join(folder, "socket")]
        subprocess.run(command_drop, check=True)
        full = child(sys.argv[0], ["--worker", FULL, *words], environment(), timeout=600)
        for what, one, loads in ("first", first, 1), ("second", second, 0), ("without room", full, 1):
            checks.equal(f"{what}: loads", loads, one["loads"])
            checks.equal(f"{what}: bits", first["digest"], one["digest"])
            checks.equal(f"{what}: result of a graph", (True, first["result"]), (one["graph"], one["result"]))
            checks.equal(f"{what}: flags, host tensor, view", [0.0001, True, "cpu", [0, 1, 2], True], one["flags"])
            checks.check(f"{what}: bytes of PyTorch", "less than 1 GiB", one["allocated"] // MIB, one["allocated"] < GIB)
    return checks.end()


if __name__ == "__main__":
    start(main)
