#!/usr/bin/env python3
"""Sleep and wake side by side: vLLM's own allocator, torch_memory_saver, and gpu-vmm, one after the other on one GPU.

    PYTHONPATH=plugins/python:integrations/vllm GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so \\
        python3 integrations/vllm/gpu/side_by_side.py --vllm FOLDER --tms FOLDER

FOLDER is an unpacked wheel of vLLM (only cumem_allocator.abi3.so and device_allocator/ are needed) or of torch_memory_saver. It needs
PyTorch with CUDA, twice the size of the tensors in host memory, and no network. Each candidate runs in its own process:

- Tensors in pieces of 512 MiB, filled by the GPU. Their memory sleeps and wakes three times. Between the two, the driver's free memory
  is measured, and other data overwrites all of it. After each wake the GPU compares every word.
- Out of memory: while the tensors sleep, another allocation leaves memory for half of them. The wake must fail. Then that
  allocation is freed, and a second wake must restore everything.

The result is a Markdown table for each size. With several sizes, --picture draws speeds against sizes.
"""

import argparse
import ctypes
import glob
import importlib
import json
import logging
import os
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

sys.path.append(str(Path(__file__).resolve().parents[3] / "plugins/python/gpu"))

from harness import GIB, MIB, STARTED, Failed, child, environment, gpu_vmm, say, start  # noqa: E402
from picture import picture  # noqa: E402

PIECE = 512 * MIB
ROUNDS = 3
LEAST = 15  # seconds: PyTorch's start alone takes that long
CANDIDATES = {
    "vllm": "vLLM's cumem_allocator",
    "tms-pinned": "torch_memory_saver, pinned",
    "tms-mmap": "torch_memory_saver, mmap",
    "gpu-vmm-pinned": "gpu-vmm, pinned",
    "gpu-vmm-host": "gpu-vmm, host",
    "gpu-vmm-host-kept": "gpu-vmm, host-kept",
    "gpu-vmm-enabled": "gpu-vmm, pinned, enable()",
}


class Candidate:
    """An allocator that sleeps: how its memory is allocated, and its two calls."""

    def __init__(self, pool: Callable[[], Any], sleep: Callable[[], object], wake: Callable[[], object]) -> None:
        self.pool, self.sleep, self.wake = pool, sleep, wake


def module(name: str, **members: Any) -> types.ModuleType:
    """Puts a module with these members in place of one of vLLM's that only the whole package can import."""
    made = types.ModuleType(name)
    for key, value in members.items():
        setattr(made, key, value)
    sys.modules[name] = made
    return made


def loaded_library(name: str) -> str | None:
    """Returns the path of a library of this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found = (line.split(maxsplit=5)[5].strip() for line in maps if name in line)
        return next((path for path in found if name in os.path.basename(path)), None)


class Cudart:
    """The function of the CUDA runtime that vLLM's allocator calls."""

    def __init__(self) -> None:
        path = loaded_library("libcudart.so")
        if path is None:
            raise Failed("PyTorch has loaded no libcudart.so")
        self.library = ctypes.CDLL(path)

    def cudaMemcpy(self, to: int, of: int, size: int) -> None:  # noqa: N802
        error = self.library.cudaMemcpy(ctypes.c_void_p(to), ctypes.c_void_p(of), ctypes.c_size_t(size), 4)
        if error:
            raise RuntimeError(f"cudaMemcpy: error {error}")


def vllm(torch: Any, folder: str) -> Candidate:
    """vLLM's allocator, with only those of its modules that it needs."""
    torch.zeros(1, device="cuda")  # loads the runtime
    for path in glob.glob(str(Path(torch.__file__).parents[1] / "nvidia/**/libnvrtc.so.*"), recursive=True):
        if "builtins" not in path:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    root = Path(folder) / "vllm" if (Path(folder) / "vllm").is_dir() else Path(folder)
    module("vllm").__path__ = [str(root)]
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.platforms", current_platform=types.SimpleNamespace(is_rocm=lambda: False, is_cuda_alike=lambda: True, is_xpu=lambda: False))
    module("vllm.utils").__path__ = []
    module("vllm.utils.system_utils", find_loaded_library=loaded_library)
    module("vllm.utils.torch_utils", PIN_MEMORY=True)
    module("vllm.distributed").__path__ = []
    module("vllm.distributed.device_communicators").__path__ = []
    module("vllm.distributed.device_communicators.cuda_wrapper", CudaRTLibrary=Cudart)
    allocator = importlib.import_module("vllm.device_allocator.cumem").CuMemAllocator.get_instance()
    return Candidate(
        lambda: allocator.use_memory_pool("weights"), lambda: allocator.sleep(("weights",)), lambda: allocator.wake_up(["weights"])
    )


