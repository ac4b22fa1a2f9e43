#!/usr/bin/env python3
"""GPT-2 124M trains with variable batches on PyTorch's allocators and on gpu-vmm: the losses are the same to the last bit, steps
take no longer, and the peak memory is no larger. `training` describes how they are compared.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/gpu/train_gpt2.py

It needs PyTorch with CUDA, 16 GiB of a GPU and about 80 s; no network: the weights and the tokens are random, from a seed. Batch size
and length differ in each step and are the same for all allocators.
"""

import argparse
import random
from collections.abc import Callable
from typing import Any

import training
from harness import start
from training import DEVICE

LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 12, 12, 768, 50257, 1024


def shapes(seed: int, steps: int) -> list[tuple[int, int]]:
    """Returns the batch size and the length of each step."""
    numbers = random.Random(seed)
    return [(numbers.randint(2, 8), numbers.randrange(128, CONTEXT + 1, 8)) for _ in range(steps)]


def gpt2(
    torch: Any, layers: int = LAYERS, heads: int = HEADS, width: int = WIDTH, vocabulary: int = VOCABULARY, one_hot: bool = False
) -> Any:
    """Creates GPT-2 in plain PyTorch, without dropout; of its published size without other arguments.

    With `one_hot`, tokens are looked up by a product of matrices, whose gradient needs no deterministic algorithms of PyTorch.
    """
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wider, self.narrower = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.attention(self.before_attention(x)).view(batch, length, 3, heads, width // heads)
            query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.joined(seen.transpose(1, 2).reshape(batch, length, width))
            return x + self.narrower(functional.gelu(self.wider(self.before_feed(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.last = nn.LayerNorm(width)
            for name, weights in self.named_parameters():
                if weights.ndim == 2:
                    deep = name.endswith(("joined.weight", "narrower.weight"))
                    nn.init.normal_(weights, std=0.02 / (2 * layers) ** 0.5 if deep else 0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(weights)

        def forward(self, tokens: Any, targets: Any) -> Any:
            weights = self.tokens.weight
            if one_hot:
                x = (tokens.unsqueeze(-1) == torch.arange(vocabulary, device=tokens.device)).to(weights.dtype) @ weights
            else:
                x = self.tokens(tokens)
            x = x + self.places.weight[: tokens.shape[1]]
            for layer in self.layers:
                x = layer(x)
            logits = functional.linear(self.last(x), self.tokens.weight)
            return functional.cross_entropy(logits.view(-1, vocabulary).float(), targets.reshape(-1))

    return GPT2()


def batches_of(torch: Any, seed: int, steps: int) -> list[Any]:
    """Returns the tokens of all steps, in host memory. Small numbers are more frequent, so that the model can learn."""
    draws = torch.Generator().manual_seed(seed)
    return [(torch.rand((batch, length + 1), generator=draws) ** 4 * VOCABULARY).long() for batch, length in shapes(seed, steps)]


def optimizer_of(torch: Any, model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def step_of(torch: Any, model: Any, optimizer: Any, batches: list[Any]) -> Callable[[int], Any]:
    """Returns the function that trains one step and returns its loss."""

    def step(number: int) -> Any:
        on_device = batches[number].to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(on_device[:, :-1], on_device[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def attention_of(name: str) -> Any:
    """Returns the context in which PyTorch uses a kernel for attention: "flash" or "math"."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.FLASH_ATTENTION if name == "flash" else SDPBackend.MATH)


def work(who: str, given: argparse.Namespace) -> dict[str, Any]:
    """Trains in this process."""
    import torch

    vmm = training.enable(who, given.trace)
    training.deterministic(torch, given.seed)
    # All tokens are drawn before the timed steps.
    batches = batches_of(torch, given.seed, given.steps)
    with torch.device(DEVICE):
        model = gpt2(torch)
    step = step_of(torch, model, optimizer_of(torch, model), batches)
    with attention_of(given.attention):
        return training.train(torch, who, vmm, model, given.steps, step, given.trace)


def main() -> int:
    parser = training.parser("GPT-2 124M on PyTorch's allocators and on gpu-vmm: losses, times and memory.", steps=200)
    parser.add_argument("--attention", choices=("flash", "math"), default="flash", help="both are deterministic (default: %(default)s)")
    given = parser.parse_args()
    title = f"GPT-2 124M, {given.attention} attention"
    return training.main(__file__, title, given, work, ["--attention", given.attention])


if __name__ == "__main__":
    start(main)
