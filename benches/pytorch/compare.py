#!/usr/bin/env python3
"""Replays allocation traces through PyTorch's allocators and through the pool, in turn on one GPU, and prints one table.

    cargo build --release
    python3 benches/pytorch/compare.py TRACES

TRACES is a folder of *.trace.gz. It needs PyTorch with CUDA, a C++ compiler and ninja for PyTorch's side (replay.cpp, built
once into a folder for it), and the command gpu-vmm; no network.

A trace has one event a line: `a ID BYTES STREAM` allocates, `f ID` is where the owner frees, `r ID` where the streams that
used the block are done, which is the same moment unless another stream than the block's own was recorded on it.

What is compared:

- PyTorch by c10::cuda::CUDACachingAllocator::raw_alloc_with_stream and raw_delete: no Python and no tensor is in its times.
  Nothing runs on the GPU, so that an event that PyTorch recorded for another stream (record_stream) would be done at once,
  and memory would come back earlier than in the program that was traced. So PyTorch's side frees at `r`, when that program
  could have had the memory again, and has no work with events. Frees at `f` that wait for `r` would cost it more.
- The pool by `gpu-vmm replay`, which frees at `f` and lets the memory wait until `r`.

Each round is a process of its own that replays a trace three times: cold, for the peak of what is held; warm, for the time of
all allocations and frees together; and warm once more with a clock around each call, for the median of an allocation and that
of a free, which together are the pair, without what asking for the time takes. What the trace leaves live is freed behind each, outside of the times. The times are
the medians of the rounds, in which everybody has a turn, beginning with another one each time.
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
# What PyTorch is told by its environment.
PYTORCH = {
    "native": "expandable_segments:False",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}


class Failed(Exception):
    """What ends the comparison, in words."""


def read_trace(path):
    """The events as PyTorch's side plays them, three numbers each, how many blocks and streams there are, and the most
    that was asked for and live at one time."""
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
                    freed.remove(block)  # it is freed once, and has been
                    events.extend((-1, block, 0))
                else:
                    raise ValueError
            except (ValueError, KeyError, TypeError):
                raise Failed(f"{path}, line {number}: {line.strip()!r} is no event that can follow") from None
    if len(events) == 3 * len(sizes):
        raise Failed(f"{path} has no `a ID BYTES STREAM` with an `f ID` and an `r ID`")
    return events, blocks, streams, peak


def build(directory):
    """Compiles PyTorch's side; gives the library's path."""
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
        raise Failed(f"replay.cpp cannot be built, for which a C++ compiler, ninja and CUDA's headers are needed: {error}") from None
    return directory / f"{EXTENSION}.so"


def play(library, which, events_file, blocks, streams):
    """One round of PyTorch's, in this process: what `--play` does."""
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
            raise Failed(f"PyTorch's {which} allocator did not get through the trace")
        return took

    once(None)
    held = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    # That the environment was understood.
    backend = torch.cuda.get_allocator_backend()
    found = "async" if backend == "cudaMallocAsync" else backend
    if backend == "native" and any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot()):
        found = "expandable"
    if found != which:
        raise Failed(f"PyTorch was to use its {which} allocator and used {found}")
    total = once(None)
    once(nanos.buffer_info()[0])
    cost = replay.cost_of_asking()
    middle = [
        statistics.median(max(took - cost, 0) for took, stream in zip(nanos, events[::3]) if (stream < 0) == frees)
        for frees in (False, True)
    ]
    return {"total_ns": total, "pair_ns": sum(middle), "held": held, "device": torch.cuda.get_device_name()}


def run(command, environment=None):
    """What a program prints as JSON."""
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


def play_pool(command, trace):
    answer = run([str(command), "replay", str(trace), "--backend", "cuda", "--allocator", "pool", "--json"])
    try:
        return {
            "total_ns": answer["warm"]["total_ns"],
            "pair_ns": answer["alloc_ns"]["median"] + answer["free_ns"]["median"],
            "held": answer["peak_held"],
            "asked": answer["peak_asked"],
            "calls": answer["driver_calls"],
        }
    except (KeyError, TypeError) as error:
        raise Failed(f"{command} replay --json says nothing of {error}") from None


