"""What can go wrong: one exception for each status of the C library, with the library's own text."""

from __future__ import annotations

from enum import IntEnum
from typing import Dict, Optional, Type


class Status(IntEnum):
    """The numbers of ``gpu_vmm_status``."""

    OK = 0
    INVALID_ARGUMENT = 1
    OUT_OF_MEMORY = 2
    OUT_OF_ADDRESSES = 3
    UNAVAILABLE = 4
    NOT_FOUND = 5
    SUSPENDED = 6
    FILE = 7
    BUSY = 9
    FORKED = 10
    DEVICE_LOST = 11
    DRIVER = 12
    INTERNAL = 13
    UNALIGNED = 14
    OUT_OF_RANGE = 15
    ALREADY_MAPPED = 16
    NOT_MAPPED = 17
    ADDRESS_TAKEN = 18
    NO_SUCH_DEVICE = 19
    PEER_UNREACHABLE = 20
    ACCESS_DENIED = 21
    POISONED = 22
    PEER = 23

    def __str__(self) -> str:  # as newer Pythons do
        return str(int(self))


class Error(RuntimeError):
    """All that this package raises; ``status`` is the C library's number for it (:class:`Status`)."""

    status: int = Status.INTERNAL

    def __init__(self, text: str, status: Optional[int] = None) -> None:
        super().__init__(text)
        if status is not None:
            self.status = status


class InvalidArgument(Error, ValueError):
    """What was given cannot be: a size of zero, an alignment that is no power of two."""

    status: int = Status.INVALID_ARGUMENT


class OutOfMemory(Error, MemoryError):
    """There is too little memory. The text of a pool has its statistics."""

    status: int = Status.OUT_OF_MEMORY


class OutOfAddresses(Error):
    """There are too few addresses; freeing memory elsewhere would not help."""

    status: int = Status.OUT_OF_ADDRESSES


class Unavailable(Error):
    """No library, no device, a driver or a package that is too old; the text says what was looked for."""

    status: int = Status.UNAVAILABLE


class NotInstalled(Unavailable, ImportError):
    """A Python package that is needed for this is not installed."""


class NotFound(Error):
    """No block begins at the address, or it was freed already; or nothing has the tag. For a tag the text names those that
    there are."""

    status: int = Status.NOT_FOUND


class Suspended(Error):
    """The memory is suspended; resume it first."""

    status: int = Status.SUSPENDED


class FileError(Error, OSError):
    """A file for contents cannot be made, written or read; the text has its path and what the system answered."""

    status: int = Status.FILE


class Busy(Error):
    """The memory is in use elsewhere and cannot be taken away, unless by ``force=True``."""

    status: int = Status.BUSY


class Forked(Error):
    """The process was forked: no driver works in the child."""

    status: int = Status.FORKED


class DeviceLost(Error):
    """The device is lost to this process."""

    status: int = Status.DEVICE_LOST


class DriverError(Error):
    """Another answer of the driver; the text has its code and name."""

    status: int = Status.DRIVER


class InternalError(Error):
    """A defect of the library that was stopped at its border."""

    status: int = Status.INTERNAL


class Unaligned(InvalidArgument):
    """A size, offset or address is not a multiple of the granularity."""

    status: int = Status.UNALIGNED


class OutOfRange(InvalidArgument, IndexError):
    """A part ends outside of the region or the vector."""

    status: int = Status.OUT_OF_RANGE


class AlreadyMapped(InvalidArgument):
    """Memory is mapped there already."""

    status: int = Status.ALREADY_MAPPED


class NotMapped(InvalidArgument):
    """No memory is mapped there."""

    status: int = Status.NOT_MAPPED


class AddressTaken(OutOfAddresses):
    """The addresses are in use or cannot be had."""

    status: int = Status.ADDRESS_TAKEN


class NoSuchDevice(InvalidArgument):
    """No device has this number, or there is no device."""

    status: int = Status.NO_SUCH_DEVICE


class PeerUnreachable(Error):
    """The device cannot reach the memory of the other one."""

    status: int = Status.PEER_UNREACHABLE


class AccessDenied(Error, PermissionError):
    """A device or a process does not have the right that the call needs."""

    status: int = Status.ACCESS_DENIED


class Poisoned(Error):
    """An operation failed and so did its rollback; the part cannot be used any more."""

    status: int = Status.POISONED


class PeerError(Error):
    """Another process is gone, refused, came late, or sent something that cannot be."""

    status: int = Status.PEER


_BY_STATUS: Dict[int, Type[Error]] = {
    int(kind.status): kind
    for kind in (
        InvalidArgument, OutOfMemory, OutOfAddresses, Unavailable, NotFound, Suspended, FileError, Busy, Forked,
        DeviceLost, DriverError, InternalError, Unaligned, OutOfRange, AlreadyMapped, NotMapped, AddressTaken, NoSuchDevice,
        PeerUnreachable, AccessDenied, Poisoned, PeerError,
    )
}  # fmt: skip


def from_status(status: int, text: str) -> Error:
    """The exception for a status; a plain :class:`Error` for one that a newer library has."""
    return _BY_STATUS.get(status, Error)(text, status)
