"""gpu_vmm.cupy with a fake CuPy and the real library."""

import gc
import sys
import types
import unittest

import gpu_vmm
from support import MIB, NAME, Case, backend


class Stream:
    def __init__(self, ptr):
        self.ptr = ptr


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
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
    )
    cupy.get_default_memory_pool = lambda: types.SimpleNamespace(malloc="its own")
    return cupy


class Cupy(Case):
    def setUp(self):
        self.cupy = sys.modules["cupy"] = fake()
        self.addCleanup(sys.modules.pop, "cupy")
        if NAME == "host":
            # CuPy does not allocate host memory: only the backend is replaced, the allocator is the real one.
            real = gpu_vmm.cupy.Backend
            gpu_vmm.cupy.Backend = lambda name: backend()
            self.addCleanup(setattr, gpu_vmm.cupy, "Backend", real)
        self.addCleanup(gpu_vmm.cupy.disable)

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
        with self.raises(gpu_vmm.OutOfMemory, "budget is 64 MiB"):
            allocate(1 << 30)
        self.cupy.stream = Stream(2)
        with self.raises(gpu_vmm.InvalidArgument, "per-thread"):
            allocate(1)

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


if __name__ == "__main__":
    unittest.main()
