#!/usr/bin/env python3
"""A small GPT trains with torch.compile(mode="reduce-overhead") and mode="max-autotune": the losses are those with PyTorch's own allocator,
to the last bit, though all memory sleeps and wakes between steps, that of the captured graphs included.

Both allocators share a folder of compiled kernels: tuning again could choose kernels that round differently. It needs PyTorch with CUDA
and Triton, 8 GiB of a GPU and about 90 s.
"""

import argparse
import concurrent.futures
import json
import tempfile
from typing import Any

import training
from harness import Checks, Failed, child, environment, say, start
from train_gpt2 import gpt2
from training import DEVICE, NATIVE, VMM

MODES = ("reduce-overhead", "max-autotune")
LAYERS, HEADS, WIDTH, VOCABULARY = 1, 4, 256, 512
BATCH, LENGTH = 8, 128
SLEEPS = (50, 51, 120)
# Tuning Triton's products of matrices would take minutes; all else is tuned.
BACKENDS = {"TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "ATEN"}


def work(who: str, mode: str, steps: int) -> dict[str, Any]:
    vmm = training.enable(who)
    import torch
    from torch._dynamo.utils import counters
    from torch.nn.attention import SDPBackend, sdpa_kernel

    # PyTorch's deterministic algorithms would keep some functions out of graphs. This model is deterministic without.
    torch.manual_seed(3)
    torch.set_float32_matmul_precision("highest")
    with torch.device(DEVICE):
        model = gpt2(torch, LAYERS, HEADS, WIDTH, VOCABULARY, one_hot=True)
    compiled = torch.compile(model, mode=mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draws = torch.Generator().manual_seed(3)
    losses = torch.zeros(steps, device=DEVICE)
    slept = 0
    with sdpa_kernel(SDPBackend.MATH):
        for step in range(steps):
            tokens = (torch.rand((BATCH, LENGTH + 1), generator=draws) ** 4 * VOCABULARY).long().to(DEVICE)
            torch.compiler.cudagraph_mark_step_begin()
            loss = compiled(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses[step] = loss.detach()
            if vmm and step in SLEEPS:
                slept += vmm.sleep()
                vmm.wake()
    skips = int(counters["inductor"]["cudagraph_skips"])
    from torch._inductor.cudagraph_trees import get_container

    manager = get_container(torch.cuda.current_device()).tree_manager
    return {
        "losses": training.bits(torch, losses),
        "falls": bool(losses[-1] < losses[0]),
        "skips": skips,
        "graphs": manager is not None and manager.new_graph_id().id >= 2,
        "slept": slept,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="training steps (default: %(default)s)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        who, mode = given.worker
        print(json.dumps(work(who, mode, given.steps)), flush=True)
        return 0
    checks = Checks()

    def both(mode: str) -> dict[str, Any]:
        results: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as kernels:
            for who in (NATIVE, VMM):
                say(mode, who)
                variables = environment(None, TORCHINDUCTOR_CACHE_DIR=kernels, **BACKENDS)
                try:
                    results[who] = child(__file__, ["--worker", who, mode, "--steps", given.steps], variables, timeout=100)
                except Failed as failed:
                    checks.check(f"{mode} on {who} completes", "no failure", str(failed), False)
        return results

    with concurrent.futures.ThreadPoolExecutor() as threads:
        found = dict(zip(MODES, threads.map(both, MODES)))
    for mode, results in found.items():
        if len(results) < 2:
            continue
        native, ours = results[NATIVE], results[VMM]
        seen = training.differences(ours["losses"], native["losses"])
        checks.equal(f"{mode}: losses, gpu-vmm to native", f"all {given.steps} equal", seen)
        for who, found in results.items():
            checks.equal(f"{mode}: the loss falls on {who}", True, found["falls"])
            checks.equal(f"{mode}: graphs are captured on {who}", (True, native["skips"]), (found["graphs"], found["skips"]))
        checks.check(f"{mode}: memory that has slept", "some", ours["slept"], ours["slept"] > 0)
    return checks.end()


if __name__ == "__main__":
    start(main)
