"""Physical memory, which regions map."""

from __future__ import annotations

import ctypes
from typing import SupportsIndex

from .._arguments import unsigned
from .._handles import PhysicalHandle
from .._library import check, library
from .._signatures import FabricHandle, PropertiesStruct
from .._typing import Buffer
from ..backend import Backend
from ..errors import InvalidArgument, Unsupported
from ._bytes import room, source, target
from ._closable import Closable, handle_of
from ._descriptor import new_descriptor
from .device import checked
from .offer import Offer, offer_by
from .properties import DEFAULT, OfferBy, Properties, pointer_to, properties_of


class PhysicalMemory(Closable):
    """Physical memory of at least ``size`` bytes, rounded up to the granularity.

    Several objects can share one memory: the device gets it back when all are closed or collected and no region maps it. CUDA:
    cuMemCreate; HIP: hipMemCreate.

    Raises OutOfMemory, NoSuchDevice, or Unsupported if the driver has no such memory.

    Any thread may use it, and calls of several threads run at the same time.
    """

    __slots__ = ("_backend",)

    def __init__(self, backend: Backend, size: SupportsIndex, properties: Properties = DEFAULT) -> None:
        wanted, bytes_ = pointer_to(properties), unsigned("size", size)
        self._own(PhysicalHandle.made(library().gpu_vmm_physical_create, checked(backend)._handle, wanted, bytes_))
        self._backend = backend

    @classmethod
    def _from(cls, backend: Backend, handle: PhysicalHandle) -> PhysicalMemory:
        made = cls._of(handle)
        made._backend = backend
        return made

    @classmethod
    def adopt(cls, backend: Backend, address: SupportsIndex) -> PhysicalMemory:
        """Takes a reference to the memory that other code of this process has mapped at an address.

        That can be a segment of PyTorch, a buffer of NCCL, or memory of the driver's own calls. It lives after the other code has
        released it. No other thread may unmap it during the call. CUDA: cuMemRetainAllocationHandle; HIP, from 7.15 on:
        hipMemRetainAllocationHandle.

        Raises NotMapped for a plain allocation and where nothing is mapped, and Unsupported for an address in a region of this backend
        and on HIP before 7.15.
        """
        number = unsigned("address", address)
        return cls._from(backend, PhysicalHandle.made(library().gpu_vmm_physical_adopt, checked(backend)._handle, number))

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.PhysicalMemory{', closed' if self.closed else f' of {self.size} bytes on {self._backend.name}'}>"

    @property
    def backend(self) -> Backend:
        """The backend that owns the memory."""
        return self._backend

    @property
    def size(self) -> int:
        """The size, a multiple of the granularity."""
        size = ctypes.c_uint64()
        check(library().gpu_vmm_physical_size(self._handle, ctypes.byref(size)))
        return size.value

    @property
    def properties(self) -> Properties:
        """The properties that the memory has."""
        found = PropertiesStruct()
        check(library().gpu_vmm_physical_properties(self._handle, ctypes.byref(found)))
        return properties_of(found)

    @property
    def holders(self) -> int:
        """The number of objects, this one included, and of mappings that hold the memory. Another thread can change it at any time."""
        number = ctypes.c_uint64()
        check(library().gpu_vmm_physical_holders(self._handle, ctypes.byref(number)))
        return number.value

    def retain(self) -> PhysicalMemory:
        """Returns another object for the same memory."""
        return PhysicalMemory._from(self._backend, PhysicalHandle.made(library().gpu_vmm_physical_retain, self._handle))

    def is_same(self, other: PhysicalMemory) -> bool:
        """Returns whether two objects share one memory."""
        same = ctypes.c_bool()
        check(library().gpu_vmm_physical_same(self._handle, handle_of("other", other, PhysicalMemory), ctypes.byref(same)))
        return same.value

    def read(self, offset: SupportsIndex, size: SupportsIndex) -> bytes:
        """Returns ``size`` bytes, whether or not the memory is mapped. Raises OutOfRange, OutOfAddressSpace.

        Each call maps the memory at addresses of its own: for many copies, map it in a region.
        """
        first, contents = unsigned("offset", offset), room(unsigned("size", size), self.size)
        place, count = target(contents)
        check(library().gpu_vmm_physical_read(self._handle, first, place, count))
        return bytes(contents)

    def write(self, contents: Buffer, offset: SupportsIndex = 0) -> None:
        """Copies bytes of the host to ``offset``, whether or not the memory is mapped. Raises OutOfRange, OutOfAddressSpace."""
        given, size = source(contents)
        check(library().gpu_vmm_physical_write(self._handle, unsigned("offset", offset), given, size))

    def copy_from(
        self, offset: SupportsIndex, source: PhysicalMemory, source_offset: SupportsIndex, length: SupportsIndex
    ) -> None:
        """Copies a range of other memory to ``offset``, whether or not they are mapped. CUDA: cuMemcpyDtoD; HIP: hipMemcpyDtoD.

        The device that owns this memory copies. Two ranges of one memory must not overlap: the bytes are undefined then. Raises OutOfRange,
        OutOfAddressSpace, PeerUnreachable, and InvalidArgument for memory of another backend.
        """
        first, second = unsigned("offset", offset), unsigned("source_offset", source_offset)
        other = handle_of("source", source, PhysicalMemory)
        check(library().gpu_vmm_physical_copy(self._handle, first, other, second, unsigned("length", length)))

    def export_fd(self) -> int:
        """Returns a new file descriptor of the memory, which the caller must close. Needs ``HandleTypes.FD``.

        ``socket.send_fds`` sends it to another process. Raises Unsupported for memory that was not created for it.
        """
        _check_descriptors()
        return new_descriptor(library().gpu_vmm_physical_export_fd, self._handle)

    @classmethod
    def import_fd(
        cls, backend: Backend, fd: SupportsIndex, size: SupportsIndex, properties: Properties = DEFAULT
    ) -> PhysicalMemory:
        """Imports memory from a file descriptor, which stays open and stays the caller's.

        ``size`` and ``properties`` must be those of the exported memory: no driver reports them. Raises Unaligned, NoSuchDevice,
        Unsupported, or DriverError for another kind of descriptor.
        """
        _check_descriptors()
        wanted, number, bytes_ = pointer_to(properties), unsigned("fd", fd, 31), unsigned("size", size)
        opened = checked(backend)._handle
        return cls._from(backend, PhysicalHandle.made(library().gpu_vmm_physical_import_fd, opened, wanted, bytes_, number))

    def export_fabric(self) -> bytes:
        """Returns a fabric handle, which any network can carry. Needs ``HandleTypes.FABRIC``. Raises Unsupported."""
        handle = FabricHandle()
        check(library().gpu_vmm_physical_export_fabric(self._handle, ctypes.byref(handle)))
        return bytes(handle)

    @classmethod
    def import_fabric(
        cls, backend: Backend, handle: bytes, size: SupportsIndex, properties: Properties = DEFAULT
    ) -> PhysicalMemory:
        """Imports memory from a fabric handle; ``size`` and ``properties`` as for :meth:`import_fd`.

        Raises Unaligned, NoSuchDevice, Unsupported, or DriverError for an invalid handle.
        """
        if len(handle) != ctypes.sizeof(FabricHandle):
            raise InvalidArgument(f"import memory: the fabric handle has {len(handle)} bytes; expected {ctypes.sizeof(FabricHandle)}")
        wanted, given = pointer_to(properties), FabricHandle.from_buffer_copy(handle)
        opened, bytes_ = checked(backend)._handle, unsigned("size", size)
        call = library().gpu_vmm_physical_import_fabric
        return cls._from(backend, PhysicalHandle.made(call, opened, wanted, bytes_, ctypes.byref(given)))

    def offer(self, by: OfferBy = OfferBy.PROCESS) -> Offer:
        """Offers the memory to other processes. Raises Unsupported for memory that was not created for it."""
        return offer_by("gpu_vmm_physical_offer", by, self._backend._handle, self._handle)

    @classmethod
    def import_offer(cls, backend: Backend, offer: bytes) -> PhysicalMemory:
        """Imports memory that another process offers. Import offers only from senders that you trust.

        Raises PeerError for bytes that are no offer of one piece of memory, and if the process that made it has ended; AccessDenied or
        DriverError if the system refuses its descriptors.
        """
        given, size = source(offer)
        return cls._from(backend, PhysicalHandle.made(library().gpu_vmm_physical_import, checked(backend)._handle, given, size))


def _check_descriptors() -> None:
    if not hasattr(library(), "gpu_vmm_physical_export_fd"):
        raise Unsupported("export memory: this system has no file descriptors for memory")
