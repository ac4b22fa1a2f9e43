"""Training by turns on PyTorch's allocators and on gpu-vmm: the same steps in a process for each, and a comparison of their results.

- Each allocator trains in its own process: PyTorch's native one, PyTorch's with expandable segments, and gpu-vmm by
  gpu_vmm.torch.enable(). Each round runs all three one after another and begins with another one each time.
- PyTorch's deterministic algorithms are on, and newly allocated memory is not filled, so that reads of it would change the results.
- The time of a step is the wall-clock time from one torch.cuda.synchronize() to the next one. The result is the median of the
  quotients of two allocators' times for the same step of the same round, which ignores rare slow steps. The table also shows the sum
  of the times after the warm-up, which includes them.
- The peak held is torch.cuda.max_memory_reserved(), for gpu-vmm stats()["peak_held"]. The table also shows the memory in use at the end
  as the driver reports it, which includes CUDA's own. Asked is the most that the tensors took at one time.
- If GPU_VMM_GPU_TURNS names a file, several comparisons may run at once on one GPU: each process has the GPU for itself from enable() to
  its end, and the others import their modules and create their data meanwhile, which takes longer than short trainings.
"""

import argparse
import ctypes
import gc
import hashlib
import importlib
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import GIB, MIB, Checks, Failed, child, environment, gpu_vmm, say, table

DEVICE = "cuda"
NATIVE, EXPANDABLE, VMM = "native", "expandable", "gpu-vmm"
CONF = {NATIVE: None, EXPANDABLE: "expandable_segments:True", VMM: None}
# The driver calls that are counted.
CALLS = ("create", "map", "set_access", "unmap")
# cuBLAS is deterministic with this workspace alone.
VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# Names the file by which the processes of several comparisons take turns with one GPU, as described above.
TURNS = "GPU_VMM_GPU_TURNS"
_turn: Any = None


def take_turn() -> None:
    """Waits until no other process has the turn. This one has it until it ends."""
    global _turn
    if _turn is None and os.environ.get(TURNS):
        import fcntl

        _turn = open(os.environ[TURNS], "a", encoding="utf-8")
        fcntl.flock(_turn, fcntl.LOCK_EX)


def recorder() -> Any:
    """Returns the module that records allocations as a trace for `gpu-vmm replay` and compare.py."""
    sys.path.append(str(Path(__file__).resolve().parents[3] / "benches" / "pytorch"))
    return importlib.import_module("record")


def settings(who: str) -> dict[str, int]:
    """Returns the settings in a name of gpu-vmm with some, like "gpu-vmm page=8,slack=1": the page is in MiB."""
    found = {name: int(value) for name, value in (word.split("=") for word in who.removeprefix(VMM).split(",") if word)}
    return {name.strip(): value * (MIB if name.strip() == "page" else 1) for name, value in found.items()}


def enable(who: str, trace: str | None = None, **more: bool) -> Any:
    """Selects the allocator of this process, and records its allocations if a trace is wanted. Returns gpu_vmm.torch, or None for
    PyTorch's own. From here on, the process may use the GPU. `more` are further settings of gpu-vmm."""
    take_turn()
    if trace:
        recorder().begin(importlib.import_module("torch"))
    if not who.startswith(VMM):
        return None
    vmm = gpu_vmm("torch")
    with warnings.catch_warnings():
        # Without the allocator class the results would be those of PyTorch's hook.
        warnings.filterwarnings("error", r"gpu_vmm\.torch\.enable", RuntimeWarning)
        try:
            vmm.enable(**settings(who), **more)
        except RuntimeWarning as warning:
            raise Failed(str(warning)) from None
    return vmm


