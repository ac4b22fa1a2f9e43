"""The names of element types: strings, and the types of Python, NumPy and PyTorch."""

import sys
import typing
import unittest

import gpu_vmm
from support import Case, backend
from test_vec import VALUES, numpy


class TypeCase(Case):
    @classmethod
    def setUpClass(cls):
        cls.backend = backend()

    def dtype(self, dtype):
        return gpu_vmm.DeviceVec(dtype, backend=self.backend).dtype


class Names(TypeCase):
    def test_the_literal_has_all_names(self):
        self.assertEqual(set(typing.get_args(gpu_vmm.DTypeName)), set(VALUES))
        for name in typing.get_args(gpu_vmm.DTypeName):
            self.assertEqual(self.dtype(name), name)

    def test_types_of_python(self):
        for kind, name in ((bool, "bool"), (int, "int64"), (float, "float64"), (complex, "complex128")):
            self.assertEqual(self.dtype(kind), name)
        vec = gpu_vmm.DeviceVec(float, [0.1], backend=self.backend)
        self.assertEqual(vec.tolist(), [0.1])  # not rounded to float32

    def test_types_of_pytorch(self):
        kind = type("dtype", (), {"__module__": "torch", "__repr__": lambda self: "torch.bfloat16"})
        self.assertEqual(self.dtype(kind()), "bfloat16")
        kind.__repr__ = lambda self: "torch.qint8"
        with self.raises(gpu_vmm.InvalidArgument, "there is no 'qint8'; expected one of int8"):
            self.dtype(kind())

    def test_what_names_none(self):
        for name, small, large in (("float", 32, 64), ("int", 32, 64), ("complex", 64, 128)):
            with self.raises(gpu_vmm.InvalidArgument, f"{name}{small} to some libraries and {name}{large} to others; pass one"):
                self.dtype(name)
        for other in (str, object, b"int8", 5, None, [1, 2], type, sys):
            with self.raises(TypeError, "pass a name such as \"float32\""):
                self.dtype(other)
        with self.raises(TypeError, "values are the second argument"):
            gpu_vmm.DeviceVec([1, 2], backend=self.backend)

    def test_numpy_is_not_imported(self):
        said = self.script(
            f"""
            import sys, gpu_vmm
            backend = gpu_vmm.open({self.backend.name!r})
            for dtype in "int8", int, "f":
                gpu_vmm.DeviceVec(dtype, [1], backend=backend)[:]
            print("numpy" in sys.modules)
            """
        )
        self.assertEqual(said, "False\n")


@unittest.skipIf(numpy is None, "there is no NumPy")
class Numpy(TypeCase):
    def test_types_of_numpy(self):
        for name in VALUES:
            if name != "bfloat16":
                kind = numpy.dtype(name)
                self.assertEqual((self.dtype(kind), self.dtype(kind.type), self.dtype(kind.newbyteorder("="))), (name,) * 3)
        self.assertEqual((self.dtype(numpy.longlong), self.dtype(numpy.intc)), ("int64", "int32"))  # types with other names

    def test_of_an_array(self):
        array = numpy.arange(6, dtype="uint16")
        vec = gpu_vmm.DeviceVec(array.dtype, array, backend=self.backend)
        self.assertEqual((vec.dtype, vec.tolist()), ("uint16", [0, 1, 2, 3, 4, 5]))

    def test_what_no_vector_has(self):
        with self.raises(gpu_vmm.InvalidArgument, "swapped; pass \"float32\""):
            self.dtype(numpy.dtype(">f4"))
        for other in (numpy.dtype([("a", "f4")]), numpy.dtype("M8[s]"), numpy.dtype("O"), numpy.dtype((numpy.float32, 3)), numpy.str_):
            with self.raises(gpu_vmm.InvalidArgument, "expected one of int8"):
                self.dtype(other)
        for other in (numpy.floating, numpy.generic, numpy.array, numpy.float32(1)):
            with self.raises(TypeError, "names no element type"):
                self.dtype(other)


if __name__ == "__main__":
    unittest.main()
