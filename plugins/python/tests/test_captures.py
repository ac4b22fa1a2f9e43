"""Captures of streams: objects that end meanwhile, among them garbage, and announcements."""

import ctypes
import gc
import unittest

import gpu_vmm
from gpu_vmm import vmm
from support import MIB, NAME, Case, backend, in_threads

NON_BLOCKING = 1
MODES = range(3)


class Circle:
    def __init__(self, content):
        self.content, self.itself = content, self


class Uncollected(Case):
    """The tests say when garbage is collected: other objects that end free memory that was kept."""

    def setUp(self):
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)


class Announced(Uncollected):
    def test_memory_is_kept_and_collected(self):
        opened, size = backend(), 2 * MIB
        vec = gpu_vmm.DeviceVec("uint8", bytes(size), backend=opened)
        region = vmm.Region(opened, 64 * MIB)
        region.grow(size)
        pool = opened.pool()
        pool.free(pool.alloc(size).release())
        self.assertEqual(opened.collect(), 0)
        with opened.announce_capture():
            with opened.announce_capture():
                del vec, region, pool
                gc.collect()
            with self.raises(gpu_vmm.Busy):
                opened.collect()
            other = gpu_vmm.DeviceVec("uint8", bytes(size), backend=opened)
            with self.raises(gpu_vmm.Busy):
                other.suspend()
            self.assertEqual(other[5], 0)
        self.assertGreaterEqual(opened.collect(), 3 * size)
        self.assertEqual(opened.collect(), 0)

    def test_ends_by_exception_or_other_thread(self):
        opened = backend()
        with self.assertRaisesRegex(ValueError, "within"), opened.announce_capture():
            raise ValueError("within")
        self.assertEqual(opened.collect(), 0)

        def work(number):
            for _ in range(50):
                with opened.announce_capture():
                    gpu_vmm.DeviceVec("uint8", [number], backend=opened)

        self.assertEqual(in_threads(4, work), [])
        opened.collect()
        self.assertEqual(opened.collect(), 0)

    def test_a_forgotten_end_is_garbage(self):
        opened = backend()
        begun, never = opened._begin_capture(), opened.announce_capture()  # not entered
        gpu_vmm.DeviceVec("uint8", [1], backend=opened)
        with self.raises(gpu_vmm.Busy):
            opened.collect()
        del begun
        gc.collect()
        self.assertGreater(opened.collect(), 0)
        del never


@unittest.skipUnless(NAME == "cuda", "waits for HIP's devices invalidate no capture")
class Invalidated(Uncollected):
    """Each object ends during a capture of the driver's own."""

    def setUp(self):
        super().setUp()
        self.backend = backend()
        self.driver = ctypes.CDLL("libcuda.so.1")
        context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), NON_BLOCKING)
        self.addCleanup(self.call, "cuDevicePrimaryCtxRelease_v2", 0)
        self.addCleanup(self.call, "cuCtxSetCurrent", None)
        self.addCleanup(self.call, "cuStreamDestroy_v2", self.stream)

    def call(self, name, *arguments):
        self.assertEqual(getattr(self.driver, name)(*arguments), 0, name)

    def capture(self, mode, work):
        self.call("cuStreamBeginCapture_v2", self.stream, mode)
        try:
            work()
        finally:
            graph = ctypes.c_void_p()
            ended = self.driver.cuStreamEndCapture(self.stream, ctypes.byref(graph))
        self.assertEqual(ended, 0, f"mode {mode}: the capture was invalidated")
        self.call("cuGraphDestroy", graph)

    def garbage(self):
        Circle(gpu_vmm.DeviceVec("float32", [1, 2, 3], backend=self.backend))
        region = vmm.Region(self.backend, 1 << 30)
        region.grow(4 * MIB)
        Circle(region)
        pool = self.backend.pool()
        Circle(pool.alloc(5 * MIB))
        Circle(pool)

    def test_announced(self):
        for mode in MODES:
            self.garbage()
            with self.backend.announce_capture():
                self.capture(mode, gc.collect)
            self.assertGreaterEqual(self.backend.collect(), 9 * MIB)

    def test_of_a_stream_that_a_pool_serves(self):
        pool = self.backend.pool()
        pool.alloc(5 * MIB, stream=self.stream.value)

        def work():
            gc.collect()
            with self.raises(gpu_vmm.Busy):
                pool.suspend("", keep="host")
            with self.raises(gpu_vmm.Busy):
                self.backend.collect()

        for mode in MODES:
            self.garbage()
            self.capture(mode, work)
            self.assertGreaterEqual(self.backend.collect(), 9 * MIB)
        pool.suspend("", keep="host")
        pool.resume("")
        del pool
        gc.collect()


if __name__ == "__main__":
    unittest.main()
