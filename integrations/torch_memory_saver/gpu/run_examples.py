#!/usr/bin/env python3
"""Runs torch_memory_saver's own examples with this library in the place of its two, and with the original.

    python3 integrations/torch_memory_saver/gpu/run_examples.py --library target/release/libgpu_vmm_c.so --wheel WHEEL --tests TESTS

WHEEL is an unpacked wheel of torch_memory_saver, TESTS the folder `test` of its repository at that version. It needs PyTorch with CUDA, a
C++ compiler, and 0.6 of a GPU's memory. It needs no network. The examples run in processes of their own, with the variables
of test_examples.py. With --original, the original runs as well: an example that fails with both shows no fault of this library.
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "plugins/python/gpu"))

from harness import STARTED, Failed, environment, say, start, table  # noqa: E402

SAVER = ROOT / "integrations/torch_memory_saver"
BACKUP = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}
MMAP = {"TMS_INIT_CPU_BACKUP_BACKEND": "mmap"}
BOTH = ("preload", "torch")

# The examples for one GPU: the module, the function, the modes and the variables. The first ones do not measure the GPU's memory, and
# run at the same time.
APART: list[tuple[str, str, tuple[str, ...], dict[str, str]]] = [
    ("cpu_backup", "run", BOTH, {}),
    ("cpu_backup", "run_rss", ("torch",), {}),
    ("cpu_backup", "run_backend_from_env", BOTH, MMAP),
    ("cpu_backup", "run_preload_backend_from_env", ("preload",), BACKUP | MMAP),
    ("cpu_backup", "run_retain_from_env", BOTH, {"TMS_RETAIN_CPU_BACKUP": "1"}),
    ("disk_backup", "run", BOTH, {}),
    ("cuda_vmm_granularity", "run", ("preload",), {"TMS_INIT_ENABLE": "1"}),
]
ALONE: list[tuple[str, str, tuple[str, ...], dict[str, str]]] = [
    ("nested_region", "run", ("preload",), BACKUP),
    ("simple", "run", BOTH, {}),
    ("cuda_graph", "run", BOTH, {}),
    ("rl_example", "run", BOTH, {}),
    ("training_engine", "run", ("preload",), BACKUP),
]
AT_ONCE = 6
LEAST = 10  # seconds: PyTorch's start alone takes that long


def runtime() -> tuple[Path, str]:
    """Returns the file of PyTorch's CUDA runtime, and its major version."""
    found = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__file__, torch.version.cuda)"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    packages, major = Path(found[0]).parents[1], found[1].split(".")[0]
    files = glob.glob(str(packages / f"nvidia/**/libcudart.so.{major}*"), recursive=True) or glob.glob(str(packages / f"torch/lib/libcudart*{major}*"))
    if not files:
        raise Failed(f"PyTorch has no libcudart.so.{major} below {packages}")
    return Path(files[0]), major


def build(library: Path, cudart: Path, output: Path) -> None:
    """Compiles the library. It names the runtime, as the original does: an example calls functions of the runtime through it."""
    sources = sorted(str(path) for path in (SAVER / "src").glob("*.cpp"))
    command = ["c++", "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-I", str(ROOT / "plugins/c/include"), *sources]
    command += ["-Wl,--no-as-needed", str(library), str(cudart), f"-Wl,-rpath,{library.parent}:{cudart.parent}", "-ldl", "-o", str(output)]
    subprocess.run(command, check=True)


def run(
    package: Path, tests: Path, preload: Path, cudart: Path, example: tuple[str, str, str, dict[str, str]], timeout: float
) -> tuple[bool, str]:
    """Runs one example. Returns whether it passed, and the last lines of its output."""
    module, function, mode, variables = example
    code = f"from examples import {module}; {module}.{function}(hook_mode={mode!r}); print('ENDED')"
    paths = {"PYTHONPATH": f"{package}:{tests}", "LD_LIBRARY_PATH": f"{cudart.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    more = {"LD_PRELOAD": str(preload)} if mode == "preload" else {}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(**paths, **more, **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"took more than {timeout:.0f} s"
    lines = done.stdout.strip().splitlines()
    passed = done.returncode == 0 and "ENDED" in lines
    return passed, "" if passed else "\n".join([f"exit status {done.returncode}", *lines[-25:]])


def main() -> int:
    parser = argparse.ArgumentParser(description="torch_memory_saver's own examples with gpu-vmm's library.")
    parser.add_argument("--library", required=True, type=Path, help="libgpu_vmm_c.so")
    parser.add_argument("--wheel", required=True, type=Path, help="an unpacked wheel of torch_memory_saver")
    parser.add_argument("--tests", required=True, type=Path, help="the folder test of its repository")
    parser.add_argument("--original", action="store_true", help="run the original as well")
    parser.add_argument("--only", help="a list of examples, such as simple,disk_backup")
    parser.add_argument("--limit", type=float, default=1800, help="seconds in all; what does not fit is left out (default: %(default)s)")
    given = parser.parse_args()
    cudart, major = runtime()
    names = {mode: f"torch_memory_saver_hook_mode_{mode}_cu{major}.abi3.so" for mode in BOTH}
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder) / "ours"
        shutil.copytree(given.wheel, ours)
        build(given.library.resolve(), cudart, ours / names["preload"])
        shutil.copyfile(ours / names["preload"], ours / names["torch"])
        packages = {"gpu-vmm": ours} | ({"original": given.wheel.resolve()} if given.original else {})

        def one(example: tuple[str, str, str, dict[str, str]]) -> tuple[str, ...]:
            module, function, mode, _ = example
            results = []
            for who, package in packages.items():
                left = given.limit - (time.monotonic() - STARTED)
                if left < LEAST:
                    results.append("SKIPPED")
                    continue
                passed, text = run(package, given.tests.resolve(), package / names["preload"], cudart, example, min(120, left))
                results.append("passed" if passed else "FAILED")
                say(f"{who}: {module}.{function}, {mode}: {results[-1]}{chr(10) if text else ''}{text}")
            return (f"{module}.{function}", mode, *results)

        def chosen(examples: list[tuple[str, str, tuple[str, ...], dict[str, str]]]) -> list[tuple[str, str, str, dict[str, str]]]:
            wanted = given.only.split(",") if given.only else [module for module, *_ in examples]
            return [(module, function, mode, of) for module, function, modes, of in examples if module in wanted for mode in modes]

        with ThreadPoolExecutor(AT_ONCE) as threads:
            rows = list(threads.map(one, chosen(APART)))
        rows += map(one, chosen(ALONE))
    print(table(("example", "mode", *packages), rows, left=4))
    passed, failed = (sum(row[2] == what for row in rows) for what in ("passed", "FAILED"))
    print(f"{passed} of {len(rows)} examples passed with gpu-vmm, {failed} failed", flush=True)
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    start(main)
