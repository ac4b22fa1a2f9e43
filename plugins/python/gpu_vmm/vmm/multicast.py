"""Multicast objects: one address for the memory of several devices. It was never run on hardware."""

from __future__ import annotations

import ctypes
from typing import Optional, Sequence, SupportsIndex, Tuple

from .._arguments import unsigned
from .._handles import MulticastHandle
from .._library import check, library
from .._signatures import TeamOptions
from ..backend import Backend
from ..errors import Unsupported
from ._closable import Closable, handle_of
from ._descriptor import new_descriptor
from .device import checked
from .physical import PhysicalMemory
from .properties import HandleTypes


class Multicast(Closable):
    """One address for the memory of several devices, for kernels with ``multimem`` instructions of PTX. CUDA: cuMulticastCreate.

    EXPERIMENTAL, and it was never run on hardware: an object takes resources of the whole machine. ``devices``: the numbers of the devices
    of this process. ``size``: the memory that each device can bind, rounded up to :attr:`granularity`. ``elsewhere``: the number of devices
    that other processes add, which import the object; memory is then created with ``HandleTypes.FD``. ``handle_types``: the handles by which
    the object can be exported; by default descriptors if devices are elsewhere.

    ``close`` waits for the devices, unmaps and unbinds. Any thread may use it; calls of several threads run one at a time. Raises Unsupported
    on HIP and host memory and for devices without multicast, NoSuchDevice, OutOfMemory for a size above a device's memory, and
    InvalidArgument for no device or one that is named twice.
    """

    __slots__ = ("_backend",)

    def __init__(
        self,
        backend: Backend,
        devices: Sequence[SupportsIndex],
        size: SupportsIndex,
        *,
        elsewhere: SupportsIndex = 0,
        handle_types: HandleTypes = HandleTypes.NONE,
    ) -> None:
        wanted = _options(devices, size, elsewhere, handle_types)
        self._own(MulticastHandle.made(library().gpu_vmm_multicast_create, checked(backend)._handle, ctypes.byref(wanted)))
        self._backend = backend

    @classmethod
    def import_fd(
        cls,
        backend: Backend,
        fd: SupportsIndex,
        devices: Sequence[SupportsIndex],
        size: SupportsIndex,
        *,
        elsewhere: SupportsIndex,
        handle_types: HandleTypes = HandleTypes.NONE,
    ) -> Multicast:
        """Imports an object that another process has exported, and adds the devices of this process.

        ``size``, ``handle_types`` and the number of all devices must be those with which it was created. The descriptor stays open and stays
        the caller's. Raises what creating one raises, and DriverError for another kind of descriptor.
        """
        _check_descriptors()
        wanted = _options(devices, size, elsewhere, handle_types)
        opened, number = checked(backend)._handle, unsigned("fd", fd, 31)
        made = cls._of(MulticastHandle.made(library().gpu_vmm_multicast_import_fd, opened, ctypes.byref(wanted), number))
        made._backend = backend
        return made

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.Multicast{', closed' if self.closed else f' of {self.size} bytes on {self._backend.name}'}>"

    @property
    def backend(self) -> Backend:
        """The backend of the devices."""
        return self._backend

    def _sizes(self) -> Tuple[int, int, int]:
        size, granularity, recommended = (ctypes.c_uint64() for _ in range(3))
        places = (ctypes.byref(place) for place in (size, granularity, recommended))
        check(library().gpu_vmm_multicast_sizes(self._handle, *places))
        return size.value, granularity.value, recommended.value

    @property
    def size(self) -> int:
        """The size of the memory that each device can bind."""
        return self._sizes()[0]

    @property
    def granularity(self) -> int:
        """The unit of offsets and lengths of bindings, which can be larger than that of memory."""
        return self._sizes()[1]

    @property
    def recommended_granularity(self) -> int:
        """The unit that the driver recommends for speed."""
        return self._sizes()[2]

    def export_fd(self) -> int:
        """Returns a new file descriptor of the object, which the caller must close. Raises Unsupported, and Busy once memory was bound."""
        _check_descriptors()
        return new_descriptor(library().gpu_vmm_multicast_export_fd, self._handle)

    def bind(
        self,
        physical: PhysicalMemory,
        offset: SupportsIndex = 0,
        memory_offset: SupportsIndex = 0,
        length: Optional[SupportsIndex] = None,
    ) -> None:
        """Binds ``length`` bytes of memory, from ``memory_offset`` on, to the object at ``offset``. CUDA: cuMulticastBindMem.

        None binds all memory from ``memory_offset`` on. If devices are elsewhere, call it when all processes have added theirs: the driver
        waits until then. Raises Unaligned, OutOfRange, AlreadyMapped for a range with memory of the device, Unsupported for memory of the host
        and for memory that cannot be exported if the object can, InvalidArgument, and Busy for a mapped object.
        """
        first, memory = unsigned("memory_offset", memory_offset), handle_of("physical", physical, PhysicalMemory)
        size = max(physical.size - first, 0) if length is None else unsigned("length", length)
        check(library().gpu_vmm_multicast_bind(self._handle, unsigned("offset", offset), memory, first, size))

    def unbind(self, device: SupportsIndex, offset: SupportsIndex = 0) -> None:
        """Removes the binding of a device's memory that begins at ``offset``. CUDA: cuMulticastUnbind.

        Raises NotMapped if no binding of the device begins there, and Busy for a mapped object.
        """
        check(library().gpu_vmm_multicast_unbind(self._handle, unsigned("device", device, 32), unsigned("offset", offset)))

    def map(self) -> int:
        """Maps the object with read and write access for all devices of this process, and returns its address.

        Only ``multimem`` instructions may use it. Raises NotMapped if a device has no binding, and Busy for a mapped object.
        """
        address = ctypes.c_uint64()
        check(library().gpu_vmm_multicast_map(self._handle, ctypes.byref(address)))
        return address.value

    def unmap(self) -> None:
        """Waits for the devices of this process and unmaps the object. Its bindings stay. Raises NotMapped, and Busy for a capture."""
        check(library().gpu_vmm_multicast_unmap(self._handle))


def _options(
    devices: Sequence[SupportsIndex], size: SupportsIndex, elsewhere: SupportsIndex, handle_types: HandleTypes
) -> TeamOptions:
    numbers = [unsigned("devices", device, 32) for device in devices]
    wanted = TeamOptions(size=unsigned("size", size), elsewhere=unsigned("elsewhere", elsewhere, 32))
    wanted.devices = (ctypes.c_uint32 * max(len(numbers), 1))(*numbers)
    wanted.device_count = len(numbers)
    wanted.handle_types = unsigned("handle_types", handle_types, 32)
    return wanted


def _check_descriptors() -> None:
    if not hasattr(library(), "gpu_vmm_multicast_export_fd"):
        raise Unsupported("export multicast object: this system has no file descriptors for it")
