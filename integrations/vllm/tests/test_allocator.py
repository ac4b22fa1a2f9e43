"""The replacement of vLLM's allocator and the sleep backend, on a fake PyTorch whose memory is gpu-vmm's own."""

import ctypes
import os
import sys
import tempfile
import types
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / "plugins/python/tests")]

import fake_torch  # noqa: E402
import gpu_vmm  # noqa: E402
from gpu_vmm_vllm import CuMemAllocator, GpuVmmBackend, register  # noqa: E402
from support import MIB, Case  # noqa: E402

torch, calls = fake_torch.install()
SIZE = 4 * MIB


class Tensor:
    """Memory with the attributes of a tensor that the package reads."""

    def __init__(self, address, nbytes=SIZE):
        self.address, self.nbytes, self.device, self.contiguous = address, nbytes, 0, True

    def data_ptr(self):
        return self.address

    def is_contiguous(self):
        return self.contiguous

    def fill(self, byte):
        gpu_vmm._library.check(self.call("write", ctypes.create_string_buffer(bytes([byte]) * self.nbytes, self.nbytes)))

    def bytes(self):
        to = ctypes.create_string_buffer(self.nbytes)
        gpu_vmm._library.check(self.call("read", to))
        return to.raw

    def call(self, name, buffer):
        function = getattr(gpu_vmm._library.library(), f"gpu_vmm_{name}")
        return function(gpu_vmm.torch.device_pool(0)._handle, self.address, buffer, self.nbytes)


def tensor(allocator, tag, byte):
    with allocator.use_memory_pool(tag):
        made = Tensor(torch.empty(SIZE))
    made.fill(byte)
    return made


def overwritten(run):
    """Runs what is called while the memory sleeps, after other blocks have overwritten free memory."""
    other = gpu_vmm.open(fake_torch.NAME).pool()
    blocks = [other.alloc(SIZE) for _ in range(8)]
    for block in blocks:
        made = ctypes.create_string_buffer(b"\xee" * SIZE, SIZE)
        gpu_vmm._library.check(gpu_vmm._library.library().gpu_vmm_write(other._handle, block.address, made, SIZE))
    del blocks, other
    run()


