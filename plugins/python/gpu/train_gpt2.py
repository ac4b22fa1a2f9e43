#!/usr/bin/env python3
"""GPT-2 124M trains with variable batches on PyTorch's allocators and on gpu-vmm: the losses are the same to the last bit, steps
take no longer, and the peak memory is no larger.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/gpu/train_gpt2.py

It needs PyTorch with CUDA, 16 GiB of a GPU and about 80 s; no network: the weights and the tokens are random, from a seed.

- Each allocator trains in its own process: PyTorch's native one, PyTorch's with expandable segments, and gpu-vmm by
  gpu_vmm.torch.enable(). Each round runs all three one after another and begins with another one each time.
- Batch size and length differ in each step and are the same for all allocators. PyTorch's deterministic algorithms are on, and newly
  allocated memory is not filled, so that reads of it would change the results.
- The time of a step is the wall-clock time from one torch.cuda.synchronize() to the next one. The result is the median of the
  quotients of two allocators' times for the same step of the same round, which ignores rare slow steps. The table also shows the sum
  of the times after the warm-up, which includes them.
- The peak held is torch.cuda.max_memory_reserved() of PyTorch and stats()["peak_held"] of gpu-vmm. The table also shows the memory in
  use at the end as the driver reports it, which includes CUDA's own.
"""

import argparse
import ctypes
import gc
import hashlib
import json
import random
import statistics
import time
from typing import Any

from harness import GIB, MIB, Checks, Failed, child, environment, gpu_vmm, say, start, table

DEVICE = "cuda"
LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 12, 12, 768, 50257, 1024
NATIVE, EXPANDABLE, VMM = "native", "expandable", "gpu-vmm"
CONF = {NATIVE: None, EXPANDABLE: "expandable_segments:True", VMM: None}


def shapes(seed: int, steps: int) -> list[tuple[int, int]]:
    """Returns the batch size and the length of each step."""
    numbers = random.Random(seed)
    return [(numbers.randint(2, 8), numbers.randrange(128, CONTEXT + 1, 8)) for _ in range(steps)]


