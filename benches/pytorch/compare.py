#!/usr/bin/env python3
"""Replays allocation traces through PyTorch's allocators and through the pool, in turn on one GPU, and prints one table.

    cargo build --release
    python3 benches/pytorch/compare.py [TRACES]

TRACES is a folder of *.trace.gz, by default benches/pytorch/traces, which record.py recorded. The script needs PyTorch with CUDA, a
C++ compiler and ninja for PyTorch's side (replay.cpp, built once into its own folder), and the command gpu-vmm; no network.

A trace has one event per line. `a ID BYTES STREAM` allocates a block, at `f ID` the owner frees it, and at `r ID` the streams
that used it have finished. The latter two coincide unless another stream than the block's own was recorded on it.

The two sides:

- PyTorch by c10::cuda::CUDACachingAllocator::raw_alloc_with_stream and raw_delete: its times include no Python and no tensor.
  Nothing runs on the GPU. So an event that PyTorch recorded for another stream (record_stream) would complete at once, and
  memory would be reusable earlier than in the traced program. Therefore PyTorch's side frees at `r`, when that program could
  reuse the memory, and needs no events. Frees at `f` that wait for `r` would cost it more.
- The pool by `gpu-vmm replay`, which frees at `f` and keeps the memory waiting until `r`. `--pages 4MiB,16MiB` adds pools with pages
  of these sizes.

Each round is a process of its own that replays a trace three times: cold, for the peak of the held memory and the time of a
process's first pass; warm, for the total time of all allocations and frees; and warm with a clock around each call, for the
medians of an allocation and of a free, and the time within which 999 of 1000 allocations end. The sum of the medians is the pair,
without the cost of reading the clock. Blocks that the trace leaves are freed after each replay, untimed. The times are the medians
of the rounds. Each allocator runs once per round, in changing order.
"""

import argparse
import array
import ctypes
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXTENSION = "gpu_vmm_replay"
POOL = "pool"
# PyTorch's settings in its environment.
PYTORCH = {
    "native": "expandable_segments:False",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}
# What is measured in each round.
MEASURED = ("cold_ns", "total_ns", "pair_ns", "p999_ns", "held")


class Failed(Exception):
    """The error that ends the comparison."""


def read_trace(path):
    """Returns the events for PyTorch's side, three numbers each, the numbers of blocks and streams, and the largest total
    size of live blocks."""
    events = array.array("q")
    sizes, freed = {}, set()
    live = peak = 0
    blocks = streams = 1
    with gzip.open(path, "rt", encoding="ascii") as lines:
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            try:
                kind, *numbers = words
                numbers = [int(word) for word in numbers]
                if min(numbers) < 0:
                    raise ValueError
                if kind == "a":
                    block, size, stream = numbers
                    if block in sizes:
                        raise ValueError
                    sizes[block] = size
                    live += size
                    peak = max(peak, live)
                    blocks, streams = max(blocks, block + 1), max(streams, stream + 1)
                    events.extend((stream, block, size))
                elif kind == "f":
                    (block,) = numbers
                    live -= sizes[block]
                    sizes[block] = None  # a second time is a TypeError
                    freed.add(block)
                elif kind == "r":
                    (block,) = numbers
                    freed.remove(block)  # freed before, and once
                    events.extend((-1, block, 0))
                else:
                    raise ValueError
            except (ValueError, KeyError, TypeError):
                raise Failed(f"{path}, line {number}: {line.strip()!r} is not a valid event here") from None
    if len(events) == 3 * len(sizes):
        raise Failed(f"{path} has no `a ID BYTES STREAM` with an `f ID` and an `r ID`")
    return events, blocks, streams, peak


def build(directory):
    """Compiles PyTorch's side, and returns the library's path."""
    try:
        from torch.utils import cpp_extension
    except ImportError as error:
        raise Failed(f"PyTorch is needed: {error}") from None
    directory.mkdir(parents=True, exist_ok=True)
    print(f"building replay.cpp in {directory}", file=sys.stderr)
    try:
        cpp_extension.load(
            name=EXTENSION,
            sources=[str(HERE / "replay.cpp")],
            extra_cflags=["-O3"],
            build_directory=str(directory),
            with_cuda=True,
            is_python_module=False,
        )
    except (RuntimeError, OSError) as error:
        raise Failed(f"replay.cpp cannot be built, which needs a C++ compiler, ninja and CUDA's headers: {error}") from None
    return directory / f"{EXTENSION}.so"


