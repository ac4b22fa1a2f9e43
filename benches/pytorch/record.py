#!/usr/bin/env python3
"""Runs a program under PyTorch, and records its allocations as a trace for compare.py and `gpu-vmm replay`.

    python3 benches/pytorch/record.py PROGRAM FILE.trace.gz

PROGRAM is one of those below; the traces in benches/pytorch/traces are theirs. The script needs PyTorch with CUDA and a GPU.
Each program has a fixed seed. What it allocates is the same each time; when the memory used by several streams may be reused
again (`r`) is not, since it depends on the GPU's speed.
"""

import argparse
import gzip
import random
import sys
from pathlib import Path

HEAD = "a ID BYTES STREAM = allocate; f ID = the owner frees; r ID = the block may be reused (its streams are done)"


def lines(entries):
    """Yields the lines of a trace from the entries of PyTorch's recorder."""
    blocks, freed, streams, count = {}, {}, {0: 0}, 0
    for entry in entries:
        action, address = entry["action"], entry.get("addr")
        if action == "alloc":
            count += 1
            blocks[address] = count
            stream = streams.setdefault(entry["stream"], len(streams))
            yield f"a {count} {entry['size']} {stream}"
        elif action == "free_requested" and address in blocks:
            freed[address] = blocks.pop(address)
            yield f"f {freed[address]}"
        elif action == "free_completed" and address in freed:
            yield f"r {freed.pop(address)}"


def graph_network(torch):
    """A graph network: each step has graphs of other sizes, so hardly two allocations are of one size."""
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.message = nn.Sequential(nn.Linear(3 * width, width), nn.GELU(), nn.Linear(width, width))
            self.update = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width))

        def forward(self, nodes, edges, ends):
            sources, targets = ends
            edges = edges + self.message(torch.cat([nodes[sources], nodes[targets], edges], dim=-1))
            sums = torch.zeros_like(nodes).index_add_(0, targets, edges)
            return nodes + self.update(torch.cat([nodes, sums], dim=-1)), edges

    class Network(nn.Module):
        def __init__(self, width=128, depth=5):
            super().__init__()
            self.nodes, self.edges = nn.Linear(16, width), nn.Linear(4, width)
            self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
            self.answer = nn.Linear(width, 1)

        def forward(self, nodes, edges, ends, graphs, count):
            nodes, edges = self.nodes(nodes), self.edges(edges)
            for layer in self.layers:
                nodes, edges = layer(nodes, edges, ends)
            sums = torch.zeros(count, nodes.shape[1], device=nodes.device).index_add_(0, graphs, nodes)
            return self.answer(sums)

    network = Network().cuda()
    optimizer = torch.optim.AdamW(network.parameters())

    def batch():
        sizes = [int(random.lognormvariate(5, 1)) + 2 for _ in range(random.randint(8, 96))]
        nodes = sum(sizes)
        degree = random.uniform(3, 12)
        ends = torch.randint(nodes, (2, int(nodes * degree)))
        graphs = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        parts = torch.randn(nodes, 16), torch.randn(ends.shape[1], 4), ends, graphs
        return [part.cuda() for part in parts], len(sizes)

    for step in range(80):
        if step % 8 == 7:
            with torch.no_grad():
                for _ in range(3):
                    parts, count = batch()
                    network(*parts, count)
            continue
        parts, count = batch()
        loss = network(*parts, count).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def streams(torch):
    """Four streams whose blocks live unevenly long: batches are copied ahead on one, a model trains on another, a second model
    scores on a third what stays in a buffer until chance takes it out, and old weights are copied and compared on a fourth."""
    nn = torch.nn

    def network(width):
        convolutions = [nn.Conv2d(3, width, 3, padding=1), nn.GELU()]
        for _ in range(3):
            convolutions += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.GELU()]
        return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 64)).cuda()

    student, teacher = network(64), network(96)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01, momentum=0.9)
    main, copies, scores, weights = torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(3))
    ahead, buffer, old = [], [], []

    def fetch():
        size = random.choice((1, 2, 3, 5, 8, 13, 21)), 3, 32 * random.randint(2, 9), 32 * random.randint(2, 9)
        on_host = torch.empty(size, pin_memory=True).normal_()
        with torch.cuda.stream(copies):
            images = on_host.to("cuda", non_blocking=True)
        ahead.append((images, copies.record_event()))

    for step in range(120):
        while len(ahead) < random.randint(1, 6):
            fetch()
        images, there = ahead.pop(0)
        scores.wait_event(there)
        with torch.cuda.stream(scores), torch.no_grad():
            wanted = teacher(images)
            images.record_stream(scores)
        buffer.append((images, wanted, scores.record_event()))
        for _ in range(random.randint(1, 3)):
            images, wanted, there = random.choice(buffer)
            main.wait_event(there)
            loss = (student(images) - wanted).square().mean()
            loss.backward()
            images.record_stream(main)
            wanted.record_stream(main)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        while len(buffer) > random.randint(2, 24):
            buffer.pop(random.randrange(len(buffer)))
        if step % 7 == 0:
            weights.wait_stream(main)
            with torch.cuda.stream(weights), torch.no_grad():
                old.append([part.clone() for part in student.parameters()])
                for part, copy in zip(student.parameters(), random.choice(old)):
                    (part - copy).norm()
                    part.record_stream(weights)
            main.wait_stream(weights)
        if len(old) > 6:
            old.pop(random.randrange(6))


PROGRAMS = {"graph_network": graph_network, "streams": streams}


def begin(torch):
    """Begins to record the allocations of this process."""
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=10_000_000)


def write(torch, file, program):
    """Writes what was allocated since `begin` as a trace."""
    torch.cuda.synchronize()
    entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    # Without the time of the recording and the file's name in it, so that equal traces are equal files.
    with open(file, "wb") as out, gzip.GzipFile("", "wb", fileobj=out, mtime=0) as compressed:
        compressed.write(f"# {HEAD}\n# {program}, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}\n".encode())
        compressed.writelines(f"{line}\n".encode() for line in lines(entries))


def main(words):
    parser = argparse.ArgumentParser(description="Records the allocations of a program under PyTorch as a trace.")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("file", type=Path, metavar="FILE", help="the trace to write, compressed by gzip")
    given = parser.parse_args(words)
    import torch

    random.seed(1)
    torch.manual_seed(1)
    begin(torch)
    PROGRAMS[given.program](torch)
    write(torch, given.file, PROGRAMS[given.program].__doc__.split(":")[0])


if __name__ == "__main__":
    main(sys.argv[1:])
