"""Mapping physical memory into a region, and access to it."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import List, SupportsIndex

from .._arguments import unsigned
from .._callbacks import changing
from .._handles import PhysicalHandle
from .._library import check, library
from .._signatures import DmaBufStruct, MappingStruct
from ..backend import Backend
from ..errors import InvalidArgument, NotMapped, Unsupported
from ._closable import Closable, handle_of
from .physical import PhysicalMemory
from .properties import ACCESS_OF_LEVEL, Access


MOST = 64
"""The number of dma-bufs that one call of the library returns at most."""


@dataclass(frozen=True)
class Mapping:
    """A mapping of a region."""

    offset: int
    """The offset in the region at which it begins."""
    length: int
    """The size of the memory."""
    device: int
    """The device that owns the memory."""
    poisoned: bool
    """Whether it cannot be used, because an operation on it failed and so did the rollback."""


@dataclass(frozen=True)
class DmaBuf:
    """A dma-buf of a part of a region."""

    fd: int
    """The descriptor, which the caller must close."""
    offset: int
    """The offset in the region at which the memory begins. In the dma-buf the memory begins at 0."""
    length: int
    """The size of the memory."""


class Mappings(Closable):
    """The part of :class:`Region` that maps memory."""

    __slots__ = ("_backend",)
    _backend: Backend

    def map(self, offset: SupportsIndex, physical: PhysicalMemory) -> None:
        """Maps physical memory as a whole at an offset. No device has access yet. CUDA: cuMemMap; HIP: hipMemMap.

        The same memory can be mapped several times. Raises Unaligned, OutOfRange, AlreadyMapped, Suspended, and InvalidArgument for
        memory of another backend.
        """
        check(library().gpu_vmm_region_map(self._handle, unsigned("offset", offset), handle_of("physical", physical, PhysicalMemory)))

    def unmap(self, offset: SupportsIndex, length: SupportsIndex, *, force: bool = False) -> None:
        """Unmaps a range of whole mappings, after waiting for the devices. The addresses stay reserved. CUDA: cuMemUnmap; HIP: hipMemUnmap.

        Raises Unaligned, OutOfRange, NotMapped, Suspended, InvalidArgument for a part of a mapping, and Busy for a tensor or a buffer
        (unless ``force`` is true), for a capture, or if an observer refuses.
        """
        first, bytes_ = unsigned("offset", offset), unsigned("length", length)
        changing(library().gpu_vmm_region_unmap, self._handle, first, bytes_, bool(force))

    def set_access(self, offset: SupportsIndex, length: SupportsIndex, device: SupportsIndex, access: Access) -> None:
        """Sets the access of a device, or of :data:`HOST`, to whole mappings. CUDA: cuMemSetAccess; HIP: hipMemSetAccess.

        If the device has another access already, the call waits for it first. Raises Unaligned, OutOfRange, NotMapped, NoSuchDevice,
        PeerUnreachable, Suspended, and Unsupported if the driver gives the host no access.
        """
        first, bytes_, number = unsigned("offset", offset), unsigned("length", length), unsigned("device", device, 32)
        level = unsigned("access", access, 32)
        if level not in ACCESS_OF_LEVEL:
            raise InvalidArgument(f"set access: access is {level}; expected Access.NONE, Access.READ or Access.READ_WRITE")
        check(library().gpu_vmm_region_set_access(self._handle, first, bytes_, number, level))

    def access(self, offset: SupportsIndex, device: SupportsIndex) -> Access:
        """Returns the access of a device, or of :data:`HOST`, at an offset: ``Access.NONE`` where nothing is mapped."""
        level = ctypes.c_uint32()
        check(
            library().gpu_vmm_region_access(
                self._handle, unsigned("offset", offset), unsigned("device", device, 32), ctypes.byref(level)
            )
        )
        return ACCESS_OF_LEVEL[level.value]

    def mapping(self, offset: SupportsIndex) -> Mapping:
        """Returns the mapping that contains an offset. Raises NotMapped, Suspended."""
        found = MappingStruct()
        check(library().gpu_vmm_region_mapping(self._handle, unsigned("offset", offset), ctypes.byref(found)))
        return Mapping(found.offset, found.length, found.device, found.poisoned)

    def mappings(self) -> List[Mapping]:
        """Returns all mappings in the order of their offsets. Raises Suspended."""
        found: List[Mapping] = []
        at, end, unit = 0, self.reserved, self.granularity
        while at < end:
            try:
                found.append(self.mapping(at))
                at = found[-1].offset + found[-1].length
            except NotMapped:
                at += unit
        return found

    def physical(self, offset: SupportsIndex) -> PhysicalMemory:
        """Returns the memory that is mapped at an offset. Raises NotMapped, Suspended."""
        first = unsigned("offset", offset)
        return PhysicalMemory._from(self._backend, PhysicalHandle.made(library().gpu_vmm_region_physical, self._handle, first))

    def dma_bufs(self, offset: SupportsIndex, length: SupportsIndex) -> List[DmaBuf]:
        """Exports a range of whole mappings as dma-bufs, in order and without a gap, for network cards. The caller closes each with ``os.close``.

        The range is one dma-buf where it can be, and otherwise one for each reservation, for each run of memory with the same owner and
        properties, or, as on HIP, for each mapping. A dma-buf is invalid once its range is mapped anew, unmapped, suspended or moved.

        Raises Unsupported if the driver has none, Unaligned, OutOfRange, NotMapped, Suspended, and InvalidArgument for a part of a mapping.
        """
        if not hasattr(library(), "gpu_vmm_region_dma_bufs"):
            raise Unsupported("export dma-buf: this system has no dma-bufs")
        first, size = unsigned("offset", offset), unsigned("length", length)
        end, count, some = first + size, ctypes.c_uint64(), (DmaBufStruct * MOST)()
        found: List[DmaBuf] = []
        try:
            while first < end or not found:
                check(library().gpu_vmm_region_dma_bufs(self._handle, first, end - first, some, len(some), ctypes.byref(count)))
                more = [DmaBuf(one.fd, one.offset, one.length) for one in some[: count.value]]
                found += more
                count.value = 0
                first = found[-1].offset + found[-1].length
        except BaseException:
            for fd in [*(one.fd for one in found), *(one.fd for one in some[: count.value])]:
                os.close(fd)
            raise
        return found

    @property
    def reserved(self) -> int:
        """The number of bytes of addresses, mapped or not."""
        size = ctypes.c_uint64()
        check(library().gpu_vmm_region_reserved(self._handle, ctypes.byref(size)))
        return size.value

    @property
    def granularity(self) -> int:
        """The unit of every offset and length."""
        unit = ctypes.c_uint64()
        check(library().gpu_vmm_region_granularity(self._handle, ctypes.byref(unit)))
        return unit.value