class Allocator(Case):
    def setUp(self):
        self.allocator = CuMemAllocator("host")
        CuMemAllocator.instance = self.allocator

    def asleep(self, tag):
        return gpu_vmm.torch.device_pool(0).is_suspended(tag)

    def tearDown(self):
        gpu_vmm.torch.wake()

    def test_there_is_one_instance(self):
        CuMemAllocator.instance = None
        self.assertIs(CuMemAllocator.get_instance(), CuMemAllocator.get_instance())
        self.assertEqual(CuMemAllocator.get_instance().keep, "pinned")

    def test_offloaded_tags_keep_their_contents(self):
        weights, cache = tensor(self.allocator, "weights", 1), tensor(self.allocator, "kv_cache", 2)
        usage = self.allocator.get_current_usage()
        self.assertGreaterEqual(usage, 2 * SIZE)
        held = gpu_vmm.torch.stats(0)["held"]
        self.allocator.sleep(offload_tags=("weights",))
        self.assertTrue(self.asleep("weights") and self.asleep("kv_cache"))
        self.assertLessEqual(gpu_vmm.torch.stats(0)["held"], held - 2 * SIZE)
        self.assertEqual(self.allocator.get_current_usage(), usage)
        self.allocator.sleep(offload_tags=())  # changes nothing: both sleep, and the weights keep their contents
        overwritten(self.allocator.wake_up)
        self.assertEqual(weights.bytes(), b"\1" * SIZE)
        self.assertFalse(self.asleep("kv_cache"))
        cache.fill(3)
        self.assertEqual(cache.bytes(), b"\3" * SIZE)

    def test_the_default_tag_is_offloaded(self):
        mine = tensor(self.allocator, None, 5)
        self.allocator.sleep()
        self.assertTrue(self.asleep("default"))
        self.allocator.wake_up()
        self.assertEqual(mine.bytes(), b"\5" * SIZE)

    def test_wake_restores_tags_and_undeferrable_ones(self):
        for tag in ("weights", "kv_cache", "runtime"):
            tensor(self.allocator, tag, 1)
        self.allocator.sleep("weights")
        self.allocator.wake_up(["weights"])
        self.assertEqual([self.asleep(tag) for tag in ("weights", "kv_cache", "runtime")], [False, True, False])
        self.allocator.wake_up(["kv_cache"])
        self.assertFalse(self.asleep("kv_cache"))

    def test_discard_leaves_other_tags_awake(self):
        weights = tensor(self.allocator, "weights", 9)
        tensor(self.allocator, "kv_cache", 1)
        self.allocator.discard("kv_cache")
        self.assertEqual([self.asleep("weights"), self.asleep("kv_cache")], [False, True])
        self.assertEqual(weights.bytes(), b"\x09" * SIZE)

    def test_failed_sleep_wakes_everything(self):
        weights = tensor(self.allocator, "weights", 7)
        tensor(self.allocator, "a", 8)
        real = gpu_vmm.torch.sleep
        for error in (gpu_vmm.FileError("suspend: no room"), KeyboardInterrupt("no room")):

            def failing(tag, keep, error=error):
                if tag == "weights":
                    raise error
                return real(tag, keep)

            gpu_vmm.torch.sleep = failing
            try:
                with self.raises(type(error), "no room"):
                    self.allocator.sleep(("a", "weights"))
            finally:
                gpu_vmm.torch.sleep = real
            self.assertFalse(self.asleep("a") or self.asleep("weights"))
            self.assertEqual(weights.bytes(), b"\7" * SIZE)

    def test_interrupted_sleep_wakes_every_tag(self):
        tensors = {tag: tensor(self.allocator, tag, 8) for tag in ("a", "weights")}
        real = gpu_vmm.torch.sleep

        def interrupted(tag, keep):
            real(tag, keep)
            raise KeyboardInterrupt("while the library ran")

        gpu_vmm.torch.sleep = interrupted
        try:
            with self.raises(KeyboardInterrupt, "while the library ran"):
                self.allocator.sleep(("a", "weights"))
        finally:
            gpu_vmm.torch.sleep = real
        self.assertEqual([tag for tag in tensors if self.asleep(tag)], [])
        self.assertEqual([one.bytes() for one in tensors.values()], [b"\x08" * SIZE] * 2)

    def test_failed_sleep_raises_its_own_error(self):
        tensors = {tag: tensor(self.allocator, tag, 8) for tag in ("a", "b", "weights")}
        sleep, wake, failed = gpu_vmm.torch.sleep, gpu_vmm.torch.wake, []

        def failing_sleep(tag, keep):
            if tag == "weights":
                raise gpu_vmm.FileError("suspend: no space")
            return sleep(tag, keep)

        def failing_wake(tag):
            if not failed:  # the first one
                failed.append(tag)
                raise gpu_vmm.DriverError("resume: an error of the driver")
            return wake(tag)

        gpu_vmm.torch.sleep, gpu_vmm.torch.wake = failing_sleep, failing_wake
        try:
            with self.raises(gpu_vmm.FileError, "no space"):
                self.allocator.sleep(tuple(tensors))
        finally:
            gpu_vmm.torch.sleep, gpu_vmm.torch.wake = sleep, wake
        self.assertEqual([tag for tag in tensors if self.asleep(tag)], failed)
        self.allocator.wake_up()
        for one in tensors.values():
            self.assertEqual(one.bytes(), b"\x08" * SIZE)

    def test_other_memory_of_pytorch_stays_awake(self):
        with gpu_vmm.torch.pool("of another user"):
            torch.empty(SIZE)
        tensor(self.allocator, "weights", 1)
        self.allocator.sleep()
        self.assertFalse(self.asleep("of another user"))

    def test_a_graph_pool_needs_enable(self):
        with self.raises(gpu_vmm.Unsupported, "enable()"), self.allocator.cudagraph_pool():
            pass

    @unittest.skipIf(fake_torch.NAME == "host", "the host does not run out of memory")
    def test_failed_wake_keeps_contents_and_continues(self):
        tensors = [tensor(self.allocator, "weights", number) for number in range(4)]
        self.allocator.sleep("weights")
        opened = gpu_vmm.open(fake_torch.NAME)
        # All memory but that for two of the four, in ever smaller steps.
        rest, step = gpu_vmm.vmm.Region(opened), 1 << 36
        while step >= 2 * MIB:
            if opened.memory()[0] < 2 * SIZE + step:
                step //= 2
            else:
                try:
                    rest.grow(rest.size + step)
                except gpu_vmm.OutOfMemory:
                    step //= 2
        for _ in range(2):
            with self.raises(gpu_vmm.OutOfMemory):
                self.allocator.wake_up()
            self.assertTrue(self.asleep("weights"))
        rest.close()
        self.allocator.wake_up()
        for number, one in enumerate(tensors):
            self.assertEqual(one.bytes(), bytes([number]) * SIZE)

    def test_memory_of_graphs_sleeps_as_cudagraph(self):
        graphs = gpu_vmm.torch.device_pool(0).tagged("torch graphs")
        real, gpu_vmm.torch.enabled = gpu_vmm.torch.enabled, lambda: True
        torch.cuda.graph_pool_handle = lambda: (0, 1)
        try:
            with self.allocator.cudagraph_pool() as pool:
                block = graphs.alloc(SIZE)
        finally:
            gpu_vmm.torch.enabled = real
        self.assertEqual(pool, (0, 1))
        memory = Tensor(block.address)
        memory.fill(6)
        self.allocator.sleep(("cudagraph",))
        self.assertTrue(self.asleep("torch graphs"))
        overwritten(self.allocator.wake_up)
        self.assertEqual(memory.bytes(), b"\6" * SIZE)

    def test_a_wrong_store_is_an_error(self):
        with self.raises(gpu_vmm.InvalidArgument, "use pinned, host, host-kept or file"):
            CuMemAllocator("tape")


