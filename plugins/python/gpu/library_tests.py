#!/usr/bin/env python3
"""Runs the own tests of CuPy or RMM, with the library's own memory and with gpu-vmm's, and compares the outcome of each test.

    GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/gpu/library_tests.py cupy FOLDER

FOLDER is `tests` of the source distribution of the installed CuPy, or `python/rmm/rmm/tests` of RMM's sources. It needs pytest and
pytest-xdist. The exit status is 0 if the same tests pass and fail with both, but for those in KNOWN.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import Failed, environment, gpu_vmm, say, start

FOLDERS = {"cupy": ["cupy_tests/core_tests", "cupy_tests/creation_tests", "cupy_tests/cuda_tests"], "rmm": ["."]}

# Tests that pass with the library's own memory and not with gpu-vmm's, each with the reason.
KNOWN: dict[str, str] = {}

TIMEOUT = 1500.0
_allocator: Any = None
_is_served = False
_before = 0
_tests = 0


# What pytest calls in the processes that run tests, which have this file as a plug-in.


def _allocations(library: str) -> int:
    """Returns how many blocks gpu-vmm has allocated."""
    return int(gpu_vmm(library).pool(0).stats()["allocations"])


def pytest_runtest_setup() -> None:
    """Lets gpu-vmm serve the library: tests replace what serves it."""
    global _allocator, _is_served, _before
    library = os.environ.get("GPU_VMM_TESTED")
    if not library:
        return
    module = gpu_vmm(library)
    if library == "cupy":
        import cupy

        if _allocator is None or cupy.cuda.get_allocator() != _allocator:
            module.disable()
            module.enable()
            _allocator = cupy.cuda.get_allocator()
    else:
        # Its tests set the first resource again after each.
        module.disable()
        module.enable()
    _is_served, _before = True, _allocations(library)


def pytest_runtest_teardown() -> None:
    """Counts the tests whose memory gpu-vmm served."""
    global _is_served, _tests
    library = os.environ.get("GPU_VMM_TESTED")
    if library and _is_served and _allocations(library) > _before:
        _tests += 1
        Path(f"{os.environ['GPU_VMM_TEST_SERVED']}.{os.getpid()}").write_text(str(_tests), encoding="utf-8")
    # A test that is skipped has a teardown alone.
    _is_served = False


def pytest_runtest_logreport(report: Any) -> None:
    """Notes the outcome of each phase at once, in the process that collects them."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.outcome == "passed"):
        return
    with open(os.environ["GPU_VMM_TEST_OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(json.dumps([report.nodeid, report.outcome, str(report.longrepr)[-2000:]]) + "\n")


def run(library: str, folder: Path, served: bool, device: str, given: argparse.Namespace) -> "subprocess.Popen[bytes]":
    """Begins to run all tests."""
    place = Path(given.out) / ("gpu-vmm" if served else "own")
    place.mkdir(parents=True)
    variables = environment(
        CUDA_VISIBLE_DEVICES=device,
        CUPY_TEST_GPU_LIMIT="1",
        GPU_VMM_TESTED=library if served else "",
        GPU_VMM_TEST_OUTCOMES=str(place / "outcomes"),
        GPU_VMM_TEST_SERVED=str(place / "served"),
        PYTHONPATH=os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]),
    )
    words = ["-q", "-p", "library_tests", "-p", "no:cacheprovider", "-n", str(given.processes), "--tb=short"]
    words += ["-x"] if given.first else []
    words += ["-m", "not multi_gpu and not slow"] if library == "cupy" else []
    words += given.only or FOLDERS[library]
    with open(place / "output", "wb") as output:
        return subprocess.Popen([sys.executable, "-m", "pytest", *words], cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT)


def outcomes(place: Path) -> dict[str, str]:
    """Returns the outcome of each test."""
    found: dict[str, str] = {}
    failures = []
    file = place / "outcomes"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for name, outcome, text in map(json.loads, lines):
        # An error after a test that has passed counts.
        if found.get(name) != "failed":
            found[name] = outcome
        if outcome == "failed":
            failures.append(f"{name}\n{text}\n\n")
    (place / "failures").write_text("".join(failures), encoding="utf-8")
    return found


def main() -> int:
    """Runs both, one after the other or on two GPUs at once, and prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=list(FOLDERS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", default="0,0", help="the GPU for the library's own memory and that for gpu-vmm's (%(default)s)")
    parser.add_argument("--processes", type=int, default=8, help="how many processes run tests (%(default)s)")
    parser.add_argument("--only", action="append", help="a file or folder of tests")
    parser.add_argument("--first", action="store_true", help="end with the first failure")
    parser.add_argument("--out", default=tempfile.mkdtemp(), help="a new folder for outcomes and output")
    given = parser.parse_args()
    gpu_vmm()
    own, other = given.devices.split(",")
    running = []
    try:
        for served, device in ((False, own), (True, other)):
            running.append(run(given.library, given.folder.resolve(), served, device, given))
            if own == other:
                running[-1].wait(TIMEOUT)
        for process in running:
            process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        raise Failed(f"the tests took more than {TIMEOUT:.0f} s; the output is in {given.out}") from None
    finally:
        for process in running:
            process.kill()
    places = [Path(given.out) / name for name in ("own", "gpu-vmm")]
    natively, served_by_us = (outcomes(place) for place in places)
    if not natively or not served_by_us:
        raise Failed(f"no test has run: {(places[0] / 'output').read_text()[-2000:]}{(places[1] / 'output').read_text()[-2000:]}")
    tests = sum(int(file.read_text(encoding="utf-8")) for file in places[1].glob("served.*"))
    different = [name for name in natively.keys() | served_by_us.keys() if natively.get(name) != served_by_us.get(name)]
    for name in sorted(different):
        reason = KNOWN.get(name.partition("[")[0])
        print(f"{name}: {natively.get(name)} natively, {served_by_us.get(name)} with gpu-vmm{f' ({reason})' if reason else ''}")
    for name, found in (("natively", natively), ("with gpu-vmm", served_by_us)):
        counts = {outcome: sum(1 for one in found.values() if one == outcome) for outcome in ("passed", "failed", "skipped")}
        say(f"{given.library} {name}:", counts)
    say(f"{tests} tests took memory of gpu-vmm; the output is in {given.out}")
    unknown = [name for name in different if name.partition("[")[0] not in KNOWN]
    return 1 if unknown or not tests else 0


if __name__ == "__main__":
    start(main)