def torch_memory_saver(folder: str, kind: str) -> Candidate:
    sys.path.insert(0, folder)
    saver = importlib.import_module("torch_memory_saver").torch_memory_saver
    saver.hook_mode = "torch"
    return Candidate(
        lambda: saver.region(tag="weights", enable_cpu_backup=True, cpu_backup_backend=kind),
        lambda: saver.pause("weights"),
        lambda: saver.resume("weights"),
    )


def ours(keep: str, enabled: bool) -> Candidate:
    if enabled:
        gpu_vmm("torch").enable()
    allocator = importlib.import_module("gpu_vmm_vllm").CuMemAllocator(keep)
    return Candidate(
        lambda: allocator.use_memory_pool("weights"), lambda: allocator.sleep(("weights",)), lambda: allocator.wake_up(["weights"])
    )


def candidate(torch: Any, name: str, given: argparse.Namespace) -> Candidate:
    if name == "vllm":
        return vllm(torch, given.vllm)
    if name.startswith("tms-"):
        return torch_memory_saver(given.tms, name[4:])
    keep = name.removeprefix("gpu-vmm-")
    return ours("pinned" if keep == "enabled" else keep, keep == "enabled")


class Other:
    """An allocation of the driver that no allocator under test knows of."""

    def __init__(self, torch: Any, size: int) -> None:
        self.driver, self.address, self.size = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), size
        torch.cuda.current_stream().synchronize()  # makes PyTorch's context current
        if error := self.driver.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(size)):
            raise Failed(f"cuMemAlloc of {size / GIB:.1f} GiB: error {error}")

    def overwrite(self) -> None:
        if error := self.driver.cuMemsetD8_v2(self.address, ctypes.c_ubyte(0xEE), ctypes.c_size_t(self.size)):
            raise Failed(f"cuMemsetD8: error {error}")

    def free(self) -> None:
        if error := self.driver.cuMemFree_v2(self.address):
            raise Failed(f"cuMemFree: error {error}")


def free_bytes(torch: Any) -> int:
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


def wrong_words(torch: Any, tensors: list[Any]) -> int:
    """Returns the number of words that differ from what was written. Fails if it did not look at every word."""
    wrong = looked = 0
    for at, tensor in enumerate(tensors):
        for begin in range(0, tensor.numel(), 1 << 24):
            part = tensor[begin : begin + (1 << 24)]
            expected = torch.arange(begin, begin + part.numel(), device="cuda", dtype=torch.int32) ^ (at * 0x01010101)
            wrong += int((part != expected).sum().item())
            looked += part.numel()
    if looked != sum(tensor.numel() for tensor in tensors) or not looked:
        raise Failed(f"compared {looked} words")
    # The comparison itself must be able to find a difference.
    if int((tensors[0][:4] != torch.arange(-1, 3, device="cuda", dtype=torch.int32)).sum().item()) != 4 and not wrong:
        raise Failed("the comparison finds no difference")
    return wrong


def attempt(call: Callable[[], object]) -> str:
    """Returns the error of a call; empty if it returns."""
    try:
        call()
    except Exception as error:  # any kind: the table shows it
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
    return ""


def progress(path: str, result: dict[str, Any]) -> None:
    """Writes what is known so far: a candidate may end the process."""
    Path(path).write_text(json.dumps(result), encoding="utf-8")


