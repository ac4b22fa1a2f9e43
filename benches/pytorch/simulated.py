#!/usr/bin/env python3
"""Writes memory snapshots as PyTorch does, without a GPU: a model of its caching allocator serves a made program.

    python3 benches/pytorch/simulated.py [FOLDER]

The files are those of tests/replay/tests/recorded, which the tests of `gpu-vmm replay` read, with what is true of them in expected.json.
The model follows PyTorch 2.15: sizes rounded up to 512 bytes, segments of 2 and 20 MiB, best fit, splits, and the entries and fields of
torch.cuda.memory._snapshot(). PyTorch's own reader of such files (torch/cuda/_memory_viz.py) accepts them, see test_simulated.py.
"""

import gzip
import json
import pickle
import random
import sys
from pathlib import Path

MIB = 1 << 20
FOLDER = Path(__file__).resolve().parents[2] / "tests" / "replay" / "tests" / "recorded"
DEFAULT_POOL = (0, 0)


class Device:
    """The caching allocator of one device."""

    def __init__(self, number, base, max_entries=None):
        self.number, self.next_segment, self.max_entries = number, base, max_entries
        self.segments = []  # each: address, size, stream, pool, and blocks in order of their addresses
        self.log = []  # each: the entry, and what was true before it
        self.clock = 1_790_000_000_000_000
        self.waiting = {}

    def totals(self):
        """Returns the requested bytes of live blocks, and of those whose free has not completed, their numbers, and what is held."""
        blocks = [block for segment in self.segments for block in segment["blocks"]]
        live = [block["requested"] for block in blocks if block["state"] == "active_allocated"]
        waiting = [block["requested"] for block in blocks if block["state"] == "active_pending_free"]
        held = sum(segment["size"] for segment in self.segments)
        return {"live": sum(live), "waiting": sum(waiting), "blocks": len(live) + len(waiting), "held": held}

    def write(self, action, address, size, stream, pool, before=None):
        self.clock += 7
        entry = {"action": action, "addr": address, "size": size, "stream": stream, "time_us": self.clock}
        if action == "oom":
            entry["device_free"] = entry.pop("addr")
        entry |= {"compile_context": "N/A", "user_metadata": "", "pool_id": pool, "frames": FRAMES[len(self.log) % len(FRAMES)]}
        self.log.append((entry, before or self.totals()))

    def allocate(self, requested, stream=0, pool=DEFAULT_POOL):
        """Returns the new block and its segment."""
        size = max(512, -(-requested // 512) * 512)
        small = size <= MIB
        fitting = [
            (block["size"], block["address"], block, segment)
            for segment in self.segments
            if (segment["stream"], segment["pool"], segment["small"]) == (stream, pool, small)
            for block in segment["blocks"]
            if block["state"] == "inactive" and block["size"] >= size
        ]
        if fitting:
            *_, block, segment = min(fitting, key=lambda found: found[:2])
        else:
            total = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            block = {"address": self.next_segment, "size": total, "requested": 0, "state": "inactive"}
            segment = {"address": self.next_segment, "size": total, "stream": stream, "pool": pool, "small": small, "blocks": [block]}
            self.next_segment += 2 * total
            self.write("segment_alloc", segment["address"], total, stream, pool)
            self.segments.append(segment)
        before = self.totals()
        rest = block["size"] - size
        if rest >= 512 if small else rest > MIB:
            place = segment["blocks"].index(block)
            other = {"address": block["address"] + size, "size": rest, "requested": 0, "state": "inactive"}
            segment["blocks"].insert(place + 1, other)
            block["size"] = size
        block |= {"requested": requested, "state": "active_allocated"}
        self.write("alloc", block["address"], requested, stream, pool, before)
        return block, segment

    def free(self, taken, used_elsewhere=False):
        block, segment = taken
        self.write("free_requested", block["address"], block["requested"], segment["stream"], segment["pool"])
        block["state"] = "active_pending_free"
        if not used_elsewhere:
            self.complete(taken)

    def complete(self, taken):
        block, segment = taken
        before = self.totals()
        address, requested = block["address"], block["requested"]
        block |= {"state": "inactive", "requested": 0}
        blocks = segment["blocks"]
        place = blocks.index(block)
        for at in (place, place - 1):
            if 0 <= at < len(blocks) - 1 and blocks[at]["state"] == blocks[at + 1]["state"] == "inactive":
                blocks[at]["size"] += blocks.pop(at + 1)["size"]
        self.write("free_completed", address, requested, segment["stream"], segment["pool"], before)

    def empty_cache(self):
        for segment in list(self.segments):
            if len(segment["blocks"]) == 1 and segment["blocks"][0]["state"] == "inactive":
                before = self.totals()
                self.segments.remove(segment)
                self.write("segment_free", segment["address"], segment["size"], segment["stream"], segment["pool"], before)

    def kept(self):
        return self.log if self.max_entries is None else self.log[-self.max_entries :]

    def snapshot_of_segment(self, segment):
        states = {state: [block for block in segment["blocks"] if block["state"] == state] for state in ("active_allocated", "inactive")}
        active = sum(block["size"] for block in segment["blocks"] if block["state"] != "inactive")
        return {
            "device": self.number, "address": segment["address"], "total_size": segment["size"],
            "allocated_size": sum(block["size"] for block in states["active_allocated"]), "active_size": active,
            "requested_size": sum(block["requested"] for block in segment["blocks"]), "stream": segment["stream"],
            "segment_type": "small" if segment["small"] else "large", "segment_pool_id": segment["pool"], "is_expandable": False, "frames": [],
            "blocks": [
                {"address": block["address"], "size": block["size"], "requested_size": block["requested"], "state": block["state"], "frames": []}
                for block in segment["blocks"]
            ],
        }  # fmt: skip


# A few stacks, which many entries share.
FRAMES = [
    [{"name": f"layer_{depth}", "filename": "/home/user/model.py", "line": 10 * number + depth} for depth in range(3)] for number in range(4)
]


def expected(device):
    """Returns what is true of a device's part of the snapshot."""
    kept = device.kept()
    first = kept[0][1]
    # A block whose free was requested before the first entry counts until it is completed: the entries do not tell it from others.
    late = {entry["addr"]: entry["size"] for entry, _ in device.log[: len(device.log) - len(kept)] if entry["action"] == "free_requested"}
    for entry, _ in device.log[: len(device.log) - len(kept)]:
        if entry["action"] == "free_completed":
            late.pop(entry["addr"], None)
    peak = 0
    for (entry, _), after in zip(kept, [before for _, before in kept[1:]] + [device.totals()]):
        if entry["action"] == "free_completed":
            late.pop(entry["addr"], None)
        peak = max(peak, after["live"] + sum(late.values()))
    return {
        "entries": len(kept),
        "allocations": first["blocks"] + sum(entry["action"] == "alloc" for entry, _ in kept),
        "blocks_before": first["blocks"],
        "bytes_before": first["live"] + first["waiting"],
        "peak_asked": peak,
        "peak_held": max(device.totals()["held"], *(before["held"] for _, before in kept)),
        "seconds": (kept[-1][0]["time_us"] - kept[0][0]["time_us"]) / 1e6,
    }


def train(device, seed, steps):
    """Weights that stay, steps of other sizes whose activations are freed in the opposite order, and batches from another stream."""
    numbers = random.Random(seed)
    for _ in range(12):
        device.allocate(numbers.choice((3 * 768 * 768 * 4, 768 * 4, 4 * 768 * 768 * 4)))
    late, copies = [], 0x5581_2345_6780
    for step in range(steps):
        tokens = numbers.randint(100, 4000)
        batch = device.allocate(tokens * 8, copies)
        activations = [device.allocate(tokens * width * 2) for width in (768, 2304, 768, 3072, 768) for _ in range(2)]
        device.free(batch, used_elsewhere=True)
        late.append(batch)
        while len(late) > numbers.randint(1, 3):
            device.complete(late.pop(0))
        for activation in reversed(activations):
            device.free(activation)
        if step % 5 == 4:
            device.empty_cache()
    device.write("oom", 123 * MIB, 10**12, 0, DEFAULT_POOL)
    device.write("snapshot", 0, 0, 0, DEFAULT_POOL)


def capture(device):
    """Blocks of a graph: a freed one serves the pool alone, until the graph is gone."""
    pool = (0, 7)
    first = device.allocate(3 * MIB, pool=pool)
    device.free(first)
    second = device.allocate(3 * MIB - 1000, pool=pool)  # in the memory of the first one
    other = device.allocate(3 * MIB)  # not there
    device.free(second)
    device.empty_cache()
    third = device.allocate(3 * MIB)
    device.free(other)
    device.free(third)


def snapshot(devices):
    """Returns what torch.cuda.memory._snapshot() returns."""
    return {
        "segments": [device.snapshot_of_segment(segment) for device in devices for segment in device.segments],
        "device_traces": [[entry for entry, _ in device.kept()] for device in devices],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0, "expandable_segments": False,
            "roundup_power2_divisions": {"1": 0, "2": 0},
        },
        "external_annotations": [],
    }  # fmt: skip


def made():
    """Returns the snapshots by name, and what is true of them by name and device."""
    whole = Device(0, 0x7F12_0000_0000)
    train(whole, 1, 12)
    # The ring begins in the middle of a step.
    ring = Device(0, 0x7F12_0000_0000, max_entries=301)
    train(ring, 2, 20)
    graphs, idle = Device(1, 0x7E00_0000_0000), Device(0, 0x7F12_0000_0000)
    capture(graphs)
    both = [Device(0, 0x7F12_0000_0000), Device(1, 0x7E00_0000_0000)]
    for device in both:
        train(device, 3 + device.number, 2 + device.number)
    every = {"whole": [whole], "ring": [ring], "graphs": [idle, graphs], "two-devices": both}
    facts = {name: {str(one.number): expected(one) for one in devices if one.log} for name, devices in every.items()}
    # A text as long as those of augment_with_fx_traces, and a key that no version has.
    snapshots = {name: snapshot(devices) for name, devices in every.items()}
    snapshots["whole"]["device_traces"][0][0] |= {"fx_original_trace": "x" * 100_000, "later": {"nested": [None, True, 2.5, 1 << 70]}}
    return snapshots, facts


def files():
    """Returns the contents of all files by name. PyTorch writes protocol 4 by Python (5 from 3.14 on), and 2 by C++."""
    snapshots, facts = made()
    protocols = {"whole": (2, 4, 5), "ring": (4,), "graphs": (4,), "two-devices": (4,)}
    pickles = {f"{name}-{protocol}.pickle.gz": gzip.compress(pickle.dumps(snapshots[name], protocol), mtime=0)
               for name, every in protocols.items() for protocol in every}  # fmt: skip
    return pickles | {"expected.json": (json.dumps(facts, indent=1) + "\n").encode()}


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for name, content in files().items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
