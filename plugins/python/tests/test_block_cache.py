"""Caches of blocks that grow and shrink behind fixed addresses."""

import copy
import ctypes
import gc
import unittest

import gpu_vmm
from gpu_vmm import vmm
from support import MIB, NAME, Case, backend, in_threads

PAGE = 2 * MIB
# A block has 1 MiB in `keys`, in each half of `pairs` 1 MiB as well, and 4 bytes in `scales`.
TENSORS = {"keys": ("uint8", (-1, 1024, 1024)), "pairs": ("bfloat16", (2, -1, 512, 1024)), "scales": ("float32", (-1,))}
SEGMENTS = 3


class Blocks(Case):
    def setUp(self):
        self.backend = backend()
        self.cache = gpu_vmm.BlockCache(TENSORS, 64, backend=self.backend, page=PAGE)

    def fill(self, segment, block, byte):
        self.cache.region.write(bytes([byte]) * MIB, segment * 64 * MIB + block * MIB)

    def byte(self, segment, block):
        at = segment * 64 * MIB + block * MIB
        return set(self.cache.region.read(at, MIB))

    def test_cache_grows_and_shrinks_in_place(self):
        cache = self.cache
        address = cache.region.address
        self.assertEqual((len(cache), cache.max_blocks, cache.nbytes, list(cache)), (0, 64, 0, list(TENSORS)))
        # A page of each segment, and one of the scales.
        self.assertEqual((cache.extend(1), cache.nbytes), (4 * PAGE, 4 * PAGE))
        self.assertEqual((cache.extend(1), cache.nbytes), (0, 4 * PAGE))
        for segment in range(SEGMENTS):
            self.fill(segment, 1, 7 + segment)
        self.assertEqual((cache.extend(9), len(cache)), (SEGMENTS * 5 * PAGE, 11))
        for segment in range(SEGMENTS):
            self.fill(segment, 10, 70 + segment)
            self.assertEqual(self.byte(segment, 1), {7 + segment})
        with self.raises(gpu_vmm.NotMapped):
            self.byte(0, 12)
        self.assertEqual((cache.shrink(1), len(cache)), (SEGMENTS * PAGE, 10))
        self.assertEqual((cache.shrink(7), len(cache)), (SEGMENTS * 3 * PAGE, 3))  # the page of blocks 2 and 3 stays
        self.assertEqual(cache.nbytes, (SEGMENTS * 2 + 1) * PAGE)
        self.assertEqual(self.byte(1, 1), {8})
        self.assertEqual((cache.shrink(3), cache.nbytes), ((SEGMENTS * 2 + 1) * PAGE, 0))
        cache.extend(64)
        self.assertEqual((cache.region.address, len(cache)), (address, 64))

    def test_numbers_beyond_the_limits_change_nothing(self):
        self.cache.extend(3)
        held = self.cache.nbytes
        for call, text in (
            (lambda: self.cache.extend(62), "3 blocks and 62 more exceed max_blocks, 64"),
            (lambda: self.cache.extend(1 << 63), "exceed max_blocks"),
            (lambda: self.cache.shrink(4), "there are 3 blocks, 1 fewer than 4"),
        ):
            with self.raises(gpu_vmm.OutOfRange, text):
                call()
        for call in self.cache.extend, self.cache.shrink:
            with self.raises(gpu_vmm.InvalidArgument):
                call(-1)
            self.assertEqual(call(0), 0)
        self.assertEqual((len(self.cache), self.cache.nbytes), (3, held))

    def test_memory_returns_to_the_device(self):
        self.cache.extend(64)
        other = gpu_vmm.BlockCache(TENSORS, 64, backend=self.backend, page=PAGE, blocks=1)
        before = self.backend.memory()[0]
        went = self.cache.shrink(60)
        self.assertEqual(went, SEGMENTS * 60 * MIB)
        # HIP 7.1 and 7.2 keep memory as long as its addresses are reserved, and the host's is other processes' too.
        if NAME == "cuda":
            self.assertEqual(self.backend.memory()[0], before + went)
        del other

    def test_growth_that_fails_changes_nothing(self):
        self.cache.extend(3)
        self.fill(0, 2, 9)
        held, real, maps = self.cache.nbytes, vmm.Region.map, []

        def failing(region, offset, memory):
            maps.append(offset)
            if len(maps) == 8:
                raise gpu_vmm.OutOfMemory("create: device 0 is out of memory")
            return real(region, offset, memory)

        vmm.Region.map = failing
        try:
            with self.raises(gpu_vmm.OutOfMemory):
                self.cache.extend(20)
        finally:
            vmm.Region.map = real
        self.assertEqual((len(self.cache), self.cache.nbytes, self.byte(0, 2)), (3, held, {9}))
        self.assertEqual(len(self.cache.region.mappings()), held // PAGE)
        self.cache.extend(20)
        self.assertEqual(self.byte(0, 2), {9})

    def test_shrink_that_fails_changes_nothing(self):
        self.cache.extend(20)
        self.fill(0, 19, 5)
        self.fill(2, 19, 6)
        held, real, unmaps = self.cache.nbytes, vmm.Region.unmap, []

        def failing(region, offset, length, **options):
            unmaps.append(offset)
            if len(unmaps) == 3:
                raise KeyboardInterrupt("stop")
            return real(region, offset, length, **options)

        vmm.Region.unmap = failing
        try:
            with self.raises(KeyboardInterrupt):
                self.cache.shrink(10)
        finally:
            vmm.Region.unmap = real
        self.assertEqual((len(self.cache), self.cache.nbytes), (20, held))
        self.assertEqual((self.byte(0, 19), self.byte(2, 19)), ({5}, {6}))
        self.assertGreater(self.cache.shrink(10), 0)

    def test_observer_refuses_a_shrink(self):
        self.cache.extend(20)

        def before(change):
            raise RuntimeError("not now")

        number = self.cache.region.on_backing_change(before)
        with self.raises(gpu_vmm.Busy, "refuses"):
            self.cache.shrink(10)
        self.cache.region.remove_observer(number)
        self.assertEqual(len(self.cache), 20)
        self.assertGreater(self.cache.shrink(10), 0)

    @unittest.skipUnless(NAME == "cuda", "the host does not run out of memory, and HIP 7.1 and 7.2 keep that of a failed growth")
    def test_device_without_memory(self):
        free = self.backend.memory()[0]
        cache = gpu_vmm.BlockCache(TENSORS, free // MIB, backend=self.backend, page=PAGE, blocks=4)
        held = cache.nbytes
        with self.raises(gpu_vmm.OutOfMemory):
            cache.extend(free // MIB - 4)
        self.assertEqual((len(cache), cache.nbytes), (4, held))
        cache.extend(4)

    def test_cache_sleeps_at_its_addresses(self):
        for keep in "host", "file", None:
            cache = self.cache
            cache.extend(5)
            self.fill(1, 4, 8)
            address, held = cache.region.address, cache.nbytes
            self.assertEqual((cache.suspend(keep), cache.nbytes, cache.is_suspended), (held, 0, True))
            self.assertEqual((cache.suspend(keep), len(cache)), (0, 5))
            for call in cache.extend, cache.shrink:
                with self.raises(gpu_vmm.Suspended, "resume it first"):
                    call(1)
            self.assertEqual((cache.resume(), cache.nbytes, cache.resume()), (held, held, 0))
            self.assertEqual(cache.region.address, address)
            if keep:
                self.assertEqual(self.byte(1, 4), {8})
            cache.extend(1)
            self.fill(1, 5, 3)
            cache.shrink(6)
            self.assertEqual(cache.nbytes, 0)

    def test_restorable_placement(self):
        made = gpu_vmm.BlockCache(TENSORS, 64, backend=self.backend, placement=vmm.Placement.RESTORABLE, blocks=2)
        address = made.region.address
        with self.raises(gpu_vmm.AddressTaken):
            gpu_vmm.BlockCache(TENSORS, 64, backend=self.backend, placement=vmm.Placement.EXACT, address=address)
        made.close()
        again = gpu_vmm.BlockCache(TENSORS, 64, backend=self.backend, placement=vmm.Placement.EXACT, address=address)
        self.assertEqual(again.region.address, address)

    def test_tensors_have_the_reserved_shape(self):
        pairs = self.cache["pairs"]
        self.assertEqual((pairs.dtype, pairs.shape, pairs.strides), ("bfloat16", (2, 64, 512, 1024), (64 * MIB // 2, MIB // 2, 1024, 1)))
        self.assertEqual(pairs.address, self.cache.region.address + 64 * MIB)
        self.assertEqual(self.cache["scales"].strides, (1,))
        self.assertIn("'pairs': bfloat16 [2, 64, 512, 1024]", repr(pairs))
        with self.raises(gpu_vmm.NotFound, "'values'"):
            self.cache["values"]
        with self.raises(TypeError):
            copy.copy(pairs)
        with self.raises(TypeError):
            copy.copy(self.cache)
        with self.raises(BufferError):
            pairs.__dlpack__(copy=True)

    def test_capsule_describes_the_tensor(self):
        for new in None, (1, 0):
            capsule = self.cache["pairs"].__dlpack__(max_version=new)
            get = ctypes.pythonapi.PyCapsule_GetPointer
            get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            at = get(capsule, b"dltensor_versioned" if new else b"dltensor") + (32 if new else 0)
            tensor = gpu_vmm._dlpack._TensorStruct.from_address(at)
            self.assertEqual((tensor.data, tensor.ndim), (self.cache["pairs"].address, 4))
            self.assertEqual(tuple(tensor.device), self.cache["pairs"].__dlpack_device__())
            self.assertEqual((tensor.shape[:4], tuple(tensor.strides[:4])), ([2, 64, 512, 1024], self.cache["pairs"].strides))
            self.assertEqual((tuple(tensor.dtype), tensor.byte_offset), ((4, 16, 1, 0), 0))

    @unittest.skipUnless(NAME == "host", "needs memory of the CPU")
    def test_array_stays_valid(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("NumPy is not installed")
        cache = gpu_vmm.BlockCache({"a": ("float32", (2, -1, 4)), "b": ("int64", (-1,))}, 1 << 20, backend=self.backend)
        array, other = numpy.from_dlpack(cache["a"]), numpy.from_dlpack(cache["b"])
        self.assertEqual((array.shape, other.shape), ((2, 1 << 20, 4), (1 << 20,)))
        cache.extend(1000)
        array[:, :1000] = 5
        other[:1000] = 6
        cache.extend(1_000_000)
        array[1, 1_000_999], other[1_000_999] = 7, 8
        cache.shrink(999_000)
        cache.suspend()
        cache.resume()
        self.assertEqual((array[:, :1000].sum(), other[:1000].sum()), (40_000, 6_000))
        cache.close()
        gc.collect()
        self.assertEqual(array[1, 999, 3], 5)  # its memory stays with it
        with self.raises(gpu_vmm.InvalidArgument, "closed"):
            cache.extend(1)

    def test_wrong_shapes(self):
        for tensors, kind, text in (
            ({}, gpu_vmm.InvalidArgument, "0 tensors"),
            ({"a": ("float32", (4, 4))}, gpu_vmm.InvalidArgument, "'a' has the shape [4, 4]; expected positive sizes and one -1"),
            ({"a": ("float32", (-1, -1))}, gpu_vmm.InvalidArgument, "one -1"),
            ({"a": ("float32", (-1, 0))}, gpu_vmm.InvalidArgument, "positive sizes"),
            ({"a": ("float99", (-1,))}, gpu_vmm.InvalidArgument, "float99"),
            ({"a": (-1, 4)}, TypeError, "expected an element type and a shape"),
            ({"a": ("float32", (-1, 1 << 62))}, gpu_vmm.InvalidArgument, "bytes"),
        ):
            with self.raises(kind, text):
                gpu_vmm.BlockCache(tensors, 64, backend=self.backend)
        with self.raises(gpu_vmm.InvalidArgument, "up to 0 blocks"):
            gpu_vmm.BlockCache(TENSORS, 0, backend=self.backend)
        with self.raises(TypeError, "the object exists already"):
            self.cache.__init__(TENSORS, 64)

    def test_threads(self):
        def work(number):
            for _ in range(5):
                self.cache.extend(4)
                self.cache.shrink(4)
            self.cache.extend(number)

        self.assertEqual(in_threads(4, work), [])
        self.assertEqual((len(self.cache), self.cache.nbytes), (6, (SEGMENTS * 3 + 1) * PAGE))


if __name__ == "__main__":
    unittest.main()
