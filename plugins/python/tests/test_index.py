"""Elements and slices of a vector, compared with those of a list."""

import unittest

import gpu_vmm
from support import NAME, Case, Counted, backend
from test_vec import numpy

BOUNDS = (None, -100, -7, -6, -1, 0, 1, 3, 6, 7, 100)
STEPS = (None, 1, 2, 5, 100, -1, -2, -100)
LARGE = 700_000  # several pieces of int32


class Reading(Case):
    @classmethod
    def setUpClass(cls):
        cls.vec = gpu_vmm.DeviceVec("int32", range(6), backend=backend())

    def test_elements(self):
        for at in range(-6, 6):
            self.assertEqual(self.vec[at], list(range(6))[at])
        self.assertIs(type(self.vec[0]), int)
        self.assertEqual(self.vec.read_only()[-1], 5)

    def test_what_is_no_index(self):
        for at in (6, -7, 1 << 70):
            with self.raises(gpu_vmm.OutOfRange, f"{at} is out of range for 6 elements"):
                self.vec[at]
            with self.raises(IndexError):
                self.vec[at] = 1
        for key in (1.0, "1", None, (0, 1), [0, 1], Ellipsis):
            with self.raises(TypeError, "neither an integer nor a slice"):
                self.vec[key]
            with self.raises(TypeError, "neither an integer nor a slice"):
                self.vec[key] = 1
        with self.raises(gpu_vmm.InvalidArgument, "must not be 0"):
            self.vec[::0]
        with self.raises(TypeError, "slice indices"):
            self.vec["a":]
        with self.raises(gpu_vmm.OutOfRange, "read: elements 4 to 7 exceed the length of 6"):
            self.vec.read(4, 3)

    def test_slices(self):
        numbers = list(range(6))
        for start in BOUNDS:
            for stop in BOUNDS:
                for step in STEPS:
                    key = slice(start, stop, step)
                    self.assertEqual(self.vec[key], numbers[key], key)
        self.assertEqual(self.vec.read_only()[4:], [4, 5])

    def test_slices_of_several_pieces(self):
        vec = gpu_vmm.DeviceVec("int32", range(LARGE), backend=backend())
        for step in (1, 3, 1000, 300_000, -1, -7, -262_145):
            self.assertEqual(vec[::step], list(range(LARGE))[::step])

    def test_a_wide_step_reads_only_its_elements(self):
        vec = gpu_vmm.DeviceVec("int32", range(LARGE), backend=backend())
        with Counted("gpu_vmm_region_read") as reads:
            self.assertEqual(vec[::300_000], [0, 300_000, 600_000])
        self.assertEqual(reads.calls, 3)
        self.assertEqual(max(reads.sizes), 4)

    def test_a_slice_is_a_copy(self):
        vec = gpu_vmm.DeviceVec("int8", [1, 2], backend=backend())
        part = vec[:]
        vec[0] = 9
        self.assertEqual(part, [1, 2])

    def test_iteration(self):
        self.assertEqual(list(self.vec), [0, 1, 2, 3, 4, 5])
        self.assertEqual(list(reversed(self.vec)), [5, 4, 3, 2, 1, 0])
        self.assertEqual((sum(self.vec), max(self.vec.read_only()), 4 in self.vec, 6 in self.vec), (15, 5, True, False))
        first, *rest = self.vec
        self.assertEqual((first, rest), (0, [1, 2, 3, 4, 5]))
        self.assertEqual(list(gpu_vmm.DeviceVec("int8", backend=backend())), [])
        large = gpu_vmm.DeviceVec("int32", range(LARGE), backend=backend())
        with Counted("gpu_vmm_region_read") as reads:
            self.assertEqual(sum(large), sum(range(LARGE)))
        self.assertLess(reads.calls, 5)

    def test_iteration_over_what_grows_and_shrinks(self):
        vec = gpu_vmm.DeviceVec("int8", [1, 2, 3], backend=backend())
        seen = []
        for number in vec:
            seen.append(number)
            if number < 3:
                vec.append(10 + number)
        self.assertEqual(seen, [1, 2, 3, 11, 12])
        iterator = iter(gpu_vmm.DeviceVec("int32", range(LARGE), backend=backend()))
        next(iterator)  # the iterator keeps the vector
        self.assertEqual(sum(1 for _ in iterator), LARGE - 1)

    def test_a_vector_of_a_vector(self):
        copy = gpu_vmm.DeviceVec("float32", self.vec, backend=backend())
        copy.extend(copy)
        self.assertEqual(copy.tolist(), [0, 1, 2, 3, 4, 5] * 2)

    def test_what_sleeps(self):
        vec = gpu_vmm.DeviceVec("int8", [1, 2, 3], backend=backend())
        vec.suspend()
        for call in (lambda: vec[0], lambda: vec[1:], lambda: list(vec), lambda: vec.__setitem__(0, 1)):
            with self.raises(gpu_vmm.Suspended):
                call()
        vec.resume()
        self.assertEqual(vec[:], [1, 2, 3])

    @unittest.skipIf(numpy is None, "there is no NumPy")
    def test_with_numpy(self):
        self.assertEqual(self.vec[numpy.int64(-2)], 4)
        self.assertEqual(self.vec[numpy.uint8(1) : numpy.int16(3)], [1, 2])
        for array in numpy.asarray(self.vec), numpy.array(self.vec[:]):  # a view, or a copy of a GPU's elements
            self.assertEqual(array.tolist(), [0, 1, 2, 3, 4, 5])


