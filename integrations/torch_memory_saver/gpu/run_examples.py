#!/usr/bin/env python3
"""Runs torch_memory_saver's own examples with this library in the place of its two, and with the original.

    python3 integrations/torch_memory_saver/gpu/run_examples.py --library target/release/libgpu_vmm_c.so --wheel WHEEL --tests TESTS

WHEEL is an unpacked wheel of torch_memory_saver, TESTS the folder `test` of its repository at that version. It needs PyTorch with CUDA, a
C++ compiler, and 0.6 of a GPU's memory. It needs no network. The examples run in processes of their own, in the order and with the
variables of test_examples.py. With --original, the original runs as well: an example that fails with both shows no fault of this library.
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "plugins/python/gpu"))

from harness import Failed, environment, say, start, table  # noqa: E402

SAVER = ROOT / "integrations/torch_memory_saver"
BACKUP = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}
MMAP = {"TMS_INIT_CPU_BACKUP_BACKEND": "mmap"}
BOTH = ("preload", "torch")

# The module, the function, the modes and the variables of each example for one GPU.
EXAMPLES: list[tuple[str, str, tuple[str, ...], dict[str, str]]] = [
    ("simple", "run", BOTH, {}),
    ("cuda_graph", "run", BOTH, {}),
    ("cpu_backup", "run", BOTH, {}),
    ("cpu_backup", "run_rss", ("torch",), {}),
    ("cpu_backup", "run_backend_from_env", BOTH, MMAP),
    ("cpu_backup", "run_preload_backend_from_env", ("preload",), BACKUP | MMAP),
    ("disk_backup", "run", BOTH, {}),
    ("cpu_backup", "run_retain_from_env", BOTH, {"TMS_RETAIN_CPU_BACKUP": "1"}),
    ("rl_example", "run", BOTH, {}),
    ("training_engine", "run", ("preload",), BACKUP),
    ("cuda_vmm_granularity", "run", ("preload",), {"TMS_INIT_ENABLE": "1"}),
    ("nested_region", "run", ("preload",), BACKUP),
]


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
    command += [str(library), str(cudart), f"-Wl,-rpath,{library.parent}:{cudart.parent}", "-Wl,--no-as-needed", "-ldl", "-o", str(output)]
    subprocess.run(command, check=True)


def run(package: Path, tests: Path, preload: Path, cudart: Path, example: tuple[str, str, str, dict[str, str]]) -> tuple[bool, str]:
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
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, "took more than 120 s"
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
    given = parser.parse_args()
    cudart, major = runtime()
    names = {mode: f"torch_memory_saver_hook_mode_{mode}_cu{major}.abi3.so" for mode in BOTH}
    rows, failed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder) / "ours"
        shutil.copytree(given.wheel, ours)
        build(given.library.resolve(), cudart, ours / names["preload"])
        shutil.copyfile(ours / names["preload"], ours / names["torch"])
        packages = {"gpu-vmm": ours} | ({"original": given.wheel.resolve()} if given.original else {})
        for module, function, modes, variables in EXAMPLES:
            if given.only and module not in given.only.split(","):
                continue
            for mode in modes:
                results = {}
                for who, package in packages.items():
                    passed, text = run(package, given.tests.resolve(), package / names["preload"], cudart, (module, function, mode, variables))
                    results[who] = "passed" if passed else "FAILED"
                    say(f"{who}: {module}.{function}, {mode}: {results[who]}{chr(10) if text else ''}{text}")
                rows.append((f"{module}.{function}", mode, *results.values()))
                failed += results["gpu-vmm"] == "FAILED"
    print(table(("example", "mode", *packages), rows, left=4))
    print(f"{len(rows) - failed} of {len(rows)} examples passed with gpu-vmm", flush=True)
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    start(main)