def play(library, which, events_file, blocks, streams):
    """Runs one round of PyTorch in this process, for `--play`."""
    import torch

    torch.cuda.init()
    replay = ctypes.CDLL(library)
    replay.cost_of_asking.restype = replay.replay_round.restype = ctypes.c_int64
    replay.replay_round.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    events = array.array("q", Path(events_file).read_bytes())
    count = len(events) // 3
    nanos = array.array("q", bytes(8 * count))

    def once(times):
        took = replay.replay_round(events.buffer_info()[0], count, blocks, streams, times)
        if took < 0:
            raise Failed(f"PyTorch's {which} allocator failed on the trace")
        return took

    cold = once(None)
    held = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    # Check that PyTorch has applied the environment.
    backend = torch.cuda.get_allocator_backend()
    found = "async" if backend == "cudaMallocAsync" else backend
    if backend == "native" and any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot()):
        found = "expandable"
    if found != which:
        raise Failed(f"PyTorch should use its {which} allocator, but uses {found}")
    total = once(None)
    once(nanos.buffer_info()[0])
    cost = replay.cost_of_asking()
    allocations, frees = (
        sorted(max(took - cost, 0) for took, stream in zip(nanos, events[::3]) if (stream < 0) == is_free)
        for is_free in (False, True)
    )
    return {
        "cold_ns": cold,
        "total_ns": total,
        "pair_ns": statistics.median(allocations) + statistics.median(frees),
        "p999_ns": allocations[-(-len(allocations) * 999 // 1000) - 1],
        "held": held,
        "device": torch.cuda.get_device_name(),
    }


def run(command, environment=None):
    """Runs a program and returns its JSON output."""
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    except OSError as error:
        raise Failed(f"{command[0]} cannot be run: {error}") from None
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}")
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise Failed(f"{' '.join(map(str, command))} printed no JSON: {error}") from None


def play_pytorch(library, which, events_file, blocks, streams):
    # The name was PYTORCH_CUDA_ALLOC_CONF before PyTorch 2.9.
    environment = dict(os.environ, PYTORCH_ALLOC_CONF=PYTORCH[which], PYTORCH_CUDA_ALLOC_CONF=PYTORCH[which])
    command = [sys.executable, str(Path(__file__).resolve()), "--play", str(library), which, str(events_file)]
    return run([*command, str(blocks), str(streams)], environment)


def play_pool(command, trace, page=None):
    words = [str(command), "replay", str(trace), "--backend", "cuda", "--allocator", "pool", "--json"]
    answer = run([*words, *(["--page", page] if page else [])])
    try:
        return {
            "cold_ns": answer["cold"]["total_ns"],
            "total_ns": answer["warm"]["total_ns"],
            "pair_ns": answer["alloc_ns"]["median"] + answer["free_ns"]["median"],
            "p999_ns": answer["alloc_ns"]["p999"],
            "held": answer["peak_held"],
            "asked": answer["peak_asked"],
            "calls": answer["driver_calls"],
        }
    except (KeyError, TypeError) as error:
        raise Failed(f"{command} replay --json reports no {error}") from None


def compare(trace, command, library, others, rounds, pages=()):
    """Returns the rows of one trace, and the results."""
    events, blocks, streams, asked = read_trace(trace)
    pools = {POOL: None, **{f"{POOL}, {page}": page for page in pages}}
    players = [*others, *pools]
    results = {player: [] for player in players}
    with tempfile.NamedTemporaryFile(prefix="gpu-vmm-trace-") as file:
        events.tofile(file)
        file.flush()
        for number in range(rounds):
            turn = number % len(players)
            for player in players[turn:] + players[:turn]:
                if player in pools:
                    results[player].append(play_pool(command, trace, pools[player]))
                else:
                    results[player].append(play_pytorch(library, player, file.name, blocks, streams))
    theirs = results[POOL][0]["asked"]
    if theirs != asked:
        raise Failed(f"{trace}: at most {asked} bytes are requested at one time, but {command} replay reports {theirs}")
    middle = {
        player: {key: statistics.median(result[key] for result in of) for key in MEASURED}
        for player, of in results.items()
    }
    rows = []
    for player, of in middle.items():
        parts = ["" if player == POOL else f"{middle[POOL][key] / of[key]:.3f}" for key in ("total_ns", "cold_ns")]
        name = trace.name.removesuffix(".trace.gz")
        times = [f"{of['total_ns'] / 1e6:.1f}", f"{of['cold_ns'] / 1e6:.1f}", f"{of['pair_ns']:.0f}", f"{of['p999_ns'] / 1e3:.1f}"]
        rows.append((name, player, *times, f"{of['held']:.0f}", f"{of['held'] / asked:.4f}", *parts))
    return rows, results


def table(rows):
    """Yields lines in columns: words to the left, numbers to the right."""
    times = ("warm, ms", "cold, ms", "pair, ns", "99.9 %, us")
    head = ("trace", "allocator", *times, "peak held, B", "held/asked", "pool/it", "pool/it, cold")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        cells = [cell.ljust(width) if at < 2 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths))]
        yield "  ".join(cells).rstrip()


