"""Regions that another process follows while they change. Linux only."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, SupportsIndex, Tuple

from .._arguments import Path, path_of, unsigned
from .._handles import ExporterHandle, FollowedHandle, ListenerHandle
from .._library import check, library
from .._number import Number
from .._typing import Buffer
from ..backend import Backend
from ..errors import Unsupported
from ._bytes import room, source, target
from ._closable import Closable
from .device import checked
from .region import Region

_WAIT = 30.0


class Event(Number):
    """What :meth:`FollowedRegion.next` returns."""

    NONE = 0
    """No event has arrived in time."""
    CHANGED = 1
    """The exporter has published a change of its region."""
    RELEASE_REQUESTED = 2
    """The exporter asks this process to release the memory."""
    GONE = 3
    """The exporter has ended the exchange or has died. The memory stays mapped."""


class ReleaseOutcome(Number):
    """The end of an exchange."""

    RELEASED = 0
    KEPT = 1
    """The importer keeps the memory."""
    GONE = 2
    """The importer has died or closed its end."""


def _milliseconds(seconds: float) -> int:
    return unsigned("timeout", int(float(seconds) * 1000))


def _function(name: str) -> Any:
    """Returns a function that the library has on Linux."""
    found = getattr(library(), name, None)
    if found is None:
        raise Unsupported(f"exchange: this system has no exchange of descriptors between processes; it needs Linux")
    return found


class Listener(Closable):
    """A path at which other processes of this user can connect, unless the program opens it to others. It must not exist; ``close``
    removes it.

    Raises DriverError with the system's error if the path exists or cannot be created.

    Any thread may use it, and calls of several threads run at the same time.
    """

    __slots__ = ()

    def __init__(self, path: Path) -> None:
        pointer = ctypes.c_void_p()
        check(_function("gpu_vmm_listener_new")(path_of("path", path), ctypes.byref(pointer)))
        self._own(ListenerHandle(pointer))

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.Listener{', closed' if self.closed else ''}>"

    def export(self, region: Region, timeout: float = _WAIT, *, user: Optional[SupportsIndex] = None) -> Exporter:
        """Waits until a process calls ``FollowedRegion(backend, path)`` and sends it a region, whose memory needs ``HandleTypes.FD``.

        ``user``: the number of the effective user that the process must have; None for this process's. Another user needs access to the
        path, which is created for this one alone (mode 0600). From then on, the region's memory cannot be suspended or moved. Raises
        PeerError if no process connects in ``timeout`` seconds, AccessDenied for one of another user, Unsupported for memory that was not
        created for it, and Suspended.
        """
        pointer, wait = ctypes.c_void_p(), _milliseconds(timeout)
        if user is None:
            status = _function("gpu_vmm_export")(self._handle, region._handle, wait, ctypes.byref(pointer))
        else:
            number = unsigned("user", user, 32)
            status = _function("gpu_vmm_export_to_user")(self._handle, region._handle, number, wait, ctypes.byref(pointer))
        check(status)
        made = Exporter._of(ExporterHandle(pointer))
        made._region = region
        return made


class Exporter(Closable):
    """The exporter's end of an exchange: another process has the region's memory and receives its changes.

    :meth:`Listener.export` creates it. ``close`` ends the exchange, and the other process keeps the memory.

    Any thread may use it; calls of several threads run one at a time.
    """

    __slots__ = ("_region",)
    _region: Region

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.Exporter{', closed' if self.closed else f' of {self._region!r}'}>"

    def publish(self) -> bool:
        """Sends the changes of the region since the last call. Returns whether there were any. Raises PeerError."""
        sent = ctypes.c_bool()
        check(_function("gpu_vmm_exporter_publish")(self._handle, self._region._handle, ctypes.byref(sent)))
        return sent.value

    def wait_applied(self, timeout: float = _WAIT) -> None:
        """Waits until the other process has applied everything that was sent. Raises PeerError with the reason if it has not."""
        check(_function("gpu_vmm_exporter_wait_applied")(self._handle, _milliseconds(timeout)))

    def request_release(self) -> None:
        """Asks the other process to release the memory. Raises PeerError if it has ended."""
        check(_function("gpu_vmm_exporter_request_release")(self._handle))

    def wait_released(self, timeout: float = _WAIT) -> ReleaseOutcome:
        """Waits until the exchange has ended. Raises PeerError if it does not in ``timeout`` seconds."""
        outcome, wait = ctypes.c_uint32(), _milliseconds(timeout)
        check(_function("gpu_vmm_exporter_wait_released")(self._handle, wait, ctypes.byref(outcome)))
        return ReleaseOutcome(outcome.value)


class FollowedRegion(Closable):
    """A region of another process that is mapped here and follows that region's changes. ``path`` is that of its :class:`Listener`.

    The devices that own the memory read and write it. ``reserve`` is the size that it can grow to in place, in bytes; 0 for its size now.
    ``user``: the number of the effective user that the other process must have; None for this process's. ``close`` releases the memory.
    Raises PeerError if the other process does not answer in ``timeout`` seconds, has other devices or sends invalid data, AccessDenied if
    it is of another user, and DriverError if no process listens at the path.

    Any thread may use it; calls of several threads run one at a time.
    """

    __slots__ = ()

    def __init__(
        self,
        backend: Backend,
        path: Path,
        timeout: float = _WAIT,
        *,
        reserve: SupportsIndex = 0,
        user: Optional[SupportsIndex] = None,
    ) -> None:
        pointer, wait = ctypes.c_void_p(), _milliseconds(timeout)
        opened, name, addresses = checked(backend)._handle, path_of("path", path), unsigned("reserve", reserve)
        if user is None:
            status = _function("gpu_vmm_follow")(opened, name, addresses, wait, ctypes.byref(pointer))
        else:
            number = unsigned("user", user, 32)
            status = _function("gpu_vmm_follow_user")(opened, name, number, addresses, wait, ctypes.byref(pointer))
        check(status)
        self._own(FollowedHandle(pointer))

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.FollowedRegion{', closed' if self.closed else ''}>"

    def next(self, timeout: float = 0) -> Event:
        """Waits up to ``timeout`` seconds for an event. Raises PeerError for invalid data."""
        event, wait = ctypes.c_uint32(), _milliseconds(timeout)
        check(_function("gpu_vmm_followed_next")(self._handle, wait, ctypes.byref(event)))
        return Event(event.value)

    def apply(self, *, may_move: bool = False) -> None:
        """Applies all changes that were received, and moves the region if it cannot grow in place and ``may_move`` is true.

        Raises AddressTaken, OutOfAddressSpace, and Busy for a capture. The region is then as before.
        """
        check(_function("gpu_vmm_followed_apply")(self._handle, bool(may_move)))

    def release(self) -> None:
        """Releases the memory after waiting for the devices, reports that to the exporter, and closes the region."""
        check(_function("gpu_vmm_followed_release")(self._handle))
        self.close()

    @property
    def address(self) -> int:
        """The first address. Only :meth:`apply` changes it."""
        return self._range()[0]

    @property
    def size(self) -> int:
        """The end of the mapped memory."""
        return self._range()[1]

    def _range(self) -> Tuple[int, int]:
        address, size = ctypes.c_uint64(), ctypes.c_uint64()
        check(_function("gpu_vmm_followed_range")(self._handle, ctypes.byref(address), ctypes.byref(size)))
        return address.value, size.value

    def read(self, offset: SupportsIndex, size: SupportsIndex) -> bytes:
        """Returns ``size`` bytes. Does not wait for work on streams. Raises OutOfRange, NotMapped."""
        first, contents = unsigned("offset", offset), room(unsigned("size", size), self.size)
        place, count = target(contents)
        check(_function("gpu_vmm_followed_read")(self._handle, first, place, count))
        return bytes(contents)

    def write(self, contents: Buffer, offset: SupportsIndex = 0) -> None:
        """Copies bytes of the host to ``offset``. Does not wait for work on streams. Raises OutOfRange, NotMapped."""
        given, size = source(contents)
        check(_function("gpu_vmm_followed_write")(self._handle, unsigned("offset", offset), given, size))
