#!/usr/bin/env python3
"""A 1.1B Llama sleeps and wakes: asleep it holds almost no GPU memory, and awake it generates the same tokens with the same CUDA graphs.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/gpu/sleep_llama.py

It needs PyTorch with CUDA, transformers, 8 GiB of a GPU that no other process uses, and about 60 s. It needs no network: the model has
the shape of TinyLlama and random weights from a seed.

Each mode runs in its own process:

- enable: gpu_vmm.torch.enable(); all of PyTorch's memory sleeps.
- mempool: PyTorch's own allocator; the weights are created in `with gpu_vmm.torch.pool("weights")`, and only they sleep.

In each mode, the model generates one token after another, and a forward pass of 64 tokens is captured as a CUDA graph and replayed.
Then, for each store of the contents: sleep, measure, wake, replay the graph and generate again. Tokens, logits and the sum of the
weights' bits must be the same as before. Memory in use is the driver's total minus free. It is compared with a process that has only
done one small matrix product (baseline).
"""

import argparse
import gc
import hashlib
import json
import time
from typing import Any

from harness import GIB, Checks, Failed, child, environment, gpu_vmm, say, start, table

MODES = ("enable", "mempool")
WEIGHTS = "weights"
PROMPT, CAPTURED = 32, 64  # tokens


def in_use(torch: Any) -> int:
    """Returns the number of bytes of the device that are not free, in all processes."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def baseline() -> dict[str, Any]:
    """Measures the memory in use with only CUDA and cuBLAS loaded."""
    import torch

    some = torch.ones(16, 16, device="cuda", dtype=torch.bfloat16)
    if (some @ some).float().sum().item() != 16**3:
        raise Failed("a matrix product is wrong")
    return {"used": in_use(torch), "device": torch.cuda.get_device_name(), "torch": torch.__version__}


def llama(torch: Any, layers: int) -> Any:
    """Creates the model on the GPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        vocab_size=32000,
        max_position_embeddings=2048,
        attn_implementation="sdpa",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def generate(torch: Any, model: Any, prompt: Any, count: int) -> tuple[list[int], str]:
    """Generates `count` tokens greedily, with a cache of keys and values. Returns them and a digest of all logits."""
    tokens, digest = [], hashlib.sha256()
    given, cache = prompt, None
    for _ in range(count):
        answer = model(input_ids=given, past_key_values=cache, use_cache=True)
        logits = answer.logits[:, -1].float()
        if not logits.any():  # zeros would be the same each time
            raise Failed("all logits are zero: no kernel has run")
        digest.update(repr(logits.view(torch.int32).sum(dtype=torch.int64).item()).encode())
        token = logits.argmax(-1, keepdim=True)
        tokens.append(token.item())
        cache = answer.past_key_values
        # Without a cache, the input is the whole sequence.
        given = token if cache is not None else torch.cat((given, token), 1)
    return tokens, digest.hexdigest()[:12]


def bits(torch: Any, model: Any) -> str:
    """Returns a digest of the bits of all weights."""
    sums = [weights.detach().view(torch.int16).sum(dtype=torch.int64) for weights in model.parameters()]
    return hashlib.sha256(repr(torch.stack(sums).tolist()).encode()).hexdigest()[:12]


def capture(torch: Any, model: Any) -> tuple[Any, Any, Any]:
    """Captures a forward pass as a CUDA graph. Returns it, the inputs that it reads and the logits that it writes."""
    tokens = (torch.arange(CAPTURED, device="cuda") * 37 % 32000)[None]
    # The mask and the positions are created in advance, so that the capture needs no work on the host.
    mask = torch.ones(CAPTURED, CAPTURED, dtype=torch.bool, device="cuda").tril()[None, None]
    places = torch.arange(CAPTURED, device="cuda")[None]

    def forward() -> Any:
        return model(input_ids=tokens, attention_mask=mask, position_ids=places, use_cache=False).logits

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            forward()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = forward()
    return graph, (tokens, mask, places), logits


