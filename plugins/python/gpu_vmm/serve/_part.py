"""A part of a lease for other libraries: a DLPack tensor of its memory."""

from __future__ import annotations

import ctypes
from typing import Optional, SupportsIndex, Tuple

from .._dlpack import is_copy, part_capsule, versioned
from .._handles import RegionHandle
from .._library import check, library
from .._owner import Owner
from .._signatures import MappingStruct
from .._typing import CapsuleType
from ..backend import Backend
from ..vmm.properties import Access
from ._layout import Part, element_of, extent, itemsize


class LeasedPart(Owner):
    """A part of a lease, for libraries that take DLPack. ``lease[name]`` creates it.

    Its tensors show the memory itself. They show the contents of a new epoch after :meth:`Lease.apply`, and keep the memory when the lease
    is closed. A tensor of a read lease is read-only: a library that ignores this and writes to it ends the process.

    Any thread may use it.
    """

    __slots__ = ("_backend", "_name", "_part", "_region")
    _instead = "lease[name] creates another one"

    def __init__(self, backend: Backend, region: RegionHandle, name: str, part: Part) -> None:
        self._make_once("_region")
        if not isinstance(region, RegionHandle):
            raise TypeError(f"a LeasedPart is created by lease[name], not from a {type(region).__name__}")
        self._backend, self._region, self._name, self._part = backend, region, name, part

    def __repr__(self) -> str:
        return f"<gpu_vmm.serve.LeasedPart {self._name!r}: {self.dtype} {list(self.shape)} at offset {self.offset}>"

    @property
    def name(self) -> str:
        """The name of the part."""
        return self._name

    @property
    def offset(self) -> int:
        """The offset of the first element in the region, in bytes."""
        return self._part.offset

    @property
    def dtype(self) -> str:
        """The name of the element type."""
        return str(self._part.dtype)

    @property
    def shape(self) -> Tuple[int, ...]:
        """The number of elements in each dimension."""
        return self._part.shape

    @property
    def strides(self) -> Optional[Tuple[int, ...]]:
        """The distance in elements between neighbours in each dimension; None for row-major order."""
        return self._part.strides

    @property
    def read_only(self) -> bool:
        """Whether the memory is read-only now: that of a write lease can be written after :meth:`Lease.renew`, until the commit."""
        at, end = self.offset, self.offset + extent(self.shape, self.strides) * itemsize(element_of(self._part.dtype))
        mapping, level = MappingStruct(), ctypes.c_uint32()
        while at < end:
            check(library().gpu_vmm_region_mapping(self._region, at, ctypes.byref(mapping)))
            check(library().gpu_vmm_region_access(self._region, at, mapping.device, ctypes.byref(level)))
            if level.value & Access.READ_WRITE != Access.READ_WRITE:
                return True
            at = mapping.offset + mapping.length
        return False

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Returns DLPack's type and number of the device. Types: 1 for the host, 2 for CUDA, 10 for ROCm."""
        mapping, kind, number = MappingStruct(), ctypes.c_int32(), ctypes.c_int32()
        check(library().gpu_vmm_region_mapping(self._region, 0, ctypes.byref(mapping)))
        opened = self._backend._handle
        check(library().gpu_vmm_dlpack_device(opened, mapping.device, ctypes.byref(kind), ctypes.byref(number)))
        return kind.value, number.value

    def __dlpack__(
        self,
        *,
        stream: Optional[SupportsIndex] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> CapsuleType:
        """Returns a DLPack capsule of the elements, without a copy.

        Raises BufferError for a copy or another device, and for read-only memory if the consumer takes only unversioned tensors, which
        cannot express that; InvalidArgument and OutOfRange for a part that is none: another process has written the layout.
        """
        here = self.__dlpack_device__()
        if is_copy(here, dl_device, copy):
            raise BufferError("__dlpack__: a part is exported without a copy alone; copy the consumer's array")
        read_only = self.read_only
        new = versioned(here, stream, max_version, read_only)
        part = self._part
        return part_capsule(self._region, part.offset, element_of(part.dtype), part.shape, part.strides, read_only, new)
