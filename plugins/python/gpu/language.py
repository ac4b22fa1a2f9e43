#!/usr/bin/env python3
"""Llama or Mixtral of Hugging Face's library trains on texts whose lengths change, on PyTorch's allocators and on gpu-vmm: the losses are
the same to the last bit, steps take no longer, and the peak memory is no larger. `training` describes how they are compared.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/gpu/language.py --model mixtral

It needs PyTorch with CUDA, transformers, 32 GiB of a GPU and about 30 s for each round; no network: the weights and the tokens are random,
from a seed. The batch and the length differ in each step. Mixtral's experts run one after another, each with as many tokens as its
router sends it, so its tensors have sizes that no one has chosen.
"""

import argparse
import random
from typing import Any

import training
from harness import start
from training import DEVICE

VOCABULARY, CONTEXT = 32000, 1024
# Of both, some 0.2 to 0.3 G of weights.
SHARED: dict[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "attn_implementation": "sdpa", "use_cache": False}
LLAMA: dict[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4,
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 12, "num_key_value_heads": 4,
    "num_local_experts": 8, "num_experts_per_tok": 2, "experts_implementation": "eager",
}  # fmt: skip


def shapes(seed: int, steps: int, longest: int) -> list[tuple[int, int]]:
    """Returns the batch size and the length of each step."""
    numbers = random.Random(seed)
    return [(numbers.randint(1, 8), numbers.randint(longest // 16, longest)) for _ in range(steps)]


def work(who: str, given: argparse.Namespace) -> dict[str, Any]:
    """Trains in this process."""
    import torch
    import transformers
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kind, options = {"llama": ("Llama", LLAMA), "mixtral": ("Mixtral", MIXTRAL)}[given.model]
    config, model_class = getattr(transformers, f"{kind}Config"), getattr(transformers, f"{kind}ForCausalLM")
    layers = {"num_hidden_layers": given.layers} if given.layers else {}

    # Small numbers are more frequent, so that the model can learn. All tokens are drawn before the timed steps.
    draws = torch.Generator().manual_seed(given.seed)
    sizes = shapes(given.seed, given.steps, given.longest)
    batches = [(torch.rand(size, generator=draws) ** 4 * VOCABULARY).long() for size in sizes]
    vmm = training.enable(who, given.trace)
    training.deterministic(torch, given.seed)
    with torch.device(DEVICE):
        model = model_class(config(**SHARED | options | layers)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(number: int) -> Any:
        tokens = batches[number].to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return training.train(torch, who, vmm, model, given.steps, step, given.trace)


def main() -> int:
    parser = training.parser("Llama or Mixtral on PyTorch's allocators and on gpu-vmm: losses, times and memory.", steps=60)
    parser.add_argument("--model", choices=("llama", "mixtral"), default="llama", help="the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, help="the number of its layers, for a smaller one")
    parser.add_argument("--longest", type=int, default=CONTEXT, help="the most tokens of a text (default: %(default)s)")
    given = parser.parse_args()
    words = ["--model", given.model, "--longest", given.longest, *(["--layers", given.layers] if given.layers else [])]
    return training.main(__file__, f"{given.model} of transformers, changing lengths", given, work, words)


if __name__ == "__main__":
    start(main)
