"""Elements of a region for other libraries: DLPack tensors, and buffers of memory that the CPU can access."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, SupportsIndex, Tuple

from .._dlpack import capsule, is_copy, tensor_of, versioned
from .._dtype import DType, DTypeName
from .._elements import Elements
from .._handles import RegionHandle
from .._library import check, library
from .._owner import Owner
from .._signatures import MappingStruct
from .._typing import CapsuleType
from ..backend import Backend
from ..errors import AccessDenied
from ..results import ArrayInterface
from .properties import HOST, Access

_HOST_TYPE = 1  # kDLCPU


class View(Owner):
    """Elements of a region, for libraries that take DLPack or buffers. :meth:`Region.view` creates it.

    While a tensor or a buffer of it exists, calls that take the region's memory away raise Busy, unless ``force`` is true. The view
    itself keeps the region's addresses, and no memory.

    Any thread may use it.
    """

    __slots__ = ("_backend", "_dtype", "_length", "_offset", "_read_only", "_region")
    _instead = "Region.view() creates another one"

    def __init__(
        self, backend: Backend, region: RegionHandle, dtype: DType, offset: int, length: int, read_only: bool
    ) -> None:
        self._make_once("_region")
        if not isinstance(region, RegionHandle):
            raise TypeError(f"a View is created by Region.view(), not from a {type(region).__name__}")
        self._backend, self._region, self._dtype = backend, region, dtype
        self._offset, self._length, self._read_only = offset, length, read_only

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.View of {self._length} {self._dtype.name} at offset {self._offset}>"

    def __len__(self) -> int:
        """Returns the number of elements."""
        return self._length

    @property
    def dtype(self) -> DTypeName:
        """The name of the elements' type."""
        return self._dtype.name

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Returns DLPack's type and number of the device that owns the first element. Types: 1 for the host, 2 CUDA, 10 ROCm.

        Raises NotMapped, Suspended.
        """
        kind, number = ctypes.c_int32(), ctypes.c_int32()
        opened, device = self._backend._handle, self._device()
        check(library().gpu_vmm_dlpack_device(opened, device, ctypes.byref(kind), ctypes.byref(number)))
        return kind.value, number.value

    def _device(self) -> int:
        """Returns the number of the device that owns the first element."""
        mapping = MappingStruct()
        check(library().gpu_vmm_region_mapping(self._region, self._offset, ctypes.byref(mapping)))
        return int(mapping.device)

    def __dlpack__(
        self,
        *,
        stream: Optional[SupportsIndex] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> CapsuleType:
        """Returns a DLPack capsule of the elements, without a copy, or of a copy as ``DeviceVec.__dlpack__`` does.

        The device that owns the memory must have access. Raises OutOfRange, NotMapped, AccessDenied, Suspended, and BufferError as
        ``DeviceVec.__dlpack__`` does.
        """
        here = self.__dlpack_device__()
        copies = is_copy(here, dl_device, copy)
        new = versioned(here, stream, max_version, self._read_only and not copies)
        if copies:
            from ..device_vec import copied  # that module imports this one

            source, start = Elements(self._region, self._dtype, here[0] == _HOST_TYPE), self._offset // self._dtype.itemsize
            return copied(source, start, self._length, self._dtype, self._backend, self._device(), dl_device, new)
        return capsule(self._region, self._dtype, self._length, self._read_only, new, self._offset)

    def buffer(self) -> memoryview:
        """Returns the elements as a buffer of the CPU, without a copy; as bytes if the module ``struct`` does not have their type.

        The memory must be the host's, or the CPU must have access to it (``set_access`` with :data:`HOST`). Do not take that access away
        while the buffer exists. Raises AccessDenied, OutOfRange, NotMapped, Suspended.
        """
        # The tensor comes first: from then on the memory stays, since the library counts it.
        keeper = tensor_of(self._region, self._offset, self._dtype, self._length, self._read_only, True)
        size = self._length * self._dtype.itemsize
        if not size:
            return memoryview(b"")
        if self.__dlpack_device__()[0] != _HOST_TYPE:
            self._check_host(size)
        address = ctypes.c_uint64()
        check(library().gpu_vmm_region_address(self._region, ctypes.byref(address)))
        memory: Any = (ctypes.c_ubyte * size).from_address(address.value + self._offset)
        memory.keeper = keeper
        view = memoryview(memory).cast("B")
        if self._dtype.char:
            view = view.cast(self._dtype.char)  # type: ignore[call-overload]
        return view.toreadonly() if self._read_only else view

    def _check_host(self, size: int) -> None:
        need = Access.READ if self._read_only else Access.READ_WRITE
        at, end = self._offset, self._offset + size
        while at < end:
            mapping, level = MappingStruct(), ctypes.c_uint32()
            check(library().gpu_vmm_region_access(self._region, at, HOST, ctypes.byref(level)))
            if level.value & need != need:
                raise AccessDenied(
                    f"buffer: the CPU has no access ({need.name}) to the memory at offset {at}; give it by set_access(…, HOST, …), or "
                    "use DLPack"
                )
            check(library().gpu_vmm_region_mapping(self._region, at, ctypes.byref(mapping)))
            at = mapping.offset + mapping.length

    def __buffer__(self, flags: int) -> memoryview:
        """Returns :meth:`buffer`, for ``memoryview()`` and functions of C. Needs Python 3.12."""
        return self.buffer()

    @property
    def __array_interface__(self) -> ArrayInterface:
        """The description of memory that the CPU can access, for NumPy. Raises AttributeError for other memory."""
        try:
            buffer = self.buffer()
        except AccessDenied as error:
            raise AttributeError(f"__array_interface__: {error}") from error
        return {"shape": (self._length,), "typestr": self._dtype.typestr, "data": buffer, "version": 3}
