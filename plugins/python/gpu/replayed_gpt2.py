#!/usr/bin/env python3
"""GPT-2 124M trains on PyTorch's own allocator, which writes a memory snapshot, and on gpu-vmm: `gpu-vmm replay` of the snapshot tells
the memory that the run with gpu-vmm holds, within 3 percent.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/gpu/replayed_gpt2.py \\
        --command target/release/gpu-vmm

It needs PyTorch with CUDA, 16 GiB of a GPU, the command gpu-vmm and about 60 s; no network. It compares as well:

- what the snapshot says about PyTorch's allocator with torch.cuda.max_memory_reserved() and the requested bytes of memory_stats();
- the losses of both runs;
- a snapshot whose ring is too short for the whole training: weights and optimizer states exist before its first entry.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import train_gpt2
import training
from harness import MIB, Checks, Failed, child, environment, say, start
from training import DEVICE, NATIVE, VARIABLES, VMM

# The largest accepted difference between the replay and the run.
LIMIT = 0.03
# The entries of a few steps.
SHORT = 10_000


def work(who: str, given: argparse.Namespace) -> dict[str, Any]:
    """Trains in this process, and writes the snapshot of PyTorch's allocator if a file is given."""
    import torch

    if given.snapshot:
        torch.cuda.init()
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=given.entries)
    vmm = training.enable(who)
    training.deterministic(torch, given.seed)
    batches = train_gpt2.batches_of(torch, given.seed, given.steps)
    with torch.device(DEVICE):
        model = train_gpt2.gpt2(torch)
    step = train_gpt2.step_of(torch, model, train_gpt2.optimizer_of(torch, model), batches)
    with train_gpt2.attention_of("flash"):
        results = training.train(torch, who, vmm, model, given.steps, step)
    if given.snapshot:
        torch.cuda.memory._dump_snapshot(given.snapshot)
    return results | {"parameters": sum(1 for _ in model.parameters())}


def replay(given: argparse.Namespace, snapshot: Path, *options: str) -> dict[str, Any]:
    """Returns the report of `gpu-vmm replay`."""
    command = [given.command, "replay", str(snapshot), "--backend", given.backend, "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"exit status {done.returncode}, see above: {' '.join(command)}")
    return dict(json.loads(done.stdout))


def near(mine: int, theirs: int) -> bool:
    return abs(mine - theirs) <= LIMIT * theirs


def compare(given: argparse.Namespace, folder: Path) -> int:
    checks = Checks()
    shared = ["--steps", given.steps, "--seed", given.seed]

    def train(who: str, *words: object) -> dict[str, Any]:
        return child(__file__, ["--worker", who, *shared, *words], environment(**VARIABLES), 300)

    whole, short, drawn = folder / "whole.pickle", folder / "short.pickle", folder / "pool.json"
    native = train(NATIVE, "--snapshot", whole)
    cut = train(NATIVE, "--snapshot", short, "--entries", SHORT)
    mine = train(VMM)
    report = replay(given, whole, "--snapshot", str(drawn))
    recorded = report["recorded"]
    say(f"{native['device']}, PyTorch {native['torch']}: {whole.stat().st_size / MIB:.1f} MiB of snapshot")
    for name, held in (("PyTorch", native["held"]), ("gpu-vmm", mine["held"]), ("the replay", report["peak_held"])):
        print(f"{name:<12}{held:>16} bytes held at the peak, {held / MIB:.1f} MiB", flush=True)
    checks.check(
        "the replay's peak held, to the run's with gpu-vmm",
        f"within {LIMIT:.0%} of {mine['held']}",
        f"{report['peak_held']} ({report['peak_held'] / mine['held']:.4f} of it)",
        near(report["peak_held"], mine["held"]),
    )
    checks.equal("PyTorch's peak held, by the snapshot", native["held"], recorded["peak_held"])
    # The replay counts a block from its free to its reuse as freed, PyTorch's statistics as requested.
    asked = f"{report['peak_asked']} ({report['peak_asked'] / native['asked']:.4f} of it)"
    checks.check("the peak requested", f"within {LIMIT:.0%} of {native['asked']}", asked, near(report["peak_asked"], native["asked"]))
    checks.equal("blocks before the first entry of a whole snapshot", 0, recorded["blocks_before"])
    checks.equal("entries of an unknown kind", [], recorded["unknown"])
    checks.equal("losses", f"all {given.steps} equal", training.differences(mine["losses"], native["losses"]))
    moments = json.loads(drawn.read_text(encoding="utf-8"))["replay"]["moments"]
    checks.equal("PyTorch's peak held, drawn", native["held"], max(moment["recorded"] for moment in moments))

    report = replay(given, short)
    # Each parameter has two states of the optimizer.
    before, least = report["recorded"]["blocks_before"], 3 * cut["parameters"]
    checks.check("blocks before the first entry of a short snapshot", f"at least {least}", before, before >= least)
    ratio = report["peak_held"] / report["peak_asked"]
    checks.check("held over requested, of a short snapshot", "1 to 1.1", f"{ratio:.4f}", 1 <= ratio <= 1.1)
    return checks.end()


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares `gpu-vmm replay` of PyTorch's memory snapshot with a run on gpu-vmm.")
    parser.add_argument("--command", default="target/release/gpu-vmm", help="the command gpu-vmm (default: %(default)s)")
    parser.add_argument("--backend", default="cuda", help="the backend of the replay (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="training steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1234, help="of weights, data and shapes (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="an existing folder for the snapshots")
    parser.add_argument("--entries", type=int, default=10_000_000, help=argparse.SUPPRESS)
    parser.add_argument("--snapshot", help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(work(given.worker, given)), flush=True)
        return 0
    if given.keep:
        return compare(given, given.keep)
    with tempfile.TemporaryDirectory() as folder:
        return compare(given, Path(folder))


if __name__ == "__main__":
    start(main)
