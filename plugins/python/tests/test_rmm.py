"""gpu_vmm.rmm with the real library: over a fake RMM, and over RMM itself where it is installed."""

import gc
import importlib.util
import sys
import threading
import types
import unittest
import warnings

import gpu_vmm
from support import MIB, NAME, Case, backend, in_threads


class Stream:
    def __init__(self, handle=0):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


class CallbackMemoryResource:
    def __init__(self, allocate, deallocate):
        self.allocate, self.deallocate = allocate, deallocate


def fake():
    """The part of RMM that is called."""
    rmm = types.ModuleType("rmm")
    resources = {}
    rmm.mr = types.SimpleNamespace(
        CallbackMemoryResource=CallbackMemoryResource,
        get_per_device_resource=lambda device: resources.setdefault(device, f"its own {device}"),
        set_per_device_resource=resources.__setitem__,
    )
    allocators = types.ModuleType("rmm.allocators.cupy")
    allocators.rmm_cupy_allocator = "RMM's allocator"
    return rmm, allocators, resources


def fake_cupy():
    cupy = types.ModuleType("cupy")
    cupy.__spec__ = importlib.util.spec_from_loader("cupy", None)
    cupy.given = []
    cupy.cuda = types.SimpleNamespace(set_allocator=cupy.given.append)
    cupy.get_default_memory_pool = lambda: types.SimpleNamespace(malloc="its own")
    return cupy


class Served(Case):
    """RMM's memory comes from host memory, where the backend is: RMM itself does not look at it."""

    def setUp(self):
        self.backend = backend()
        if NAME != "cuda":
            real = gpu_vmm.rmm.Backend
            gpu_vmm.rmm.Backend = lambda name: self.backend
            self.addCleanup(setattr, gpu_vmm.rmm, "Backend", real)
        self.addCleanup(gpu_vmm.rmm.disable)


