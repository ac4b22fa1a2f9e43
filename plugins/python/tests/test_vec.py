"""Vectors: every type, growth in place, reads and writes, and views by NumPy."""

import array
import ctypes
import math
import tempfile
import unittest

import gpu_vmm
from gpu_vmm import vmm
from support import MIB, NAME, Case, Counted, backend, overwrite

try:
    import numpy
except ImportError:
    numpy = None
NUMPY = tuple(map(int, numpy.__version__.split(".")[:2])) if numpy else ()

VALUES = {
    "int8": [-128, 0, 127],
    "int16": [-32768, 7, 32767],
    "int32": [-(1 << 31), 7, (1 << 31) - 1],
    "int64": [-(1 << 63), 7, (1 << 63) - 1],
    "uint8": [0, 7, 255],
    "uint16": [0, 7, 65535],
    "uint32": [0, 7, (1 << 32) - 1],
    "uint64": [0, 7, (1 << 64) - 1],
    "float16": [-1.5, 0.0, 65504.0],
    "bfloat16": [-1.5, 0.0, 3.0e38],
    "float32": [-1.5, 0.1, 3.0e38],
    "float64": [-1.5, 0.1, 1.0e300],
    "complex64": [1 + 2j, -0.5j, 3.0],
    "complex128": [1 + 2j, -0.1j, 3.0],
    "bool": [True, False, True],
}


