#!/usr/bin/env python3
"""vLLM's engine sleeps and wakes, with the plug-in and with vLLM's own allocator, and generates the same tokens as before.

    PYTHONPATH=plugins/python:integrations/vllm GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so \\
        python3 integrations/vllm/gpu/engine.py

It needs vLLM 0.22 or later, a GPU that no other process uses, and host memory for the weights (7 GiB by default). It needs no network and
no files: the model is a Llama that vLLM makes from a configuration in a temporary folder, and its weights are random, from a seed.

Each mode and allocator has its own process. It generates tokens greedily, and then, three times: sleep at level 1, other data over
all free memory, wake, and generate again. Tokens and weights must be the same each time.

The modes:

- eager: no graphs.
- graphs: decoding in CUDA graphs, without torch.compile. They are captured before the first sleep and replayed after each wake.
- processes: graphs, and the engine in a process of its own, as vLLM's servers have it.
- default: what vLLM does unless told otherwise, with torch.compile and the engine in its own process.

The last lines are a Markdown table, and whether gpu-vmm did something wrong.
"""

import argparse
import contextlib
import importlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[3] / "plugins/python/gpu"))

from harness import GIB, STARTED, Failed, environment, say, start  # noqa: E402
from side_by_side import Other  # noqa: E402

ROUNDS = 3
TOKENS = 32  # of each answer
VOCABULARY = 32000
GRAPHS = {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8]}}
# The options of a mode, and whether the engine is in its own process.
MODES: dict[str, tuple[dict[str, Any], bool]] = {
    "eager": ({"enforce_eager": True}, False),
    "graphs": (GRAPHS, False),
    "processes": (GRAPHS, True),
    "default": ({}, True),
}
ALLOCATORS = {"vllm": "vLLM's CuMemAllocator", "gpu-vmm": "gpu-vmm", "gpu-vmm-enabled": "gpu-vmm, enable()"}
PLUGIN = "gpu_vmm"


def configuration(layers: int, hidden: int) -> dict[str, Any]:
    """Returns the configuration of a Llama: the shape of Llama 3 8B by default, with fewer layers and words."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": hidden * 7 // 2,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 128,
        "num_key_value_heads": hidden // 512,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }


def randomize(model: Any) -> int:
    """Gives the model weights whose tokens depend on all of them. Returns their bytes.

    vLLM's own dummy weights are so small that the residuals hide attention and MLP: wrong weights would not change a token.
    """
    import torch

    size = 0
    with torch.no_grad():
        for at, (name, parameter) in enumerate(model.named_parameters()):
            generator = torch.Generator(device=parameter.device).manual_seed(at)
            if parameter.dim() == 1:
                parameter.fill_(1)  # of a norm
            else:
                parameter.normal_(0, 1 if "embed" in name else 0.02, generator=generator)
            size += parameter.nbytes
    torch.cuda.synchronize()
    return size


def digest(model: Any) -> int:
    """Returns a sum of all words of the weights, each multiplied by its place, in 63 bits: the engine's process sends it as such."""
    import torch

    total = 0
    for at, parameter in enumerate(model.parameters()):
        words = parameter.data.view(-1).view(torch.int32)
        for begin in range(0, words.numel(), 1 << 24):
            part = words[begin : begin + (1 << 24)].to(torch.int64)
            places = torch.arange(begin + at, begin + at + part.numel(), device=part.device)
            total += int((part * (2 * places + 1)).sum().item())
    torch.cuda.empty_cache()
    return total % (1 << 63)


def allocator_module(_: Any) -> str:
    """Returns the module of the class that vLLM's worker allocates with."""
    import importlib

    return str(importlib.import_module("vllm.device_allocator.cumem").CuMemAllocator.__module__)


def free_bytes() -> int:
    """Returns the driver's free memory, from NVML: this process may have no CUDA context."""
    nvml = importlib.import_module("vllm.third_party.pynvml")
    nvml.nvmlInit()
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    find = nvml.nvmlDeviceGetHandleByIndex if first.isdigit() else nvml.nvmlDeviceGetHandleByUUID
    return int(nvml.nvmlDeviceGetMemoryInfo(find(int(first) if first.isdigit() else first.encode())).free)


def overwrite() -> None:
    """Writes other data to all free memory."""
    import torch

    other = Other(torch, max(torch.cuda.mem_get_info()[0] - 2 * GIB, GIB))
    other.overwrite()
    torch.cuda.synchronize()
    other.free()


