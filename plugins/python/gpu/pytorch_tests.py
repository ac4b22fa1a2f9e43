"""Runs PyTorch's own tests of its allocator, with PyTorch's allocator and with gpu-vmm, and compares the outcome of each test.

FOLDER holds test/test_cuda.py and test/inductor/test_cudagraph_trees.py of the tag of the installed PyTorch, with what they import. The
package expecttest must be installed. The exit status is 0 if every test that passes natively passes with gpu-vmm, but for those in KNOWN.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from harness import Failed, environment, say, start
from training import enable

# The classes on memory, and a pattern of the tests of each that concern it.
CLASSES = {
    "test_cuda.py": {
        "TestCuda": "memory|alloc|cache|graph|stream|snapshot|oom|out_of|fraction|pool|ipc|caching|stat",
        "TestCudaMallocAsync": "",
        "TestBlockStateAbsorption": "",
        "TestMemPool": "",
        "TestGDS": "",
    },
    "inductor/test_cudagraph_trees.py": {"CudaGraphTreeTests": "", "TestSAC": ""},
}

# Tests that assert how PyTorch's own allocator divides memory, not what a program sees of it. Each with the reason.
KNOWN: dict[str, str] = {
    "TestBlockStateAbsorption.test_allocate_in_thread_to_pool": "asserts segments of 20 MiB; blocks share one here",
    "TestCuda.test_cuda_graph_allocator_propagates_stream": "asserts a segment for each stream; blocks share one here",
    "TestCuda.test_graph_two_successive": "asserts that graphs with one pool reserve 2 MiB less",
    "TestCuda.test_record_stream": "asserts which of several free blocks of a stream serves the next request",
    "TestCudaMallocAsync.test_max_split_expandable": "asserts 120 MiB within a limit of 120 MiB, of 7 pages",
    "TestMemPool.test_graph_capture_reclaim_2_streams": "asserts the effect of graph_capture_record_stream_reuse",
    "TestMemPool.test_graph_capture_reclaim_4_streams": "asserts the effect of graph_capture_record_stream_reuse",
    "TestMemPool.test_mempool_limited_memory_with_allocator": "asserts a limit that includes other allocators",
    "TestCuda.test_graph_memory_stats_and_use_result_after_destroy_graph": "asserts segments of 2 MiB and 20 MiB",
    "TestCudaMallocAsync.test_cachingAllocator_raw_alloc": "asserts the rounding of roundup_power2_divisions",
    "TestCudaMallocAsync.test_allocator_settings": "asserts the rounding of roundup_power2_divisions",
    "TestMemPool.test_mempool_no_split": "asserts that a pool without no_split divides segments of 20 MiB; blocks are never split here",
    "TestMemPool.test_mempool_with_allocator": "asserts that 1 MiB tensors share a segment of 2 MiB",
}

TIMEOUT = 1500.0


class _Result(unittest.TextTestResult):
    """Writes the outcome of each test at once: the process may die in the next one."""

    file: Any = None

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.note(test, "died")

    def note(self, test: Any, outcome: str) -> None:
        # A subtest or a class that cannot be set up has no name of this form.
        name = ".".join(str(test.id()).split(".")[-2:])
        print(json.dumps([name, outcome]), file=self.file, flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.note(test, "ok")

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addExpectedFailure(test, err)
        self.note(test, "ok")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self.note(test, "failed")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self.note(test, "failed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.note(test, "skipped")


def worker(who: str, source: Path, name: str, pattern: str, outcomes: str, done: set[str]) -> int:
    enable(who)
    sys.argv = [str(source)]
    sys.path[:0] = [str(source.parent), str(source.parent.parent)]
    spec = importlib.util.spec_from_file_location(source.stem, source)
    if spec is None or spec.loader is None:
        raise Failed(f"{source} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[source.stem] = module
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if found is None:
        say(f"{source.name} has no class {name}")
        return 0
    tests = [test for test in unittest.defaultTestLoader.getTestCaseNames(found) if re.search(pattern, test)]
    # Known failures run last: a test that fails can leave a limit or memory to the tests after it.
    tests.sort(key=lambda test: f"{name}.{test}" in KNOWN)
    suite = unittest.TestSuite(found(test) for test in tests if f"{name}.{test}" not in done)
    with open(outcomes, "a") as _Result.file:
        unittest.TextTestRunner(resultclass=_Result, verbosity=2).run(suite)
    return 0


def outcomes_of(who: str, source: Path, name: str, pattern: str, log: Path) -> dict[str, str]:
    """Returns the outcome of each test of a class. After a test that kills the process, the others run in a new one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes"
        file.touch()
        while True:
            seen: dict[str, str] = dict(json.loads(line) for line in file.read_text().splitlines())
            words = ["--worker", who, source, name, pattern, file, json.dumps(sorted(seen))]
            with open(log, "a") as output:
                try:
                    done = subprocess.run(
                        [sys.executable, "-X", "faulthandler", __file__, *map(str, words)],
                        env=environment(), stdout=output, stderr=subprocess.STDOUT, timeout=TIMEOUT, check=False,
                    )  # fmt: skip
                    ended = done.returncode == 0
                except subprocess.TimeoutExpired:
                    ended = False
            after: dict[str, str] = dict(json.loads(line) for line in file.read_text().splitlines())
            if ended or after == seen:
                return after if ended or after else {f"{name}.import": "died"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="the folder test of PyTorch's sources")
    parser.add_argument("--only", action="append", help="a class; all without")
    parser.add_argument("--tests", type=lambda text: set(text.split(",")), help="names of tests, separated by commas; all without")
    parser.add_argument("--without-native", action="store_true", help="take for granted that all pass natively")
    parser.add_argument("--logs", type=Path, default=Path(os.environ.get("OUT", ".")), help="a folder for the output of the tests")
    parser.add_argument("--worker", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        who, source, name, pattern, file, done = given.worker
        return worker(who, Path(source), name, pattern, file, set(json.loads(done)))
    if given.folder is None:
        parser.error("a folder is needed")
    counts = {"same": 0, "known": 0, "worse": 0}
    for file, classes in CLASSES.items():
        for name, pattern in classes.items():
            if given.only and name not in given.only:
                continue
            if given.tests:
                pattern = f"^({'|'.join(map(re.escape, sorted(given.tests)))})$"
            both = {}
            for who in ("gpu-vmm",) if given.without_native else ("native", "gpu-vmm"):
                say(name, who)
                log = given.logs / f"{name}-{who}.log"
                both[who] = outcomes_of(who, (given.folder / file).resolve(), name, pattern, log)
            if given.without_native:
                both["native"] = {test: "ok" for test, outcome in both["gpu-vmm"].items() if outcome != "skipped"}
            for test, expected in sorted(both["native"].items()):
                seen = both["gpu-vmm"].get(test, "missing")
                if expected != "ok" or seen == "ok":
                    counts["same"] += 1
                elif test in KNOWN:
                    counts["known"] += 1
                    print(f"{test}: {seen}; {KNOWN[test]}")
                else:
                    counts["worse"] += 1
                    print(f"{test}: {seen} with gpu-vmm, {expected} natively; see {name}-gpu-vmm.log")
    print(f"{counts['same']} tests as natively, {counts['known']} with a known reason, {counts['worse']} worse")
    return 1 if counts["worse"] or not counts["same"] else 0


if __name__ == "__main__":
    start(main)
