"""gpu_vmm.numba with a fake Numba and the real library, and with the real Numba-CUDA where it is installed."""

import contextlib
import gc
import importlib.util
import sys
import types
import unittest

import gpu_vmm
from support import MIB, NAME, Case, backend


class MemoryPointer:
    def __init__(self, context, pointer, size, finalizer):
        self.context, self.address, self.size, self.finalizer = context, pointer.value, size, finalizer

    def __del__(self):
        self.finalizer()


class Base:
    def __init__(self, context):
        self.context = context

    def reset(self):
        self.context.resets += 1

    @contextlib.contextmanager
    def defer_cleanup(self):
        self.context.deferred = True
        yield
        self.context.deferred = False


class Context:
    def __init__(self, device=0):
        self.device = types.SimpleNamespace(id=device)
        self.waits = self.resets = 0

    def synchronize(self):
        self.waits += 1


class Numba(Case):
    def setUp(self):
        self.cuda = types.ModuleType("numba.cuda")
        self.cuda.HostOnlyCUDAMemoryManager, self.cuda.MemoryPointer = Base, MemoryPointer
        self.cuda.MemoryInfo = types.SimpleNamespace
        self.cuda.set_memory_manager = lambda manager: setattr(self, "manager", manager)
        self.context = Context()
        self.cuda.current_context = lambda: self.context
        numba = types.ModuleType("numba")
        numba.cuda = self.cuda
        for name, module in (("numba", numba), ("numba.cuda", self.cuda)):
            sys.modules[name] = module
            self.addCleanup(sys.modules.pop, name)
        self.backend = backend()
        if NAME != "cuda":
            real = gpu_vmm.numba.Backend
            gpu_vmm.numba.Backend = lambda name: self.backend
            self.addCleanup(setattr, gpu_vmm.numba, "Backend", real)
        self.addCleanup(setattr, gpu_vmm.numba, "_serving", None)
        gpu_vmm.numba._manager.cache_clear()
        self.addCleanup(gpu_vmm.numba._manager.cache_clear)

    def made(self, **settings):
        gpu_vmm.numba.enable(**settings)
        manager = self.manager(context=self.context)
        manager.initialize()
        return manager

    def test_arrays_have_memory_of_a_pool(self):
        manager = self.made()
        self.assertEqual(self.manager(context=None).interface_version, 1)
        pointer = manager.memalloc(1000)
        pool = gpu_vmm.numba.pool()
        self.assertEqual(pool.find(pointer.address).base, pointer.address)
        self.assertEqual(gpu_vmm.numba.pool(0).stats()["live"], 1000)
        info = manager.get_memory_info()
        self.assertTrue(0 < info.free <= info.total)
        with self.raises(gpu_vmm.Unsupported, "legacy IPC"):
            manager.get_ipc_handle(pointer)
        self.assertIs(gpu_vmm.numba._numba_memory_manager, self.manager)
        with self.raises(gpu_vmm.Error, "already served"):
            gpu_vmm.numba.enable(budget=MIB)
        with self.assertRaises(AttributeError):
            gpu_vmm.numba.other

    def test_freed_memory_waits_for_the_device(self):
        manager = self.made()
        address = manager.memalloc(3 * MIB).address
        gc.collect()
        other = manager.memalloc(3 * MIB)
        self.assertNotEqual(other.address, address, "memory is reused under work")
        self.assertEqual(self.context.waits, 0)
        for _ in range(100):
            manager.memalloc(3 * MIB)
        gc.collect()
        self.assertIn(self.context.waits, range(3, 8))
        self.assertLessEqual(gpu_vmm.numba.pool().stats()["held"], 96 * MIB)
        with manager.defer_cleanup():
            waits = self.context.waits
            for _ in range(100):
                manager.memalloc(3 * MIB)
            self.assertTrue(self.context.deferred)
            self.assertEqual(self.context.waits, waits)
        manager.reset()
        self.assertEqual((self.context.resets, gpu_vmm.numba.pool().stats()["live"]), (1, 3 * MIB))

    def test_budget_is_met_by_a_wait(self):
        manager = self.made(budget=16 * MIB)
        for _ in range(4):
            manager.memalloc(12 * MIB)
        self.assertEqual(self.context.waits, 3)
        with self.raises(gpu_vmm.OutOfMemory, "budget is 16 MiB"):
            manager.memalloc(17 * MIB)

    def test_numba_is_missing(self):
        del self.cuda.set_memory_manager
        with self.raises(gpu_vmm.NotInstalled, "External Memory Management"):
            gpu_vmm.numba.enable()
        with self.raises(gpu_vmm.Error, "call gpu_vmm.numba.enable() first"):
            gpu_vmm.numba.pool()


class RealNumba(Case):
    def numba(self, code):
        """Runs code with Numba-CUDA, if it is installed and can be imported: it needs NVIDIA's runtime library."""
        if importlib.util.find_spec("numba_cuda") is None:
            self.skipTest("numba-cuda is not installed")
        begin = """
            import gc, sys, types, gpu_vmm
            try:
                from numba import cuda
                from numba.cuda.cudadrv import driver
            except Exception as error:
                sys.exit(print(f"SKIPPED: numba-cuda cannot be imported: {error}"))
        """
        output = self.script(begin + code, flags=())
        if output.startswith("SKIPPED: "):
            self.skipTest(output.strip())
        self.assertEqual(output, "done\n")

    def test_its_classes_take_the_memory(self):
        self.numba(
            f"""
            class Context:
                device, waits = types.SimpleNamespace(id=0), 0

                def synchronize(self):
                    self.waits += 1

            gpu_vmm.numba.Backend = lambda name: gpu_vmm.open({NAME!r})
            gpu_vmm.numba.enable()
            assert driver._memory_manager is gpu_vmm.numba._numba_memory_manager
            context = Context()
            manager = driver._memory_manager(context=context)
            manager.initialize()
            pool = gpu_vmm.numba.pool(0)
            pointer = manager.memalloc(1000)
            assert isinstance(pointer, cuda.MemoryPointer)
            assert pool.find(pointer.device_pointer_value).base == pointer.device_pointer_value
            assert 0 < manager.get_memory_info().free <= manager.get_memory_info().total
            del pointer
            gc.collect()
            with manager.defer_cleanup():
                for _ in range(200):
                    manager.memalloc(1 << 20)
            assert (context.waits, pool.stats()["live_blocks"]) == (0, 201), pool.stats()
            manager.reset()
            assert (context.waits, pool.stats()["live_blocks"]) == (1, 0), pool.stats()
            print("done")
            """
        )

    def test_device_arrays(self):
        self.numba(
            """
            import numpy

            try:
                available = cuda.is_available()
            except Exception:
                available = False
            if not available:
                sys.exit(print("SKIPPED: Numba finds no GPU"))
            gpu_vmm.numba.enable()
            numbers = numpy.arange(1 << 20, dtype=numpy.int32)
            array = cuda.to_device(numbers)
            pool = gpu_vmm.numba.pool()
            found = pool.find(int(array.__cuda_array_interface__["data"][0]))
            assert found.capacity >= numbers.nbytes
            for _ in range(200):
                array = cuda.to_device(numbers)
            assert (array.copy_to_host() == numbers).all()
            assert pool.stats()["live"] <= 65 * numbers.nbytes, pool.stats()
            free, total = cuda.current_context().get_memory_info()
            assert 0 < free <= total
            print("done")
            """
        )


if __name__ == "__main__":
    unittest.main()
