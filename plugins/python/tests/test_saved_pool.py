"""Pools in files, and blocks at chosen addresses."""

import gc
import os
import tempfile
import unittest
from pathlib import Path

import gpu_vmm
from support import MIB, NAME, Case, backend

ROWS = (("weights", 700, 1), ("weights", 3 * MIB, 2), ("cache", 5 * MIB, 3), ("", 512, 4), ("x" * 62 + "é", 4096, 5))

# Restores the pool in another process, and prints each block: its address, size, tag and the byte that it is filled with.
RESTORE = """
import os, gpu_vmm
from support import NAME
restored = gpu_vmm.Pool.restore(gpu_vmm.open(NAME), os.environ["FILE"])
for block in restored.blocks:
    contents = block.read()
    assert contents == contents[:1] * block.size and block.stream == 0
    print(block.address, block.size, restored.pool.find(block.address).tag, contents[0])
"""


class SavedPools(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "model.pool"
        self.backend = backend()

    def filled(self, rows=ROWS):
        """Returns a pool, and its blocks with their tags and bytes."""
        pool = self.backend.pool(page=2 * MIB, restorable=True)
        blocks = []
        for tag, size, byte in rows:
            block = pool.tagged(tag).alloc(size)
            block.write(bytes([byte]) * size)
            blocks.append((block, tag, byte))
        return pool, blocks

    def saved(self, **options):
        """Saves a pool, which ends. Returns what the child must print."""
        pool, blocks = self.filled()
        pool.save(self.path, **options)
        tags = options.get("tags")
        rows = sorted((block.address, block.size, tag, byte) for block, tag, byte in blocks if tags is None or tag in tags)
        return [" ".join(map(str, row)) for row in rows]

    def restore(self, **options):
        return gpu_vmm.Pool.restore(self.backend, self.path, **options)

    def test_restore_in_another_process(self):
        for options in {}, {"tags": ["cache", ""]}, {"compress": True}:
            rows = self.saved(**options)
            gc.collect()
            self.assertEqual(self.script(RESTORE, FILE=str(self.path), PYTHONUTF8="1").splitlines(), rows)

    def test_restored_blocks_own_memory(self):
        pool, blocks = self.filled()
        pool.save(os.fsencode(self.path))
        held = pool.stats()["live_blocks"]
        with self.raises(gpu_vmm.AddressTaken, "uses now"):
            self.restore()
        addresses = sorted(block.address for block, _, _ in blocks)
        del pool, blocks
        gc.collect()
        pool, blocks = restored = self.restore()
        self.assertIsInstance(restored, gpu_vmm.RestoredPool)
        self.assertEqual([block.address for block in blocks], addresses)
        self.assertEqual(pool.stats()["live_blocks"], held)
        del restored
        asleep = [block for block in blocks if pool.find(block.address).tag == "weights"]
        blocks = [block for block in blocks if block not in asleep]
        blocks.pop().free()
        with blocks.pop():
            pass
        pool.free(blocks.pop().release())
        # A suspension looks for the blocks of its tag.
        asleep[0]._lent = "a CuPy array"
        with self.raises(gpu_vmm.Busy, "a CuPy array uses"):
            pool.suspend("weights")
        asleep[0]._lent = ""
        self.assertGreater(pool.suspend("weights"), 0)
        with self.raises(gpu_vmm.Suspended):
            pool.save(self.path, ["weights"])
        pool.resume("weights")
        # The restored pool is restorable too.
        pool.save(self.path)
        blocks.clear()
        asleep.clear()
        self.assertEqual(pool.stats()["live_blocks"], 0)
        del pool
        gc.collect()
        self.assertEqual(len(self.restore().blocks), held - 3)

    def test_what_is_refused(self):
        pool, _ = self.filled([("weights", 9 * MIB, 1)])
        with self.raises(gpu_vmm.NotFound, "none"):
            pool.save(self.path, ["weights", "none"])
        with self.raises(gpu_vmm.InvalidArgument, "tags is empty"):
            pool.save(self.path, [])
        with self.assertRaisesRegex(TypeError, "not the str 'weights'"):
            pool.save(self.path, "weights")
        with self.raises(gpu_vmm.FileError):
            pool.save(self.path / "in a file that is no folder")
        self.assertFalse(self.path.exists())
        pool.save(self.path)
        del pool, _
        gc.collect()
        with self.raises(gpu_vmm.OutOfMemory, "budget is 8 MiB"):
            self.restore(budget=8 * MIB)
        with self.raises(gpu_vmm.NoSuchDevice):
            self.restore(device=10_000)
        whole = self.path.read_bytes()
        for at in 0, len(whole) // 2, len(whole) - 1:
            damaged = bytearray(whole)
            damaged[at] ^= 0xFF
            self.path.write_bytes(damaged)
            with self.raises(gpu_vmm.FileError):
                self.restore()
        self.path.write_bytes(whole[:-1])
        with self.raises(gpu_vmm.FileError):
            self.restore()
        with gpu_vmm.vmm.Region(self.backend, 2 * MIB) as region:
            region.snapshot(self.path)
        with self.raises(gpu_vmm.FileError, "of regions and not of a pool"):
            self.restore()
        self.path.unlink()
        with self.raises(gpu_vmm.FileError, str(self.path)):
            self.restore()
        # Nothing is left of all that.
        self.path.write_bytes(whole)
        self.assertEqual(self.restore().blocks[0].read(), bytes([1]) * 9 * MIB)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_forked_child_is_refused(self):
        said = self.script(
            """
            import os, gpu_vmm
            from support import NAME
            backend = gpu_vmm.open(NAME)
            pool = backend.pool(restorable=True)
            block, path = pool.alloc(512), os.environ["FILE"]
            pool.save(path)
            child = os.fork()
            if child == 0:
                for call in (
                    lambda: pool.save(path + ".child"), lambda: gpu_vmm.Pool.restore(backend, path),
                    lambda: pool.alloc(512, address=block.address + 4096),
                ):
                    try:
                        call()
                        print("went through", flush=True)
                    except gpu_vmm.Forked:
                        print("refused", flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            """,
            FILE=str(self.path),
        )
        self.assertEqual(said.split(), ["refused"] * 3)
        self.assertEqual(os.listdir(self.path.parent), [self.path.name])

    @unittest.skipUnless(NAME == "cuda" and "FAKE_CUDA_GPUS" in os.environ, "the fake driver has devices of any size")
    def test_small_device_is_refused(self):
        pool, blocks = self.filled([("weights", 300 * MIB, 1)])
        pool.save(self.path)
        del pool, blocks
        gc.collect()
        said = self.script(
            """
            import os, gpu_vmm
            try:
                gpu_vmm.Pool.restore(gpu_vmm.open("cuda"), os.environ["FILE"])
            except gpu_vmm.OutOfMemory as error:
                print(error)
            """,
            FILE=str(self.path), FAKE_CUDA_MEM_MB="256",
        )  # fmt: skip
        self.assertIn("exceeds the memory of device 0", said)


class ChosenAddresses(Case):
    def test_block_at_an_address(self):
        pool = backend().pool(restorable=True).tagged("weights")
        block = pool.alloc(2 * MIB)
        address = block.address
        with self.raises(gpu_vmm.AddressTaken, "the block at 0x"):
            pool.alloc(512, address=address)
        block.free()
        with pool.alloc(MIB, address=address) as block:
            self.assertEqual((block.address, block.size), (address, MIB))
            block.write(b"here")
            self.assertEqual(pool.find(address + 1).tag, "weights")
        # Addresses of their own, far from all others.
        far = address + (1 << 38)
        block = pool.alloc(3 * MIB, alignment=1024, address=far)
        self.assertEqual(block.address, far)
        with self.raises(gpu_vmm.Unaligned):
            pool.alloc(512, address=far + 256)
        with self.raises(gpu_vmm.Unaligned, "not a multiple of the alignment 1024"):
            pool.alloc(512, alignment=1024, address=far + 512)
        with self.raises(gpu_vmm.InvalidArgument, "address"):
            pool.alloc(512, address=-1)


if __name__ == "__main__":
    unittest.main()
