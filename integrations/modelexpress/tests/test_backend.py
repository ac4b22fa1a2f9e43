"""GpuVmmBackend under ModelExpress's own classes, on the backend that GPU_VMM_TEST_BACKEND names.

GPU_VMM_TEST_MODELEXPRESS names the folder that contains the package ``modelexpress`` with its extension ``_alloc_ext``, for instance an
unpacked wheel. Without it, the tests that need ModelExpress are skipped.
"""

import contextlib
import ctypes
import importlib
import inspect
import logging
import os
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2] / "plugins/python/tests")]

import gpu_vmm  # noqa: E402
from gpu_vmm import vmm  # noqa: E402
from gpu_vmm_modelexpress import GpuVmmBackend, install, plugin, register  # noqa: E402
from project import PROJECT, transfers  # noqa: E402
from support import NAME, Case, in_threads  # noqa: E402

# What the memory lacks here is of no interest.
logging.getLogger("gpu_vmm_modelexpress").propagate = False
logging.getLogger("gpu_vmm_modelexpress").addHandler(logging.NullHandler())

needs_modelexpress = unittest.skipUnless(PROJECT, "GPU_VMM_TEST_MODELEXPRESS is not set")


def part(name):
    """Returns a module of ModelExpress."""
    return importlib.import_module("modelexpress.vmm." + name)


def region_of(backend, address):
    """Returns the region that contains an address, and the offset in it."""
    reservation, offset = backend._find("test", address, 1)
    return reservation.region, offset


def allocation_at(address):
    """Returns the start and the size of the allocation at an address, as CUDA's driver reports them."""
    driver = ctypes.CDLL(os.environ.get("GPU_VMM_CUDA_LIBRARY", "libcuda.so.1"))
    context, start, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
    assert not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    assert not driver.cuCtxPushCurrent_v2(context)
    try:
        assert not driver.cuMemGetAddressRange_v2(ctypes.byref(start), ctypes.byref(size), ctypes.c_uint64(address))
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(0)
    return start.value, size.value


