"""Invalid arguments: every call raises an exception with a text and changes nothing."""

import math
import os
import pathlib
import tempfile
import unittest

import gpu_vmm
from gpu_vmm import vmm
from support import NAME, Case, backend
from test_vec import numpy

HUGE = (-1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200)
NO_NUMBERS = (math.nan, math.inf, 1.5, "1", b"1", None, [], object())
# InternalError, a panic of the library, is not among them.
REFUSED = (TypeError, ValueError, OverflowError, BufferError, MemoryError, gpu_vmm.OutOfAddressSpace, gpu_vmm.NotFound)


class Abuse(Case):
    @classmethod
    def setUpClass(cls):
        cls.backend = backend()

    def vec(self, *arguments, **named):
        return gpu_vmm.DeviceVec(*arguments, backend=self.backend, **named)

    def refused(self, call, *arguments, **named):
        with self.subTest(call=getattr(call, "__qualname__", call), arguments=arguments, named=named):
            with self.assertRaises(REFUSED) as raised:
                call(*arguments, **named)
            self.assertNotIsInstance(raised.exception, gpu_vmm.InternalError)
            self.assertTrue(str(raised.exception))
            self.assertNotIn("panic", str(raised.exception))

    def test_vectors(self):
        vec = self.vec("int32", [1, 2, 3])
        for number in (*HUGE, *NO_NUMBERS):
            self.refused(vec.resize, number)
            self.refused(vec.reserve, number)
            self.refused(vec.read, number, 1)
            self.refused(vec.read, 0, number)
            self.refused(vec.write, number, [1])
            self.refused(self.vec, "int8", device=number) if number is not None else None
            if number is not None and number != 1 << 63:
                self.refused(self.vec, "int8", reserve=number)
        for value in (math.nan, math.inf, 1.5, 1 << 31, -(1 << 31) - 1, "1", None, [1], object()):
            self.refused(vec.append, value)
            self.refused(vec.extend, [1, value])
            self.refused(vec.write, 0, [value])
            self.refused(vec.resize, 5, value)
        for keep in (5, b"host", "", "moon", "file:\0", ["host"]):
            self.refused(vec.suspend, keep)
        for directory in (5, "", b"", "a\0b", b"a\0b", "\ud800", ["/tmp"]):
            self.refused(vec.suspend, "file", directory)
        self.refused(vec.suspend, "host", "/tmp")
        for dtype in ("", "float", "float32\0", b"int8", 5, None, [], "x" * 100_000):
            self.refused(self.vec, dtype)
        for values in (5, 1.5, "12", object(), {1: 2}, [[1]], [None], b"123", bytearray(5), memoryview(b"1234")):
            self.refused(vec.extend, values)
        self.assertEqual((vec.tolist(), len(vec)), ([1, 2, 3], 3))
        vec.append(4)
        self.assertEqual(vec.tolist(), [1, 2, 3, 4])

    def test_numbers_that_a_type_cannot_hold(self):
        for dtype, large in (("float16", 1e5), ("bfloat16", 3.4e38), ("bfloat16", 1e39), ("float32", 1e39), ("complex64", 1e39j)):
            vec = self.vec(dtype, [1])
            for number in large, -large:
                with self.subTest(dtype=dtype, number=number), self.assertRaises(OverflowError):
                    vec.append(number)
                with self.subTest(dtype=dtype, number=number), self.assertRaises(OverflowError):
                    vec.resize(3, number)
            self.assertEqual(vec.tolist(), [1])
            vec.append(math.inf)
            vec.append(math.nan)
            got = vec.read(1, 2)
            self.assertEqual(got[0], math.inf)
            self.assertNotEqual(got[1], got[1])

    def test_words_are_no_numbers(self):
        for dtype in ("complex64", "complex128", "bool", "float32", "int8"):
            for word in ("1", "no", b"1", None):
                with self.subTest(dtype=dtype, word=word), self.assertRaises(TypeError):
                    self.vec(dtype, [word])

    def test_dlpack_arguments(self):
        vec = self.vec("int8", [1])
        for pair in (5, (), (1,), (1, 2, 3), "ab", (1.0, 0), ("1", "0")):
            with self.subTest(pair=pair):
                with self.assertRaisesRegex(TypeError, "max_version must be a pair of integers"):
                    vec.__dlpack__(max_version=pair)
                with self.assertRaisesRegex(TypeError, "dl_device must be a pair of integers"):
                    vec.__dlpack__(dl_device=pair)
        for stream in (math.nan, "0", [], -2, -(1 << 70)):
            self.refused(vec.__dlpack__, stream=stream)
        vec.suspend()  # fails if one of the calls has left a tensor

    def test_pools(self):
        pool = self.backend.pool()
        for number in (*HUGE, *NO_NUMBERS):
            self.refused(pool.alloc, number)
            self.refused(pool.alloc, 1, number)
            self.refused(pool.free, number)
            self.refused(pool.find, number)
            if number not in (1 << 63, (1 << 64) - 1):
                self.refused(pool.trim, number)
            for setting in "page", "slack", "device", "budget":
                if number is not None and (setting != "budget" or number not in (1 << 63, (1 << 64) - 1)):
                    self.refused(self.backend.pool, **{setting: number})
        for stream in (-1, 1 << 64, *NO_NUMBERS):
            self.refused(pool.alloc, 1, stream=stream)
            self.refused(pool.forget_stream, stream)
        for tag in (5, None, b"t", "a\0b", "\ud800", ["t"]):
            for call in pool.tagged, pool.suspend, pool.resume, pool.is_suspended:
                self.refused(call, tag)
        for path in (5.5, None, [], "report.html"):
            self.refused(pool.report, path)
        self.assertEqual(pool.stats()["live"], 0)

    def test_blocks(self):
        with self.backend.pool().alloc(16) as block:
            block.write(b"sixteen letters.")
            for contents in (5, 0, 1 << 40, "text", [1, 2], None, b"x" * 17):
                self.refused(block.write, contents)
            self.refused(block.write, memoryview(b"0123456789")[::2])
            for number in (*HUGE, *NO_NUMBERS):
                self.refused(block.write, b"1", number)
                self.refused(block.read, number, 1)
                self.refused(block.read, number) if number not in HUGE[1:3] else self.refused(block.read, number, 0)
                self.refused(block.read, 0, number) if number is not None else None
            for stream in (-1, 1 << 64, *NO_NUMBERS):
                self.refused(block.record_use, stream)
            self.assertEqual(block.read(), b"sixteen letters.")

    def test_a_size_as_a_text(self):
        pool, vec, region = self.backend.pool(), self.vec("int8"), vmm.Region(self.backend, 1)
        for name, call in (
            ("size", region.grow), ("size", region.grow_or_move), ("size", region.shrink), ("size", lambda size: region.read(0, size)),
            ("length", lambda length: region.fill(0, length, 0)), ("size", lambda size: vmm.PhysicalMemory(self.backend, size)),
            ("size", lambda size: vmm.Region(self.backend, size)), ("size", lambda size: vmm.BankedRegion(self.backend, size)),
            ("guard", lambda guard: vmm.Region(self.backend, 1, guard=guard)), ("size", lambda size: vmm.PinnedMemory(self.backend, size)),
            ("size", pool.alloc), ("keep", pool.trim), ("budget", pool.set_budget), ("budget", lambda budget: self.backend.pool(budget=budget)),
        ):  # fmt: skip
            with self.subTest(call=call), self.raises(TypeError, f"{name}: expected an integer, a number of bytes, not '4MiB' (str)"):
                call("4MiB")
        for name, call in ("n", vec.resize), ("n", vec.reserve), ("reserve", lambda count: self.vec("int8", reserve=count)):
            with self.subTest(call=call), self.raises(TypeError, f"{name}: expected an integer, not 1.5 (float)"):
                call(1.5)

    def test_a_folder_as_a_path(self):
        vec = self.vec("int8", [1, 2])
        with tempfile.TemporaryDirectory() as folder:
            for directory in folder, os.fsencode(folder), pathlib.Path(folder):
                vec.suspend("file", directory)
                vec.resume()
        self.assertEqual(vec.tolist(), [1, 2])

    def test_views_of_itself(self):
        vec = self.vec("int32", range(100_000))
        if NAME == "host" and numpy is not None:
            # Overlapping memory is copied as if it did not overlap, as in NumPy's own assignments.
            vec.write(1, numpy.asarray(vec)[:-1])
            self.assertEqual(vec.tolist(), [0, *range(99_999)])
            vec.write(0, numpy.from_dlpack(vec)[1:])
            self.assertEqual(vec.tolist(), [*range(99_999), 99_998])
            vec.extend(numpy.asarray(vec))
            self.assertEqual(vec.tolist(), [*range(99_999), 99_998] * 2)

    @unittest.skipIf(numpy is None, "there is no NumPy")
    def test_arrays(self):
        vec = self.vec("float64", [1.0])
        for values in (
            numpy.ones((4, 4))[:, ::2], numpy.ones((0, 3)), numpy.ones(4)[::-1], numpy.asfortranarray(numpy.ones((3, 2))), numpy.ones(3, "float32"),
            numpy.ones(3, ">f8"), numpy.array([None]), numpy.zeros(2, [("a", "f8")]), numpy.array(["2020"], "M8[s]"), numpy.array(["a"]),
            numpy.broadcast_to(numpy.ones(1), (5,)),
        ):  # fmt: skip
            self.refused(vec.extend, values)
        vec.extend(numpy.ones(0))
        vec.write(1, numpy.ones(0))
        self.assertEqual(vec.tolist(), [1.0])
        vec.extend(numpy.array(5.0))
        self.assertEqual(vec.tolist(), [1.0, 5.0])


if __name__ == "__main__":
    unittest.main()