def compare(trace, command, library, others, rounds):
    """The rows of one trace."""
    events, blocks, streams, asked = read_trace(trace)
    players = [*others, POOL]
    results = {who: [] for who in players}
    with tempfile.NamedTemporaryFile(prefix="gpu-vmm-trace-") as file:
        events.tofile(file)
        file.flush()
        for number in range(rounds):
            turn = number % len(players)
            for who in players[turn:] + players[:turn]:
                if who == POOL:
                    results[who].append(play_pool(command, trace))
                else:
                    results[who].append(play_pytorch(library, who, file.name, blocks, streams))
    theirs = results[POOL][0]["asked"]
    if theirs != asked:
        raise Failed(f"{trace}: at most {asked} bytes are asked for at one time, and {command} replay says {theirs}")
    middle = {
        who: {key: statistics.median(result[key] for result in of) for key in ("total_ns", "pair_ns", "held")}
        for who, of in results.items()
    }
    rows = []
    for who, of in middle.items():
        part = "" if who == POOL else f"{middle[POOL]['total_ns'] / of['total_ns']:.3f}"
        name = trace.name.removesuffix(".trace.gz")
        total, pair, held = of["total_ns"] / 1e6, of["pair_ns"], of["held"]
        rows.append((name, who, f"{total:.1f}", f"{pair:.0f}", f"{held:.0f}", f"{held / asked:.4f}", part))
    return rows, results


def table(rows):
    """Lines in columns: words to the left, numbers to the right."""
    head = ("trace", "allocator", "total, ms", "pair, ns", "peak held, B", "held/asked", "pool/it")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        cells = [cell.ljust(width) if at < 2 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths))]
        yield "  ".join(cells).rstrip()


def arguments(words):
    parser = argparse.ArgumentParser(
        description="Replays allocation traces through PyTorch's allocators and through the pool, in turn on one GPU."
    )
    parser.add_argument("traces", type=Path, metavar="TRACES", help="folder of *.trace.gz")
    parser.add_argument(
        "--gpu-vmm",
        type=Path,
        default=HERE.parent.parent / "target" / "release" / "gpu-vmm",
        help="the command, built with --release (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often everybody has a turn (default: %(default)s)")
    parser.add_argument(
        "--allocators",
        default="native,expandable",
        help=f"PyTorch's that stand beside the pool, of {', '.join(PYTORCH)} (default: %(default)s)",
    )
    parser.add_argument(
        "--build",
        type=Path,
        default=HERE.parent.parent / "target" / "pytorch",
        help="where replay.cpp is built (default: %(default)s)",
    )
    given = parser.parse_args(words)
    given.allocators = given.allocators.split(",")
    unknown = [name for name in given.allocators if name not in PYTORCH]
    if unknown:
        parser.error(f"--allocators: {', '.join(unknown) or 'nothing'} is none of {', '.join(PYTORCH)}")
    if given.rounds < 1:
        parser.error("--rounds: at least 1")
    if not given.traces.is_dir():
        parser.error(f"{given.traces} is no folder")
    given.files = sorted(given.traces.glob("*.trace.gz"))
    if not given.files:
        parser.error(f"{given.traces} has no *.trace.gz")
    if not os.access(given.gpu_vmm, os.X_OK) or given.gpu_vmm.is_dir():
        parser.error(f"{given.gpu_vmm} is no program: cargo build --release makes it, or name it with --gpu-vmm")
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
        of_trace, results = compare(trace, given.gpu_vmm, library, given.allocators, given.rounds)
        rows += of_trace
        devices |= {result["device"] for who in given.allocators for result in results[who]}
    import torch

    print(f"{', '.join(sorted(devices))}, PyTorch {torch.__version__}, median of {given.rounds} rounds")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Failed as failed:
        sys.exit(f"failed: {failed}")