class Writing(Case):
    def setUp(self):
        self.vec = gpu_vmm.DeviceVec("int32", range(6), backend=backend())

    def test_elements(self):
        self.vec[0] = 10
        self.vec[-1] = 15
        self.assertEqual(self.vec[:], [10, 1, 2, 3, 4, 15])

    def test_slices(self):
        for start in BOUNDS:
            for stop in BOUNDS:
                for step in STEPS:
                    key, numbers = slice(start, stop, step), list(range(6))
                    self.vec[:] = numbers
                    values = [-number - 1 for number in range(len(numbers[key]))]
                    self.vec[key] = values
                    for at, value in zip(range(6)[key], values):
                        numbers[at] = value
                    self.assertEqual(self.vec[:], numbers, key)
                    self.vec[key] = 77
                    for at in range(6)[key]:
                        numbers[at] = 77
                    self.assertEqual(self.vec[:], numbers, key)

    def test_many(self):
        vec = gpu_vmm.DeviceVec("int32", range(LARGE), backend=backend())
        vec[10:-10] = 5
        self.assertEqual(vec[:], [*range(10), *[5] * (LARGE - 20), *range(LARGE - 10, LARGE)])
        vec[1:] = vec[:-1]
        self.assertEqual(vec[:12], [0, *range(10), 5])

    def test_kinds_of_values(self):
        self.vec[:2] = (number for number in (7, 8))
        self.vec[2:3] = b"\1\0\0\0"
        self.vec[3:3] = []
        self.assertEqual(self.vec[:], [7, 8, 1, 3, 4, 5])

    def test_what_cannot_be(self):
        for key, values, kind, text in (
            (slice(0, 2), [1], gpu_vmm.InvalidArgument, "1 values for a slice of 2 elements"),
            (slice(0, 2), [], gpu_vmm.InvalidArgument, "0 values for a slice of 2 elements"),
            (slice(4, None), [1, 2, 3], gpu_vmm.InvalidArgument, "3 values for a slice of 2 elements"),
            (slice(None, None, 2), [1, 2], gpu_vmm.InvalidArgument, "2 values for a slice of 3 elements"),
            (slice(0, 2), [1, 1 << 31], OverflowError, "2147483648 does not fit int32"),
            (slice(None, None, 3), [1, 1 << 31], OverflowError, "2147483648 does not fit int32"),
            (slice(0, 2), "12", TypeError, "not str"),
            (slice(0, 2), None, TypeError, "None"),
            (slice(0, 2), 1.5, TypeError, "1.5"),
            (slice(0, 2), [[1], [2]], gpu_vmm.InvalidArgument, "one dimension"),
            (slice(None, None, 0), 1, gpu_vmm.InvalidArgument, "must not be 0"),
            (0, [1], gpu_vmm.InvalidArgument, "one dimension"),
            (0, "1", TypeError, "'1'"),
            (0, 1 << 31, OverflowError, "2147483648 does not fit int32"),
        ):
            with self.subTest(key=key, values=values), self.raises(kind, text):
                self.vec[key] = values
        self.assertEqual(self.vec[:], [0, 1, 2, 3, 4, 5])
        with self.assertRaises(TypeError):
            self.vec.read_only()[0] = 1

    @unittest.skipIf(numpy is None, "there is no NumPy")
    def test_with_numpy(self):
        self.vec[:2] = numpy.array([8, 9], dtype="int32")
        self.vec[::4] = numpy.array([6, 7], dtype="int32")
        self.vec[2:4] = numpy.int32(3)
        self.vec[-1:] = numpy.array(4, dtype="int32")
        self.vec[1] = numpy.int64(1)
        self.assertEqual(self.vec[:], [6, 1, 3, 3, 7, 4])
        with self.raises(gpu_vmm.InvalidArgument, "shape (2, 3)"):
            self.vec[:] = numpy.ones((2, 3), dtype="int32")

    @unittest.skipIf(numpy is None or NAME != "host", "NumPy and the host's memory are needed")
    def test_of_a_view_of_itself(self):
        view = numpy.asarray(self.vec)
        self.vec[1:] = view[:-1]
        self.assertEqual(self.vec[:], [0, 0, 1, 2, 3, 4])
        self.vec[::-1] = view
        self.assertEqual(self.vec[:], [4, 3, 2, 1, 0, 0])


if __name__ == "__main__":
    unittest.main()
