#!/usr/bin/env python3
"""A network of PyTorch Geometric trains on graphs whose sizes change, on PyTorch's allocators and on gpu-vmm: the losses are the same to
the last bit, steps take no longer, and the peak memory is no larger. `training` describes how they are compared.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/gpu/graphs.py

It needs PyTorch with CUDA, torch_geometric, 24 GiB of a GPU and about 20 s for each round; no network: the graphs are random, from a seed.
Layers with attention (GATv2Conv) and with edges (GINEConv) take turns; the network predicts how many edges a node of a graph has. Each
step has other graphs, so hardly two steps have tensors of the same size.
"""

import argparse
import random
from typing import Any

import training
from harness import start
from training import DEVICE

WIDTH, HEADS, LAYERS = 128, 4, 6
NODE, EDGE = 16, 8  # numbers of features


def sizes(seed: int, steps: int, most: int) -> list[list[tuple[int, int]]]:
    """Returns the numbers of nodes and edges of each step's graphs."""
    numbers = random.Random(seed)

    def graph() -> tuple[int, int]:
        nodes = int(numbers.lognormvariate(5, 1)) + 2
        return nodes, int(nodes * numbers.uniform(3, 12))

    return [[graph() for _ in range(numbers.randint(most // 6 + 1, most))] for _ in range(steps)]


def network(torch: Any) -> Any:
    """Creates the network."""
    from torch import nn
    from torch_geometric.nn import Aggregation, GATv2Conv, GINEConv

    class Sum(Aggregation):
        """The sum of messages. PyTorch Geometric's own is deterministic only with an index for each number of the messages."""

        def forward(self, x: Any, index: Any = None, ptr: Any = None, dim_size: Any = None, dim: int = 0) -> Any:
            return x.new_zeros((dim_size, *x.shape[1:])).index_add_(0, index, x)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nodes, self.edges = nn.Linear(NODE, WIDTH), nn.Linear(EDGE, WIDTH)
            self.attention, self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
            for _ in range(LAYERS // 2):
                wider = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
                self.attention.append(GATv2Conv(WIDTH, WIDTH // HEADS, HEADS, edge_dim=WIDTH, add_self_loops=False, aggr=Sum()))
                self.convolutions.append(GINEConv(wider, aggr=Sum()))
                self.norms.append(nn.LayerNorm(WIDTH))
            self.pool, self.answer = Sum(), nn.Linear(WIDTH, 1)

        def forward(self, data: Any) -> Any:
            x, edges = self.nodes(data.x), self.edges(data.edge_attr)
            for attention, convolution, norm in zip(self.attention, self.convolutions, self.norms):
                x = x + attention(x, data.edge_index, edges)
                x = x + convolution(norm(x), data.edge_index, edges)
            sums = self.pool(x, data.batch, dim_size=data.num_graphs)
            return self.answer(sums / data.count).squeeze(-1)

    return Network()


def batches(torch: Any, seed: int, wanted: list[list[tuple[int, int]]]) -> list[Any]:
    """Creates the graphs of all steps."""
    from torch_geometric.data import Batch, Data

    draws = torch.Generator().manual_seed(seed)

    def graph(nodes: int, edges: int) -> Any:
        return Data(
            x=torch.randn(nodes, NODE, generator=draws),
            edge_index=torch.randint(nodes, (2, edges), generator=draws),
            edge_attr=torch.randn(edges, EDGE, generator=draws),
            y=torch.tensor([edges / nodes]),
            count=torch.full((1, 1), float(nodes)),
        )

    return [Batch.from_data_list([graph(*size) for size in graphs]) for graphs in wanted]


def work(who: str, given: argparse.Namespace) -> dict[str, Any]:
    """Trains in this process."""
    import torch

    drawn = batches(torch, given.seed, sizes(given.seed, given.steps, given.graphs))
    vmm = training.enable(who, given.trace)
    training.deterministic(torch, given.seed)
    with torch.device(DEVICE):
        model = network(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(number: int) -> Any:
        data = drawn[number].to(DEVICE, non_blocking=True)
        loss = (model(data) - data.y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return training.train(torch, who, vmm, model, given.steps, step, given.trace)


def main() -> int:
    parser = training.parser("A graph network on PyTorch's allocators and on gpu-vmm: losses, times and memory.", steps=60)
    parser.add_argument("--graphs", type=int, default=400, help="the most graphs in a step (default: %(default)s)")
    given = parser.parse_args()
    return training.main(__file__, "graph network, changing graphs", given, work, ["--graphs", given.graphs])


if __name__ == "__main__":
    start(main)