class Engine:
    """An engine with random weights, and prompts of several lengths."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        vllm: Any = importlib.import_module("vllm")
        common = {
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "enable_sleep_mode": True,
            "enable_prefix_caching": False,  # each generation computes the whole prompt, in the same steps
            "max_model_len": 1024,
            "max_num_seqs": 8,
            "seed": 0,
        }
        self.llm = vllm.LLM(model=folder, **common | options)
        self.sampling = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
        words = random.Random(0)
        lengths = (17, 64, 200, 333)
        self.prompts = [{"prompt_token_ids": [words.randrange(3, VOCABULARY) for _ in range(length)]} for length in lengths]

    def ask(self, what: Any) -> Any:
        """Returns what a function of the model returns in the worker."""
        [answer] = self.llm.apply_model(what)
        return answer

    def generate(self) -> list[list[int]]:
        # One after the other: an engine in its own process would batch them by the time at which each arrives there.
        answers = [self.llm.generate([prompt], self.sampling, use_tqdm=False)[0] for prompt in self.prompts]
        return [list(answer.outputs[0].token_ids) for answer in answers]


def work(given: argparse.Namespace) -> int:
    """Runs one mode with one allocator in this process."""
    result: dict[str, Any] = {"stage": "the engine's start", "rounds": []}

    def progress(stage: str, **more: Any) -> None:
        result.update(more, stage=stage)
        # Replaced as a whole: this process may be killed meanwhile.
        beside = Path(f"{given.progress}.new")
        beside.write_text(json.dumps(result), encoding="utf-8")
        beside.replace(given.progress)

    progress(result["stage"])
    if given.worker == "gpu-vmm-enabled":
        importlib.import_module("gpu_vmm.torch").enable()
    before, began = free_bytes(), time.perf_counter()
    engine = Engine(given.folder, given.options)
    progress("the weights", started=time.perf_counter() - began)
    module = engine.ask(allocator_module)
    if module.startswith("gpu_vmm_vllm") == (given.worker == "vllm"):
        raise Failed(f"the worker's allocator is of {module}")
    size = engine.ask(randomize)
    progress("the first tokens", size=size)
    tokens = engine.generate()
    if any(len(answer) != TOKENS or len(set(answer)) < TOKENS // 2 for answer in tokens):
        raise Failed(f"the answers are not {TOKENS} tokens long, or repeat one token: {tokens}")
    if engine.generate() != tokens:
        raise Failed("the second generation differs before any sleep")
    weights = engine.ask(digest)
    import torch

    torch.zeros(1, device="cuda")  # this process's context, which overwriting needs, counts before the first sleep
    progress("the first sleep", tokens=tokens, before=before)
    for number in range(ROUNDS):
        awake, began = free_bytes(), time.perf_counter()
        engine.llm.sleep(level=1)
        slept, asleep = time.perf_counter() - began, free_bytes()
        progress(f"other data in round {number + 1}")
        overwrite()
        progress(f"wake {number + 1}")
        began = time.perf_counter()
        engine.llm.wake_up()
        woke, after = time.perf_counter() - began, free_bytes()
        progress(f"tokens after wake {number + 1}")
        one = {"awake": awake, "asleep": asleep, "after": after, "sleep": slept, "wake": woke}
        one |= {"weights": engine.ask(digest) == weights, "tokens": engine.generate() == tokens}
        result["rounds"].append(one)
        say(f"round {number + 1}: {one}")
    progress("exit", device=torch.cuda.get_device_name(), torch=torch.__version__, vllm=importlib.import_module("vllm").__version__)
    return 0


def entry_point(folder: str) -> None:
    """Writes what installing the plug-in would: the entry point by which vLLM finds it in each of its processes."""
    of = Path(folder) / "gpu_vmm_vllm-0.dist-info"
    of.mkdir()
    (of / "METADATA").write_text("Metadata-Version: 2.1\nName: gpu-vmm-vllm\nVersion: 0\n", encoding="utf-8")
    (of / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{PLUGIN} = gpu_vmm_vllm:register\n", encoding="utf-8")


def variables(folder: str, allocator: str, has_own_process: bool) -> dict[str, str]:
    """Returns a child's environment."""
    here = Path(__file__).resolve().parent
    paths = [folder, str(here.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return environment(
        PYTHONPATH=os.pathsep.join(paths),
        VLLM_PLUGINS="none" if allocator == "vllm" else PLUGIN,
        VLLM_ENABLE_V1_MULTIPROCESSING=str(int(has_own_process)),
        VLLM_ALLOW_INSECURE_SERIALIZATION="1",  # apply_model sends functions to the worker
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        # Nothing leaves the machine, which may have no network.
        VLLM_HOST_IP="127.0.0.1",
        VLLM_LOOPBACK_IP="127.0.0.1",
        GLOO_SOCKET_IFNAME="lo",
        NCCL_SOCKET_IFNAME="lo",
    )


def run(given: argparse.Namespace, mode: str, allocator: str, seconds: float) -> tuple[dict[str, Any], str]:
    """Runs one mode with one allocator in a child. Returns what is known, and the failure."""
    options, has_own_process = MODES[mode]
    log = Path(given.logs) / f"{mode}-{allocator}.log"
    with tempfile.TemporaryDirectory() as folder:
        entry_point(folder)
        model, file = Path(folder) / "model", Path(folder) / "progress.json"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(configuration(given.layers, given.hidden)), encoding="utf-8")
        options = {"gpu_memory_utilization": given.utilization} | options | given.options
        words = ["--worker", allocator, "--folder", model, "--progress", file, "--options", json.dumps(options)]
        command = [sys.executable, "-X", "faulthandler", str(Path(__file__).resolve()), *map(str, words)]
        with open(log, "w", encoding="utf-8") as output:
            # Its own session: the engine's process must not outlive a child that takes too long.
            child = subprocess.Popen(
                command, env=variables(folder, allocator, has_own_process), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                status = child.wait(seconds)
                failure = f"exit status {status}" if status else ""
            except subprocess.TimeoutExpired:
                failure = f"took more than {seconds:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"stage": "Python's start", "rounds": []}
    if failure:
        say(f"{mode}, {allocator}: {failure} at: {result['stage']}. The end of {log}:")
        print("\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:]), file=sys.stderr, flush=True)
    return result, failure


HEAD = ["mode", "allocator", "start, s", "weights, GiB", "free before", "awake", "asleep", "after", "sleep, s", "later", "wake, s", "later"]
HEAD += ["weights", "tokens"]


def row(mode: str, allocator: str, result: dict[str, Any], failure: str) -> list[str]:
    """Returns a row of the table. Memory is the driver's free memory in GiB."""
    rounds = result["rounds"]
    if not rounds:
        return [mode, ALLOCATORS[allocator], *"-" * (len(HEAD) - 3), f"failed at {result['stage']}: {failure}"]

    def later(part: str) -> str:
        return f"{statistics.median(one[part] for one in rounds[1:]):.2f}" if rounds[1:] else "-"

    def same(part: str) -> str:
        return f"same {sum(one[part] for one in rounds)} of {ROUNDS}"

    first = rounds[0]
    memory = [result["before"], first["awake"], min(one["asleep"] for one in rounds), rounds[-1]["after"]]
    times = [f"{first['sleep']:.2f}", later("sleep"), f"{first['wake']:.2f}", later("wake")]
    sizes = [f"{size / GIB:.2f}" for size in (result["size"], *memory)]
    end = same("tokens") + (f"; failed at {result['stage']}: {failure}" if failure else "")
    return [mode, ALLOCATORS[allocator], f"{result['started']:.0f}", *sizes, *times, same("weights"), end]


def main() -> int:
    parser = argparse.ArgumentParser(description="vLLM's engine sleeps and wakes with gpu-vmm and with vLLM's own allocator.")
    parser.add_argument("--modes", default="eager,graphs,processes", help=f"of {','.join(MODES)} (default: %(default)s)")
    parser.add_argument("--allocators", default="vllm,gpu-vmm", help=f"of {','.join(ALLOCATORS)} (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=16, help="of the model (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=4096, help="its width, a multiple of 512 (default: %(default)s)")
    parser.add_argument("--utilization", type=float, default=0.5, help="vLLM's gpu_memory_utilization (default: %(default)s)")
    parser.add_argument("--options", type=json.loads, default={}, help='of vllm.LLM, in JSON: {"attention_backend": "TRITON_ATTN"}')
    parser.add_argument("--each", type=float, default=180, help="seconds for each child (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=1200, help="seconds in all; what does not fit is left out (default: %(default)s)")
    parser.add_argument("--logs", help="the folder for the children's output (default: a temporary one)")
    parser.add_argument("--worker", choices=ALLOCATORS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--progress", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return work(given)
    given.logs = given.logs or tempfile.mkdtemp(prefix="gpu-vmm-vllm-")
    Path(given.logs).mkdir(parents=True, exist_ok=True)
    rows: list[list[str]] = []
    wrong, seen = False, dict[str, Any]()
    for mode in given.modes.split(","):
        for allocator in given.allocators.split(","):
            if allocator == "gpu-vmm-enabled" and MODES[mode][1]:
                say(f"{mode}, {allocator}: SKIPPED, nothing calls enable() in the engine's process")
                continue
            left = given.limit - (time.monotonic() - STARTED)
            if left < 30:
                say(f"{mode}, {allocator}: SKIPPED, {left:.0f} s are left")
                rows.append([mode, ALLOCATORS[allocator], *"-" * (len(HEAD) - 3), "SKIPPED: no time was left"])
                wrong |= allocator != "vllm"
                continue
            result, failure = run(given, mode, allocator, min(given.each, left))
            seen |= {key: result[key] for key in ("device", "torch", "vllm") if key in result}
            rows.append(row(mode, allocator, result, failure))
            say(" | ".join(rows[-1]))
            good = not failure and len(result["rounds"]) == ROUNDS and all(one["weights"] and one["tokens"] for one in result["rounds"])
            wrong |= allocator != "vllm" and not good
            # The same kernels with the same weights: the allocator must not change a token. Compiled code may be tuned anew.
            expected = seen.setdefault(mode, result.get("tokens")) if mode != "default" else None
            if expected and result.get("tokens") not in (None, expected):
                say(f"{mode}, {allocator}: the tokens differ from those with the first allocator")
                wrong = True
    print(f"\n{seen.get('device')}, PyTorch {seen.get('torch')}, vLLM {seen.get('vllm')}: free memory in GiB\n")
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    for cells in rows:
        print("| " + " | ".join(cells) + " |")
    print("\ngpu-vmm: " + ("WRONG" if wrong or not rows else "ok"), flush=True)
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    start(main)
