"""Events of streams."""

from __future__ import annotations

import ctypes
from typing import SupportsIndex

from .._arguments import unsigned
from .._handles import EventHandle
from .._library import check, library
from ..backend import Backend
from ._closable import Closable
from .device import checked


class Event(Closable):
    """An event of one device, which is done until it is recorded. CUDA: CUevent; HIP: hipEvent_t.

    A stream is the vendor's handle as an integer; 0 is the default stream. Raises NoSuchDevice.

    Any thread may use it; calls of several threads run one at a time.
    """

    __slots__ = ()

    def __init__(self, backend: Backend, device: SupportsIndex = 0) -> None:
        self._own(EventHandle.made(library().gpu_vmm_event_new, checked(backend)._handle, unsigned("device", device, 32)))

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.Event{', closed' if self.closed else ''}>"

    def record(self, stream: SupportsIndex = 0) -> None:
        """Records the work that is queued on a stream now. Raises InvalidArgument for a stream of another device."""
        check(library().gpu_vmm_event_record(self._handle, unsigned("stream", stream)))

    @property
    def is_done(self) -> bool:
        """Whether the recorded work is done. Nothing recorded, and a lost device, count as done."""
        done = ctypes.c_bool()
        check(library().gpu_vmm_event_done(self._handle, ctypes.byref(done)))
        return done.value

    def wait(self) -> None:
        """Waits until the recorded work is done."""
        check(library().gpu_vmm_event_wait(self._handle))

    def hold(self, stream: SupportsIndex = 0) -> None:
        """Makes all work that is queued on a stream from now on wait for the recorded work. The CPU does not wait."""
        check(library().gpu_vmm_event_hold(self._handle, unsigned("stream", stream)))
