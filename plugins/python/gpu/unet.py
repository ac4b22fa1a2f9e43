#!/usr/bin/env python3
"""A UNet trains on images whose sizes change, on PyTorch's allocators and on gpu-vmm: the losses are the same to the last bit, steps take
no longer, and the peak memory is no larger. `training` describes how they are compared.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/gpu/unet.py

It needs PyTorch with CUDA, 20 GiB of a GPU and about a minute for each round; no network: the images are random, from a seed. The model has
convolutions, group norms, and attention at its lowest resolution; it predicts the noise that was added to an image.
"""

import argparse
import random
from typing import Any

import training
from harness import start
from training import DEVICE

CHANNELS = (64, 128, 256, 512)


def shapes(seed: int, steps: int) -> list[tuple[int, int, int]]:
    """Returns the batch size, the height and the width of each step."""
    numbers = random.Random(seed)
    return [(numbers.randint(2, 6), numbers.randrange(128, 385, 64), numbers.randrange(128, 385, 64)) for _ in range(steps)]


def unet(torch: Any) -> Any:
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, wide: int, out: int) -> None:
            super().__init__()
            self.norms = nn.ModuleList((nn.GroupNorm(8, wide), nn.GroupNorm(8, out)))
            self.convolutions = nn.ModuleList((nn.Conv2d(wide, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)))
            self.shortcut = nn.Conv2d(wide, out, 1)

        def forward(self, x: Any) -> Any:
            skipped = self.shortcut(x)
            for norm, convolution in zip(self.norms, self.convolutions):
                x = convolution(functional.silu(norm(x)))
            return x + skipped

    class Attention(nn.Module):
        def __init__(self, wide: int) -> None:
            super().__init__()
            self.norm, self.parts, self.joined = nn.GroupNorm(8, wide), nn.Conv2d(wide, 3 * wide, 1), nn.Conv2d(wide, wide, 1)

        def forward(self, x: Any) -> Any:
            batch, wide, height, width = x.shape
            parts = self.parts(self.norm(x)).view(batch, 3, 8, wide // 8, height * width).transpose(-1, -2)
            query, key, value = parts.unbind(1)
            # By hand: its large temporaries have a size of their own in each step.
            seen = (query @ key.transpose(-1, -2) / (wide // 8) ** 0.5).softmax(-1) @ value
            return x + self.joined(seen.transpose(-1, -2).reshape(x.shape))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pairs = list(zip(CHANNELS, CHANNELS[1:]))
            self.first, self.last = nn.Conv2d(3, CHANNELS[0], 3, padding=1), nn.Conv2d(CHANNELS[0], 3, 3, padding=1)
            self.down = nn.ModuleList(Block(wide, out) for wide, out in pairs)
            self.middle = nn.Sequential(Block(CHANNELS[-1], CHANNELS[-1]), Attention(CHANNELS[-1]))
            self.up = nn.ModuleList(Block(2 * out, wide) for wide, out in reversed(pairs))

        def forward(self, x: Any) -> Any:
            x, kept = self.first(x), []
            for block in self.down:
                kept.append(block(x))
                x = functional.avg_pool2d(kept[-1], 2)
            x = self.middle(x)
            for block in self.up:
                # Nearest neighbours by repetition: PyTorch's interpolation is not deterministic backwards.
                batch, wide, height, width = x.shape
                x = x.view(batch, wide, height, 1, width, 1).expand(-1, -1, -1, 2, -1, 2).reshape(batch, wide, 2 * height, 2 * width)
                x = block(torch.cat((x, kept.pop()), 1))
            return self.last(x)

    return UNet()


def work(who: str, given: argparse.Namespace) -> dict[str, Any]:
    """Trains in this process."""
    import torch

    vmm = training.enable(who, given.trace)
    training.deterministic(torch, given.seed)
    draws = torch.Generator().manual_seed(given.seed)
    sizes = shapes(given.seed, given.steps)
    images = [torch.rand((batch, 3, height, width), generator=draws) for batch, height, width in sizes]
    with torch.device(DEVICE):
        model = unet(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    noises = torch.Generator(DEVICE).manual_seed(given.seed)

    def step(number: int) -> Any:
        clean = images[number].to(DEVICE, non_blocking=True)
        noise = torch.randn(clean.shape, device=DEVICE, generator=noises)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = (model(clean + noise).float() - noise).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return training.train(torch, who, vmm, model, given.steps, step, given.trace)


def main() -> int:
    parser = training.parser("A UNet on PyTorch's allocators and on gpu-vmm: losses, times and memory.", steps=60)
    given = parser.parse_args()
    return training.main(__file__, "UNet, changing image sizes", given, work, [])


if __name__ == "__main__":
    start(main)
