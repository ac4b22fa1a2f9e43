"""gpu_vmm.numba with a fake Numba and the real library, and with the real Numba-CUDA where it is installed."""

import contextlib
import gc
import importlib.util
import sys
import textwrap
import types
import unittest

import gpu_vmm
from support import MIB, NAME, Case, backend, in_threads


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
        self.waits = self.resets = self.pushed = 0

    def push(self):
        self.pushed += 1

    def pop(self):
        self.pushed -= 1

    def synchronize(self):
        assert self.pushed, "the driver waits for the thread's current context"
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

    def test_after_an_error_nothing_is_served(self):
        def refuse(manager):
            raise LookupError

        self.cuda.set_memory_manager = refuse
        with self.assertRaises(LookupError):
            gpu_vmm.numba.enable(budget=MIB)
        with self.raises(gpu_vmm.Error, "not served"):
            gpu_vmm.numba.pool()

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
        pointers = [manager.memalloc(100) for _ in range(4)]
        self.assertEqual([one.address % 512 for one in pointers], [0] * 4, "as from cuMemAlloc: textures need it")
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
        self.assertEqual(self.context.pushed, 0)

    def test_arrays_outlive_their_context(self):
        manager = self.made()
        pointer = manager.memalloc(3 * MIB)
        manager.reset()
        self.context = Context()
        after = self.manager(context=self.context)
        del pointer, manager
        gc.collect()
        after.reset()
        self.assertEqual((self.context.waits, gpu_vmm.numba.pool().stats()["live"]), (1, 0))

    def test_threads_defer_one_by_one(self):
        manager = self.made()

        def work(_):
            for _ in range(200):
                with manager.defer_cleanup():
                    manager.memalloc(1000)

        self.assertEqual(in_threads(8, work), [])
        self.assertEqual(gpu_vmm.numba._serving.of(0).deferring, 0)

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
    def numba(self, code, **environment):
        """Runs code with Numba-CUDA, if it is installed and can be imported: it needs NVIDIA's runtime library."""
        if importlib.util.find_spec("numba_cuda") is None:
            self.skipTest("numba-cuda is not installed")
        begin = """
            import ctypes, gc, sys, threading, types, gpu_vmm
            try:
                from numba import cuda
                from numba.cuda.cudadrv import driver
            except Exception as error:
                sys.exit(print(f"SKIPPED: numba-cuda cannot be imported: {error}"))
        """
        output = self.script(textwrap.dedent(begin) + textwrap.dedent(code), flags=(), **environment)
        if output.startswith("SKIPPED: "):
            self.skipTest(output.strip())
        self.assertEqual(output, "done\n")

    def over_a_driver(self, code, **environment):
        """Runs code that needs a device. It launches no kernel: the fake NVIDIA driver, which suffices, cannot run Numba's."""
        if NAME != "cuda":
            self.skipTest("the tests run without CUDA here")
        begin = """
            import numpy

            try:
                driver.driver.ensure_initialized()
            except driver.CudaSupportError as error:
                sys.exit(print(f"SKIPPED: Numba finds no GPU: {error}"))
            if driver.driver.initialization_error:
                sys.exit(print(f"SKIPPED: Numba finds no GPU: {driver.driver.initialization_error.strip()}"))
            numbers = numpy.arange(1 << 20, dtype=numpy.int32)

            def is_right(array):
                return (array.copy_to_host() == numbers).all()

            def stats():
                gc.collect()
                return gpu_vmm.numba.pool().stats()

        """
        self.numba(textwrap.dedent(begin) + textwrap.dedent(code), **environment)

    def test_its_classes_take_the_memory(self):
        self.numba(
            f"""
            class Context:
                device, waits = types.SimpleNamespace(id=0), 0

                def push(self):
                    pass

                pop = push

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
        self.over_a_driver(
            """
            gpu_vmm.numba.enable()
            array = cuda.to_device(numbers)
            pool = gpu_vmm.numba.pool()
            found = pool.find(int(array.__cuda_array_interface__["data"][0]))
            assert found.capacity >= numbers.nbytes
            for _ in range(200):
                array = cuda.to_device(numbers)
            assert is_right(array)
            assert stats()["live"] <= 17 * numbers.nbytes, pool.stats()
            # A part keeps the memory, and nothing has none.
            part = array[100:200]
            del array
            for _ in range(200):
                other = cuda.to_device(-numbers)
            assert (part.copy_to_host() == numbers[100:200]).all()
            part.copy_to_device(numbers[:100])
            assert (part.copy_to_host() == numbers[:100]).all()
            assert cuda.to_device(numbers[:0]).copy_to_host().size == cuda.device_array((3, 0)).size == 0
            # On a stream, with events.
            stream, start, end = cuda.stream(), cuda.event(), cuda.event()
            start.record(stream)
            array = cuda.to_device(numbers, stream=stream)
            other.copy_to_device(array, stream=stream)
            end.record(stream)
            end.synchronize()
            assert is_right(other) and cuda.event_elapsed_time(start, end) >= 0
            free, total = cuda.current_context().get_memory_info()
            assert 0 < free < total
            try:
                array.get_ipc_handle()
            except gpu_vmm.Unsupported as error:
                assert "legacy IPC" in str(error)
            else:
                raise AssertionError("an IPC handle of memory that has none")
            print("done")
            """
        )

    def test_the_variable_of_numba(self):
        self.over_a_driver(
            """
            array = cuda.to_device(numbers)
            assert is_right(array) and stats()["live"] == numbers.nbytes
            print("done")
            """,
            NUMBA_CUDA_MEMORY_MANAGER="gpu_vmm.numba",
        )

    def test_memory_of_the_host_is_numbas(self):
        self.over_a_driver(
            """
            gpu_vmm.numba.enable()
            stream = cuda.stream()
            source, target = (cuda.pinned_array(numbers.size, dtype=numpy.int32) for _ in range(2))
            source[:] = numbers
            cuda.to_device(source, stream=stream).copy_to_host(target, stream=stream)
            stream.synchronize()
            assert (target == numbers).all()
            with cuda.pinned(numbers):
                array = cuda.to_device(numbers, stream=stream)
                stream.synchronize()
            assert is_right(array)
            with cuda.mapped(numbers) as mapped:
                assert mapped.device_ctypes_pointer.value
            live = stats()["live"]
            for make in cuda.mapped_array, cuda.managed_array:
                array = make(numbers.size, dtype=numpy.int32)
                array[:] = numbers
                assert array.device_ctypes_pointer.value and (array == numbers).all()
            driver.device_to_host(target, array, 4)
            assert stats()["live"] == live
            del array, mapped, source, target
            cuda.current_context().reset()
            print("done")
            """
        )

    def test_short_memory(self):
        self.over_a_driver(
            """
            budget = 16 << 20
            gpu_vmm.numba.enable(budget=budget)
            for _ in range(20):
                array = cuda.to_device(numbers)
            assert is_right(array)

            def fails(size):
                try:
                    for _ in range(20):
                        cuda.device_array(size, dtype=numpy.int8)
                except MemoryError as error:
                    return isinstance(error, gpu_vmm.OutOfMemory)
                return False

            assert fails(1 << 50) and fails(budget + 1) and not fails(budget // 2)
            with cuda.defer_cleanup():
                with cuda.defer_cleanup():
                    pass
                assert fails(budget // 2)
            assert not fails(budget // 2) and is_right(array)
            print("done")
            """
        )

    def test_threads_and_devices(self):
        self.over_a_driver(
            """
            gpu_vmm.numba.enable(budget=64 << 20)
            failures, devices = [], list(cuda.gpus)  # Numba-CUDA 0.30.4 fails if several threads list them first

            def work(number):
                try:
                    with devices[number % len(devices)]:
                        for size in range(1000, 1100):
                            mine = numbers[:size] + number
                            assert (cuda.to_device(mine).copy_to_host() == mine).all()
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failures == [], failures
            for number, device in enumerate(devices):
                with device:
                    array = cuda.to_device(numbers)
                    assert gpu_vmm.numba.pool() is gpu_vmm.numba.pool(number)
                    assert gpu_vmm.numba.pool().find(array.device_ctypes_pointer.value).capacity >= numbers.nbytes
            print("done")
            """
        )

    def test_contexts_end(self):
        # Numba-CUDA 0.30.4 releases the device's context in close(), and cuda-core, which has retained it, when the process ends.
        self.over_a_driver(
            """
            gpu_vmm.numba.enable()
            kept = cuda.to_device(numbers)
            for _ in range(10):
                cuda.to_device(numbers)
            pinned = cuda.pinned_array(1000)
            assert stats()["live_blocks"] == 11
            cuda.current_context().reset()
            assert stats()["live_blocks"] == 1 and is_right(kept)
            array = cuda.to_device(numbers)
            del array, pinned
            gc.collect()
            cuda.close()
            assert gpu_vmm.numba.pool(0).stats()["live_blocks"] == 1
            print("done")
            """,
            FAKE_CUDA_ON_VIOLATION="count",
        )


if __name__ == "__main__":
    unittest.main()
