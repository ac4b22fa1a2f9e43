"""DLPack capsules: their names and contents, consumers, and when their memory is freed."""

import ctypes
import gc
import unittest

import gpu_vmm
from support import MIB, NAME, Case, backend, in_threads

api = ctypes.pythonapi
api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Plain(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("flags", ctypes.c_uint64), ("tensor", Tensor),
    ]  # fmt: skip


KINDS = {b"dltensor": Plain, b"dltensor_versioned": Versioned}


def name_of(capsule):
    return next(name for name in (*KINDS, *USED.values()) if api.PyCapsule_IsValid(capsule, name))


class Taken:
    """A consumer: takes the tensor, renames the capsule, and calls the deleter at the end."""

    def __init__(self, capsule):
        name = name_of(capsule)
        self.pointer = api.PyCapsule_GetPointer(capsule, name)
        self.managed = KINDS[name].from_address(self.pointer)
        api.PyCapsule_SetName(capsule, USED[name])

    def delete(self):
        self.managed.deleter(self.pointer)


class Deleted:
    """Counts the calls of a tensor's deleter, and calls it."""

    def __init__(self, capsule):
        name = name_of(capsule)
        self.pointer = api.PyCapsule_GetPointer(capsule, name)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        managed = KINDS[name].from_address(self.pointer)
        self.its_own = kind(ctypes.cast(managed.deleter, ctypes.c_void_p).value)
        self.noting = managed.deleter = kind(self.note)
        self.calls = 0

    def note(self, pointer):
        self.calls += 1
        self.its_own(pointer)


