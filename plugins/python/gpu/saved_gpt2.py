#!/usr/bin/env python3
"""GPT-2 124M is saved in the middle of its training with gpu_vmm.torch.save, and a new process continues with gpu_vmm.torch.restore: the
tensors are at their addresses, and the losses and the weights are those of an unbroken training, to the last bit.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/gpu/saved_gpt2.py

It needs PyTorch with CUDA, 16 GiB of a GPU, 2 GiB of disk and about a minute; no network: the weights and the tokens are random, from a
seed. Three processes run: one trains all steps, one trains the first half and saves, and one restores and trains the second half.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from typing import Any

import training
from harness import GIB, Checks, child, environment, say, start
from train_gpt2 import attention_of, batches_of, gpt2, optimizer_of, step_of
from training import DEVICE

WHOLE, SAVE, RESTORE = "whole", "save", "restore"


def addresses(model: Any, optimizer: Any) -> dict[str, int]:
    """Returns the addresses of the weights and of the tensors that the optimizer keeps for each."""
    found = {}
    for name, weights in model.named_parameters():
        found[name] = weights.data_ptr()
        state = optimizer.state.get(weights, {})
        found.update((f"{name} {key}", one.data_ptr()) for key, one in state.items() if one.device.type == DEVICE)
    return found


def work(part: str, given: argparse.Namespace) -> dict[str, Any]:
    """Trains a part of the steps in this process."""
    import torch

    vmm = training.enable(training.VMM, restorable=part != RESTORE)
    training.deterministic(torch, given.seed)
    batches = batches_of(torch, given.seed, given.steps)
    half, done = given.steps // 2, {"seconds": 0.0}
    began = time.perf_counter()
    if part == RESTORE:
        found = vmm.restore(given.file)
        done["seconds"] = time.perf_counter() - began
        with torch.device("meta"):
            model = gpt2(torch)
        model.load_state_dict(found["model"], assign=True)
        optimizer = optimizer_of(torch, model)
        optimizer.load_state_dict(found["optimizer"])
        torch.cuda.set_rng_state(found["random"])
        first, last = found["step"], given.steps
        del found
    else:
        with torch.device(DEVICE):
            model = gpt2(torch)
        optimizer = optimizer_of(torch, model)
        first, last = 0, given.steps if part == WHOLE else half
    at_begin = addresses(model, optimizer)
    losses = torch.zeros(last - first, device=DEVICE)
    step = step_of(torch, model, optimizer, batches)
    with attention_of(given.attention):
        for number in range(first, last):
            losses[number - first] = step(number)
    torch.cuda.synchronize()
    at_end = addresses(model, optimizer)
    if part == SAVE:
        began = time.perf_counter()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.cuda.get_rng_state(), "step": last}
        vmm.save(given.file, state)
        done["seconds"] = time.perf_counter() - began
        del state
    # The memory of a restored tensor serves other requests after its end.
    live = vmm.stats()["live_blocks"]
    weights = training.digest(model)
    del model, optimizer, step
    gc.collect()
    return {
        **done,
        "losses": training.bits(torch, losses),
        "shown": [losses[0].item(), losses[-1].item()],
        "weights": weights,
        "at_begin": at_begin,
        "at_end": at_end,
        "freed": live - vmm.stats()["live_blocks"],
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def judge(runs: dict[str, dict[str, Any]], size: int, given: argparse.Namespace) -> int:
    """Prints the results, checks them, and returns the exit status."""
    whole, saved, restored = (runs[part] for part in (WHOLE, SAVE, RESTORE))
    half = given.steps // 2
    first, last = whole["shown"]
    print(
        f"\n{whole['device']}, PyTorch {whole['torch']}: GPT-2 124M, {given.attention} attention, {given.steps} steps, seed {given.seed}\n"
        f"loss {first:.6f} to {last:.6f}; the file of {size / GIB:.2f} GiB was saved in {saved['seconds']:.1f} s and restored in "
        f"{restored['seconds']:.1f} s\n"
    )
    checks = Checks()
    # Losses would also be equal if no kernel had run.
    checks.check("the loss falls", "from above 0", whole["shown"], 0 < last < first)
    seen = training.differences(saved["losses"], whole["losses"][:half])
    checks.equal("losses before the save", f"all {half} equal", seen)
    seen = training.differences(restored["losses"], whole["losses"][half:])
    checks.equal("losses after the restore", f"all {given.steps - half} equal", seen)
    checks.equal("weights at the end", whole["weights"][:16], restored["weights"][:16])
    count = len(saved["at_end"])
    checks.check("tensors of the weights and the optimizer", "more than 400", count, count > 400)
    for when in "at_begin", "at_end":
        moved = [name for name, address in saved["at_end"].items() if restored[when].get(name) != address]
        checks.equal(f"tensors elsewhere {when.replace('_', ' the ')} of the continued training", [], moved[:3])
    checks.check("restored tensors free their memory", f"{count} blocks or more", restored["freed"], restored["freed"] >= count)
    return checks.end()


def main() -> int:
    parser = argparse.ArgumentParser(description="GPT-2 124M is saved, restored in a new process, and continues to the same losses.")
    parser.add_argument("--steps", type=int, default=100, help="training steps, of which half are before the save (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1234, help="of weights, data and shapes (default: %(default)s)")
    parser.add_argument("--attention", choices=("flash", "math"), default="flash", help="both are deterministic (default: %(default)s)")
    parser.add_argument("--hook", action="store_true", help="PyTorch's hook for foreign allocators instead of the allocator class")
    parser.add_argument("--folder", help="where the file is written (default: the folder for temporary files)")
    parser.add_argument("--worker", choices=(WHOLE, SAVE, RESTORE), help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps < 2:
        parser.error("--steps: at least 2")
    if given.worker:
        print(json.dumps(work(given.worker, given)), flush=True)
        return 0
    variables = environment(**training.VARIABLES, **({"GPU_VMM_TORCH_CLASS": "off"} if given.hook else {}))
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        file = os.path.join(folder, "gpt2.pool")
        runs = {}
        for part in (WHOLE, SAVE, RESTORE):
            say(part)
            words = ["--worker", part, "--file", file, "--steps", given.steps, "--seed", given.seed, "--attention", given.attention]
            runs[part] = child(sys.argv[0], words, variables, timeout=300)
        return judge(runs, os.path.getsize(file), given)


if __name__ == "__main__":
    start(main)
