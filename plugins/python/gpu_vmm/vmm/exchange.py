"""Regions that another process follows while they change. Linux only."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Optional, SupportsIndex, Tuple

from .._arguments import Path, path_of, unsigned
from .._handles import ExporterHandle, FollowedHandle, ListenerHandle
from .._library import check
from .._number import Number
from .._typing import Buffer
from ..backend import Backend
from ._bytes import room, source, target
from ._closable import Closable, handle_of
from .._waits import in_slices, interruptible, linux_function, seconds_of
from .device import checked
from .region import Region

_WAIT = 30.0


class ExchangeEvent(Number):
    """An event of an exchange, which :meth:`FollowedRegion.next` returns. :class:`Event` is another class, for the work of streams."""

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


class Listener(Closable):
    """A path at which other processes of this user can connect, unless the program opens it to others. It must not exist; ``close``
    removes it.

    A process that is killed leaves its path, a stale socket: ``replace_stale`` says whether to replace it, and no other file.

    Raises StaleSocket for such a path without ``replace_stale``, and DriverError with the system's error if the path exists otherwise or
    cannot be created.

    Any thread may use it, and calls of several threads run at the same time.
    """

    __slots__ = ()

    def __init__(self, path: Path, *, replace_stale: bool = False) -> None:
        listen = linux_function("gpu_vmm_listener_replace_stale" if replace_stale else "gpu_vmm_listener_new")
        self._own(ListenerHandle.made(listen, path_of("path", path)))

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.Listener{', closed' if self.closed else ''}>"

    def export(self, region: Region, timeout: float = _WAIT, *, user: Optional[SupportsIndex] = None) -> Exporter:
        """Waits until a process calls ``FollowedRegion(backend, path)`` and sends it a region, whose memory needs ``HandleTypes.FD``.

        ``user``: the number of the effective user that the process must have; None for this process's. Another user needs access to the
        path, which is created for this one alone (mode 0600). From then on, the region's memory cannot be suspended or moved. Raises
        TimedOut if no process connects in ``timeout`` seconds, AccessDenied for one of another user, Unsupported for memory that was not
        created for it, and Suspended.
        """
        made = ExporterHandle()
        place: Tuple[Any, ...] = (self._handle, handle_of("region", region, Region))
        if user is None:
            export = linux_function("gpu_vmm_export")
        else:
            export, place = linux_function("gpu_vmm_export_to_user"), (*place, unsigned("user", user, 32))
        in_slices(seconds_of(timeout), lambda wait: export(*place, wait, made.place()))
        exporter = Exporter._of(made)
        exporter._region = region
        return exporter


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
        """Sends the changes of the region since the last call. Returns whether there were any.

        Waits while the other process does not read what was sent before. If a signal ends that wait, the changes are sent nevertheless once
        it reads. Raises PeerError, TimedOut.
        """
        sent, publish = ctypes.c_bool(), linux_function("gpu_vmm_exporter_publish")
        handle, region = self._handle, self._region._handle
        interruptible(lambda: check(publish(handle, region, ctypes.byref(sent))))
        return sent.value

    def wait_applied(self, timeout: float = _WAIT) -> None:
        """Waits until the other process has applied everything that was sent. Raises PeerError with the reason if it could not, TimedOut."""
        handle = self._handle
        in_slices(seconds_of(timeout), lambda wait: linux_function("gpu_vmm_exporter_wait_applied")(handle, wait))

    def request_release(self) -> None:
        """Asks the other process to release the memory. Raises PeerError if it has ended, TimedOut if it does not read.

        If a signal ends the wait, the request is sent nevertheless once the other process reads.
        """
        handle, request = self._handle, linux_function("gpu_vmm_exporter_request_release")
        interruptible(lambda: check(request(handle)))

    def wait_released(self, timeout: float = _WAIT) -> ReleaseOutcome:
        """Waits until the exchange has ended. Raises TimedOut if it does not in ``timeout`` seconds."""
        outcome, handle = ctypes.c_uint32(), self._handle
        wait_released = linux_function("gpu_vmm_exporter_wait_released")
        in_slices(seconds_of(timeout), lambda wait: wait_released(handle, wait, ctypes.byref(outcome)))
        return ReleaseOutcome(outcome.value)


class FollowedRegion(Closable):
    """A region of another process that is mapped here and follows that region's changes. ``path`` is that of its :class:`Listener`.

    The devices that own the memory read and write it. ``reserve`` is the size that it can grow to in place, in bytes; 0 for its size now.
    ``user``: the number of the effective user that the other process must have; None for this process's. ``close`` releases the memory.
    Raises NoListener if no process listens at the path, or not yet, StaleSocket if the process that listened there is gone, TimedOut if it
    does not answer in ``timeout`` seconds, PeerError if it has ended, has other devices or sends invalid data, and AccessDenied if it is of
    another user.

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
        opened, name, addresses = checked(backend)._handle, path_of("path", path), unsigned("reserve", reserve)
        wait = math.ceil(1000 * seconds_of(timeout))
        other = () if user is None else (unsigned("user", user, 32),)
        follow = linux_function("gpu_vmm_follow_user" if other else "gpu_vmm_follow")
        self._own(interruptible(lambda: FollowedHandle.made(follow, opened, name, *other, addresses, wait)))

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.FollowedRegion{', closed' if self.closed else ''}>"

    def next(self, timeout: float = 0) -> ExchangeEvent:
        """Waits up to ``timeout`` seconds for an event, and returns an :class:`ExchangeEvent`: NONE if none has arrived in time.

        After CHANGED, :meth:`apply` applies the change. Raises PeerError for invalid data.
        """
        event, handle, receive = ctypes.c_uint32(), self._handle, linux_function("gpu_vmm_followed_next")
        in_slices(seconds_of(timeout), lambda wait: receive(handle, wait, ctypes.byref(event)), lambda: event.value != ExchangeEvent.NONE)
        return ExchangeEvent(event.value)

    def apply(self, *, may_move: bool = False) -> None:
        """Applies all changes that were received, and moves the region if it cannot grow in place and ``may_move`` is true.

        Raises AddressTaken, OutOfAddressSpace, and Busy for a capture. The region is then as before.
        """
        check(linux_function("gpu_vmm_followed_apply")(self._handle, bool(may_move)))

    def release(self) -> None:
        """Releases the memory after waiting for the devices, reports that to the exporter, and closes the region."""
        check(linux_function("gpu_vmm_followed_release")(self._handle))
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
        check(linux_function("gpu_vmm_followed_range")(self._handle, ctypes.byref(address), ctypes.byref(size)))
        return address.value, size.value

    def read(self, offset: SupportsIndex, size: SupportsIndex) -> bytes:
        """Returns ``size`` bytes. Does not wait for work on streams. Raises OutOfRange, NotMapped."""
        first, contents = unsigned("offset", offset), room(unsigned("size", size), self.size)
        place, count = target(contents)
        check(linux_function("gpu_vmm_followed_read")(self._handle, first, place, count))
        return bytes(contents)

    def write(self, contents: Buffer, offset: SupportsIndex = 0) -> None:
        """Copies bytes of the host to ``offset``. Does not wait for work on streams. Raises OutOfRange, NotMapped."""
        given, size = source(contents)
        check(linux_function("gpu_vmm_followed_write")(self._handle, unsigned("offset", offset), given, size))