def deterministic(torch: Any, seed: int) -> None:
    """Makes the results of this process depend on the seed alone."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.set_float32_matmul_precision("highest")  # no TF32


def bits(torch: Any, losses: Any) -> list[str]:
    """Returns the bits of single-precision numbers, as text."""
    return [f"{number & 0xFFFFFFFF:08x}" for number in losses.cpu().view(torch.int32).tolist()]


def digest(model: Any) -> str:
    """Returns a digest of the weights of this process."""
    made = hashlib.sha256()
    for weights in model.parameters():
        local = weights.to_local() if hasattr(weights, "to_local") else weights  # of FSDP2
        on_host = local.detach().cpu().contiguous()
        made.update(ctypes.string_at(on_host.data_ptr(), on_host.nbytes))
    return made.hexdigest()


def differences(mine: Sequence[object], theirs: Sequence[object]) -> str:
    """Returns "all N equal", or the number of numbers that differ and the first of them."""
    different = [step for step, (a, b) in enumerate(zip(mine, theirs)) if a != b]
    if len(mine) != len(theirs):
        return f"{len(mine)} for {len(theirs)} numbers"
    if not different:
        return f"all {len(mine)} equal"
    first = different[0]
    return f"{len(different)} differ, first at step {first} ({mine[first]} for {theirs[first]})"


def train(torch: Any, who: str, vmm: Any, model: Any, steps: int, step: Callable[[int], Any], trace: str | None = None) -> dict[str, Any]:
    """Runs the steps, each of which returns its loss, and returns all figures. Writes the trace if `enable` has begun one."""
    losses = torch.zeros(steps, device=DEVICE)
    times: list[float] = []
    calls: list[list[int]] = []  # of the driver, by gpu-vmm, until the end of each step
    gc.collect()
    gc.disable()
    torch.cuda.synchronize()
    for number in range(steps):
        start = time.perf_counter()
        losses[number] = step(number)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        if vmm:
            made = vmm.stats()["driver_calls"]
            calls.append([made[kind] for kind in CALLS])
        if (number + 1) % 50 == 0:
            say(f"{who}: {number + 1} steps, the last one took {times[-1] * 1e3:.1f} ms")
    gc.enable()
    if trace:
        recorder().write(torch, trace, f"{Path(sys.argv[0]).stem}, {steps} steps")

    free, total = torch.cuda.mem_get_info()
    if vmm:
        stats = vmm.stats()
        held = stats["peak_held"]
        say(f"{who}: {stats}")
    else:
        held = torch.cuda.max_memory_reserved()
        expandable = any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
        if expandable != (who == EXPANDABLE):
            raise Failed(f"PyTorch should use its {who} allocator, but expandable segments are {'on' if expandable else 'off'}")
    return {
        "losses": bits(torch, losses),
        "shown": [losses[0].item(), losses[-1].item()],
        "finite": bool(losses.isfinite().all()),
        "weights": digest(model),
        "times": times,
        "calls": calls,
        "held": held,
        "asked": torch.cuda.memory_stats()["requested_bytes.all.peak"],
        "used": total - free,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def parser(description: str, steps: int) -> argparse.ArgumentParser:
    """Returns a parser of the options that all trainings share."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--steps", type=int, default=steps, help="training steps (default: %(default)s)")
    made.add_argument("--warm-up", type=int, default=10, help="steps whose times do not count (default: %(default)s)")
    made.add_argument("--rounds", type=int, default=2, help="runs of each allocator (default: %(default)s)")
    made.add_argument("--seed", type=int, default=1234, help="of weights, data and shapes (default: %(default)s)")
    made.add_argument("--most", type=float, default=1.02, help="the largest accepted quotient of times (default: %(default)s)")
    made.add_argument("--json", metavar="FILE", help="the file to write all figures to")
    made.add_argument("--trace", metavar="FILE", help="the file to write a trace to, of the native allocator's first run")
    also = "gpu-vmm with other settings as well, such as page=8,slack=1 (MiB, %%)"
    made.add_argument("--also", metavar="SETTINGS", action="append", default=[], help=also)
    made.add_argument("--others", type=int, help="runs of the native allocator and of other settings (default: as many as of the others)")
    made.add_argument("--seconds", type=float, default=float("inf"), help="the time after which no further round begins (default: none)")
    made.add_argument("--worker", help=argparse.SUPPRESS)
    return made


def by_turns(
    rounds: int, run: Callable[[str], Any], checks: Checks, every: Sequence[str] = tuple(CONF), fewer: dict[str, int] | None = None,
    seconds: float = float("inf"),
) -> dict[str, list[Any]]:  # fmt: skip
    """Runs all allocators in each round, another one first each time; those in `fewer` in that many rounds only. One that fails is a
    failed check and runs no more. No further round begins once `seconds` are over."""
    results: dict[str, list[Any]] = {}
    players = list(every)
    begun = time.monotonic()
    for number in range(rounds):
        if time.monotonic() - begun > seconds:
            say(f"no time for round {number + 1}")
            break
        turn = number % len(every)
        for who in [*every[turn:], *every[:turn]]:
            if who not in players or number >= (fewer or {}).get(who, rounds):
                continue
            say(f"round {number + 1} of {rounds}: {who}")
            try:
                results.setdefault(who, []).append(run(who))
            except Failed as failed:
                players.remove(who)
                checks.check(f"{who} completes", "no failure", str(failed), False)
    return {who: results[who] for who in every if results.get(who)}


