"""Exceptions of signal handlers that come as soon as the library returns, changes inside of changes, and locks in forked children."""

import gc
import os
import sys
import unittest

import gpu_vmm
from gpu_vmm import vmm
from support import MIB, NAME, Case, Counted, Interrupted, backend


class Objects(Case):
    def test_object_of_the_library_is_not_lost(self):
        opened = backend()
        vec, region = gpu_vmm.DeviceVec("int8", b"abcd", backend=opened), vmm.Region(opened, 1)
        pages = vmm.PageList(opened, 1, 1 << 30)
        for new, free, call in (
            ("gpu_vmm_open", "gpu_vmm_close", lambda: gpu_vmm.open(NAME)),
            ("gpu_vmm_backend_info", "gpu_vmm_string_free", opened.info),
            ("gpu_vmm_capture_begin", "gpu_vmm_capture_end", opened._begin_capture),
            ("gpu_vmm_pool_new", "gpu_vmm_pool_free", opened.pool),
            ("gpu_vmm_region_reserve", "gpu_vmm_region_free", lambda: gpu_vmm.DeviceVec("int8", backend=opened, reserve=1)),
            ("gpu_vmm_region_reserve", "gpu_vmm_region_free", lambda: vmm.Region(opened, 1)),
            ("gpu_vmm_region_dlpack", "gpu_vmm_dlpack_delete", vec.__dlpack__),
            ("gpu_vmm_region_tag", "gpu_vmm_string_free", lambda: region.tag),
            ("gpu_vmm_physical_create", "gpu_vmm_physical_release", lambda: vmm.PhysicalMemory(opened, 1)),
            ("gpu_vmm_page_list_take", "gpu_vmm_physical_release", pages.take),
            ("gpu_vmm_banked_new", "gpu_vmm_banked_free", lambda: vmm.BankedRegion(opened, 1)),
            ("gpu_vmm_event_new", "gpu_vmm_event_free", lambda: vmm.Event(opened)),
        ):
            gc.collect()
            with self.subTest(new), Counted(free) as freed:
                with Interrupted(new) as made, self.assertRaises(KeyboardInterrupt):
                    call()
                gc.collect()
                self.assertEqual((made.calls, freed.calls), (1, 1))

    def test_restored_regions_are_not_lost(self):
        opened, path = backend(), f"{self.id()}.regions"
        self.addCleanup(os.remove, path)
        regions = [vmm.Region(opened, 1), vmm.Region(opened, 1)]
        for region in regions:
            region.grow(1)
        vmm.snapshot(regions, path)
        with Counted("gpu_vmm_region_free") as freed:
            with Interrupted("gpu_vmm_regions_restore"), self.assertRaises(KeyboardInterrupt):
                vmm.restore(opened, path, relocate=True)
            gc.collect()
        self.assertEqual(freed.calls, 2)

    def test_capsule_owns_the_tensor_alone(self):
        vec = gpu_vmm.DeviceVec("int8", b"abcd", backend=backend())
        real = gpu_vmm._dlpack._new

        def new(*arguments):
            real(*arguments)
            raise KeyboardInterrupt

        gpu_vmm._dlpack._new = new
        self.addCleanup(setattr, gpu_vmm._dlpack, "_new", real)
        with Counted("gpu_vmm_dlpack_delete") as deleted, self.assertRaises(KeyboardInterrupt):
            vec.__dlpack__()
        gc.collect()
        self.assertEqual(deleted.calls, 0)  # the capsule's native destructor has deleted it
        self.assertGreater(vec.suspend(), 0)

    def test_descriptor_is_not_lost(self):
        if not os.path.exists("/proc/self/fd"):
            self.skipTest("needs Linux")
        memory = vmm.PhysicalMemory(backend(), 1, vmm.Properties(handle_types=vmm.HandleTypes.FD))
        open_before = len(os.listdir("/proc/self/fd"))
        with Interrupted("gpu_vmm_physical_export_fd"), self.assertRaises(KeyboardInterrupt):
            memory.export_fd()
        self.assertEqual(len(os.listdir("/proc/self/fd")), open_before)

    def test_blocks(self):
        pool = backend().pool()

        def with_block():
            with pool.alloc(1):
                pass

        for function, call in (
            ("gpu_vmm_alloc", lambda: pool.alloc(1)),
            ("gpu_vmm_free", lambda: pool.alloc(1).free()),
            ("gpu_vmm_free", with_block),
        ):
            with self.subTest(function):
                with Interrupted(function), self.assertRaises(KeyboardInterrupt):
                    call()
                gc.collect()
                self.assertEqual((pool.stats()["live"], len(pool._handle.blocks), len(pool._blocks.owners)), (0, 0, 0))
        block = pool.alloc(1)
        with Interrupted("gpu_vmm_free"), self.assertRaises(KeyboardInterrupt):
            block.free()
        other = pool.alloc(1)
        with self.raises(gpu_vmm.NotFound):
            block.free()
        other.write(b"a")

    def test_exception_at_the_beginning_of_an_end(self):
        opened, noted = backend(), []
        pool = opened.pool()
        before, sys.unraisablehook = sys.unraisablehook, lambda note: noted.append(note.exc_type)
        self.addCleanup(setattr, sys, "unraisablehook", before)
        for kind, name, free, new in (
            (gpu_vmm._handles.Handle, "close", "gpu_vmm_physical_release", lambda: vmm.PhysicalMemory(opened, 1)),
            (gpu_vmm.Block, "_free", "gpu_vmm_free", lambda: pool.alloc(1)),
        ):
            real, made = getattr(kind, name), new()

            def interrupted(owner):
                raise KeyboardInterrupt

            with self.subTest(kind), Counted(free) as freed:
                setattr(kind, name, interrupted)
                try:
                    del made
                finally:
                    setattr(kind, name, real)
                self.assertEqual((freed.calls, noted.pop()), (1, KeyboardInterrupt))
        self.assertEqual((pool.stats()["live"], len(pool._handle.blocks)), (0, 0))

    def test_freed_by_address_while_garbage(self):
        pool = backend().pool()
        block = pool.alloc(1)
        address = block.address
        # As during a garbage collection, which clears weak references first.
        pool._blocks.owners[address] = lambda: None
        pool.free(address)
        other = pool.alloc(1)
        self.assertEqual(other.address, address)
        del block
        other.write(b"a")
        self.assertEqual(len(pool._handle.blocks), 1)

    def test_block_cache_is_as_before(self):
        opened = backend()
        for function, change in (
            ("gpu_vmm_region_physical", lambda cache: cache.shrink(2)),
            ("gpu_vmm_region_unmap", lambda cache: cache.shrink(2)),
            ("gpu_vmm_page_list_take", lambda cache: cache.extend(2)),
            ("gpu_vmm_region_map", lambda cache: cache.extend(2)),
            ("gpu_vmm_region_set_access", lambda cache: cache.extend(2)),
        ):
            with self.subTest(function):
                cache = gpu_vmm.BlockCache({"a": ("int8", (-1, 2 * MIB))}, 10, backend=opened, blocks=4)
                with Interrupted(function), self.assertRaises(KeyboardInterrupt):
                    change(cache)
                gc.collect()
                self.assertEqual((len(cache), cache.nbytes), (4, 8 * MIB))
                self.assertEqual(cache.extend(1), 2 * MIB)
                self.assertEqual((cache.suspend(), cache.nbytes, cache.resume()), (10 * MIB, 0, 10 * MIB))


