"""Backends and pools: allocating, freeing, finding, sleeping, and statistics."""

import gc
import json
import os
import tempfile
import unittest

import gpu_vmm
from support import MIB, NAME, Case, Counted, backend, in_threads, overwrite, shrink


class Backends(Case):
    def test_says_what_it_is(self):
        opened = backend()
        self.assertEqual(opened.name, NAME)
        self.assertGreaterEqual(opened.devices, 1)
        info = opened.info()
        self.assertEqual(info["backend"], NAME)
        self.assertEqual(len(info["devices"]), opened.devices)
        free, total = opened.memory()
        self.assertTrue(0 < free <= total)

    def test_what_is_not_there(self):
        with self.raises(gpu_vmm.InvalidArgument, "no backend \"metal\""):
            gpu_vmm.open("metal")
        with self.raises(gpu_vmm.NoSuchDevice):
            backend().memory(10_000)
        with self.raises(gpu_vmm.NoSuchDevice):
            backend().pool(device=10_000)
        for device in (-1, 1 << 32):
            with self.raises(gpu_vmm.InvalidArgument, "device"):
                backend().memory(device)
        with self.raises(gpu_vmm.InvalidArgument, "zero character"):
            gpu_vmm.open("ho\0st")
        with self.raises(TypeError):
            gpu_vmm.open(3)
        for setting in "budget", "page", "slack":
            with self.raises(gpu_vmm.InvalidArgument, f"{setting}: 0 is not allowed"):
                backend().pool(**{setting: 0})
        with self.raises(gpu_vmm.InvalidArgument, "3145728"):
            backend().pool(page=3 * MIB)
        pool = backend().pool(page=8 * MIB, slack=5)
        with pool.alloc(1):
            self.assertEqual(pool.stats()["held"], 8 * MIB)

    def test_the_best_there_is(self):
        self.assertIn(gpu_vmm.open().name, ("cuda", "hip", "host"))

    def test_pools_outlive_their_backend(self):
        pool = backend().pool()
        gc.collect()
        pool.alloc(1).free()