class Rmm(Served):
    def setUp(self):
        super().setUp()
        replaced = {name: sys.modules.get(name) for name in ("rmm", "rmm.allocators.cupy", "cupy")}
        sys.modules["rmm"], sys.modules["rmm.allocators.cupy"], self.resources = fake()
        self.cupy = sys.modules["cupy"] = fake_cupy()

        def put_back():
            for name, module in replaced.items():
                sys.modules.pop(name)
                if module is not None:
                    sys.modules[name] = module

        # The last cleanup is the first that runs: disable() needs the fakes.
        self._cleanups.insert(0, (put_back, (), {}))

    def test_allocates(self):
        gpu_vmm.rmm.enable(budget=64 * MIB)
        self.assertEqual(sorted(self.resources), list(range(self.backend.devices)))
        resource = self.resources[0]
        address = resource.allocate(1000, Stream())
        self.assertEqual(gpu_vmm.rmm.pool().find(address).base, address)
        self.assertEqual(gpu_vmm.rmm.pool(0).stats()["live"], 1000)
        resource.deallocate(address, 1000, Stream())
        self.assertEqual(gpu_vmm.rmm.pool().stats()["live"], 0)
        small = [resource.allocate(100, Stream()) for _ in range(4)]
        self.assertEqual([one % 512 for one in small], [0] * 4, "as from cudaMalloc: textures need it")
        for one in small:
            resource.deallocate(one, 100, Stream())
        # Another thread, as C++ frees where it wants to.
        other = resource.allocate(1000, Stream())
        thread = threading.Thread(target=resource.deallocate, args=(other, 1000, Stream()))
        thread.start()
        thread.join()
        self.assertEqual(gpu_vmm.rmm.pool().stats()["live"], 0)
        self.assertEqual(resource.allocate(0, Stream()), 0)
        resource.deallocate(0, 0, Stream())
        with self.raises(gpu_vmm.OutOfMemory, "budget is 64 MiB"):
            resource.allocate(1 << 30, Stream())
        with self.raises(gpu_vmm.InvalidArgument, "per-thread"):
            resource.allocate(1, Stream(2))

    def test_lent_memory_is_in_use(self):
        gpu_vmm.rmm.enable()
        resource = self.resources[0]
        address = resource.allocate(1000, Stream())
        with self.raises(gpu_vmm.Busy, "a buffer of RMM uses the block of 1000 bytes"):
            gpu_vmm.rmm.pool().free(address)
        gpu_vmm.rmm.disable()
        # Memory of an ended resource returns to its pool.
        resource.deallocate(address, 1000, Stream())

    def test_free_that_fails_is_a_warning(self):
        gpu_vmm.rmm.enable()
        resource = self.resources[0]
        address = resource.allocate(1000, Stream())
        gpu_vmm.rmm.pool().free(address, force=True)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            resource.deallocate(address, 1000, Stream())
        self.assertEqual([warning.category for warning in seen], [RuntimeWarning])
        self.assertIn("cannot be freed", str(seen[0].message))

    def test_twice_and_back(self):
        with self.raises(gpu_vmm.Error, "call gpu_vmm.rmm.enable() first"):
            gpu_vmm.rmm.pool()
        gpu_vmm.rmm.enable(keep=0)
        resource = self.resources[0]
        gpu_vmm.rmm.enable(keep=0)
        self.assertIs(self.resources[0], resource)
        with self.raises(gpu_vmm.Error, "disable() first"):
            gpu_vmm.rmm.enable()
        with self.raises(gpu_vmm.NoSuchDevice, "device 77"):
            gpu_vmm.rmm.pool(77)
        self.assertEqual(self.cupy.given, ["RMM's allocator"])
        gpu_vmm.rmm.disable()
        gpu_vmm.rmm.disable()
        self.assertEqual(self.resources[0], "its own 0")
        self.assertEqual(self.cupy.given, ["RMM's allocator", "its own"])

    def test_after_an_error_nothing_is_served(self):
        former = {device: f"its own {device}" for device in range(self.backend.devices)}
        self.cupy.__path__ = []  # installed
        del sys.modules["rmm.allocators.cupy"]
        with self.raises(gpu_vmm.NotInstalled):
            gpu_vmm.rmm.enable()
        self.assertEqual(self.resources, {})
        sys.modules["rmm.allocators.cupy"] = fake()[1]

        given = self.cupy.cuda.set_allocator

        def refuse(allocator):
            if allocator != "its own":
                raise LookupError

        self.cupy.cuda.set_allocator = refuse
        with self.assertRaises(LookupError):
            gpu_vmm.rmm.enable()
        self.assertEqual(self.resources, former)
        with self.raises(gpu_vmm.Error, "not served"):
            gpu_vmm.rmm.pool()
        self.cupy.cuda.set_allocator = given
        gpu_vmm.rmm.enable(cupy=False)

    def test_without_cupy(self):
        gpu_vmm.rmm.enable(cupy=False)
        self.assertEqual(self.cupy.given, [])

    def test_missing_rmm(self):
        sys.modules["rmm"] = None
        with self.raises(gpu_vmm.NotInstalled, "RMM cannot be imported"):
            gpu_vmm.rmm.enable()
        self.assertIsNone(gpu_vmm.rmm._enabled)

    def test_threads(self):
        gpu_vmm.rmm.enable()
        resource = self.resources[0]

        def work(number):
            for turn in range(200):
                size = 1000 + number + turn
                resource.deallocate(resource.allocate(size, Stream()), size, Stream())

        self.assertEqual(in_threads(8, work), [])
        self.assertEqual(gpu_vmm.rmm.pool().stats()["live"], 0)


@unittest.skipUnless(importlib.util.find_spec("rmm"), "RMM is not installed")
class InstalledRmm(Served):
    def test_allocates(self):
        import rmm

        gpu_vmm.rmm.enable(budget=64 * MIB, cupy=False)
        resource = rmm.mr.get_per_device_resource(0)
        self.assertIsInstance(resource, rmm.mr.CallbackMemoryResource)
        buffer = rmm.DeviceBuffer(size=1000, mr=resource)
        self.assertEqual(gpu_vmm.rmm.pool().find(buffer.ptr).base, buffer.ptr)
        # Adaptors of RMM over it.
        counting = rmm.mr.StatisticsResourceAdaptor(resource)
        other = rmm.DeviceBuffer(size=5000, mr=counting)
        self.assertEqual(gpu_vmm.rmm.pool().stats()["live"], 6000)
        with self.assertRaisesRegex(MemoryError, "budget is 64 MiB"):
            rmm.DeviceBuffer(size=1 << 30, mr=resource)
        gpu_vmm.rmm.disable()
        self.assertIsInstance(rmm.mr.get_per_device_resource(0), rmm.mr.CudaMemoryResource)
        # Memory of the ended resource stays until it is freed.
        del buffer, other, counting, resource
        gc.collect()


if __name__ == "__main__":
    unittest.main()