class Backend(Case):
    def setUp(self):
        CuMemAllocator.instance = CuMemAllocator("host")
        self.allocator, self.backend = CuMemAllocator.instance, GpuVmmBackend()

    def tearDown(self):
        gpu_vmm.torch.wake()

    def test_levels(self):
        for level, kept in ((1, True), (2, False)):
            tensors = {tag: tensor(self.allocator, tag, 4) for tag in ("weights", "runtime", "kv_cache")}
            self.assertEqual(self.backend.state(), "RUNNING")
            self.backend.suspend(level)
            self.assertEqual(self.backend.state(), "SUSPENDED")
            overwritten(self.backend.resume)
            self.assertEqual(self.backend.state(), "RUNNING")
            self.assertEqual(tensors["runtime"].bytes(), b"\4" * SIZE)
            if kept:
                self.assertEqual(tensors["weights"].bytes(), b"\4" * SIZE)
        with self.raises(gpu_vmm.InvalidArgument, "level 3"):
            self.backend.suspend(3)

    def test_partial_resume_leaves_other_tags_asleep(self):
        for tag in ("weights", "kv_cache"):
            tensor(self.allocator, tag, 1)
        self.backend.suspend(1)
        self.backend.resume(["weights"])
        self.assertEqual(self.backend.state(), "SUSPENDED")
        self.assertTrue(gpu_vmm.torch.device_pool(0).is_suspended("kv_cache"))
        self.backend.resume(["kv_cache"])
        self.assertEqual(self.backend.state(), "RUNNING")

    def test_resume_without_allocator_changes_nothing(self):
        CuMemAllocator.instance = None
        os.environ["GPU_VMM_VLLM_KEEP"] = "nowhere"
        try:
            with self.raises(gpu_vmm.InvalidArgument, "nowhere"):
                self.backend.resume()
        finally:
            del os.environ["GPU_VMM_VLLM_KEEP"]
        self.assertEqual(self.backend.state(), "RUNNING")

    def test_a_refused_resume_leaves_the_state(self):
        tensor(self.allocator, "weights", 1)
        self.backend.suspend()
        real = gpu_vmm.torch.wake

        def full(tag):
            raise gpu_vmm.OutOfMemory("resume: device 0 is out of memory")

        gpu_vmm.torch.wake = full
        try:
            with self.raises(gpu_vmm.OutOfMemory):
                self.backend.resume()
        finally:
            gpu_vmm.torch.wake = real
        self.assertEqual(self.backend.state(), "SUSPENDED")
        self.backend.resume()
        self.assertEqual(self.backend.state(), "RUNNING")

    def test_saved_tensors_are_restored(self):
        tensors = {"a": tensor(self.allocator, "weights", 1), "b": tensor(self.allocator, "weights", 2)}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "weights.snapshot")
            self.assertEqual(self.backend.save(path, tensors), 2 * SIZE)
            self.backend.suspend(2)
            self.backend.resume()
            for one in tensors.values():
                one.fill(0)
            # The order of names does not matter.
            self.assertEqual(self.backend.restore(path, dict(reversed(tensors.items()))), 2 * SIZE)
            self.assertEqual([one.bytes() for one in tensors.values()], [b"\1" * SIZE, b"\2" * SIZE])

            tensors["a"].fill(7)
            with self.raises(gpu_vmm.InvalidArgument, "'b' has 4194304 bytes there and no here"):
                self.backend.restore(path, {"a": tensors["a"]})
            self.assertEqual(tensors["a"].bytes(), b"\7" * SIZE)

            damaged = bytearray(Path(path).read_bytes())
            middle = damaged.find(b"\2" * 4096)
            self.assertGreater(middle, 0)
            damaged[middle] ^= 1
            Path(path).write_bytes(damaged)
            with self.raises(gpu_vmm.FileError):
                self.backend.restore(path, tensors)
            self.assertEqual(tensors["a"].bytes(), b"\7" * SIZE)
            with self.raises(gpu_vmm.FileError):
                self.backend.restore(os.path.join(folder, "missing"), tensors)

    def test_copies_wait_for_the_devices(self):
        tensors = {"a": tensor(self.allocator, "weights", 1), "b": tensor(self.allocator, "weights", 2)}
        real = torch.cuda.synchronize
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "weights.snapshot")
            try:
                # The last kernels write here.
                torch.cuda.synchronize = lambda device: waited.append(device) or tensors["b"].fill(5)
                waited = []
                self.backend.save(path, tensors)
                self.assertEqual(waited, [0])
                self.backend.restore(path, tensors)
                self.assertEqual(waited, [0, 0])
            finally:
                torch.cuda.synchronize = real
            for one in tensors.values():
                one.fill(0)
            self.backend.restore(path, tensors)
        self.assertEqual([one.bytes() for one in tensors.values()], [b"\1" * SIZE, b"\5" * SIZE])

    def test_a_snapshot_of_something_else_is_refused(self):
        mine = {"a": tensor(self.allocator, "weights", 1)}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "other")
            region = gpu_vmm.vmm.Region(gpu_vmm.open("host"), SIZE)
            region.grow(SIZE)
            region.snapshot(path)
            with self.raises(gpu_vmm.FileError, "not one of tensors"):
                self.backend.restore(path, mine)

    def test_an_index_of_something_else_is_refused(self):
        mine = {"a": tensor(self.allocator, "weights", 1)}
        for index in (b'{"a": Infinity}', b"[" * 100_000, b"[1]", b'{"a": null}', b"\xff"):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "other")
                region = gpu_vmm.vmm.Region(gpu_vmm.open("host"), SIZE)
                region.grow(SIZE)
                region.write(b"%016d" % len(index) + index)
                region.snapshot(path)
                with self.raises(gpu_vmm.FileError, "not one of tensors"):
                    self.backend.restore(path, mine)

    def test_unreadable_snapshot_is_refused(self):
        mine = {"a": tensor(self.allocator, "weights", 1)}
        host, vmm = gpu_vmm.open("host"), gpu_vmm.vmm
        hole = vmm.Region(host, SIZE)
        hole.map(2 * MIB, vmm.PhysicalMemory(host, 2 * MIB))
        hidden = vmm.Region(host, SIZE)
        hidden.grow(SIZE)
        hidden.set_access(0, SIZE, 0, vmm.Access.NONE)
        for region in (hole, hidden):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "other")
                region.snapshot(path)
                with self.raises(gpu_vmm.FileError, "not one of tensors"):
                    self.backend.restore(path, mine)

    def test_a_tensor_with_holes_is_refused(self):
        mine = tensor(self.allocator, "weights", 1)
        mine.contiguous = False
        with self.raises(gpu_vmm.InvalidArgument, "'a' is not contiguous"):
            self.backend.save("unused", {"a": mine})