class MemoryOfBlocks(Case):
    def test_block_is_mapped_elsewhere(self):
        opened = backend()
        kind = gpu_vmm.vmm.Properties(handle_types=gpu_vmm.vmm.HandleTypes.FD)
        pool = opened.pool(page=2 * MIB).with_memory(kind)
        block = pool.alloc(3 * MIB)
        block.write(b"contents", 2 * MIB + 5)
        found = pool.memory_at(block.address + 5, 3 * MIB - 5)
        self.assertEqual(sum(piece.size for piece in found.physical) % (2 * MIB), 0)
        at = found.offset + 2 * MIB
        piece = found.physical[at // found.physical[0].size]
        self.assertEqual(piece.read(at % found.physical[0].size, 8), b"contents")
        self.assertEqual(piece.properties.handle_types, gpu_vmm.vmm.HandleTypes.FD)
        fd = piece.export_fd()
        self.addCleanup(os.close, fd)
        copy = gpu_vmm.vmm.PhysicalMemory.import_fd(opened, fd, piece.size, piece.properties)
        self.assertEqual(copy.read(at % found.physical[0].size, 8), b"contents")
        with self.raises(gpu_vmm.NotFound):
            pool.memory_at(16)
        with self.raises(gpu_vmm.InvalidArgument, "the size is 0"):
            pool.memory_at(block.address, 0)
        block.free()
        self.assertEqual(piece.read(at % found.physical[0].size, 8), b"contents")


class Kinds(Case):
    def setUp(self):
        self.backend = backend()
        memory = gpu_vmm.vmm.Properties(location=gpu_vmm.vmm.Location.HOST)
        try:
            self.pool = self.backend.pool(budget=32 * MIB, page=2 * MIB)
            self.host = self.pool.with_memory(memory)
        except gpu_vmm.Unsupported as missing:
            self.skipTest(str(missing))

    def test_kinds_share_the_budget(self):
        own, other = self.pool.alloc(20 * MIB), self.host.alloc(4 * MIB)
        self.host.allow_access(gpu_vmm.vmm.HOST)
        other.write(b"bytes")
        self.assertEqual(other.read(0, 5), b"bytes")
        kinds = self.pool.kinds()
        self.assertEqual(len(kinds), 2)
        self.assertIn("host memory", kinds[1]["memory"])
        self.assertEqual(kinds[1]["stats"]["live"], 4 * MIB)
        with self.raises(gpu_vmm.OutOfMemory, "of host memory"):
            self.host.alloc(16 * MIB)
        own.free()
        self.host.alloc(16 * MIB).free()
        self.assertLessEqual(sum(kind["stats"]["held"] for kind in self.pool.kinds()), 32 * MIB)

    def test_tags_are_of_a_kind(self):
        own, other = self.pool.tagged("kv"), self.host.tagged("kv")
        with own.alloc(2 * MIB), other.alloc(2 * MIB) as block:
            block.write(b"kept")
            other.suspend("kv")
            self.assertFalse(own.is_suspended("kv"))
            other.resume("kv")
            self.assertEqual(block.read(0, 4), b"kept")

    def test_wrong_arguments(self):
        with self.raises(gpu_vmm.Unsupported):
            self.pool.with_memory(gpu_vmm.vmm.Properties(device=9))
        with self.raises(TypeError):
            self.pool.with_memory(3)
        with self.raises(gpu_vmm.InvalidArgument):
            self.pool.allow_access(0, 7)

    def test_move_to_another_device(self):
        with self.raises(gpu_vmm.NoSuchDevice):
            self.pool.move_to_device(4711)
        if self.backend.devices < 2:
            self.skipTest("one device")
        block = self.pool.alloc(3 * MIB)
        block.write(b"bytes")
        self.pool.move_to_device(1)
        self.assertEqual((block.read(0, 5), self.pool.find(block.address).device), (b"bytes", 1))
        self.assertRegex(repr(self.pool.tagged("t")), "device 1")
        if gpu_vmm.vmm.Device(self.backend, 1).can_access(0):
            self.pool.allow_access(0)
        self.pool.move_to_device(0)
        self.assertEqual((block.read(0, 5), self.pool.find(block.address).device), (b"bytes", 0))

    def test_first_supported_kind(self):
        plain = gpu_vmm.vmm.Properties()
        wanted = [gpu_vmm.vmm.Properties(handle_types=gpu_vmm.vmm.HandleTypes.FABRIC), plain]
        found, refused = gpu_vmm.vmm.first_supported(self.backend, wanted)
        self.assertEqual(len(refused), wanted.index(found))
        with self.raises(gpu_vmm.Unsupported):
            gpu_vmm.vmm.first_supported(self.backend, [])


class Pools(Case):
    def setUp(self):
        self.pool = backend().pool()

    def test_alloc_find_free(self):
        block = self.pool.alloc(1000, alignment=4096)
        self.assertEqual(block.size, 1000)
        self.assertEqual(block.address % 4096, 0)
        found = self.pool.find(block.address + 7)
        self.assertEqual((found.base, found.offset, found.device, found.stream, found.tag), (block.address, 7, 0, 0, ""))
        self.assertGreaterEqual(found.capacity, 1000)
        self.assertEqual(self.pool.stats()["live"], 1000)
        address = block.address
        block.free()
        self.assertEqual(self.pool.stats()["live"], 0)
        with self.raises(gpu_vmm.NotFound):
            self.pool.find(address)
        with self.raises(gpu_vmm.NotFound, "freed already"):
            block.address
        with self.raises(gpu_vmm.NotFound, "freed already"):
            block.free()
        with self.raises(gpu_vmm.NotFound, "freed already"):
            self.pool.free(address)

    def test_freed_with_the_last_reference(self):
        block = self.pool.alloc(5000)
        self.assertEqual(self.pool.stats()["live"], 5000)
        del block
        self.assertEqual(self.pool.stats()["live"], 0)
        with self.pool.alloc(10) as block:
            self.assertEqual(self.pool.stats()["live"], 10)
        self.assertEqual(self.pool.stats()["live"], 0)
        with self.pool.alloc(10) as block:
            block.free()  # `with` must not free it again
        with self.assertRaises(KeyError):
            with self.pool.alloc(10):
                raise KeyError
        self.assertEqual(self.pool.stats()["live"], 0)

    def test_garbage_together(self):
        class Holder:
            pass

        with Counted("gpu_vmm_pool_free") as closed:
            for turn in range(50):
                holder = Holder()
                holder.itself, holder.pool = holder, self.pool.tagged("garbage")
                holder.block = holder.pool.alloc(1)
                if turn % 2:
                    holder.__dict__ = dict(reversed(list(holder.__dict__.items())))
            del holder
            gc.collect()
        self.assertEqual(self.pool.stats()["live"], 0)
        self.assertEqual(closed.calls, 50)

    def test_what_is_kept(self):
        # None keeps all and 0 keeps none, although in C 0 keeps all.
        for keep, is_all in ((None, True), ((1 << 64) - 1, True), (0, False), (1, False), (32 * MIB, False)):
            pool, held = backend().pool(keep=keep), []
            for block in [pool.alloc(16 * MIB) for _ in range(10)]:
                block.free()
            # A later free returns the memory, once the device has finished with it.
            while len(held) < 200 and min(held, default=160 * MIB) >= 160 * MIB:
                held.append(pool.stats()["held"])
                pool.alloc(16 * MIB).free()
            self.assertEqual(min(held) >= 160 * MIB, is_all, keep)

    def test_by_address(self):
        block = self.pool.alloc(100)
        address = block.release()
        del block
        self.assertEqual(self.pool.find(address).base, address)
        self.pool.free(address)
        self.assertEqual(self.pool.stats()["live"], 0)
        # Freeing a block by its address also frees its object.
        block = self.pool.alloc(100)
        self.pool.tagged("other").free(block.address)
        with self.raises(gpu_vmm.NotFound):
            block.address
        again = self.pool.alloc(100)
        del block
        self.assertEqual(self.pool.stats()["live"], 100)
        again.free()

    def test_keeps_its_pool(self):
        block = backend().pool().alloc(64)
        gc.collect()
        block.write(b"kept")
        self.assertEqual(block.read(0, 4), b"kept")

    def test_what_cannot_be(self):
        for size in (0, -1, 1 << 64):
            with self.raises(gpu_vmm.InvalidArgument):
                self.pool.alloc(size)
        with self.raises(gpu_vmm.InvalidArgument):
            self.pool.alloc(1, alignment=3)
        with self.raises(TypeError):
            self.pool.alloc(1.5)
        with self.raises(gpu_vmm.NotFound):
            self.pool.free(12345)
        with self.pool.alloc(4096) as block, self.raises(gpu_vmm.NotFound, "it lies in the one"):
            self.pool.free(block.address + 1)
        other = backend().pool()
        with self.pool.alloc(4096) as block, self.raises(gpu_vmm.NotFound):
            other.free(block.address)
        with self.pool.alloc(16) as block:
            with self.raises(gpu_vmm.OutOfRange, "exceed the block of 16 bytes"):
                block.read(8, 9)
            with self.raises(gpu_vmm.OutOfRange, "exceed the block of 16 bytes"):
                block.write(b"x" * 17)
        self.assertEqual(self.pool.stats()["live"], 0)

    def test_out_of_budget(self):
        pool = backend().pool(budget=16 * MIB)
        with pool.alloc(4 * MIB):
            with self.raises(gpu_vmm.OutOfMemory, "the pool holds"):
                pool.alloc(64 * MIB)
            with self.raises(MemoryError, "4 MiB"):
                pool.alloc(64 * MIB)
        pool.alloc(8 * MIB).free()

    def test_contents_sleep_and_wake(self):
        weights = self.pool.tagged("weights")
        block = weights.alloc(4 * MIB)
        address = block.address
        with tempfile.TemporaryDirectory() as folder:
            for keep, directory in (("host", None), ("host-kept", None), ("pinned", None), ("file", None), ("file", folder)):
                with self.subTest(keep=keep, directory=directory is not None):
                    contents = os.urandom(4 * MIB)  # not the contents that an earlier turn has stored
                    block.write(contents)
                    went = self.pool.suspend("weights", keep, directory)
                    self.assertGreaterEqual(went, 4 * MIB)
                    overwrite(backend(), went)
                    self.assertEqual(self.pool.suspend("weights", keep, directory), 0)
                    with self.raises(gpu_vmm.Suspended):
                        weights.alloc(1)
                    with self.raises(gpu_vmm.Suspended):
                        block.read(0, 1)
                    self.assertGreaterEqual(self.pool.resume("weights"), 4 * MIB)
                    self.assertEqual(self.pool.resume("weights"), 0)
                    self.assertEqual(block.address, address)
                    self.assertEqual(block.read(), contents)
        self.pool.suspend("weights", None)
        self.pool.resume("weights")
        block.write(b"new")
        self.assertEqual(block.read(0, 3), b"new")
        self.assertEqual(self.pool.tags(), ["weights"])
        # "host-kept" and "pinned" have kept memory.
        took = self.pool.host_memory()
        self.assertGreaterEqual(took, 8 * MIB)
        self.assertEqual(self.pool.trim_host(), took)
        self.assertEqual(self.pool.host_memory(), 0)
        self.assertEqual(self.pool.trim_host(), 0)

    def test_sleep_of_what_is_not_there(self):
        with self.raises(gpu_vmm.NotFound, "no memory is tagged \"weights\""):
            self.pool.suspend("weights")
        with self.raises(gpu_vmm.NotFound):
            self.pool.resume("weights")
        with self.pool.tagged("weights").alloc(1):
            with self.raises(gpu_vmm.InvalidArgument, "floppy"):
                self.pool.suspend("weights", "floppy")
            with self.raises(gpu_vmm.InvalidArgument, "directory"):
                self.pool.suspend("weights", "host", "/")
            with self.raises(gpu_vmm.FileError, "/nonexistent/folder"):
                self.pool.suspend("weights", "file", "/nonexistent/folder")
            self.assertEqual(self.pool.resume("weights"), 0)

    def test_budget_changes(self):
        kept, freed = self.pool.alloc(8 * MIB), self.pool.alloc(24 * MIB)
        freed.free()
        shrink(self.pool, 8 * MIB, lambda: self.pool.set_budget(8 * MIB))
        self.assertEqual(self.pool.stats()["held"], 8 * MIB)
        with self.raises(gpu_vmm.OutOfMemory, "budget is 8 MiB"):
            self.pool.alloc(16 * MIB)
        self.pool.set_budget(None)
        self.pool.alloc(16 * MIB).free()
        with self.raises(gpu_vmm.InvalidArgument):
            self.pool.set_budget(-1)
        kept.free()

    def test_a_forgotten_tag_leaves_its_blocks_readable(self):
        tagged = self.pool.tagged("cache")
        block = tagged.alloc(1 * MIB)
        block.write(b"kept")
        self.pool.suspend("cache")
        with self.raises(gpu_vmm.Suspended):
            self.pool.forget_tag("cache")
        self.pool.resume("cache")
        self.pool.forget_tag("cache")
        self.assertEqual(bytes(block.read(0, 4)), b"kept")
        block.write(b"more")
        block.free()

    def test_streams_and_trim(self):
        with self.pool.alloc(8 * MIB) as block:
            block.record_use(0)
        self.pool.forget_stream(0)
        self.assertGreaterEqual(self.pool.trim(), 8 * MIB)
        self.assertEqual(self.pool.stats()["held"], 0)

    def test_account_and_report(self):
        with self.pool.tagged("cache").alloc(3 * MIB):
            account = self.pool.stats()
            for name in ("live", "kept", "pending", "mapped", "reserved", "held", "peak_live", "peak_held"):
                self.assertIn(name, account)
            self.assertEqual(account["live"], 3 * MIB)
            snapshot = self.pool.snapshot()
            self.assertEqual([space["tag"] for space in snapshot["spaces"]], ["cache"])
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "pool.json")
                self.pool.report(path)
                with open(path, encoding="utf-8") as file:
                    self.assertEqual(json.load(file)["spaces"], snapshot["spaces"])
                with self.raises(gpu_vmm.InvalidArgument, "gpu-vmm report FILE.json --html OUT"):
                    self.pool.report(os.path.join(folder, "pool.html"))

    def test_threads(self):
        pool = self.pool

        def work(number):
            tagged = pool.tagged(f"thread {number % 3}")
            blocks = []
            for turn in range(300):
                blocks.append(tagged.alloc(1 + turn * 97 % 70_000))
                blocks[-1].write(bytes([number, turn % 256])[: blocks[-1].size])
                if turn % 3 == 0:
                    blocks.pop(turn % len(blocks)).free()
                with self.raises(gpu_vmm.NotFound):
                    pool.free(number)  # sets this thread's error text

        self.assertEqual(in_threads(6, work), [])
        gc.collect()
        self.assertEqual(pool.stats()["live"], 0)

    def test_one_of_two_threads_frees(self):
        for _ in range(200):
            block, answers = self.pool.alloc(1), []

            def free(_):
                try:
                    block.free()
                    answers.append(True)
                except gpu_vmm.NotFound:
                    answers.append(False)

            self.assertEqual(in_threads(2, free), [])
            self.assertEqual(sorted(answers), [False, True])


if __name__ == "__main__":
    unittest.main()
