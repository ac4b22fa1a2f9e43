"""Exceptions: one for each status of the C library, with the library's own text."""

from __future__ import annotations

from typing import Dict, Optional, Type

from ._number import Number


class Status(Number):
    """The codes of the exceptions: the statuses of the C library."""

    OK = 0
    INVALID_ARGUMENT = 1
    OUT_OF_MEMORY = 2
    OUT_OF_ADDRESS_SPACE = 3
    UNSUPPORTED = 4
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
    EXITING = 24
    TIMED_OUT = 25
    NO_LISTENER = 26
    STALE_SOCKET = 27
    OUT_OF_DESCRIPTORS = 28


class Error(RuntimeError):
    """The base class of this package's exceptions. ``status`` is the C library's code (:class:`Status`)."""

    status: int = Status.INTERNAL

    def __init__(self, text: str, status: Optional[int] = None) -> None:
        super().__init__(text)
        if status is not None:
            self.status = status


class InvalidArgument(Error, ValueError):
    """An argument is invalid: a size of zero, an alignment that is no power of two."""

    status: int = Status.INVALID_ARGUMENT


class OutOfMemory(Error, MemoryError):
    """The device is out of memory or the pool's budget is exhausted. The text of a pool's error has its statistics."""

    status: int = Status.OUT_OF_MEMORY


class OutOfAddressSpace(Error):
    """The process has too little free address space; freeing memory elsewhere would not help."""

    status: int = Status.OUT_OF_ADDRESS_SPACE


class Unsupported(Error):
    """No library or no device was found, or a driver or a package is too old; the text names what was looked for."""

    status: int = Status.UNSUPPORTED


class NotInstalled(Unsupported, ImportError):
    """The call needs a Python package that is not installed."""


class NotFound(Error):
    """No live block begins at the address, or no block has the tag. For a tag, the text names the tags that exist."""

    status: int = Status.NOT_FOUND


class Suspended(Error):
    """The memory is suspended; resume it first."""

    status: int = Status.SUSPENDED


class FileError(Error, OSError):
    """A file for contents cannot be created, written or read; the text has its path and the system's error."""

    status: int = Status.FILE


class Busy(Error):
    """Another library may use the memory. ``force=True`` takes it away nevertheless."""

    status: int = Status.BUSY


class Forked(Error):
    """The process is a forked child, in which no driver works."""

    status: int = Status.FORKED


class Exiting(Error):
    """The process exits, and its drivers end with it."""

    status: int = Status.EXITING


class DeviceLost(Error):
    """The device is lost to this process."""

    status: int = Status.DEVICE_LOST


class DriverError(Error):
    """Any other error of the driver; the text has its code and name."""

    status: int = Status.DRIVER


class InternalError(Error):
    """A defect of gpu-vmm: the library panicked, and the panic was caught."""

    status: int = Status.INTERNAL


class Unaligned(InvalidArgument):
    """A size, offset or address is not a multiple of the granularity."""

    status: int = Status.UNALIGNED


class OutOfRange(InvalidArgument, IndexError):
    """A range ends outside of the region or the vector."""

    status: int = Status.OUT_OF_RANGE


class AlreadyMapped(InvalidArgument):
    """Memory is mapped there already."""

    status: int = Status.ALREADY_MAPPED


class NotMapped(InvalidArgument):
    """No memory is mapped there."""

    status: int = Status.NOT_MAPPED


class AddressTaken(OutOfAddressSpace):
    """The requested addresses are in use or cannot be reserved."""

    status: int = Status.ADDRESS_TAKEN


class NoSuchDevice(InvalidArgument):
    """No device has this number, or the machine has no device."""

    status: int = Status.NO_SUCH_DEVICE


class PeerUnreachable(Error):
    """The device cannot reach the memory of the other one."""

    status: int = Status.PEER_UNREACHABLE


class AccessDenied(Error, PermissionError):
    """A device or a process lacks the access rights that the call needs."""

    status: int = Status.ACCESS_DENIED


class Poisoned(Error):
    """An operation failed and its rollback failed as well; that memory can no longer be used."""

    status: int = Status.POISONED


class PeerError(Error):
    """The peer process exited, refused or sent invalid data."""

    status: int = Status.PEER


class TimedOut(PeerError, TimeoutError):
    """The peer process did not connect, reply or read in time."""

    status: int = Status.TIMED_OUT


class NoListener(PeerError):
    """No process listens at the path, or not yet."""

    status: int = Status.NO_LISTENER


class StaleSocket(PeerError):
    """The path is a stale socket: the process that listened there is gone."""

    status: int = Status.STALE_SOCKET


class OutOfDescriptors(Error):
    """The process has as many open files as ``RLIMIT_NOFILE`` allows."""

    status: int = Status.OUT_OF_DESCRIPTORS


_BY_STATUS: Dict[int, Type[Error]] = {
    int(kind.status): kind
    for kind in (
        InvalidArgument, OutOfMemory, OutOfAddressSpace, Unsupported, NotFound, Suspended, FileError, Busy, Forked,
        DeviceLost, DriverError, InternalError, Unaligned, OutOfRange, AlreadyMapped, NotMapped, AddressTaken, NoSuchDevice,
        PeerUnreachable, AccessDenied, Poisoned, PeerError, Exiting, TimedOut, NoListener, StaleSocket,
        OutOfDescriptors,
    )
}  # fmt: skip


def from_status(status: int, text: str) -> Error:
    """Returns the exception for a status; a plain :class:`Error` for a status of a newer library."""
    return _BY_STATUS.get(status, Error)(text, status)