def work(mode: str, given: argparse.Namespace) -> dict[str, Any]:
    """Runs one mode in this process."""
    import torch

    vmm = gpu_vmm("torch")
    enabled = mode == "enable"
    if enabled:
        vmm.enable()
    torch.set_grad_enabled(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(given.seed)
    if enabled:
        model = llama(torch, given.layers)
    else:
        with vmm.pool(WEIGHTS):
            model = llama(torch, given.layers)
    size = sum(weights.nbytes for weights in model.parameters())
    say(f"{mode}: {sum(weights.numel() for weights in model.parameters()) / 1e9:.3f}B weights, {size / GIB:.2f} GiB")
    prompt = (torch.arange(PROMPT, device="cuda") * 101 % 32000 + 3)[None]

    generate(torch, model, prompt, 2)  # loads kernels
    start = time.perf_counter()
    tokens, logits = generate(torch, model, prompt, given.tokens)
    say(f"{mode}: {given.tokens} tokens in {time.perf_counter() - start:.2f} s, first {tokens[:8]}")
    weights = bits(torch, model)

    graph: Any = None
    static: Any = None
    if given.graph:
        graph, inputs, static = capture(torch, model)
        graph.replay()
        torch.cuda.synchronize()
        replayed = static.cpu()
        eager = model(input_ids=inputs[0], attention_mask=inputs[1], position_ids=inputs[2], use_cache=False).logits.cpu()
        say(f"{mode}: graph captured; its logits are {'equal' if torch.equal(replayed, eager) else 'near'} to those without it")
        del eager

    rounds = []
    for keep in given.keep:
        gc.collect()
        if not enabled:
            torch.cuda.empty_cache()  # so that memory in use does not include PyTorch's cache
        one: dict[str, Any] = {"keep": keep, "before": in_use(torch)}
        if given.graph:  # so that the logits can only come from this round's replay
            static.zero_()
            torch.cuda.synchronize()
        start = time.perf_counter()
        one["slept"] = vmm.sleep(None if enabled else WEIGHTS, keep=keep)
        one["sleep_s"] = time.perf_counter() - start
        one["asleep"] = in_use(torch)
        # Overwrite the released memory, so that the contents can only come from the store.
        other = gpu_vmm().DeviceVec("uint8")
        other.resize(one["slept"], 0xEE)
        del other
        start = time.perf_counter()
        one["woken"] = vmm.wake(None if enabled else WEIGHTS)
        torch.cuda.synchronize()
        one["wake_s"] = time.perf_counter() - start
        one["after"] = in_use(torch)
        one["weights"] = bits(torch, model) == weights
        if given.graph:
            graph.replay()
            torch.cuda.synchronize()
            one["graph"] = torch.equal(static.cpu().view(torch.int16), replayed.view(torch.int16)) and bool(replayed.any())
        again, their_logits = generate(torch, model, prompt, given.tokens)
        one["different"] = [at for at, (a, b) in enumerate(zip(again, tokens)) if a != b]
        one["count"], one["logits"] = len(again), their_logits == logits
        rounds.append(one)
        say(f"{mode}, kept in {keep}: {one}")
    say(f"{mode}: {vmm.stats()}")
    return {"rounds": rounds, "weights": size, "different_tokens": len(set(tokens))}


def judge(base: int, results: dict[str, dict[str, Any]], given: argparse.Namespace, checks: Checks) -> list[list[str]]:
    """Checks each round and returns the rows of the table."""
    rows = []
    for mode, of in results.items():
        for one in of["rounds"]:
            named = f"{mode}, {one['keep']}"
            slept, before, asleep = one["slept"], one["before"], one["asleep"]
            row = [mode, str(one["keep"]), *(f"{size / GIB:.2f}" for size in (slept, before, asleep, one["after"]))]
            for took in (one["sleep_s"], one["wake_s"]):
                row += [f"{took:.3f}", f"{slept / took / 1e9:.2f}"]
            rows.append(row)
            checks.check(f"{named}: sleeps", f"at least {of['weights'] / GIB:.2f} GiB", f"{slept / GIB:.2f} GiB", slept >= of["weights"])
            checks.equal(f"{named}: wakes the same size", slept, one["woken"])
            if mode == "enable":
                most, what = base + GIB, "in use, asleep"
                checks.check(f"{named}: {what}", f"at most {most / GIB:.2f} GiB", f"{asleep / GIB:.2f} GiB", asleep <= most)
            else:
                least, freed = 0.99 * of["weights"], before - asleep
                checks.check(f"{named}: freed", f"at least {least / GIB:.2f} GiB", f"{freed / GIB:.2f} GiB", freed >= least)
            different = one["different"]
            seen = f"{len(different)} of {one['count']} differ, first at {different[0]}" if different else f"{one['count']} equal"
            checks.check(f"{named}: tokens", f"{given.tokens} equal", seen, not different and one["count"] == given.tokens)
            checks.equal(f"{named}: logits are the same", True, one["logits"])
            checks.equal(f"{named}: weights are the same", True, one["weights"])
            if given.graph:
                checks.equal(f"{named}: the graph's logits are the same", True, one["graph"])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="A 1.1B Llama sleeps and wakes, with all memory and with its weights alone.")
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both", help="(default: %(default)s)")
    parser.add_argument("--keep", default="host,pinned", help="a list of host, pinned and file (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=48, help="to generate each time (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=22, help="of the model (default: %(default)s, 1.1B weights)")
    parser.add_argument("--seed", type=int, default=1234, help="of the weights (default: %(default)s)")
    parser.add_argument("--no-graph", dest="graph", action="store_false", help="without the CUDA graph")
    parser.add_argument("--worker", choices=(*MODES, "baseline"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.keep = given.keep.split(",")
    if given.worker:
        print(json.dumps(baseline() if given.worker == "baseline" else work(given.worker, given)), flush=True)
        return 0

    checks = Checks()
    results: dict[str, Any] = {}
    variables = environment(CUBLAS_WORKSPACE_CONFIG=":4096:8", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    say("baseline")
    base = child(__file__, ["--worker", "baseline"], variables, timeout=120)
    words = ["--keep", ",".join(given.keep), "--tokens", given.tokens, "--layers", given.layers, "--seed", given.seed]
    for mode in MODES if given.mode == "both" else (given.mode,):
        say(mode)
        try:
            results[mode] = child(__file__, ["--worker", mode, *words, *([] if given.graph else ["--no-graph"])], variables, timeout=240)
        except Failed as failed:
            checks.check(f"{mode} completes", "no failure", str(failed), False)
    rows = judge(base["used"], results, given, checks)
    print(f"\n{base['device']}, PyTorch {base['torch']}: Llama of {given.layers} layers; baseline {base['used'] / GIB:.2f} GiB in use")
    head = ("mode", "kept in", "slept, GiB", "in use", "asleep", "awake, GiB", "sleep, s", "GB/s", "wake, s", "GB/s")
    print(table(head, rows, left=2) + "\n")
    return checks.end()


if __name__ == "__main__":
    start(main)
