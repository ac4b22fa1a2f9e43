"""Tensors for the fake PyTorch: strided views of storages, whose memory on a device comes from gpu-vmm's functions for PyTorch.

`by_hook(torch)` and `by_class(torch)` add them. A tensor of the host has memory of Python.
"""

import contextlib
import ctypes
import math
import types

import gpu_vmm

SIZES = {"uint8": 1, "bfloat16": 2, "float32": 4, "int64": 8}


class DType:
    def __init__(self, name):
        self.name, self.itemsize = name, SIZES[name]

    def __repr__(self):
        return f"torch.{self.name}"


class Device:
    def __init__(self, name, index=None):
        kind, _, number = name.partition(":")
        self.type, self.index = kind, int(number) if number else index

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


class UntypedStorage:
    """Memory that ends with its last tensor."""

    allocate = free = None

    def __init__(self, size, device):
        self.size, self.device = size, device
        self.kept = ctypes.create_string_buffer(size) if device.type == "cpu" else None
        self.address = ctypes.addressof(self.kept) if self.kept else (self.allocate(size, device.index) if size else 0)

    def nbytes(self):
        return self.size

    def data_ptr(self):
        return self.address

    def __del__(self):
        if self.kept is None and self.address:
            self.free(self.address, self.device.index)


def contiguous(shape):
    return [math.prod(shape[at + 1 :]) for at in range(len(shape))]


class Tensor:
    layout, is_quantized, is_leaf, requires_grad = "strided", False, True, False

    def __init__(self, storage, dtype, shape, stride=None, offset=0):
        self.storage, self.dtype, self.offset = storage, dtype, offset
        self.shape, self.steps = tuple(shape), tuple(contiguous(shape) if stride is None else stride)

    device = property(lambda self: self.storage.device)
    is_conj = is_neg = lambda self: False
    detach = contiguous = lambda self: self

    def untyped_storage(self):
        return self.storage

    def stride(self):
        return self.steps

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        return self.dtype.itemsize

    def data_ptr(self):
        return self.storage.address + self.offset * self.dtype.itemsize

    def requires_grad_(self, whether):
        self.requires_grad = whether
        return self

    def set_(self, storage, offset, shape, stride):
        self.__init__(storage, self.dtype, shape, stride, offset)
        return self

    def copy(self):
        """Returns the bytes from the first element to the end of the storage."""
        room = (ctypes.c_char * (self.storage.size - self.offset * self.dtype.itemsize))()
        if self.device.type == "cpu":
            return ctypes.string_at(self.data_ptr(), len(room))
        pool = gpu_vmm.torch.device_pool(self.device.index)
        gpu_vmm._library.check(gpu_vmm._library.library().gpu_vmm_read(pool._handle, self.data_ptr(), room, len(room)))
        return room.raw

    def write(self, contents):
        if self.device.type == "cpu":
            ctypes.memmove(self.data_ptr(), contents, len(contents))
        else:
            pool = gpu_vmm.torch.device_pool(self.device.index)
            gpu_vmm._library.check(gpu_vmm._library.library().gpu_vmm_write(pool._handle, self.data_ptr(), contents, len(contents)))
        return self


class Parameter(Tensor):
    def __init__(self, data, requires_grad=True):
        super().__init__(data.storage, data.dtype, data.shape, data.steps, data.offset)
        self.requires_grad = requires_grad


def by_hook(torch):
    """Adds tensors whose memory PyTorch's hook for foreign allocators serves."""
    library = gpu_vmm._library.library()
    install(
        torch,
        lambda size, device: library.gpu_vmm_torch_alloc(size, device, None),
        lambda address, device: library.gpu_vmm_torch_free(address, 0, device, None),
    )


def by_class(torch):
    """Adds tensors whose memory the functions of PyTorch's allocator class serve."""
    library = gpu_vmm._library.library()
    library.gpu_vmm_torch_allocate.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.gpu_vmm_torch_deallocate.argtypes = [ctypes.c_uint64, ctypes.c_void_p]

    def allocate(size, device):
        block = (ctypes.c_uint64 * 16)()  # begins with the address
        gpu_vmm._library.check(library.gpu_vmm_torch_allocate(device, size, None, None, block))
        return block[0]

    install(torch, allocate, lambda address, device: library.gpu_vmm_torch_deallocate(address, None))


def install(torch, allocate, free):
    """Adds tensors with memory of an allocator."""
    UntypedStorage.allocate, UntypedStorage.free = staticmethod(allocate), staticmethod(free)

    def empty_strided(shape, stride, dtype, device):
        return Tensor(UntypedStorage(math.prod(shape) * dtype.itemsize, device), dtype, shape, stride)

    def empty(shape, dtype=None, device="cuda:0"):
        shape = [shape] if isinstance(shape, int) else shape
        return empty_strided(shape, None, dtype or torch.float32, Device(device) if isinstance(device, str) else device)

    for name in SIZES:
        setattr(torch, name, DType(name))
    torch.dtype, torch.device, torch.strided = DType, Device, "strided"
    torch.Tensor, torch.UntypedStorage, torch.nn = Tensor, UntypedStorage, types.SimpleNamespace(Parameter=Parameter)
    torch.empty, torch.empty_strided, torch.no_grad = empty, empty_strided, contextlib.nullcontext