class Inside(Counted):
    """Makes another change before the first call, as a signal's handler would that comes before it."""

    def __init__(self, function, change):
        super().__init__(function)
        self.change, self.error = change, None

    def __call__(self, *arguments):
        if self.error is None:
            try:
                self.change()
            except gpu_vmm.Busy as error:
                self.error = error
        return super().__call__(*arguments)


class Changes(Case):
    def test_change_inside_of_a_change(self):
        opened = backend()
        vec = gpu_vmm.DeviceVec("int32", [1, 2], backend=opened)
        for change in (lambda: vec.append(9), lambda: vec.resize(0), lambda: vec.write(0, [9]), vec.suspend, vec.__dlpack__):
            with Inside("gpu_vmm_region_write", change) as call:
                vec.append(3)
            self.assertIsNotNone(call.error)
        self.assertEqual(vec.tolist(), [1, 2, 3, 3, 3, 3, 3])
        cache = gpu_vmm.BlockCache({"a": ("int8", (-1, 2 * MIB))}, 10, backend=opened)
        for change in (lambda: cache.extend(1), lambda: cache.shrink(0), cache.suspend, cache.resume):
            with Inside("gpu_vmm_region_map", change) as call:
                cache.extend(1)
            self.assertIsNotNone(call.error)
        self.assertEqual(len(cache), 4)


class Forks(Case):
    def test_child_holds_the_locks_of_its_thread_alone(self):
        self.script(
            """
            import os, threading
            import gpu_vmm.torch
            from gpu_vmm import _lock

            mine, other, inside, leave = _lock.new_lock(), gpu_vmm.torch._lock, threading.Event(), threading.Event()

            def hold():
                with other:
                    inside.set()
                    leave.wait()

            thread = threading.Thread(target=hold)
            thread.start()
            inside.wait()
            with mine:
                child = os.fork()
                if child == 0:
                    assert other.acquire(blocking=False) and _lock.is_mine(mine)
            if child == 0:
                os._exit(0 if not _lock.is_mine(mine) else 1)
            leave.set()
            thread.join()
            assert os.waitpid(child, 0)[1] == 0
            """,
            flags=("-W", "ignore"),
        )


if __name__ == "__main__":
    unittest.main()