def work(name: str, given: argparse.Namespace) -> NoReturn:
    """Runs one candidate in this process and ends it."""
    import torch

    of = candidate(torch, name, given)
    tensors = []
    [gib] = given.gib
    count = gib * GIB // PIECE
    with of.pool():
        for _ in range(count):
            tensors.append(torch.empty(PIECE // 4, dtype=torch.int32, device="cuda"))
    for at, tensor in enumerate(tensors):
        for begin in range(0, tensor.numel(), 1 << 24):
            part = tensor[begin : begin + (1 << 24)]
            part.copy_(torch.arange(begin, begin + part.numel(), device="cuda", dtype=torch.int32) ^ (at * 0x01010101))
    size = sum(tensor.nbytes for tensor in tensors)
    result: dict[str, Any] = {"size": size, "rounds": [], "stage": "before the first sleep"}
    if wrong := wrong_words(torch, tensors):
        raise Failed(f"{wrong} words are wrong before the first sleep")
    torch.cuda.empty_cache()
    for number in range(ROUNDS):
        before = free_bytes(torch)
        began = time.perf_counter()
        of.sleep()
        torch.cuda.synchronize()
        slept = time.perf_counter() - began
        freed = free_bytes(torch) - before
        other = Other(torch, max(free_bytes(torch) - GIB, GIB))
        other.overwrite()
        torch.cuda.synchronize()
        other.free()
        began = time.perf_counter()
        of.wake()
        torch.cuda.synchronize()
        woke = time.perf_counter() - began
        one = {"freed": freed, "sleep": slept, "wake": woke, "wrong": wrong_words(torch, tensors)}
        torch.cuda.empty_cache()
        result["rounds"].append(one)
        say(f"{name}: round {number + 1}: {one}")
        result["stage"] = f"after {number + 1} rounds"
        progress(given.progress, result)

    of.sleep()
    room = size // 2
    other = Other(torch, free_bytes(torch) - room - 256 * MIB)  # the driver rounds
    result["stage"] = "wake with too little memory"
    progress(given.progress, result)
    result["refused"] = attempt(of.wake)
    result["left"] = free_bytes(torch)
    say(f"{name}: wake with memory for half: {result['refused'] or 'no error'}; {result['left'] / GIB:.2f} GiB free")
    other.free()
    result["stage"] = "second wake"
    progress(given.progress, result)
    result["again"] = attempt(of.wake)
    result["stage"] = "contents after the second wake"
    progress(given.progress, result)
    broken = [] if result["again"] else [wrong_words(torch, tensors)]
    result["wrong"] = broken[0] if broken else None
    result["stage"] = "sleep after that"
    progress(given.progress, result)
    result["next"] = attempt(of.sleep) or attempt(of.wake)
    if not result["next"]:
        result["next_wrong"] = wrong_words(torch, tensors)
    result["stage"] = "end"
    progress(given.progress, result)
    say(f"{name}: {result}")
    print(json.dumps(result), flush=True)
    os._exit(0)  # destructors of the candidates are not compared


def row(name: str, result: dict[str, Any], failure: str) -> list[str]:
    """Returns a row of the table."""
    rounds, size = result.get("rounds", []), result.get("size", 0)
    if not rounds:
        return [CANDIDATES[name], *"------", f"failed {result.get('stage', 'at the start')}: {failure[:160]}"]

    def speed(seconds: list[float]) -> str:
        return " to ".join(sorted({f"{size / one / GIB:.1f}" for one in seconds}, key=float))

    freed = min(one["freed"] for one in rounds)
    wrong = sum(one["wrong"] for one in rounds)
    if failure:
        oom = f"process ended during {result['stage']} ({failure[:80]})"
    else:
        refused = result["refused"] or "no error"
        if result["again"]:
            then = f"second wake fails: {result['again']}"
        elif result["wrong"]:
            then = f"second wake: {result['wrong']} wrong words"
        else:
            then = "second wake restores all"
        later = result["next"] or ("" if not result.get("next_wrong") else f"{result['next_wrong']} wrong words")
        oom = f"{refused}; {then}" + (f"; next sleep and wake: {later}" if later else "; sleeps and wakes again")
    return [
        CANDIDATES[name],
        f"{freed / GIB:.2f}",
        speed([rounds[0]["sleep"]]),
        speed([one["sleep"] for one in rounds[1:]]),
        speed([rounds[0]["wake"]]),
        speed([one["wake"] for one in rounds[1:]]),
        "same" if not wrong else f"{wrong} words differ",
        oom.replace("|", "/"),
    ]


HEAD = ["allocator", "freed, GiB", "first sleep", "later sleeps", "first wake", "later wakes", "contents", "memory for half at a wake"]
# What the picture shows, and the part of a round that it comes from.
PANELS = {"first sleep": ("sleep", slice(0, 1)), "later sleeps": ("sleep", slice(1, None)), "wakes": ("wake", slice(0, None))}


def sizes(text: str) -> list[int]:
    """Parses ``2,8,24``."""
    return [int(one) for one in text.split(",")]


def table(given: argparse.Namespace, gib: int, panels: dict[str, dict[str, list[tuple[float, float]]]]) -> tuple[list[list[str]], bool]:
    """Runs all candidates with one size. Returns the table's rows, and whether gpu-vmm did something wrong; adds to the panels."""
    rows, wrong = [], False
    for name in given.only.split(","):
        if (name == "vllm" and not given.vllm) or (name.startswith("tms") and not given.tms):
            say(f"{name}: SKIPPED, its folder is not named")
            continue
        left = given.limit - (time.monotonic() - STARTED)
        if left < LEAST:
            say(f"{name}: SKIPPED, {left:.0f} s are left")
            rows.append([CANDIDATES[name], *"------", "SKIPPED: no time was left"])
            wrong |= name.startswith("gpu-vmm")
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "progress.json")
            words = ["--worker", name, "--gib", gib, "--progress", file]
            words += [word for option in ("vllm", "tms") if getattr(given, option) for word in (f"--{option}", getattr(given, option))]
            result: dict[str, Any] = {}
            failure = ""
            try:
                result = child(__file__, words, environment(), timeout=min(180, left))
            except Failed as failed:
                failure = str(failed).split(",")[0]
                say(f"{name}: {failed}")
                if os.path.exists(file):
                    result = json.loads(Path(file).read_text(encoding="utf-8"))
        rows.append(row(name, result, failure))
        for what, (part, rounds) in PANELS.items():
            if took := [one[part] for one in result.get("rounds", [])[rounds]]:
                panels[what].setdefault(CANDIDATES[name], []).append((gib, result["size"] / GIB / statistics.median(took)))
        is_ours = name.startswith("gpu-vmm")
        good = not failure and not any(one["wrong"] for one in result["rounds"])
        good = good and bool(result["refused"]) and not (result["again"] or result["wrong"] or result["next"] or result["next_wrong"])
        wrong |= is_ours and not good
    return rows, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Sleep and wake of vLLM, torch_memory_saver and gpu-vmm in one run.")
    parser.add_argument("--gib", type=sizes, default=[16], help="of tensors; several: 2,8,24 (default: 16)")
    parser.add_argument("--picture", help="the SVG file to draw")
    parser.add_argument("--vllm", help="an unpacked wheel of vLLM")
    parser.add_argument("--tms", help="an unpacked wheel of torch_memory_saver")
    parser.add_argument("--only", default=",".join(CANDIDATES), help="a list of candidates (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=1800, help="seconds in all; what does not fit is left out (default: %(default)s)")
    parser.add_argument("--worker", choices=CANDIDATES, help=argparse.SUPPRESS)
    parser.add_argument("--progress", default="side_by_side.json", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, given)
    import torch

    said = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    wrong, panels = False, {what: {} for what in PANELS}
    for gib in given.gib:
        rows, is_wrong = table(given, gib, panels)
        wrong |= is_wrong or not rows
        print(f"\n{said}: {gib} GiB in pieces of 512 MiB, speeds in GiB/s\n")
        print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
        for cells in rows:
            print("| " + " | ".join(cells) + " |", flush=True)
    if given.picture:
        Path(given.picture).write_text(picture(f"{said}, tensors in pieces of 512 MiB", panels), encoding="utf-8")
    print("\ngpu-vmm: " + ("WRONG" if wrong else "ok") if any(name.startswith("gpu-vmm") for name in given.only.split(",")) else "", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    start(main)
