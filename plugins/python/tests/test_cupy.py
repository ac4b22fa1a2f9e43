"""gpu_vmm.cupy with a fake CuPy and the real library."""

import gc
import os
import signal
import sys
import threading
import types
import unittest
import warnings
import weakref

import gpu_vmm
from support import MIB, NAME, Case, backend, shrink


class BaseStream:
    def __init__(self, ptr):
        self.ptr = ptr

    def begin_capture(self, mode=None):
        if mode == "refused":
            raise RuntimeError("refused")

    def end_capture(self):
        return "the graph"


class Stream(BaseStream):
    pass


class ExternalStream(BaseStream):
    pass


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


def fake():
    cupy = types.ModuleType("cupy")
    cupy.given, cupy.stream = [], Stream(0)
    cupy.cuda = types.SimpleNamespace(
        runtime=types.SimpleNamespace(is_hip=NAME == "hip", getDevice=lambda: 0),
        set_allocator=cupy.given.append,
        get_current_stream=lambda: cupy.stream,
        Stream=Stream,
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
    )
    cupy.get_default_memory_pool = lambda: types.SimpleNamespace(malloc="its own")
    return cupy


class Cupy(Case):
    def setUp(self):
        self.cupy = sys.modules["cupy"] = fake()
        self.addCleanup(sys.modules.pop, "cupy")
        self.backend = backend()
        if NAME == "host":
            # CuPy does not allocate host memory: only the backend is replaced, the allocator is the real one.
            real = gpu_vmm.cupy.Backend
            gpu_vmm.cupy.Backend = lambda name: self.backend
            self.addCleanup(setattr, gpu_vmm.cupy, "Backend", real)
        self.addCleanup(gpu_vmm.cupy.disable)
        for name in ("begin_capture", "end_capture"):
            self.addCleanup(setattr, BaseStream, name, getattr(BaseStream, name))

    def test_allocates(self):
        gpu_vmm.cupy.enable(budget=64 * MIB)
        (allocate,) = self.cupy.given
        memory = allocate(1000)
        self.assertEqual((memory.mem.size, memory.mem.device_id), (1000, 0))
        self.assertEqual(gpu_vmm.cupy.pool().find(memory.ptr).base, memory.ptr)
        self.assertEqual(gpu_vmm.cupy.pool(0).stats()["live"], 1000)
        del memory
        gc.collect()
        self.assertEqual(gpu_vmm.cupy.pool().stats()["live"], 0)
        nothing = allocate(0)
        self.assertEqual((nothing.ptr, nothing.mem.size), (0, 0))
        # As for cudaMalloc: textures need it.
        self.assertEqual([one.ptr % 512 for one in [allocate(100) for _ in range(4)]], [0] * 4)
        with self.raises(gpu_vmm.OutOfMemory, "budget is 64 MiB"):
            allocate(1 << 30)

    @unittest.skipIf(NAME == "host", "host memory has no streams of threads")
    def test_each_thread_reuses_its_own_memory(self):
        gpu_vmm.cupy.enable()
        (allocate,) = self.cupy.given
        self.cupy.stream = Stream(2)
        theirs = []

        def thread():
            for _ in range(2):
                memory = allocate(3 * MIB)
                theirs.append(memory.ptr)
                del memory
                gc.collect()

        memory = allocate(3 * MIB)
        for _ in range(40):
            one = threading.Thread(target=thread)
            one.start()
            one.join()
        self.assertNotIn(memory.ptr, theirs)
        self.assertEqual(theirs[::2], theirs[1::2], "a thread did not get its own memory back")
        held = gpu_vmm.cupy.pool().stats()["held"]
        # A large GPU has pages of 8 MiB.
        self.assertLess(held, 80 * MIB, "ended threads hold memory")

    def test_limit_at_run_time(self):
        with self.raises(gpu_vmm.Error, "set_limit: CuPy is not served"):
            gpu_vmm.cupy.set_limit(size=1)
        gpu_vmm.cupy.enable()
        (allocate,) = self.cupy.given
        del allocate(32 * MIB).mem
        gc.collect()
        shrink(gpu_vmm.cupy.pool(), 16 * MIB, lambda: gpu_vmm.cupy.set_limit(size=16 * MIB))
        self.assertLessEqual(gpu_vmm.cupy.pool().stats()["held"], 16 * MIB)
        with self.raises(gpu_vmm.OutOfMemory, "budget is 16 MiB"):
            allocate(17 * MIB)
        gpu_vmm.cupy.set_limit(fraction=0)
        with self.raises(gpu_vmm.OutOfMemory, "budget is 0 B"):
            allocate(1)
        gpu_vmm.cupy.set_limit(size=0)
        gpu_vmm.cupy.set_limit(fraction=1, device=0)
        self.assertEqual(allocate(17 * MIB).mem.size, 17 * MIB)
        for wrong in {}, {"size": 1, "fraction": 1.0}, {"fraction": 1.5}, {"size": -1}:
            with self.raises(gpu_vmm.InvalidArgument):
                gpu_vmm.cupy.set_limit(**wrong)

    def test_twice_and_back(self):
        with self.raises(gpu_vmm.Error, "call gpu_vmm.cupy.enable() first"):
            gpu_vmm.cupy.pool()
        gpu_vmm.cupy.enable(keep=0)
        gpu_vmm.cupy.enable(keep=0)
        self.assertEqual(len(self.cupy.given), 1)
        with self.raises(gpu_vmm.Error, "disable() first"):
            gpu_vmm.cupy.enable()
        memory = self.cupy.given[0](MIB)
        gpu_vmm.cupy.disable()
        self.assertEqual(self.cupy.given[1:], ["its own"])
        memory.mem.owner.write(b"stays")
        gpu_vmm.cupy.disable()
        self.assertEqual(len(self.cupy.given), 2)
        gpu_vmm.cupy.enable()

    def is_announced(self):
        vec = gpu_vmm.DeviceVec("float32", [1.0], backend=self.backend)
        del vec
        gc.collect()
        try:
            self.backend.collect()
        except gpu_vmm.Busy:
            return True
        return False

    @unittest.skipUnless(sys.platform == "linux", "no fork")
    def test_forked_while_another_thread_makes_a_pool(self):
        gpu_vmm.cupy.enable()
        (allocate,) = self.cupy.given
        inside, leave = threading.Event(), threading.Event()

        def hold():
            with gpu_vmm.cupy._lock:
                inside.set()
                leave.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of forks in processes with threads
            child = os.fork()
        if child == 0:
            signal.alarm(20)
            status = 1
            try:
                allocate(1000)
            except gpu_vmm.Forked:
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        leave.set()
        thread.join()

    def test_each_thread_has_its_default_stream(self):
        def capture():
            Stream(2).begin_capture()
            Stream(2).end_capture()

        gpu_vmm.cupy.enable()
        Stream(2).begin_capture()
        thread = threading.Thread(target=capture)
        thread.start()
        thread.join()
        self.assertTrue(self.is_announced(), "the capture of another thread's stream has ended")
        Stream(2).end_capture()
        self.assertFalse(self.is_announced())

    def test_captures_are_announced(self):
        for _ in range(2):
            gpu_vmm.cupy.enable()
            self.assertFalse(self.is_announced())
            first, second = Stream(4096), ExternalStream(8192)
            first.begin_capture()
            second.begin_capture(mode=1)
            self.assertTrue(self.is_announced())
            self.assertEqual(Stream(4096).end_capture(), "the graph")
            self.assertTrue(self.is_announced())
            second.end_capture()
            self.assertFalse(self.is_announced())
            with self.assertRaises(RuntimeError):
                first.begin_capture("refused")
            self.assertFalse(self.is_announced())
            first.begin_capture()
            gpu_vmm.cupy.disable()
            self.assertTrue(self.is_announced())
            first.end_capture()
            self.assertFalse(self.is_announced())
            first.begin_capture()
            self.assertFalse(self.is_announced(), "CuPy is not served")
            self.assertEqual(first.end_capture(), "the graph")

    def test_disable_returns_the_memory(self):
        def free():
            return self.backend.memory(0)[0]

        left = []
        for _ in range(3):
            gpu_vmm.cupy.enable()
            small, large = self.cupy.given[-1](MIB), self.cupy.given[-1](64 * MIB)
            used = free()
            del large
            gc.collect()
            gpu_vmm.cupy.disable()
            if NAME != "hip":  # HIP 7.1 and 7.2 free memory with its addresses
                self.assertGreaterEqual(free(), used + 64 * MIB)
            small.mem.owner.write(b"stays")
            del small
            gc.collect()
            left.append(free())
        self.assertEqual(left, left[:1] * 3)

    def test_forgotten_stream_is_dropped(self):
        gpu_vmm.cupy.enable()
        self.cupy.stream = Stream(0)
        stream = weakref.ref(self.cupy.stream)
        self.cupy.given[-1](1)
        gpu_vmm.cupy.pool().forget_stream(0)
        self.cupy.stream = None
        gc.collect()
        self.assertIsNone(stream())

    def test_streams_outlive_the_pool(self):
        ended = []

        class Watched(Stream):
            def __del__(self):
                ended.append(memory_of_pool())

        def memory_of_pool():
            return self.backend.memory(0)[0]

        gpu_vmm.cupy.enable()
        self.cupy.stream = Watched(0)
        array = self.cupy.given[-1](64 * MIB)
        used = memory_of_pool()
        # Garbage in a circle with the stream.
        circle = {"array": array, "stream": self.cupy.stream}
        circle["self"] = circle
        self.cupy.stream = Stream(0)
        gpu_vmm.cupy.disable()
        del array, circle
        gc.collect()
        self.assertEqual(len(ended), 1)
        if NAME != "hip":
            self.assertGreaterEqual(ended[0], used + 64 * MIB)


if __name__ == "__main__":
    unittest.main()