class Plugin(Case):
    def register(self, **modules):
        """Registers twice in a vLLM with these modules of its allocators. Returns the class that vLLM then finds."""
        cumem = types.SimpleNamespace(CuMemAllocator=object)
        package = types.ModuleType("vllm.device_allocator")
        package.__path__ = []  # a package without further modules
        found = {"vllm": types.ModuleType("vllm"), package.__name__: package, f"{package.__name__}.cumem": cumem}
        found.update({f"{package.__name__}.{name}": module for name, module in modules.items()})
        sys.modules.update(found)
        try:
            register()
            register()
        finally:
            for name in found:
                del sys.modules[name]
        return cumem.CuMemAllocator

    def test_entry_point_replaces_the_allocator(self):
        registered = {}

        class Factory:
            _registry = registered

            @staticmethod
            def register_backend(name, module, kind):
                if name in registered:
                    raise ValueError(name)
                registered[name] = (module, kind)

        found = self.register(sleep_mode_backend=types.SimpleNamespace(SleepModeBackendFactory=Factory))
        self.assertEqual(registered, {"gpu_vmm": ("gpu_vmm_vllm.backend", "GpuVmmBackend")})
        self.assertIs(found, CuMemAllocator)

    def test_a_vllm_without_backends_gets_the_allocator(self):
        self.assertIs(self.register(), CuMemAllocator)


if __name__ == "__main__":
    unittest.main()
