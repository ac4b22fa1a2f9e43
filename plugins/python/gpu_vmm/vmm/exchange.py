"""Regions that another process follows while they change. Linux only."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from typing import Any, Callable, List, Optional, SupportsFloat, SupportsIndex, Tuple, TypeVar

from .._arguments import Path, path_of, unsigned
from .._dtype import shown
from .._handles import ExporterHandle, FollowedHandle, ListenerHandle
from .._library import check, library
from .._number import Number
from .._typing import Buffer
from ..backend import Backend
from ..errors import InvalidArgument, Status, TimedOut, Unsupported
from ._bytes import room, source, target
from ._closable import Closable
from .device import checked
from .observer import in_callback
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


_SLICE = 0.1
"""The longest wait in the library, in seconds. Between two of them Python handles signals, such as that of Ctrl-C."""

_LONGEST = 1e9
"""A time that does not end."""

_T = TypeVar("_T")


def _seconds(timeout: float) -> float:
    """Returns a timeout. Raises TypeError if it is no number, InvalidArgument if it is negative or NaN."""
    if not isinstance(timeout, (SupportsFloat, SupportsIndex)):
        raise TypeError(f"timeout: expected a number of seconds, not {shown(timeout)}")
    seconds = float(timeout)
    if not seconds >= 0:
        raise InvalidArgument(f"timeout: {seconds} is not 0 or more seconds")
    return min(seconds, _LONGEST)


def _in_slices(timeout: float, call: Callable[[int], int], is_over: Callable[[], bool] = lambda: True) -> None:
    """Calls ``call`` with a number of milliseconds until it does not time out, at most for ``timeout`` seconds. Raises its error.

    ``is_over`` says whether a call that has succeeded has found what it waited for.
    """
    end = time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        status = call(math.ceil(1000 * max(0.0, min(left, _SLICE))))
        if left <= _SLICE or status not in (Status.OK, Status.TIMED_OUT) or status == Status.OK and is_over():
            break
    try:
        check(status)
    except TimedOut as error:
        text = str(error).rpartition(" within ")[0]  # of the last slice
        raise TimedOut(f"{text} within {timeout:g} s", status) from None


def _interruptible(work: Callable[[], _T]) -> _T:
    """Returns the result of a call that cannot be cut into slices. On the main thread, another thread makes the call.

    If a signal's handler raises an exception meanwhile, as for Ctrl-C, the call ends at its own timeout, and its result is dropped.
    """
    if threading.current_thread() is not threading.main_thread() or in_callback():
        return work()
    results: List[_T] = []
    errors: List[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        done.set()

    try:
        threading.Thread(target=run, name="gpu-vmm", daemon=True).start()
    except RuntimeError:
        # The interpreter ends, or the system has no more threads.
        return work()
    done.wait()
    if errors:
        raise errors.pop()
    return results.pop()


def _function(name: str) -> Any:
    """Returns a function that the library has on Linux."""
    found = getattr(library(), name, None)
    if found is None:
        raise Unsupported(f"exchange: this system has no exchange of descriptors between processes; it needs Linux")
    return found


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
        pointer = ctypes.c_void_p()
        listen = _function("gpu_vmm_listener_replace_stale" if replace_stale else "gpu_vmm_listener_new")
        check(listen(path_of("path", path), ctypes.byref(pointer)))
        self._own(ListenerHandle(pointer))

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.Listener{', closed' if self.closed else ''}>"

    def export(self, region: Region, timeout: float = _WAIT, *, user: Optional[SupportsIndex] = None) -> Exporter:
        """Waits until a process calls ``FollowedRegion(backend, path)`` and sends it a region, whose memory needs ``HandleTypes.FD``.

        ``user``: the number of the effective user that the process must have; None for this process's. Another user needs access to the
        path, which is created for this one alone (mode 0600). From then on, the region's memory cannot be suspended or moved. Raises
        TimedOut if no process connects in ``timeout`` seconds, AccessDenied for one of another user, Unsupported for memory that was not
        created for it, and Suspended.
        """
        pointer = ctypes.c_void_p()
        place: Tuple[Any, ...] = (self._handle, region._handle)
        if user is None:
            export = _function("gpu_vmm_export")
        else:
            export, place = _function("gpu_vmm_export_to_user"), (*place, unsigned("user", user, 32))
        _in_slices(_seconds(timeout), lambda wait: export(*place, wait, ctypes.byref(pointer)))
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
        """Sends the changes of the region since the last call. Returns whether there were any.

        Waits while the other process does not read what was sent before. If a signal ends that wait, the changes are sent nevertheless once
        it reads. Raises PeerError, TimedOut.
        """
        sent, publish = ctypes.c_bool(), _function("gpu_vmm_exporter_publish")
        handle, region = self._handle, self._region._handle
        _interruptible(lambda: check(publish(handle, region, ctypes.byref(sent))))
        return sent.value

    def wait_applied(self, timeout: float = _WAIT) -> None:
        """Waits until the other process has applied everything that was sent. Raises PeerError with the reason if it could not, TimedOut."""
        handle = self._handle
        _in_slices(_seconds(timeout), lambda wait: _function("gpu_vmm_exporter_wait_applied")(handle, wait))

    def request_release(self) -> None:
        """Asks the other process to release the memory. Raises PeerError if it has ended, TimedOut if it does not read.

        If a signal ends the wait, the request is sent nevertheless once the other process reads.
        """
        handle, request = self._handle, _function("gpu_vmm_exporter_request_release")
        _interruptible(lambda: check(request(handle)))

    def wait_released(self, timeout: float = _WAIT) -> ReleaseOutcome:
        """Waits until the exchange has ended. Raises TimedOut if it does not in ``timeout`` seconds."""
        outcome, handle = ctypes.c_uint32(), self._handle
        wait_released = _function("gpu_vmm_exporter_wait_released")
        _in_slices(_seconds(timeout), lambda wait: wait_released(handle, wait, ctypes.byref(outcome)))
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
        wait = math.ceil(1000 * _seconds(timeout))
        other = () if user is None else (unsigned("user", user, 32),)
        follow = _function("gpu_vmm_follow_user" if other else "gpu_vmm_follow")

        def followed() -> FollowedHandle:
            pointer = ctypes.c_void_p()
            check(follow(opened, name, *other, addresses, wait, ctypes.byref(pointer)))
            return FollowedHandle(pointer)

        self._own(_interruptible(followed))

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.FollowedRegion{', closed' if self.closed else ''}>"

    def next(self, timeout: float = 0) -> ExchangeEvent:
        """Waits up to ``timeout`` seconds for an event, and returns an :class:`ExchangeEvent`: NONE if none has arrived in time.

        After CHANGED, :meth:`apply` applies the change. Raises PeerError for invalid data.
        """
        event, handle, receive = ctypes.c_uint32(), self._handle, _function("gpu_vmm_followed_next")
        _in_slices(_seconds(timeout), lambda wait: receive(handle, wait, ctypes.byref(event)), lambda: event.value != ExchangeEvent.NONE)
        return ExchangeEvent(event.value)

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
