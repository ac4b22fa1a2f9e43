"""The programs in the folder `examples`, in README.md and in the guide: they run, and print the documented output."""

import importlib.util
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import gpu_vmm
from gpu_vmm import vmm
from readme import programs
from support import HERE, NAME, PYTHON, Case, backend
from test_vec import numpy


class Examples(Case):
    def test_growing_vector(self):
        code = (HERE.parent / "examples" / "growing_vector.py").read_text(encoding="utf-8")
        said = self.script(code, GPU_VMM_BACKEND=NAME).splitlines()
        self.assertEqual(said[0], f"<gpu_vmm.Pool on {NAME} device 0>")
        self.assertEqual(
            said[2:],
            [
                "resumed: b'kept'",
                "elements: [0.5, 1.0, 20.0, 30.0] every other: [0.5, 20.0, 4.0, 0.0] last: 0.0",
                "grown: 1000002 elements, same address: True sum of the last three: 24.0",
                "resumed: [0.5, 1.0, 20.0, 30.0] same address: True",
            ],
        )
        self.assertRegex(said[1], r"^suspended: \d+ MiB went to the host, \d+ bytes are held$")

    def test_kv_cache(self):
        code = (HERE.parent / "examples" / "kv_cache.py").read_text(encoding="utf-8")
        said = self.script(code, GPU_VMM_BACKEND=NAME).splitlines()
        self.assertRegex(said[0], r"^4 prompts, 20 sequences that share their pages: \d+ pages of 16$")
        self.assertEqual(
            said[1:],
            ["evictions to the host and to a file: True True within the limit: True", "all pages are free: True"],
        )

    def test_documented_programs(self):
        ran = []
        # Some write files.
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for program in programs():
            with self.subTest(program=program.name):
                compile(program.code, program.name, "exec")
                libraries = [library for library in ("torch", "cupy", "numba", "rmm", "cudf") if program.needs(library)]
                if libraries and not has_gpu_for(libraries) or program.needs("numpy") and numpy is None:
                    continue
                # PyTorch and CuPy may print warnings.
                flags = () if libraries else ("-W", "error")
                printed = self.script(program.code, flags, folder.name, GPU_VMM_BACKEND=NAME)
                if program.prints is not None:
                    self.assertEqual(printed, program.prints)
                ran.append(program.name)
        self.assertTrue(any(name.startswith("readme_") for name in ran), ran)
        self.assertTrue(any(name.startswith("python_") for name in ran), ran)


def example(name):
    """Returns an example as a module."""
    spec = importlib.util.spec_from_file_location(name, HERE.parent / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with unittest.mock.patch.dict(sys.modules, {name: module}):  # where dataclasses look for it
        spec.loader.exec_module(module)
    return module


class KvCache(Case):
    """The class of the example, with pages of 32 tokens."""

    def setUp(self):
        opened = backend()
        self.page = vmm.reservation_unit(opened)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.token = self.page // 32
        self.cache = example("kv_cache").KvCache(opened, self.token, 128, 4 * self.page, self.page, self.folder.name)

    def pages(self, count, byte):
        return bytes([byte]) * (count * self.page)

    def test_sequences_share_their_beginning(self):
        cache, page = self.cache, self.page
        parent = cache.begin()
        cache.append(parent, self.pages(1, 1) + bytes([2]) * self.token)
        children = [cache.fork(parent) for _ in range(10)]
        self.assertEqual((cache.stats()["held"], cache.stats()["copied"], cache.stats()["sequences"]), (2 * page, 0, 11))
        cache.append(children[0], bytes([3]) * self.token)
        cache.append(parent, bytes([4]) * self.token)
        self.assertEqual((cache.stats()["held"], cache.stats()["copied"]), (4 * page, 2 * page))
        for number, last in (children[0], 3), (parent, 4):
            self.assertEqual(cache.read(number, 31, 3), bytes([1]) * self.token + bytes([2]) * self.token + bytes([last]) * self.token)
        self.assertEqual(cache.read(children[1], 32, 1), bytes([2]) * self.token)
        for number in children[1:]:
            cache.end(number)
        self.assertEqual(cache.stats()["held"] - cache.stats()["free"], 3 * page)

    def test_limit_holds_and_contents_return(self):
        cache = self.cache
        numbers = [cache.begin() for _ in range(4)]
        for number in numbers:
            cache.append(number, self.pages(1, number))
        address = cache.step([0], 0)
        for number in numbers:
            cache.append(number, self.pages(1, 100 + number))
            self.assertLessEqual(cache.stats()["held"], cache.stats()["limit"])
        stats = cache.stats()
        self.assertEqual((stats["evicted"], stats["to_host"] > 0, stats["to_file"] > 0), (2, True, True))
        self.assertLessEqual(stats["on_host"], self.page)
        for number in numbers:
            self.assertEqual(cache.read(number, 0, 64), self.pages(1, number) + self.pages(1, 100 + number))
        self.assertEqual(cache.step([0], 0)[0] - 32 * self.token, address[0])
        # A batch is there at the same time, or not at all.
        with self.raises(gpu_vmm.OutOfMemory):
            cache.step(numbers[:3])
        self.assertEqual(cache.read(0, 0, 64), self.pages(1, 0) + self.pages(1, 100))
        for number in numbers:
            cache.end(number)
        self.assertEqual((cache.stats()["held"], cache.stats()["on_host"]), (cache.stats()["free"], 0))


def has_gpu_for(libraries):
    """Returns whether all of these libraries are installed and find a GPU."""
    uses = {
        "torch": "torch.zeros(1, device='cuda')",
        "cupy": "cupy.zeros(1)",
        "numba": "from numba import cuda; cuda.device_array(1)",
        "rmm": "rmm.DeviceBuffer(size=1)",
        "cudf": "cudf.Series([1])",
    }
    code = "\n".join(f"import {library}; {uses[library]}" for library in libraries)
    return subprocess.run([*PYTHON, "-c", code], capture_output=True, timeout=120).returncode == 0


if __name__ == "__main__":
    unittest.main()