class Capsules(Case):
    @classmethod
    def setUpClass(cls):
        cls.backend = backend()

    def vec(self, dtype="float32", values=(1, 2, 3)):
        return gpu_vmm.DeviceVec(dtype, values, backend=self.backend)

    def exported(self, vec):
        try:
            vec.shrink_to_fit()
            return False
        except gpu_vmm.Busy:
            return True

    def test_names_and_contents(self):
        vec = self.vec()
        versions = {None: b"dltensor", (0, 8): b"dltensor", (1, 0): b"dltensor_versioned", (2, 5): b"dltensor_versioned"}
        for version, name in versions.items():
            capsule = vec.__dlpack__(max_version=version)
            self.assertEqual(name_of(capsule), name)
            taken = Taken(capsule)
            tensor = taken.managed.tensor
            self.assertEqual(tensor.data + tensor.byte_offset, vec.address)
            self.assertEqual((tensor.device_type, tensor.device_id), vec.__dlpack_device__())
            self.assertEqual((tensor.ndim, tensor.shape[0], tensor.code, tensor.bits, tensor.lanes), (1, 3, 2, 32, 1))
            if name == b"dltensor_versioned":
                self.assertEqual((taken.managed.major, taken.managed.flags), (1, 0))
            del capsule
            self.assertTrue(self.exported(vec))
            taken.delete()
            self.assertFalse(self.exported(vec))

    def test_device(self):
        self.assertEqual(self.vec().__dlpack_device__(), ({"host": 1, "cuda": 2, "hip": 10}[NAME], 0))

    def test_read_only(self):
        view = self.vec().read_only()
        taken = Taken(view.__dlpack__(max_version=(1, 1)))
        self.assertEqual(taken.managed.flags & 1, 1)
        taken.delete()
        for version in (None, (0, 8)):
            with self.assertRaisesRegex(BufferError, "read-only"):
                view.__dlpack__(max_version=version)

    def test_what_cannot_be(self):
        vec = self.vec()
        if NAME != "host":
            with self.assertRaisesRegex(BufferError, "the host needs a copy"):
                vec.__dlpack__(dl_device=(1, 0), copy=False)
        with self.assertRaisesRegex(BufferError, r"\(3, 7\)"):
            vec.__dlpack__(dl_device=(3, 7))
        with self.raises(gpu_vmm.InvalidArgument, "no stream"):
            vec.__dlpack__(stream=-2)
        with self.assertRaises(TypeError):
            vec.__dlpack__(stream="1")
        self.assertFalse(self.exported(vec))
        for stream in (None, -1) if NAME == "host" else (None, -1, 1, 2, 1 << 40):
            vec.__dlpack__(stream=stream, dl_device=vec.__dlpack_device__(), copy=False)

    def test_copies(self):
        vec = self.vec()
        for view in vec, vec.read_only():
            for device in None, vec.__dlpack_device__(), (1, 0):
                for version in None, (1, 0):
                    capsule = view.__dlpack__(dl_device=device, copy=True, max_version=version)
                    self.assertFalse(self.exported(vec))
                    taken = Taken(capsule)
                    tensor = taken.managed.tensor
                    self.assertEqual((tensor.device_type, tensor.device_id), device or vec.__dlpack_device__())
                    self.assertNotEqual(tensor.data, vec.address)
                    if version:  # copied, and not read-only
                        self.assertEqual(taken.managed.flags, 2)
                    if tensor.device_type == 1:
                        self.assertEqual((ctypes.c_float * 3).from_address(tensor.data + tensor.byte_offset)[:], [1, 2, 3])
                    taken.delete()
        taken = Taken(vec.__dlpack__(dl_device=(1, 0)))  # a copy of a GPU's memory, and the memory itself on the host
        self.assertEqual((taken.managed.tensor.device_type, self.exported(vec)), (1, NAME == "host"))
        taken.delete()

    def test_a_capsule_that_is_not_taken(self):
        vec = self.vec()
        for version in (None, (1, 0)):
            capsule = vec.__dlpack__(max_version=version)
            self.assertTrue(self.exported(vec))
            del capsule
            self.assertFalse(self.exported(vec))

    def test_memory_goes_with_the_last(self):
        def free():
            gc.collect()
            return self.backend.memory()[0]

        def large():
            vec = self.vec("uint8", b"")
            vec.resize(512 * MIB if NAME != "host" else 64 * MIB)
            return vec

        ways = {
            "vector, capsule": lambda vec, capsule: (vec.clear(), capsule.clear()),
            "capsule, vector": lambda vec, capsule: (capsule.clear(), vec.clear()),
        }
        for said, let_go in ways.items():
            for version in (None, (1, 0)):
                vec = [large()]
                capsule = [vec[0].__dlpack__(max_version=version)]
                deleted = Deleted(capsule[0])
                let_go(vec, capsule)
                gc.collect()
                self.assertEqual(deleted.calls, 1, said)
        if NAME != "host":
            before = free()
            vec = large()
            taken = Taken(vec.__dlpack__())
            del vec
            self.assertLessEqual(free(), before - 512 * MIB)
            taken.delete()
            self.assertGreater(free(), before - 512 * MIB)

    def test_taken_ones_are_not_deleted_twice(self):
        vec = self.vec()
        capsule = vec.__dlpack__()
        deleted = Deleted(capsule)
        taken = Taken(capsule)
        del capsule, vec
        gc.collect()
        self.assertEqual(deleted.calls, 0)
        taken.delete()
        self.assertEqual(deleted.calls, 1)

    def test_an_exception_on_its_way(self):
        # Like a library that refuses a tensor: the capsule is deleted while the exception propagates.
        def refuse(vec):
            capsules = [vec.__dlpack__()]
            raise ValueError(capsules.pop())

        vec = self.vec()
        for _ in range(3):
            with self.assertRaises(ValueError):
                refuse(vec)
        gc.collect()
        self.assertFalse(self.exported(vec))
        with self.assertRaises(ValueError):
            refuse(self.vec())
        # The capsule has the last reference to the memory.
        with self.assertRaises(TypeError):
            int(self.vec().__dlpack__())

    def test_threads(self):
        vec = self.vec()

        def work(_):
            for turn in range(200):
                capsule = vec.__dlpack__(max_version=(1, 0))
                if turn % 2:
                    Taken(capsule).delete()

        self.assertEqual(in_threads(6, work), [])
        self.assertFalse(self.exported(vec))


if __name__ == "__main__":
    unittest.main()
