#!/usr/bin/env python3
"""A small GPT trains with torch.compile(mode="reduce-overhead") and mode="max-autotune": losses and weights are those with PyTorch's own
allocator, to the last bit, though all memory sleeps and wakes between steps, that of the captured graphs included.

All runs share a folder of compiled kernels: tuning again could choose kernels that round differently. The sum of a loss may still differ
in its last bits between two runs with PyTorch's own allocator, so that trains three times: gpu-vmm's losses may be no further from the
nearest of these runs than two of them are from each other. The weights must be the same if those of the three runs are. It needs PyTorch
with CUDA and Triton, 8 GiB of a GPU and about 2 minutes.
"""

import argparse
import concurrent.futures
import itertools
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


NATIVES = (NATIVE, "native again", "native once more")


def apart(mine: list[str], theirs: list[str]) -> int:
    """Returns the largest distance of two losses of the same step, in units of the last bit."""
    return max(abs(int(a, 16) - int(b, 16)) for a, b in zip(mine, theirs))


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
        "weights": training.digest(model),
        "falls": bool(losses[-1] < losses[0]),
        "skips": skips,
        "graphs": manager is not None and manager.new_graph_id().id >= 2,
        "slept": slept,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="training steps (default: %(default)s)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="the modes; both without")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        who, mode = given.worker
        print(json.dumps(work(who, mode, given.steps)), flush=True)
        return 0
    checks = Checks()

    def all_of(mode: str) -> dict[str, Any]:
        results: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as kernels:

            def run(who: str) -> None:
                say(mode, who)
                variables = environment(None, TORCHINDUCTOR_CACHE_DIR=kernels, **BACKENDS)
                words = ["--worker", VMM if who == VMM else NATIVE, mode, "--steps", given.steps]
                try:
                    results[who] = child(__file__, words, variables, timeout=100)
                except Failed as failed:
                    checks.check(f"{mode} on {who} completes", "no failure", str(failed), False)

            # The first one fills the folder of kernels.
            run(NATIVE)
            with concurrent.futures.ThreadPoolExecutor() as threads:
                list(threads.map(run, (*NATIVES[1:], VMM)))
        return results

    with concurrent.futures.ThreadPoolExecutor() as threads:
        found = dict(zip(given.modes, threads.map(all_of, given.modes)))
    for mode, results in found.items():
        # A run that has failed is reported already.
        if results.keys() != {*NATIVES, VMM}:
            continue
        natives, ours = [results[who] for who in NATIVES], results[VMM]
        native = natives[0]
        if all(one["weights"] == native["weights"] for one in natives):
            checks.equal(f"{mode}: weights at the end, gpu-vmm to native", native["weights"][:16], ours["weights"][:16])
        limit = max(apart(one["losses"], other["losses"]) for one, other in itertools.combinations(natives, 2))
        nearest = min(natives, key=lambda one: apart(ours["losses"], one["losses"]))
        seen, said = apart(ours["losses"], nearest["losses"]), training.differences(ours["losses"], nearest["losses"])
        checks.check(f"{mode}: losses, gpu-vmm to native", f"at most {limit} units in the last place apart", f"{seen}, {said}", seen <= limit)
        for who, result in results.items():
            checks.equal(f"{mode}: the loss falls on {who}", True, result["falls"])
            checks.equal(f"{mode}: graphs are captured on {who}", (True, native["skips"]), (result["graphs"], result["skips"]))
        checks.check(f"{mode}: memory that has slept", "some", ours["slept"], ours["slept"] > 0)
    return checks.end()


if __name__ == "__main__":
    start(main)
