"""Reading, writing and showing a region's bytes."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, SupportsIndex

from .._arguments import unsigned
from .._dtype import DTypeLike, dtype_of
from .._library import check, library
from .._signatures import MappingStruct
from .._typing import Buffer
from ..backend import Backend
from ..errors import InvalidArgument, OutOfRange, Status
from ._bytes import room, source, target
from ._closable import Closable, handle_of
from .view import View


class Contents(Closable):
    """The part of :class:`Region` that copies bytes. Copies do not wait for work on streams."""

    __slots__ = ()
    _backend: Backend

    def read(self, offset: SupportsIndex, size: SupportsIndex) -> bytes:
        """Returns ``size`` bytes. Raises OutOfRange, NotMapped, AccessDenied, Suspended."""
        limit = ctypes.c_uint64()
        check(library().gpu_vmm_region_reserved(self._handle, ctypes.byref(limit)))
        contents = room(unsigned("size", size), limit.value)
        self.read_into(offset, contents)
        return bytes(contents)

    def read_into(self, offset: SupportsIndex, into: Buffer) -> int:
        """Copies bytes into a writable buffer, and returns their number. Raises as :meth:`read`, and InvalidArgument for its own memory."""
        place, size = target(into)
        self._check_apart("read", place, size)
        check(library().gpu_vmm_region_read(self._handle, unsigned("offset", offset), place, size))
        return size

    def write(self, contents: Buffer, offset: SupportsIndex = 0) -> None:
        """Copies bytes of the host to ``offset``. Raises as :meth:`read`, and InvalidArgument for a buffer of its own memory."""
        given, size = source(contents)
        self._check_apart("write", given, size)
        check(library().gpu_vmm_region_write(self._handle, unsigned("offset", offset), given, size))

    def _check_apart(self, operation: str, place: Any, size: int) -> None:
        """Raises InvalidArgument for host memory that is the region's: the library cannot copy memory to itself."""
        if isinstance(place, bytes) or not size:
            return
        first, reserved = ctypes.c_uint64(), ctypes.c_uint64()
        check(library().gpu_vmm_region_address(self._handle, ctypes.byref(first)))
        check(library().gpu_vmm_region_reserved(self._handle, ctypes.byref(reserved)))
        at = ctypes.addressof(place)
        if at < first.value + reserved.value and first.value < at + size:
            raise InvalidArgument(f"{operation}: the buffer is memory of the region itself; copy it first")

    def fill(self, offset: SupportsIndex, length: SupportsIndex, value: SupportsIndex) -> None:
        """Sets every byte of a range to ``value``. Raises as :meth:`read`. CUDA: cuMemsetD8; HIP: hipMemset."""
        first, bytes_ = unsigned("offset", offset), unsigned("length", length)
        check(library().gpu_vmm_region_fill(self._handle, first, bytes_, unsigned("value", value, 8)))

    def copy_from(
        self, offset: SupportsIndex, source: Contents, source_offset: SupportsIndex, length: SupportsIndex
    ) -> None:
        """Copies a range of another region to ``offset``. CUDA: cuMemcpyDtoD; HIP: hipMemcpyDtoD.

        The device that owns the target copies, and must have read access to the source. Raises as :meth:`read`, and InvalidArgument for
        the same region.
        """
        first, second = unsigned("offset", offset), unsigned("source_offset", source_offset)
        other = handle_of("source", source, Contents, "Region")
        check(library().gpu_vmm_region_copy(self._handle, first, other, second, unsigned("length", length)))

    def _end(self) -> int:
        """Returns the end of the memory. Raises Suspended: it is 0 then."""
        end = ctypes.c_uint64()
        check(library().gpu_vmm_region_size(self._handle, ctypes.byref(end)))
        if not end.value and library().gpu_vmm_region_mapping(self._handle, 0, ctypes.byref(MappingStruct())) == Status.SUSPENDED:
            check(Status.SUSPENDED)
        return end.value

    def view(
        self,
        dtype: DTypeLike = "uint8",
        offset: SupportsIndex = 0,
        count: Optional[SupportsIndex] = None,
        *,
        read_only: bool = False,
    ) -> View:
        """Returns ``count`` elements from ``offset`` bytes on, for DLPack and as a buffer. None is all up to the end of the memory.

        Raises InvalidArgument for an offset that is not a multiple of the element's size, OutOfRange beyond the end of the memory, and
        Suspended.
        """
        kind, first = dtype_of(dtype), unsigned("offset", offset)
        if first % kind.itemsize:
            raise InvalidArgument(f"view: the offset {first} is not a multiple of the {kind.itemsize} bytes of a {kind.name}")
        end = self._end()
        if count is None:
            number = max(0, end - first) // kind.itemsize
        else:
            number = unsigned("count", count)
        last = first + number * kind.itemsize
        if last > end:
            raise OutOfRange(
                f"view: {number} {kind.name} at offset {first} end at {last}, beyond the end of the region's memory at {end}; grow it first"
            )
        return View(self._backend, self._handle, kind, first, number, bool(read_only))
