"""Numbers that are too large, and objects of another class."""

import decimal
import fractions
import unittest

import gpu_vmm
from gpu_vmm import serve, vmm
from support import Case, backend

LARGE = 10**5000
"""Python refuses to print it."""


class Numbers(Case):
    def test_float_that_would_be_infinite(self):
        opened = backend()
        for dtype, number in (
            ("float16", 65520), ("float16", -(10**400)), ("float16", 65520.0), ("float32", decimal.Decimal("1e400")),
            ("float64", decimal.Decimal("-1e400")), ("float64", LARGE), ("float32", fractions.Fraction(LARGE)),
        ):  # fmt: skip
            with self.subTest(dtype), self.assertRaisesRegex(OverflowError, f"does not fit {dtype}"):
                gpu_vmm.DeviceVec(dtype, [number], backend=opened)
        infinite = [float("inf"), decimal.Decimal("-Infinity"), float("nan"), 1]
        for dtype in ("float16", "float32", "float64", "bfloat16"):
            found = gpu_vmm.DeviceVec(dtype, infinite, backend=opened).tolist()
            self.assertEqual((found[:2], found[2] != found[2], found[3]), ([float("inf"), float("-inf")], True, 1))

    def test_integers_that_python_does_not_print(self):
        opened = backend()
        vec, pool, region = gpu_vmm.DeviceVec("int32", [1], backend=opened), opened.pool(), vmm.Region(opened, 1)
        for call in (
            lambda: pool.alloc(LARGE),
            lambda: vec[LARGE],
            lambda: vec.resize(LARGE),
            lambda: vec.__dlpack__(stream=LARGE),
            lambda: vmm.Region(opened, 1, placement=LARGE),
            lambda: region.offer(LARGE),
            lambda: gpu_vmm.set_pool_server("/x", priority=LARGE),
            lambda: serve._layout.to_library(serve.Layout({"a": serve.Part(0, "float32", (LARGE,))})),
        ):
            with self.assertRaises(gpu_vmm.InvalidArgument):
                call()
        with self.assertRaisesRegex(BufferError, "bits"):
            vec.__dlpack__(dl_device=(LARGE, 0))
        with self.assertRaisesRegex(TypeError, "list"):
            pool.alloc([LARGE])
        self.assertEqual(gpu_vmm._waits.seconds_of(LARGE), gpu_vmm._waits.seconds_of(float("inf")))
        with self.raises(gpu_vmm.InvalidArgument):
            gpu_vmm._waits.seconds_of(-LARGE)

    def test_elements_of_no_bits(self):
        for dtype in ("dlpack:2:0:1", "dlpack:2:8:0"):
            with self.raises(gpu_vmm.InvalidArgument, "0 bits"):
                gpu_vmm.BlockCache({"a": (dtype, (-1, 4))}, 10, backend=backend())


class Classes(Case):
    def test_text_names_the_class(self):
        opened = backend()
        region, memory = vmm.Region(opened, 1), vmm.PhysicalMemory(opened, 1)
        for name, call in (
            ("PhysicalMemory", lambda: region.map(0, None)),
            ("PhysicalMemory", lambda: region.map(0, region)),
            ("PhysicalMemory", lambda: memory.is_same(None)),
            ("PhysicalMemory", lambda: memory.copy_from(0, region, 0, 1)),
            ("PhysicalMemory", lambda: vmm.BankedRegion(opened, 1).add_physical([None])),
            ("Region", lambda: region.swap(0, None, 0, 0)),
            ("Region", lambda: region.swap_all(memory)),
            ("Region", lambda: region.copy_from(0, None, 0, 1)),
            ("Region", lambda: region.fork(0, memory)),
            ("Region", lambda: vmm.snapshot([None], "/nonexistent")),
            ("PageList", lambda: region.grow(1, region)),
            ("Backend", lambda: gpu_vmm.Pool.restore(None, "/nonexistent")),
            ("dict", lambda: gpu_vmm.BlockCache([], 1, backend=opened)),
        ):
            with self.assertRaisesRegex(TypeError, f"expected a.* {name}|expected a.*[.]{name}"):
                call()

    def test_buffer_of_the_region_itself(self):
        region = vmm.Region(gpu_vmm.open("host"), 1)
        region.grow(1)
        region.write(b"abcd")
        own = region.view(count=4).buffer()
        for call in (lambda: region.read_into(0, own), lambda: region.write(own, 1)):
            with self.raises(gpu_vmm.InvalidArgument, "itself"):
                call()
        region.write(bytes(own), 1)
        self.assertEqual(region.read(0, 5), b"aabcd")


if __name__ == "__main__":
    unittest.main()