class Vectors(Case):
    @classmethod
    def setUpClass(cls):
        cls.backend = backend()

    def vec(self, *arguments, **named):
        return gpu_vmm.DeviceVec(*arguments, backend=self.backend, **named)

    def test_read_into(self):
        vec = self.vec("float32", range(8))
        room = array.array("f", [0] * 3)
        self.assertEqual((vec.read_into(room, 5), room.tolist()), (3, [5, 6, 7]))
        raw = bytearray(8)
        self.assertEqual((vec.read_only().read_into(raw), raw), (2, array.array("f", [0, 1]).tobytes()))
        self.assertEqual(vec.read_into(bytearray(), 8), 0)
        for wrong, start, text in (
            (array.array("i", [0]), 0, "the buffer is for int32 (format 'i'), not float32; pass one of that type or of bytes"),
            (array.array("b", [0] * 4), 0, "the buffer is for int8"), (bytearray(6), 0, "6 bytes are not a multiple of the 4"),
            (b"1234", 0, "the buffer is read-only"), (memoryview(bytearray(16))[::2], 0, "not C-contiguous"), (bytearray(4), -1, "start"),
        ):  # fmt: skip
            with self.raises(gpu_vmm.InvalidArgument, text):
                vec.read_into(wrong, start)
        with self.raises(gpu_vmm.OutOfRange, "elements 6 to 9 exceed the length of 8"):
            vec.read_into(room, 6)
        with self.assertRaisesRegex(TypeError, "into: expected a writable buffer, such as a NumPy array, not list"):
            vec.read_into([0.0])
        vec.suspend()
        with self.raises(gpu_vmm.Suspended):
            vec.read_into(room)

    @unittest.skipIf(NAME != "host", "the memory is a GPU's")
    def test_read_into_the_vector_itself(self):
        vec = self.vec("int32", range(6))
        part = vec.__array_interface__["data"].cast("B")[8:].cast("i")
        self.assertEqual((vec.read_into(part), vec.tolist()), (4, [0, 1, 0, 1, 2, 3]))

    def test_every_type(self):
        for dtype, values in VALUES.items():
            with self.subTest(dtype=dtype):
                vec = self.vec(dtype, values)
                self.assertEqual(vec.dtype, dtype)
                got = vec.tolist()
                for one, other in zip(values, got):
                    digits = {"float32": 6e-8, "bfloat16": 4e-3}.get(dtype, 0)
                    self.assertLessEqual(abs(one - other), digits * abs(one))
                    self.assertIs(type(other), type(values[0]))
                vec.append(values[1])
                vec.write(0, values[1:])
                self.assertEqual(vec.tolist(), [got[1], got[2], got[2], got[1]])
                vec.resize(6, values[0])
                self.assertEqual(vec.read(4, 2), [got[0], got[0]])

    def test_bfloat16_is_rounded_to_even(self):
        vec = self.vec("bfloat16", [1 + 1 / 256, 1 + 3 / 256, math.nan, math.inf, -0.0])
        got = vec.tolist()
        self.assertEqual(got[:2], [1.0, 1 + 4 / 256])
        self.assertTrue(math.isnan(got[2]))
        self.assertEqual((got[3], math.copysign(1, got[4])), (math.inf, -1.0))

    def test_letters_and_buffers(self):
        for letter, name in (("f", "float32"), ("d", "float64"), ("e", "float16"), ("?", "bool"), ("q", "int64"), ("B", "uint8")):
            self.assertEqual(self.vec(letter).dtype, name)
        self.assertEqual(self.vec("int32", array.array("i", [1, -2])).tolist(), [1, -2])
        self.assertEqual(self.vec("int64", array.array("q", [1, -2])).tolist(), [1, -2])
        self.assertEqual(self.vec("uint8", b"abc").tolist(), [97, 98, 99])
        self.assertEqual(self.vec("bfloat16", b"\x80\x3f").tolist(), [1.0])
        self.assertEqual(self.vec("float32", memoryview(array.array("f", [1, 2])).toreadonly()).tolist(), [1, 2])
        self.assertEqual(self.vec("int8", (number for number in range(3))).tolist(), [0, 1, 2])

    def test_what_cannot_be(self):
        with self.raises(gpu_vmm.InvalidArgument, "expected one of int8"):
            self.vec("float8")
        vec = self.vec("int32", [1, 2, 3])
        for values in (array.array("f", [1]), array.array("I", [1]), b"12345"):
            with self.raises(gpu_vmm.InvalidArgument, "values"):
                vec.extend(values)
        with self.raises(gpu_vmm.InvalidArgument, "C-contiguous"):
            vec.extend(memoryview(array.array("i", [1, 2, 3]))[::2])
        for values in ("12", {1: 2}, ["1"], 5, [None]):
            with self.raises(TypeError):
                vec.extend(values)
        with self.raises(TypeError, "element 1 is 1.5 (float); int32 takes an integer"):
            vec.extend([1, 1.5])
        with self.raises(TypeError, "element 0 is '1' (str); float16 takes a number"):
            self.vec("float16", ["1"])
        with self.raises(gpu_vmm.OutOfRange, "write: elements 2 to 4 exceed the length of 3"):
            vec.write(2, [1, 2])
        with self.raises(gpu_vmm.OutOfRange, "read: elements 1 to 4 exceed the length of 3"):
            vec.read(1, 3)
        for n in (-1, 1 << 63):
            with self.raises(gpu_vmm.InvalidArgument):
                vec.resize(n)
        with self.raises(gpu_vmm.InvalidArgument, "reserve: 0 elements"):
            self.vec("int32", reserve=0)
        with self.raises(gpu_vmm.InvalidArgument, f"reserve: {1 << 62} elements of int32, in bytes: {1 << 64} is not between"):
            self.vec("int32", reserve=1 << 62)
        with self.raises(gpu_vmm.NoSuchDevice):
            self.vec("int32", device=10_000)
        self.assertEqual(vec.tolist(), [1, 2, 3])

    def test_numbers_that_do_not_fit(self):
        for dtype, number, text in (
            ("int8", 128, "128 does not fit int8 (-128 to 127)"),
            ("uint8", 300, "300 does not fit uint8 (0 to 255)"),
            ("uint8", -1, "-1 does not fit uint8 (0 to 255)"),
            ("uint16", 65536, "65536 does not fit uint16 (0 to 65535)"),
            ("int32", 1 << 31, "2147483648 does not fit int32 (-2147483648 to 2147483647)"),
            ("int64", 1 << 63, "9223372036854775808 does not fit int64 (-9223372036854775808 to 9223372036854775807)"),
            ("uint64", 1 << 64, "18446744073709551616 does not fit uint64 (0 to 18446744073709551615)"),
            ("uint64", 10**5000, "an integer of 16610 bits does not fit uint64"),
            ("float16", -65520.0, "-65520.0 does not fit float16 (-65504 to 65504)"),
            ("bfloat16", 3.4e38, "3.4e+38 does not fit bfloat16 (-3.38953139e+38 to 3.38953139e+38)"),
            ("float32", 1e39, "1e+39 does not fit float32 (-3.40282347e+38 to 3.40282347e+38)"),
            ("float64", 10**400, "an integer of 1329 bits does not fit float64 (-1.79769313e+308 to 1.79769313e+308)"),
            ("complex64", 1e39j, "1e+39j does not fit complex64 (parts of -3.40282347e+38 to 3.40282347e+38)"),
        ):
            vec = self.vec(dtype, [1])
            for call in (
                lambda: vec.append(number), lambda: vec.extend([1, number]), lambda: vec.write(0, [number]), lambda: vec.resize(2, number),
                lambda: vec.__setitem__(0, number), lambda: self.vec(dtype, [0, number]),
            ):  # fmt: skip
                with self.subTest(dtype=dtype), self.raises(OverflowError, text):
                    call()
            self.assertEqual(vec.tolist(), [1])

    def test_one_dimension(self):
        vec = self.vec("float32", [1])
        for values in ([[1, 2], [3, 4]], [(1,)], [array.array("f", [1])], [1, [2]], [vec]):
            for call in (lambda: vec.extend(values), lambda: vec.write(0, values), lambda: self.vec("float32", values)):
                with self.raises(gpu_vmm.InvalidArgument, "a vector has one dimension"):
                    call()
        with self.raises(gpu_vmm.InvalidArgument, "element 0 is [1, 2] (list)"):
            vec.append([1, 2])
        with self.raises(gpu_vmm.InvalidArgument, "element 0 is [5] (list)"):
            vec.resize(3, [5])
        grid = memoryview(bytes(24)).cast("B").cast("f", (2, 3))
        with self.raises(gpu_vmm.InvalidArgument, "shape (2, 3) has 2 dimensions"):
            vec.extend(grid)
        self.assertEqual(vec.tolist(), [1])

    def test_reserve_counts_elements(self):
        count = MIB  # several units of 8 bytes each
        vec = self.vec("float64", reserve=count)
        self.assertEqual(vec.capacity, 0)
        address = vec.address
        vec.reserve(count)  # the same unit
        self.assertGreaterEqual(vec.capacity, count)
        self.assertEqual(vec.address, address)
        size = ctypes.c_uint64()
        gpu_vmm._library.check(gpu_vmm._library.library().gpu_vmm_region_reserved(vec._region, ctypes.byref(size)))
        self.assertGreaterEqual(size.value, 8 * count)
        self.assertEqual(vec.copy().copy()._reserve, count)

    def test_growth_keeps_the_address(self):
        vec = self.vec("uint32", reserve=64 * MIB)
        address = vec.address
        self.assertEqual((len(vec), vec.tolist()), (0, []))
        for turn in range(40):
            vec.extend(array.array("I", [turn]) * 300_000)
            self.assertEqual(vec.address, address)
        for turn in range(40):
            self.assertEqual(vec.read(turn * 300_000, 1) + vec.read(turn * 300_000 + 299_999, 1), [turn, turn])
        self.assertGreaterEqual(vec.capacity, len(vec))
        vec.resize(len(vec) + 1_000_000, 77)
        self.assertEqual(vec.read(len(vec) - 1_000_000, 1_000_000), [77] * 1_000_000)
        # The default, zero, over memory with other contents, which reveals a missing write.
        vec.resize(len(vec) - 1000)
        vec.resize(len(vec) + 1000)
        self.assertEqual(vec.read(len(vec) - 1001, 1001), [77] + [0] * 1000)

    def test_growth_asks_the_driver_seldom(self):
        vec, piece = self.vec("uint8"), bytes(1 << 16)
        with Counted("gpu_vmm_region_grow") as grown:
            for _ in range(3000):
                vec.extend(piece)
        self.assertEqual(len(vec), 3000 << 16)
        self.assertLess(grown.calls, 50)  # of 94 pieces of 2 MiB

    def test_room_and_shrinking(self):
        vec = self.vec("float64")
        vec.reserve(1)  # memory is released in the handles in which it was created
        vec.reserve(3 * MIB)
        self.assertGreaterEqual(vec.capacity, 3 * MIB)
        self.assertEqual(len(vec), 0)
        vec.extend([1.0, 2.0])
        before = vec.capacity
        went = vec.shrink_to_fit()
        self.assertLess(vec.capacity, 3 * MIB)
        self.assertEqual((went, vec.shrink_to_fit()), (8 * (before - vec.capacity), 0))
        self.assertEqual(vec.tolist(), [1.0, 2.0])
        vec.resize(1)
        vec.append(5.0)
        self.assertEqual(vec.tolist(), [1.0, 5.0])
        vec.resize(0)
        vec.shrink_to_fit()
        self.assertEqual(vec.capacity, 0)
        vec.append(5.0)
        self.assertEqual(vec.tolist(), [5.0])

    def test_too_large(self):
        vec = self.vec("uint8", b"kept")
        with self.raises(gpu_vmm.Error):
            vec.resize(1 << 60)
        self.assertEqual(bytes(vec.tolist()), b"kept")

    def test_sleeps(self):
        vec = self.vec("int16", range(1000))
        address = vec.address
        for turn, keep in enumerate(("host", "pinned", "file"), 1):
            vec.write(0, [turn] * 1000)  # not the contents that an earlier turn has stored
            went = vec.suspend(keep)
            self.assertGreater(went, 0)
            self.assertEqual((vec.is_suspended, vec.suspend(keep)), (True, 0))
            overwrite(self.backend, went)
            with self.raises(gpu_vmm.Suspended):
                vec.tolist()
            with self.raises(gpu_vmm.Suspended):
                vec.append(1)
            self.assertGreater(vec.resume(), 0)
            self.assertEqual((vec.is_suspended, vec.resume()), (False, 0))
            self.assertEqual((vec.address, vec.tolist()), (address, [turn] * 1000))

    def test_restored_from_a_file(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = f"{folder.name}/vector"
        for dtype, values in ("bfloat16", [1.5, -2.0, 3.0]), ("int64", list(range(500_000))), ("uint8", []):
            vec = self.vec(dtype, values, reserve=1 << 20, placement=vmm.Placement.RESTORABLE)
            vec.snapshot(path, compress=dtype == "int64")
            vec.append(4)  # after the snapshot
            with self.raises(gpu_vmm.AddressTaken):
                gpu_vmm.DeviceVec.restore(path, backend=self.backend)
            other = gpu_vmm.DeviceVec.restore(path, backend=self.backend, relocate=True)
            self.assertEqual((other.dtype, other.tolist(), other.__dlpack_device__()), (dtype, values, vec.__dlpack_device__()))
            self.assertNotEqual(other.address, vec.address)
            address = vec.address
            del vec
            again = gpu_vmm.DeviceVec.restore(path, backend=self.backend, devices=self.backend.devices - 1)
            self.assertEqual((again.address, again.tolist()), (address, values))
            again.extend([7] * 10)
            self.assertEqual((again.tolist(), len(other)), (values + [7] * 10, len(values)))
            again.suspend()
            with self.raises(gpu_vmm.Suspended):
                again.snapshot(path)

    def test_file_without_a_vector_is_refused(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = f"{folder.name}/region"
        region = vmm.Region(self.backend, MIB)
        region.grow(1)
        for tag, text in (
            ("", "no vector"), ("gpu_vmm.DeviceVec int8", "no vector"), ("gpu_vmm.DeviceVec int8 -1", "no vector"),
            (f"gpu_vmm.DeviceVec int8 {region.size + 1}", f"memory for {region.size} elements of int8, and {region.size + 1}"),
        ):  # fmt: skip
            region.tag = tag
            region.snapshot(path)
            with self.assertRaisesRegex(gpu_vmm.FileError, text):
                gpu_vmm.DeviceVec.restore(path, backend=self.backend, relocate=True)
        with self.raises(gpu_vmm.FileError):
            gpu_vmm.DeviceVec.restore(f"{folder.name}/nothing", backend=self.backend)

    def test_placement(self):
        place = self.vec("int8", reserve=MIB, placement=vmm.Placement.RESTORABLE).address
        vec = self.vec("int8", [1], reserve=MIB, placement=vmm.Placement.EXACT, address=place)
        self.assertEqual((vec.address, vec.tolist()), (place, [1]))
        with self.raises(gpu_vmm.AddressTaken):
            self.vec("int8", reserve=MIB, placement=vmm.Placement.EXACT, address=place)
        self.assertNotEqual(self.vec("int8", reserve=MIB, placement=vmm.Placement.PREFER, address=place).address, place)
        with self.raises(gpu_vmm.InvalidArgument, "placement is 0 (anywhere)"):
            self.vec("int8", reserve=MIB, address=place)
        with self.assertRaises(ValueError):
            self.vec("int8", placement=17)
        self.assertEqual(vec.copy().tolist(), [1])

    def test_interfaces(self):
        vec = self.vec("float32", [1, 2, 3])
        here, other = "__cuda_array_interface__", "__array_interface__"
        if NAME == "host":
            here, other = other, here
        self.assertFalse(hasattr(vec, other))
        shown = getattr(vec, here)
        self.assertEqual((shown["version"], shown["shape"], shown["typestr"]), (3, (3,), "<f4"))
        closed = getattr(vec.read_only(), here)
        if NAME == "host":
            data = shown["data"]
            self.assertEqual((data.nbytes, data.readonly, closed["data"].readonly), (12, False, True))
            self.assertEqual(ctypes.addressof(ctypes.c_char.from_buffer(data)), vec.address)
        else:
            self.assertEqual(shown["data"], (vec.address, False))
            self.assertEqual(closed["data"], (vec.address, True))

    def test_read_only(self):
        view = self.vec("int8", [1, 2]).read_only()
        self.assertEqual((len(view), view.tolist(), view.dtype), (2, [1, 2], "int8"))
        self.assertFalse(hasattr(view, "write"))


@unittest.skipIf(numpy is None, "there is no NumPy")
class Numpy(Case):
    def vec(self, *arguments):
        return gpu_vmm.DeviceVec(*arguments, backend=backend())

    def test_takes_arrays(self):
        for dtype in VALUES:
            if dtype != "bfloat16":
                values = numpy.arange(6).astype(dtype)
                self.assertEqual(self.vec(dtype, values).tolist(), values.tolist(), dtype)
        with self.raises(gpu_vmm.InvalidArgument, "C-contiguous"):
            self.vec("float64", numpy.ones(4)[::2])
        with self.raises(gpu_vmm.InvalidArgument, "format"):
            self.vec("float64", numpy.ones(4, dtype=">f8"))
        with self.raises(gpu_vmm.InvalidArgument, "holds float64 (format 'd'), not float32; convert it first"):
            self.vec("float32", numpy.ones(4))

    def test_one_dimension(self):
        # Some versions of NumPy convert an array of one element to a number.
        for values in (numpy.ones((1, 1)), numpy.ones((0, 3)), [numpy.ones(1)], numpy.ones((2, 3)).T):
            with self.raises(gpu_vmm.InvalidArgument, "one"):
                self.vec("float64", values)
        with self.raises(gpu_vmm.InvalidArgument, "array.ravel(), and see rows in a view: from_dlpack(vec).reshape(-1, 3, 4)"):
            self.vec("float64", numpy.ones((2, 3, 4)))
        self.assertEqual(self.vec("float64", [numpy.array(1.0), numpy.float32(2)]).tolist(), [1, 2])

    @unittest.skipIf(NAME != "host", "the memory is a GPU's")
    def test_copies_to_arrays(self):
        """NumPy gets the elements of host memory and of a GPU in an array of the vector's type, without a list."""
        for dtype, values in VALUES.items():
            vec = self.vec(dtype, values)
            made = numpy.asarray(vec)
            if dtype == "bfloat16":
                raw = bytearray(6)
                vec.read_into(raw)
                self.assertEqual((made.dtype, made.tobytes()), (numpy.dtype("V2"), bytes(raw)))
                continue
            for array_ in made, numpy.array(vec), vec.__array__(), vec.__array__(copy=True):
                self.assertEqual((array_.dtype, array_.tolist()), (numpy.dtype(dtype), vec.tolist()))
            self.assertEqual(numpy.asarray(vec, "complex128").dtype, numpy.complex128)
            self.assertIsNot(vec.__array__(copy=True).base, made.base)
            table = numpy.zeros((1, 3), dtype)
            self.assertEqual((vec.read_into(table), table[0].tolist()), (3, vec.tolist()))
            if NUMPY >= (2, 1):
                for copied in (
                    numpy.from_dlpack(vec, device="cpu", copy=True), numpy.from_dlpack(vec.read_only(), device="cpu", copy=True),
                ):  # fmt: skip
                    self.assertEqual((copied.dtype, copied.tolist(), copied.flags.writeable), (made.dtype, vec.tolist(), True))
                    copied[0] = 1
                    self.assertEqual(vec.tolist(), made.tolist())
                self.assertEqual(numpy.from_dlpack(vec, device="cpu").tolist(), vec.tolist())
        self.assertEqual((numpy.asarray(self.vec("int8")).shape, numpy.array(self.vec("int8").read_only()).shape), ((0,), (0,)))
        if NUMPY >= (2, 1):
            self.assertEqual(numpy.from_dlpack(self.vec("int8"), device="cpu", copy=True).shape, (0,))
        sleeping = self.vec("int8", [1])
        sleeping.suspend()
        with self.raises(gpu_vmm.Suspended):
            numpy.asarray(sleeping)
        if NAME != "host":
            with self.assertRaisesRegex(ValueError, "needs a copy"):
                vec.__array__(copy=False)

    @unittest.skipIf(NAME != "host", "the memory is a GPU's")
    def test_rows_in_a_view(self):
        table = numpy.arange(12, dtype="float32").reshape(4, 3)
        vec = self.vec("float32", table[:2].ravel())
        vec.extend(table[2:].ravel())
        rows = numpy.from_dlpack(vec).reshape(-1, 3)
        self.assertEqual((rows.tolist(), rows.ctypes.data), (table.tolist(), vec.address))

    @unittest.skipIf(NAME != "host", "the memory is a GPU's")
    def test_sees_the_memory(self):
        for dtype, values in VALUES.items():
            if dtype == "bfloat16":
                continue
            with self.subTest(dtype=dtype):
                vec = self.vec(dtype, values)
                for array_ in (numpy.from_dlpack(vec), numpy.asarray(vec)):
                    self.assertEqual(array_.ctypes.data, vec.address)
                    self.assertEqual(array_.dtype, numpy.dtype(dtype))
                    self.assertEqual(array_.tolist(), vec.tolist())
                    if array_.flags.writeable:
                        array_[0] = 1
                        self.assertEqual(vec.read(0, 1), [1])
                    else:  # NumPy before 2.1 takes no versioned tensors and treats all others as read-only
                        self.assertLess(NUMPY, (2, 1))
                self.assertFalse(numpy.asarray(vec.read_only()).flags.writeable)
                if NUMPY >= (2, 1):
                    self.assertFalse(numpy.from_dlpack(vec.read_only()).flags.writeable)
                else:
                    with self.assertRaisesRegex(BufferError, "read-only"):
                        numpy.from_dlpack(vec.read_only())

    @unittest.skipIf(NAME != "host", "the memory is a GPU's")
    def test_views_through_growth(self):
        vec = self.vec("float32", [1, 2, 3])
        before, seen = numpy.from_dlpack(vec), numpy.asarray(vec)
        vec.extend(numpy.ones(3_000_000, dtype="float32"))
        vec.write(0, [9])
        self.assertEqual((before.shape, before.tolist(), seen.tolist()), ((3,), [9.0, 2.0, 3.0], [9.0, 2.0, 3.0]))
        del seen
        vec.resize(1)
        with self.raises(gpu_vmm.Busy, "still in use"):
            vec.shrink_to_fit()
        del before
        vec.shrink_to_fit()
        self.assertEqual(numpy.from_dlpack(self.vec("int8")).shape, (0,))
        self.assertEqual(numpy.asarray(self.vec("int8")).shape, (0,))

    @unittest.skipIf(NAME != "host", "the memory is a GPU's")
    def test_the_memory_stays_for_its_views(self):
        array_ = numpy.from_dlpack(self.vec("int32", range(1000)))
        other = numpy.asarray(self.vec("int32", range(1000)))
        self.assertEqual(int(array_.sum() + other.sum()), 999_000)

    @unittest.skipIf(NAME != "host", "the memory is a GPU's")
    def test_a_refusal_is_numpys_own(self):
        # NumPy drops the capsule while its exception propagates.
        vec = self.vec("bfloat16", [1, 2])
        for _ in range(3):
            with self.assertRaisesRegex((RuntimeError, BufferError), "[Uu]nsupported"):
                numpy.from_dlpack(vec)
            with self.assertRaisesRegex((RuntimeError, BufferError), "[Uu]nsupported"):
                numpy.from_dlpack(self.vec("bfloat16", [1, 2]))
        vec.shrink_to_fit()


if __name__ == "__main__":
    unittest.main()