def arguments(words):
    parser = argparse.ArgumentParser(
        description="Replays allocation traces through PyTorch's allocators and through the pool, in turn on one GPU."
    )
    parser.add_argument(
        "traces",
        type=Path,
        metavar="TRACES",
        nargs="?",
        default=HERE / "traces",
        help="folder of *.trace.gz (default: %(default)s)",
    )
    parser.add_argument(
        "--gpu-vmm",
        type=Path,
        default=HERE.parent.parent / "target" / "release" / "gpu-vmm",
        help="the command, built with --release (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="the number of rounds (default: %(default)s)")
    parser.add_argument(
        "--allocators",
        default="native,expandable",
        help=f"PyTorch's allocators to compare with the pool, of {', '.join(PYTORCH)} (default: %(default)s)",
    )
    parser.add_argument(
        "--pages", default="", metavar="SIZES", help="also compare pools with pages of these sizes, such as 4MiB,16MiB"
    )
    parser.add_argument(
        "--build",
        type=Path,
        default=HERE.parent.parent / "target" / "pytorch",
        help="the folder in which replay.cpp is built (default: %(default)s)",
    )
    given = parser.parse_args(words)
    given.allocators = given.allocators.split(",")
    given.pages = [page for page in given.pages.split(",") if page]
    unknown = [name for name in given.allocators if name not in PYTORCH]
    if unknown:
        parser.error(f"--allocators: {', '.join(unknown) or 'nothing'} is not one of {', '.join(PYTORCH)}")
    if given.rounds < 1:
        parser.error("--rounds: at least 1")
    if not given.traces.is_dir():
        parser.error(f"{given.traces} is not a folder")
    given.files = sorted(given.traces.glob("*.trace.gz"))
    if not given.files:
        parser.error(f"{given.traces} has no *.trace.gz")
    if not os.access(given.gpu_vmm, os.X_OK) or given.gpu_vmm.is_dir():
        parser.error(f"{given.gpu_vmm} is not a program: build it with cargo build --release, or name it with --gpu-vmm")
    return given


def main(words):
    if words[:1] == ["--play"]:
        library, which, events_file, blocks, streams = words[1:]
        print(json.dumps(play(library, which, events_file, int(blocks), int(streams))))
        return
    given = arguments(words)
    library = build(given.build)
    rows, devices = [], set()
    for trace in given.files:
        print(f"replaying {trace.name}", file=sys.stderr)
        of_trace, results = compare(trace, given.gpu_vmm, library, given.allocators, given.rounds, given.pages)
        rows += of_trace
        devices |= {result["device"] for player in given.allocators for result in results[player]}
    import torch

    print(f"{', '.join(sorted(devices))}, PyTorch {torch.__version__}, median of {given.rounds} rounds")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Failed as failed:
        sys.exit(f"failed: {failed}")
