#!/usr/bin/env python3
"""A graph that was captured over a cache of blocks goes on while the cache grows, shrinks, sleeps and grows again: its addresses stay, the
contents of the blocks that stay are the same to the last bit, and the memory of the others returns to the device.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/gpu/growing_cache.py

It needs PyTorch with CUDA, and `--gib` (8) GiB of a GPU. The graph adds 1 to the blocks whose numbers are in a tensor, as an attention
kernel reads the blocks of a table: other blocks need no memory.
"""

import argparse
import time
from typing import Any

from harness import GIB, MIB, Checks, gpu_vmm, say, start

LAYERS = 8
TOKENS, HEADS, WIDTH = 16, 8, 128
BLOCK = 2 * 2 * TOKENS * HEADS * WIDTH * LAYERS  # bytes of a block in all layers, keys and values


def device_memory(torch: Any) -> int:
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


class Engine:
    """A captured graph over a cache."""

    def __init__(self, torch: Any, most: int) -> None:
        self.torch = torch
        shape = ("bfloat16", (2, -1, TOKENS, HEADS, WIDTH))
        self.cache = gpu_vmm().BlockCache({f"layer.{number}": shape for number in range(LAYERS)}, most, blocks=4)
        self.layers = [torch.from_dlpack(self.cache[name]) for name in self.cache]
        self.table = torch.zeros(4, dtype=torch.int64, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        for layer in self.layers:
            layer[:, :4] = 0
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.kernels()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self.graph):
            self.kernels()
        for layer in self.layers:
            layer[:, :4] = 0

    def kernels(self) -> None:
        for number, layer in enumerate(self.layers):
            for half in 0, 1:
                layer[half].index_add_(0, self.table, self.torch.full_like(layer[half, :4], number + half + 1))

    def replay(self, blocks: list[int]) -> None:
        """Adds to four blocks by the captured graph."""
        self.table.copy_(self.torch.tensor(blocks))
        self.graph.replay()

    def sums(self, blocks: list[int]) -> list[float]:
        """Returns the sum of each of the blocks, over all layers."""
        at = self.torch.tensor(blocks, device="cuda")
        total = sum(layer[:, at].double().sum(dim=(0, 2, 3, 4)) for layer in self.layers)
        return [float(one) for one in total.tolist()]


# What one replay adds to a block: 1 and 2 in the first layer, 2 and 3 in the next one.
ADDED = float(sum(number + half + 1 for number in range(LAYERS) for half in (0, 1)) * TOKENS * HEADS * WIDTH)


def work(checks: Checks, torch: Any, given: argparse.Namespace) -> None:
    most = given.gib * GIB // BLOCK
    engine = Engine(torch, most)
    cache, address = engine.cache, engine.cache.region.address
    old = [0, 1, 2, 3]
    engine.replay(old)
    checks.equal("sums of the first blocks", [ADDED] * 4, engine.sums(old))

    free = device_memory(torch)
    began = time.perf_counter()
    mapped = cache.extend(most // 2)
    say(f"extended by {mapped / GIB:.2f} GiB in {1000 * (time.perf_counter() - began):.1f} ms")
    checks.equal("device memory that extend takes", mapped, free - device_memory(torch))
    last = [len(cache) - 1 - number for number in range(4)]
    for layer in engine.layers:
        layer[:, last] = 0
    engine.replay(last)
    engine.replay(old)
    checks.equal("sums of the new blocks, by the captured graph", [ADDED] * 4, engine.sums(last))
    checks.equal("sums of the old blocks", [2 * ADDED] * 4, engine.sums(old))

    free = device_memory(torch)
    began = time.perf_counter()
    went = cache.shrink(most // 4)
    say(f"shrunk by {went / GIB:.2f} GiB in {1000 * (time.perf_counter() - began):.1f} ms")
    checks.equal("device memory that shrink returns", went, device_memory(torch) - free)
    checks.check("bytes that shrink returns", f"about {most // 4 * BLOCK}", went, abs(went - most // 4 * BLOCK) <= 2 * LAYERS * 4 * MIB)
    engine.replay(old)
    checks.equal("sums after the shrink", [3 * ADDED] * 4, engine.sums(old))

    filler = torch.full((went // 4,), 0xEE, dtype=torch.int32, device="cuda")  # other contents for the memory that went back
    del filler
    torch.cuda.empty_cache()
    cache.suspend("host")
    checks.equal("bytes that a suspended cache holds", 0, cache.nbytes)
    cache.resume()
    engine.replay(old)
    checks.equal("sums after the sleep", [4 * ADDED] * 4, engine.sums(old))

    cache.extend(most - len(cache))
    for layer in engine.layers:
        layer[:, -4:] = 0
    end = [most - 1 - number for number in range(4)]
    engine.replay(end)
    checks.equal("sums of the last blocks", [ADDED] * 4, engine.sums(end))
    checks.equal("sums of the first blocks at the end", [4 * ADDED] * 4, engine.sums(old))
    checks.equal("address", address, cache.region.address)
    vmm = gpu_vmm()
    checks.raises("more than the largest number", (vmm.OutOfRange,), lambda: cache.extend(1))

    huge = vmm.BlockCache({"layer": ("uint8", (-1, 64 * MIB))}, 16 * 1024, blocks=1, page=64 * MIB)
    free = device_memory(torch)
    checks.raises("a terabyte", (vmm.OutOfMemory,), lambda: huge.extend(16 * 1024 - 1))
    checks.equal("blocks and device memory after it", (1, free), (len(huge), device_memory(torch)))


def main() -> int:
    parser = argparse.ArgumentParser(description="A cache of blocks grows and shrinks behind a captured graph.")
    parser.add_argument("--gib", type=int, default=8, help="the size of the whole cache (default: %(default)s)")
    given = parser.parse_args()
    import torch

    torch.cuda.init()
    checks = Checks()
    checks.section("a captured graph over a cache that grows", lambda checks: work(checks, torch, given))
    return checks.end()


if __name__ == "__main__":
    start(main)