def gpt2(torch: Any) -> Any:
    """Creates GPT-2 as published, in plain PyTorch, without dropout."""
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before_attention, self.before_feed = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attention, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.wider, self.narrower = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.attention(self.before_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
            query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.joined(seen.transpose(1, 2).reshape(batch, length, WIDTH))
            return x + self.narrower(functional.gelu(self.wider(self.before_feed(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.last = nn.LayerNorm(WIDTH)
            for name, weights in self.named_parameters():
                if weights.ndim == 2:
                    deep = name.endswith(("joined.weight", "narrower.weight"))
                    nn.init.normal_(weights, std=0.02 / (2 * LAYERS) ** 0.5 if deep else 0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(weights)

        def forward(self, tokens: Any, targets: Any) -> Any:
            x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
            for layer in self.layers:
                x = layer(x)
            logits = functional.linear(self.last(x), self.tokens.weight)
            return functional.cross_entropy(logits.view(-1, VOCABULARY).float(), targets.reshape(-1))

    return GPT2()


def work(who: str, given: argparse.Namespace) -> dict[str, Any]:
    """Trains in this process."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    vmm = gpu_vmm("torch") if who == VMM else None
    if vmm:
        vmm.enable()
    torch.manual_seed(given.seed)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.set_float32_matmul_precision("highest")  # no TF32

    # Small numbers are more frequent, so that the model can learn. All tokens are drawn before the timed steps.
    draws = torch.Generator().manual_seed(given.seed)
    batches = [
        (torch.rand((batch, length + 1), generator=draws) ** 4 * VOCABULARY).long()
        for batch, length in shapes(given.seed, given.steps)
    ]
    with torch.device(DEVICE):
        model = gpt2(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    losses = torch.zeros(given.steps, device=DEVICE)
    kernel = SDPBackend.FLASH_ATTENTION if given.attention == "flash" else SDPBackend.MATH
    times: list[float] = []
    gc.collect()
    gc.disable()
    torch.cuda.synchronize()
    with sdpa_kernel(kernel):
        for number, batch in enumerate(batches):
            start = time.perf_counter()
            on_device = batch.to(DEVICE, non_blocking=True)
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = model(on_device[:, :-1], on_device[:, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses[number] = loss.detach()
            del loss, on_device
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            if (number + 1) % 50 == 0:
                say(f"{who}: {number + 1} steps, the last one took {times[-1] * 1e3:.1f} ms")
    gc.enable()

    free, total = torch.cuda.mem_get_info()
    if vmm:  # PyTorch's own statistics raise here
        stats = vmm.stats()
        held = stats["peak_held"]
        say(f"{who}: {stats}")
    else:
        held = torch.cuda.max_memory_reserved()
        expandable = any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
        if expandable != (who == EXPANDABLE):
            raise Failed(f"PyTorch should use its {who} allocator, but expandable segments are {'on' if expandable else 'off'}")
    digest = hashlib.sha256()
    for weights in model.parameters():
        on_host = weights.detach().cpu().contiguous()
        digest.update(ctypes.string_at(on_host.data_ptr(), on_host.nbytes))
    return {
        "losses": [f"{bits & 0xFFFFFFFF:08x}" for bits in losses.cpu().view(torch.int32).tolist()],
        "shown": [losses[0].item(), losses[-1].item()],
        "finite": bool(losses.isfinite().all()),
        "weights": digest.hexdigest(),
        "times": times,
        "held": held,
        "used": total - free,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def judge(results: dict[str, list[dict[str, Any]]], given: argparse.Namespace, checks: Checks) -> None:
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
        row += [f"{max(run[key] for run in runs) / MIB:.0f}" for key in ("held", "used")]
        rows.append([*row, f"{runs[0]['shown'][0]:.6f}", f"{runs[0]['shown'][1]:.6f}"])
    first = next(iter(results.values()))[0]
    print(
        f"\n{first['device']}, PyTorch {first['torch']}: GPT-2 124M, {given.steps} steps ({warm} of them warm-up), "
        f"{given.rounds} rounds, {given.attention} attention, seed {given.seed}"
    )
    head = ("allocator", "step, ms", "99 %, ms", "sum, s", "to expandable", "peak held, MiB", "in use, MiB", "first loss", "last loss")
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
            different = [step for step, (a, b) in enumerate(zip(run["losses"], base["losses"])) if a != b]
            seen = f"{len(different)} differ, first at step {different[0]}" if different else f"all {len(run['losses'])} equal"
            if different:
                seen += f" ({run['losses'][different[0]]} for {base['losses'][different[0]]})"
            what = f"losses of {who}, round {number + 1}, equal those of {base_name}"
            checks.check(what, f"all {given.steps} equal", seen, not different and len(run["losses"]) == given.steps)
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


def main() -> int:
    parser = argparse.ArgumentParser(description="GPT-2 124M on PyTorch's allocators and on gpu-vmm: losses, times and memory.")
    parser.add_argument("--steps", type=int, default=200, help="training steps (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=10, help="steps whose times do not count (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each allocator (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1234, help="of weights, tokens and shapes (default: %(default)s)")
    parser.add_argument("--attention", choices=("flash", "math"), default="flash", help="both are deterministic (default: %(default)s)")
    parser.add_argument("--most", type=float, default=1.02, help="the largest accepted quotient of times (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="the file to write all figures to")
    parser.add_argument("--worker", choices=tuple(CONF), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rounds < 1 or not 0 <= given.warm_up < given.steps:
        parser.error("at least 1 round, and more steps than warm-up")
    if given.worker:
        print(json.dumps(work(given.worker, given)), flush=True)
        return 0

    checks = Checks()
    results: dict[str, Any] = {}
    players = list(CONF)
    words = ["--steps", given.steps, "--warm-up", given.warm_up, "--seed", given.seed, "--attention", given.attention]
    for number in range(given.rounds):
        turn = number % len(CONF)
        for who in [*CONF][turn:] + [*CONF][:turn]:
            if who not in players:
                continue
            say(f"round {number + 1} of {given.rounds}: {who}")
            try:
                variables = environment(CONF[who], CUBLAS_WORKSPACE_CONFIG=":4096:8")
                run = child(__file__, ["--worker", who, *words], variables, timeout=240)
                results.setdefault(who, []).append(run)
                say(f"{who}: {sum(run['times']):.1f} s in steps, {run['held'] / GIB:.2f} GiB held at the peak")
            except Failed as failed:
                players.remove(who)
                checks.check(f"{who} completes", "no failure", str(failed), False)
    if results:
        judge({who: results[who] for who in CONF if who in results}, given, checks)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(results, file)
    return checks.end()


if __name__ == "__main__":
    start(main)
