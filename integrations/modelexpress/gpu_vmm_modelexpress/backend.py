"""A class with the methods of ModelExpress's ``VmmBackend``."""

from __future__ import annotations

import logging
from typing import Optional, Tuple

import gpu_vmm
from gpu_vmm import vmm
from gpu_vmm._ranges import Ranges

logger = logging.getLogger(__name__)


class GpuVmmBackend:
    """The memory of arenas on one device. Any thread may use it; a thread needs no current context.

    A call with wrong arguments raises an error of gpu_vmm and does not reach the driver.
    """

    def __init__(self, device: int = 0, backend: Optional[str] = None, whole: int = 0) -> None:
        """Opens a backend: ``cuda``, ``hip``, ``host``, or None as for ``gpu_vmm.open``.

        The memory has a fabric handle and is for network cards, as far as the device has that; the log says what it has not.

        ``whole``: the number of bytes at the start of each reservation that are one piece of physical memory, created with the reservation.
        Allocations beyond them raise OutOfMemory. With 0, each allocation has physical memory of its own.
        """
        self._backend = gpu_vmm.open(backend)
        self._device = device
        wanted = [
            vmm.Properties(device=device, handle_types=vmm.HandleTypes.FABRIC, remote_dma=True),
            vmm.Properties(device=device, remote_dma=True),
            vmm.Properties(device=device),
        ]
        self._properties, missing = vmm.first_supported(self._backend, wanted)
        for reason in missing:
            logger.warning("device %d: %s", device, reason)
        self._unit = vmm.granularity(self._backend, self._properties)
        self._whole = self._rounded(whole)
        self._reservations: Ranges[_Reservation] = Ranges()

    @property
    def device(self) -> int:
        """The number of the device."""
        return self._device

    @property
    def properties(self) -> vmm.Properties:
        """The properties of the memory."""
        return self._properties

    def allocation_granularity(self) -> int:
        """Returns the unit of the sizes, a power of two."""
        return self._unit

    def reserve(self, total_bytes: int) -> int:
        """Reserves addresses and returns the first one. The size is rounded up to the unit.

        Raises OutOfAddressSpace, and OutOfMemory for the memory of ``whole``.
        """
        if total_bytes <= 0:
            raise gpu_vmm.InvalidArgument(f"reserve: the size is {total_bytes}; expected a positive number")
        size = self._rounded(total_bytes)
        region = vmm.Region(self._backend, size, self._properties)
        whole = min(self._whole, size)
        if whole:
            self._map(region, 0, whole)
        if not self._reservations.add(region.address, size, _Reservation(region, whole)):
            raise gpu_vmm.InternalError(f"reserve: {region.address:#x} was reserved twice")
        return region.address

    def allocate(self, va: int, size: int) -> int:
        """Maps memory at ``va`` with read and write access for the device. Returns a handle for ``deallocate``.

        A call that fails leaves nothing. Raises Unaligned, NotFound or OutOfRange outside of a reservation, AlreadyMapped, OutOfMemory.
        """
        reservation, offset = self._find("allocate", va, size)
        if size <= 0 or size % self._unit or offset % self._unit:
            raise gpu_vmm.Unaligned(f"allocate: {size} bytes at {va:#x} are no positive multiple of the granularity ({self._unit})")
        if self._whole and offset + size > reservation.whole:
            raise gpu_vmm.OutOfMemory(
                f"allocate: {offset + size} bytes of the arena are used with this allocation, and its memory has {reservation.whole};"
                " freed memory counts as used. Make `whole` larger"
            )
        if not reservation.pieces.add(va, size, True):
            raise gpu_vmm.AlreadyMapped(f"allocate: memory is allocated already in the {size} bytes at {va:#x}")
        if not reservation.whole:
            try:
                self._map(reservation.region, offset, size)
            except BaseException:
                reservation.pieces.remove(va)
                raise
        return va

    def deallocate(self, va: int, size: int, handle: int) -> None:
        """Unmaps what ``allocate`` has mapped and releases its memory, after waiting for the device. With ``whole``, the memory stays.

        Raises NotFound for anything else, and Busy during a capture; the memory stays allocated then.
        """
        reservation, offset = self._find("deallocate", va, size)
        if handle != va or not reservation.pieces.remove(va, size):
            raise gpu_vmm.NotFound(f"deallocate: no {size} bytes with handle {handle:#x} are allocated at {va:#x}")
        if not reservation.whole:
            try:
                reservation.region.unmap(offset, size)
            except BaseException:
                reservation.pieces.add(va, size, True)
                raise

    def release_reserve(self, base: int, total_bytes: int) -> None:
        """Frees a reservation, and what is still allocated there after waiting for the device."""
        reservation = self._reservations.remove(base, self._rounded(total_bytes))
        if reservation is None:
            raise gpu_vmm.NotFound(f"release_reserve: no reservation of {total_bytes} bytes begins at {base:#x}")
        reservation.region.close()

    def _rounded(self, size: int) -> int:
        return -(-size // self._unit) * self._unit

    def _map(self, region: vmm.Region, offset: int, size: int) -> None:
        """Maps new memory. The mapping alone holds it."""
        with vmm.PhysicalMemory(self._backend, size, self._properties) as memory:
            region.map(offset, memory)
        try:
            region.set_access(offset, size, self._device, vmm.Access.READ_WRITE)
        except BaseException:
            region.unmap(offset, size)
            raise

    def _find(self, operation: str, va: int, size: int) -> Tuple[_Reservation, int]:
        found = self._reservations.find(va)
        if found is None:
            raise gpu_vmm.NotFound(f"{operation}: no reservation contains {va:#x}")
        start, reserved, reservation = found
        if size > reserved - (va - start):
            raise gpu_vmm.OutOfRange(f"{operation}: {size} bytes at {va:#x}; the reservation ends after {reserved - (va - start)}")
        return reservation, va - start


class _Reservation:
    """The addresses of an arena."""

    def __init__(self, region: vmm.Region, whole: int) -> None:
        self.region = region
        self.whole = whole
        """The bytes at the start that are one piece of memory."""
        self.pieces: Ranges[bool] = Ranges()
        """What is allocated."""