def compare(script: str, title: str, given: argparse.Namespace, words: Sequence[object]) -> int:
    """Trains by turns in processes of the script, prints the results, and returns the exit status."""
    if given.trace and given.others == 0:
        raise SystemExit("--trace needs a run of the native allocator: --others is 0")
    checks = Checks()
    shared = ["--steps", given.steps, "--warm-up", given.warm_up, "--seed", given.seed]
    every = [*CONF, *(f"{VMM} {also}" for also in given.also)]
    results: dict[str, list[Any]] = {}

    def run(who: str) -> Any:
        more = [] if who in results else ["--trace", given.trace] if given.trace and who == NATIVE else []
        # A process may have to wait for its turn.
        timeout = 3600 if os.environ.get(TURNS) else 240
        done = child(script, ["--worker", who, *shared, *words, *more], environment(CONF.get(who), **VARIABLES), timeout)
        say(f"{who}: {sum(done['times']):.1f} s in steps, {done['held'] / GIB:.2f} GiB held at the peak")
        results.setdefault(who, []).append(done)
        if given.json:
            # After each run, so that a script that is ended leaves what it has.
            Path(given.json).write_text(json.dumps(results), encoding="utf-8")
        return done

    others = given.rounds if given.others is None else given.others
    fewer = {who: others for who in every if who not in (EXPANDABLE, VMM)}
    in_turn = by_turns(given.rounds, run, checks, every, fewer, given.seconds)
    if in_turn:
        judge(in_turn, title, given, checks)
    return checks.end()


def judge(results: dict[str, list[dict[str, Any]]], title: str, given: argparse.Namespace, checks: Checks) -> None:
    """Prints the table and checks the results."""
    warm = given.warm_up
    sums = {who: [sum(run["times"][warm:]) for run in runs] for who, runs in results.items()}

    def quotients(who: str) -> list[float]:
        pairs = zip(results[who], results[EXPANDABLE])
        return [a / b for mine, theirs in pairs for a, b in zip(mine["times"][warm:], theirs["times"][warm:])]

    rows = []
    for who, runs in results.items():
        steps = sorted(took * 1e3 for run in runs for took in run["times"][warm:])
        row = [who, f"{statistics.median(steps):.2f}", f"{steps[len(steps) * 99 // 100]:.2f}", f"{statistics.median(sums[who]):.3f}"]
        row.append(f"{statistics.median(quotients(who)):.4f}" if results.get(EXPANDABLE) else "-")
        row += [f"{max(run[key] for run in runs) / MIB:.0f}" for key in ("asked", "held", "used")]
        rows.append([*row, f"{runs[0]['shown'][0]:.6f}", f"{runs[0]['shown'][1]:.6f}"])
    first = next(iter(results.values()))[0]
    print(
        f"\n{first['device']}, PyTorch {first['torch']}: {title}, {given.steps} steps ({warm} of them warm-up), "
        f"{max(map(len, results.values()))} rounds, seed {given.seed}"
    )
    memory = ("asked, MiB", "peak held, MiB", "in use, MiB")
    head = ("allocator", "step, ms", "99 %, ms", "sum, s", "to expandable", *memory, "first loss", "last loss")
    print(table(head, rows) + "\n")

    for who, runs in results.items():
        checks.equal(f"{who}: all losses are numbers", True, all(run["finite"] for run in runs))
        # Losses and weights would also be equal if no kernel had run.
        falls = all(0 < run["shown"][1] < run["shown"][0] for run in runs)
        checks.check(f"{who}: the loss falls", "from above 0", runs[0]["shown"], falls)
    if not all(who in results for who in CONF):
        checks.check("all allocators ran", ", ".join(CONF), ", ".join(results), False)
    base_name, base = next((who, results[who][0]) for who in CONF if who in results)
    for who, runs in results.items():
        for number, run in enumerate(runs):
            if run is base:
                continue
            what = f"losses of {who}, round {number + 1}, equal those of {base_name}"
            checks.equal(what, f"all {given.steps} equal", differences(run["losses"], base["losses"]))
            checks.equal("its weights at the end are equal", base["weights"][:16], run["weights"][:16])
    if VMM not in results or EXPANDABLE not in results:
        return
    ratio = statistics.median(quotients(VMM))
    by_round = [
        statistics.median(a / b for a, b in zip(mine["times"][warm:], theirs["times"][warm:]))
        for mine, theirs in zip(results[VMM], results[EXPANDABLE])
    ]
    seen = f"{ratio:.4f} (rounds: {', '.join(f'{of:.4f}' for of in by_round)})"
    checks.check("a step's time, gpu-vmm to expandable", f"at most {given.most}", seen, ratio <= given.most)
    mine, theirs = (max(run["held"] for run in results[who]) for who in (VMM, EXPANDABLE))
    seen = f"{mine / MIB:.1f} MiB ({mine / theirs:.4f} of it)"
    checks.check("peak held, gpu-vmm to expandable", f"at most {theirs / MIB:.1f} MiB", seen, mine <= theirs)


def main(
    script: str, title: str, given: argparse.Namespace, work: Callable[[str, argparse.Namespace], Any], words: Sequence[object]
) -> int:
    """Runs a training script: as one allocator's process, or as the comparison of all."""
    if given.rounds < 1 or not 0 <= given.warm_up < given.steps:
        raise Failed("at least 1 round, and more steps than warm-up")
    if given.worker:
        print(json.dumps(work(given.worker, given)), flush=True)
        return 0
    return compare(script, title, given, words)