class Backend(Case):
    """The five methods by themselves."""

    def setUp(self):
        self.backend = GpuVmmBackend(0, NAME)
        self.unit = self.backend.allocation_granularity()

    def test_the_unit_is_a_power_of_two(self):
        self.assertEqual(self.unit & (self.unit - 1), 0)
        self.assertEqual(self.backend.device, 0)
        self.assertEqual(self.backend.properties.device, 0)

    def test_a_device_that_is_not_there(self):
        with self.assertRaises(gpu_vmm.Error):
            GpuVmmBackend(99, NAME)

    def test_what_the_memory_lacks_is_logged(self):
        kind = vmm.Properties()
        choosing = mock.patch.object(vmm, "first_supported", return_value=(kind, ["no fabric"]))
        with choosing as choose, self.assertLogs("gpu_vmm_modelexpress") as log:
            self.assertIs(GpuVmmBackend(0, NAME).properties, kind)
        self.assertIn("device 0: no fabric", log.output[0])
        tried = [(one.handle_types, one.remote_dma) for one in choose.call_args.args[1]]
        none = vmm.HandleTypes.NONE
        self.assertEqual(tried, [(vmm.HandleTypes.FABRIC, True), (none, True), (none, False)])

    def test_the_last_device(self):
        last = gpu_vmm.open(NAME).devices - 1
        backend = GpuVmmBackend(last, NAME)
        base = backend.reserve(backend.allocation_granularity())
        backend.allocate(base, backend.allocation_granularity())
        region, _ = region_of(backend, base)
        self.assertEqual((region.mapping(0).device, region.access(0, last)), (last, vmm.Access.READ_WRITE))

    def test_allocate_gives_memory_at_the_address_and_deallocate_takes_it(self):
        base = self.backend.reserve(4 * self.unit)
        self.assertEqual(base % self.unit, 0)
        handle = self.backend.allocate(base + self.unit, 2 * self.unit)
        self.assertTrue(0 < handle < 1 << 64)
        region, offset = region_of(self.backend, base + self.unit)
        self.assertEqual(region.access(offset, 0), vmm.Access.READ_WRITE)
        region.write(b"weights", offset)
        self.assertEqual(region.read(offset, 7), b"weights")
        self.assertEqual([(one.offset, one.length) for one in region.mappings()], [(self.unit, 2 * self.unit)])
        self.assertEqual(region.physical(offset).holders, 2)  # the mapping, and the object that was returned
        self.backend.deallocate(base + self.unit, 2 * self.unit, handle)
        self.assertEqual(region.mappings(), [])
        self.backend.release_reserve(base, 4 * self.unit)
        self.assertTrue(region.closed)
        with self.raises(gpu_vmm.NotFound):
            self.backend.allocate(base, self.unit)

    def test_memory_has_the_properties_of_the_backend(self):
        base = self.backend.reserve(self.unit)
        self.backend.allocate(base, self.unit)
        region, offset = region_of(self.backend, base)
        self.assertEqual(region.physical(offset).properties, self.backend.properties)

    def test_a_reservation_is_rounded_up(self):
        base = self.backend.reserve(self.unit + 1)
        self.backend.allocate(base, 2 * self.unit)
        self.backend.release_reserve(base, self.unit + 1)
        base = self.backend.reserve(self.unit + 1)
        self.backend.release_reserve(base, 2 * self.unit)

    def test_release_frees_what_is_allocated(self):
        memory = self.memory()
        base = self.backend.reserve(2 * self.unit)
        self.backend.allocate(base, self.unit)
        self.backend.release_reserve(base, 2 * self.unit)
        self.assertEqual(self.memory(), memory)

    @unittest.skipUnless(NAME == "cuda", "the host's memory is other processes' too, and HIP 7.1 and 7.2 keep it as long as its addresses are reserved")
    def test_deallocate_returns_memory_to_the_device(self):
        base, before = self.backend.reserve(self.unit), self.memory()
        handle = self.backend.allocate(base, self.unit)
        self.assertEqual(before - self.memory(), self.unit)
        self.backend.deallocate(base, self.unit, handle)
        self.assertEqual(self.memory(), before)

    def memory(self):
        """Returns the free memory of the device, or skips where other programs change it."""
        if NAME == "host":
            self.skipTest("free memory of the host is not this process's alone")
        return gpu_vmm.open(NAME).memory(0)[0]

    def test_wrong_calls_change_nothing(self):
        base = self.backend.reserve(4 * self.unit)
        end = base + 4 * self.unit
        handle = self.backend.allocate(base, 2 * self.unit)
        for kind, call in [
            (gpu_vmm.InvalidArgument, lambda: self.backend.reserve(0)),
            (gpu_vmm.Unaligned, lambda: self.backend.allocate(base + 2 * self.unit, self.unit - 1)),
            (gpu_vmm.Unaligned, lambda: self.backend.allocate(base + 2 * self.unit, 0)),
            (gpu_vmm.Unaligned, lambda: self.backend.allocate(base + 2 * self.unit + 1, self.unit)),
            (gpu_vmm.NotFound, lambda: self.backend.allocate(end, self.unit)),
            (gpu_vmm.OutOfRange, lambda: self.backend.allocate(end - self.unit, 2 * self.unit)),
            (gpu_vmm.AlreadyMapped, lambda: self.backend.allocate(base + self.unit, self.unit)),
            (gpu_vmm.NotFound, lambda: self.backend.deallocate(base, self.unit, handle)),
            (gpu_vmm.NotFound, lambda: self.backend.deallocate(base, 2 * self.unit, handle + 1)),
            (gpu_vmm.NotFound, lambda: self.backend.deallocate(end, self.unit, handle)),
            (gpu_vmm.NotFound, lambda: self.backend.release_reserve(base, self.unit)),
            (gpu_vmm.NotFound, lambda: self.backend.release_reserve(base + self.unit, self.unit)),
        ]:
            with self.subTest(kind=kind), self.raises(kind):
                call()
        region, _ = region_of(self.backend, base)
        self.assertEqual([(one.offset, one.length) for one in region.mappings()], [(0, 2 * self.unit)])
        self.backend.deallocate(base, 2 * self.unit, handle)
        with self.raises(gpu_vmm.NotFound):
            self.backend.deallocate(base, 2 * self.unit, handle)

    def test_an_allocation_that_fails_leaves_nothing(self):
        base = self.backend.reserve(self.unit)
        region, _ = region_of(self.backend, base)
        for name in ("map", "set_access"):
            with self.subTest(name=name), mock.patch.object(vmm.Region, name, side_effect=gpu_vmm.OutOfMemory("none")):
                with self.raises(gpu_vmm.OutOfMemory):
                    self.backend.allocate(base, self.unit)
            self.assertEqual(region.mappings(), [])
        self.backend.allocate(base, self.unit)

    def test_a_deallocation_that_fails_can_be_repeated(self):
        base = self.backend.reserve(self.unit)
        handle = self.backend.allocate(base, self.unit)
        with mock.patch.object(vmm.Region, "unmap", side_effect=gpu_vmm.Busy("a capture")), self.raises(gpu_vmm.Busy):
            self.backend.deallocate(base, self.unit, handle)
        self.backend.deallocate(base, self.unit, handle)

    def test_more_memory_than_the_device_has(self):
        total = gpu_vmm.open(NAME).memory(0)[1]
        size = -(-2 * total // self.unit) * self.unit
        base = self.backend.reserve(size + self.unit)
        with self.raises(gpu_vmm.OutOfMemory):
            self.backend.allocate(base, size)
        self.backend.allocate(base, self.unit)


class Whole(Case):
    """One piece of memory at the start of a reservation."""

    def setUp(self):
        self.unit = GpuVmmBackend(0, NAME).allocation_granularity()
        self.backend = GpuVmmBackend(0, NAME, whole=3 * self.unit + 1)
        self.base = self.backend.reserve(1000 * self.unit)
        self.region, _ = region_of(self.backend, self.base)

    def mapped(self):
        return [(one.offset, one.length) for one in self.region.mappings()]

    def test_allocations_share_one_memory(self):
        self.assertEqual(self.mapped(), [(0, 4 * self.unit)])
        first = self.backend.allocate(self.base, self.unit)
        second = self.backend.allocate(self.base + self.unit, 3 * self.unit)
        self.assertTrue(self.region.physical(0).is_same(self.region.physical(3 * self.unit)))
        self.region.write(b"kept", 4 * self.unit - 4)
        self.backend.deallocate(self.base, self.unit, first)
        self.assertEqual(self.mapped(), [(0, 4 * self.unit)])
        self.assertEqual(self.region.read(4 * self.unit - 4, 4), b"kept")
        self.backend.deallocate(self.base + self.unit, 3 * self.unit, second)
        self.backend.release_reserve(self.base, 1000 * self.unit)

    def test_nothing_is_allocated_beyond_it(self):
        self.backend.allocate(self.base, 3 * self.unit)
        with self.raises(gpu_vmm.OutOfMemory, "Make `whole` larger"):
            self.backend.allocate(self.base + 3 * self.unit, 2 * self.unit)
        self.assertEqual(self.mapped(), [(0, 4 * self.unit)])
        self.backend.allocate(self.base + 3 * self.unit, self.unit)

    def test_each_address_is_allocated_once(self):
        self.backend.allocate(self.base, 2 * self.unit)
        with self.raises(gpu_vmm.AlreadyMapped):
            self.backend.allocate(self.base + self.unit, self.unit)

    @unittest.skipUnless(NAME == "cuda", "asks CUDA's driver")
    def test_the_driver_sees_one_allocation(self):
        """What UCX's cuda_ipc asks about a registered range: the bounds of the allocation at its start."""
        used = 3 * self.unit
        for number in range(3):
            self.backend.allocate(self.base + number * self.unit, self.unit)
        self.assertEqual(allocation_at(self.base), (self.base, 4 * self.unit))
        self.assertGreaterEqual(4 * self.unit, used)
        other = GpuVmmBackend(0, NAME)
        base = other.reserve(used)
        for number in range(3):
            other.allocate(base + number * self.unit, self.unit)
        self.assertEqual(allocation_at(base), (base, self.unit))

    def test_a_smaller_reservation_has_memory_everywhere(self):
        base = self.backend.reserve(2 * self.unit)
        self.assertEqual([one.length for one in region_of(self.backend, base)[0].mappings()], [2 * self.unit])


@needs_modelexpress
class Interface(Case):
    """The methods are those of ModelExpress's."""

    def test_signatures(self):
        protocol = part("arena").VmmBackend
        methods = [name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")]
        self.assertEqual(len(methods), 5)
        for name in methods:
            with self.subTest(name):
                theirs = inspect.signature(getattr(protocol, name))
                self.assertEqual(inspect.signature(getattr(GpuVmmBackend, name)), theirs)

    def test_public_attributes_of_their_class(self):
        theirs = part("backend").CudaVmmBackend
        if issubclass(theirs, GpuVmmBackend):
            theirs = importlib.reload(part("backend")).CudaVmmBackend
        missing = [name for name in vars(theirs) if not name.startswith("_") and not hasattr(GpuVmmBackend, name)]
        self.assertEqual(missing, [])
        self.assertEqual(list(inspect.signature(theirs).parameters), ["device"])


@needs_modelexpress
class Arena(Case):
    """ModelExpress's VmmArena over the backend."""

    def setUp(self):
        self.backend = GpuVmmBackend(0, NAME)
        self.unit = self.backend.allocation_granularity()

    def arena(self, units=64, backend=None):
        arena = part("arena").VmmArena(units * self.unit, backend=backend or self.backend)
        self.addCleanup(arena.close)
        return arena

    def test_contents_of_a_load(self):
        arena = self.arena()
        addresses = [arena.malloc(self.unit * count - 1) for count in (1, 2, 3)]
        for number, address in enumerate(addresses):
            region, offset = region_of(self.backend, address)
            region.fill(offset, self.unit, number + 1)
        arena.free(addresses[1])
        self.assertEqual((arena.live_allocation_count, arena.mapped_bytes), (2, 4 * self.unit))
        self.assertEqual(arena.registered_range(), (arena.base, 6 * self.unit))
        region, offset = region_of(self.backend, addresses[2])
        self.assertEqual(region.read(offset, 2), b"\3\3")
        self.assertEqual([(one.offset, one.length) for one in region.mappings()], [(0, self.unit), (3 * self.unit, 3 * self.unit)])
        arena.free(addresses[1])  # not known any more: nothing happens
        arena.close()
        self.assertIsNone(self.backend._reservations.find(addresses[0]))

    def test_its_default_reservation(self):
        with part("arena").VmmArena(backend=self.backend) as arena:
            self.assertEqual(arena.total_bytes, 1 << 44)
            address = arena.malloc(1)
            region, offset = region_of(self.backend, address)
            region.write(b"x", offset)

    def test_a_failed_allocation_leaves_the_arena_usable(self):
        arena = self.arena()
        with mock.patch.object(vmm.Region, "map", side_effect=gpu_vmm.OutOfMemory("none")), self.raises(gpu_vmm.OutOfMemory):
            arena.malloc(1)
        self.assertEqual(arena.live_allocation_count, 0)
        self.assertEqual(arena.malloc(1), arena.base + self.unit)

    def test_threads(self):
        arena, kept = self.arena(512), []

        def work(number):
            for _ in range(8):
                address = arena.malloc(1)
                region, offset = region_of(self.backend, address)
                region.fill(offset, 64, number)
                self.assertEqual(region.read(offset, 64), bytes([number]) * 64)
                if number % 2:
                    arena.free(address)
                else:
                    kept.append(address)

        self.assertEqual(in_threads(8, work), [])
        self.assertEqual((arena.live_allocation_count, len(set(kept))), (32, 32))
        self.assertEqual(arena.mapped_bytes, 32 * self.unit)

    def test_close_waits_for_an_allocation(self):
        arena, entered, go = self.arena(), threading.Event(), threading.Event()
        real = vmm.Region.set_access

        def slow(*arguments):
            entered.set()
            go.wait(20)
            return real(*arguments)

        with mock.patch.object(vmm.Region, "set_access", slow):
            allocating = threading.Thread(target=arena.malloc, args=(1,))
            allocating.start()
            self.assertTrue(entered.wait(20))
            closing = threading.Thread(target=arena.close)
            closing.start()
            closing.join(0.1)
            self.assertTrue(closing.is_alive())
            go.set()
            allocating.join(20)
            closing.join(20)
        self.assertTrue(arena.closed and not closing.is_alive())
        self.assertIsNone(self.backend._reservations.find(arena.base))

    def test_two_arenas_of_one_backend(self):
        first, second = self.arena(), self.arena()
        addresses = first.malloc(1), second.malloc(1)
        first.close()
        region, offset = region_of(self.backend, addresses[1])
        region.write(b"kept", offset)
        self.assertIsNone(self.backend._reservations.find(addresses[0]))

    def test_whole(self):
        backend = GpuVmmBackend(0, NAME, whole=4 * self.unit)
        arena = self.arena(backend=backend)
        arena.malloc(self.unit)
        arena.free(arena.malloc(self.unit))
        arena.malloc(2 * self.unit)
        base, used = arena.registered_range()
        region, _ = region_of(backend, base)
        self.assertEqual([(one.offset, one.length) for one in region.mappings()], [(0, used)])
        with self.raises(gpu_vmm.OutOfMemory):
            arena.malloc(1)


@needs_modelexpress
class Registered(Case):
    """The regions that ModelExpress registers with NIXL for an arena."""

    class Tensor:
        """What ModelExpress reads of a tensor."""

        dtype = "uint8"

        def __init__(self, address, size):
            self.data_ptr, self.numel = lambda: address, lambda: size
            self.element_size, self.is_contiguous = lambda: 1, lambda: True

    def regions(self, backend, single):
        """Returns the registered regions, the range that the arena has used, and the tensors, each as an address and a size."""
        unit, agent = backend.allocation_granularity(), mock.Mock()
        with part("arena").VmmArena(1 << 30, backend=backend) as arena:
            sizes = [unit, 5, 2 * unit]
            tensors = {str(size): self.Tensor(arena.malloc(size), size) for size in sizes}
            manager = transfers().NixlTransferManager("agent", 0)
            manager._agent, agent.get_agent_metadata.return_value = agent, b""
            with mock.patch.dict(os.environ, {"MX_ARENA_SINGLE_MR": single}), mock.patch.object(transfers(), "logger"):
                manager.register_arena(arena, tensors)
            given = agent.register_memory.call_args.args[0]
            found = [(one.data_ptr(), one.numel()) if isinstance(one, self.Tensor) else one[:2] for one in given]
            return found, arena.registered_range(), [(one.data_ptr(), one.numel()) for one in tensors.values()]

    def test_one_region_for_one_memory(self):
        unit = GpuVmmBackend(0, NAME).allocation_granularity()
        regions, used, _ = self.regions(GpuVmmBackend(0, NAME, whole=4 * unit), "1")
        self.assertEqual(regions, [used])
        self.assertEqual(used[1], 4 * unit)

    def test_a_region_for_each_tensor_otherwise(self):
        regions, _, tensors = self.regions(GpuVmmBackend(0, NAME), "0")
        self.assertEqual(regions, tensors)


@needs_modelexpress
class Installed(Case):
    """ModelExpress's runtime, which creates the arena around the load of a model."""

    class Context:
        """What the runtime reads of its LoadContext."""

        class accelerator_backend:  # noqa: N801
            name = "cuda"
            supports_vmm = staticmethod(lambda: True)

        p2p_enabled, global_rank, device_id, vmm_arena = True, 0, 0, None
        target_device = contextlib.nullcontext()

    def setUp(self):
        runtime, module = part("runtime"), part("backend")
        for patch in (
            mock.patch.object(module, "CudaVmmBackend", module.CudaVmmBackend),
            mock.patch.object(importlib.import_module("modelexpress.vmm"), "CudaVmmBackend", None),
            mock.patch.dict(os.environ, MX_VMM_ARENA="1"),
            # Puts PyTorch's allocator in the place of the arena, which needs PyTorch for a GPU.
            mock.patch.object(part("hook"), "use_arena", lambda arena, device: contextlib.nullcontext()),
            mock.patch.object(runtime, "_vmm_arenas", {}),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        self.runtime, self.module = runtime, module

    def load(self, context):
        with self.runtime.maybe_enter_vmm_arena(context):
            self.addCleanup(context.vmm_arena.close)
            return context.vmm_arena.malloc(5)

    def test_the_runtime_uses_it(self):
        install(NAME)
        context = self.Context()
        address = self.load(context)
        self.assertIsInstance(context.vmm_arena._backend, GpuVmmBackend)
        region, offset = region_of(context.vmm_arena._backend, address)
        region.write(b"model", offset)
        self.runtime.log_arena_post_load(context)

    def test_the_entry_point_needs_arenas_turned_on(self):
        theirs = self.module.CudaVmmBackend
        with mock.patch.dict(os.environ, MX_VMM_ARENA="0"):
            register()
        self.assertIs(self.module.CudaVmmBackend, theirs)
        with mock.patch.dict(os.environ, {"GPU_VMM_BACKEND": NAME}):
            register()
            self.assertIsInstance(self.module.CudaVmmBackend(0), GpuVmmBackend)

    def test_the_next_load_replaces_the_arena(self):
        install(NAME)
        first, second = self.Context(), self.Context()
        self.load(first)
        self.load(second)
        self.assertTrue(first.vmm_arena.closed and not second.vmm_arena.closed)

    def test_a_load_that_fails_closes_the_arena(self):
        install(NAME)
        context, arenas = self.Context(), []
        with self.assertRaises(ZeroDivisionError), self.runtime.maybe_enter_vmm_arena(context):
            arenas.append(context.vmm_arena)
            context.vmm_arena.malloc(1)
            1 // 0  # noqa: B018
        self.assertTrue(arenas[0].closed)

    def test_the_environment_sets_whole(self):
        with mock.patch.dict(os.environ, {plugin.WHOLE: "4"}):
            install(NAME)
        made = self.module.CudaVmmBackend(device=0)
        region, _ = region_of(made, made.reserve(64 << 20))
        self.assertEqual([one.length for one in region.mappings()], [4 << 20])
        install(NAME, whole=0)
        made = self.module.CudaVmmBackend(0)
        self.assertEqual(region_of(made, made.reserve(64 << 20))[0].mappings(), [])

    def test_an_environment_variable_that_is_no_number(self):
        with mock.patch.dict(os.environ, {plugin.WHOLE: "4GiB"}), self.raises(gpu_vmm.InvalidArgument, plugin.WHOLE):
            install(NAME)


if __name__ == "__main__":
    unittest.main()
