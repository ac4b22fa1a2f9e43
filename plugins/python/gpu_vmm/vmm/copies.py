"""Queued copies between regions and page-locked memory of the host."""

from __future__ import annotations

import ctypes
from typing import Any, SupportsIndex

from .._arguments import unsigned
from .._handles import CopyQueueHandle, PinnedHandle
from .._library import check, library
from ..backend import Backend
from ._closable import Closable, handle_of
from .device import checked
from .event import Event
from .region import Region


class PinnedMemory(Closable):
    """Page-locked host memory, which devices copy to and from at full speed. Allocating takes longer than a copy.

    CUDA: cuMemHostRegister or cuMemHostAlloc; HIP: hipHostMalloc. Raises DriverError if the host has too little memory.

    Any thread may use it, and calls of several threads run at the same time; no lock protects its bytes.
    """

    __slots__ = ("_size",)

    def __init__(self, backend: Backend, size: SupportsIndex) -> None:
        bytes_ = unsigned("size", size)
        self._own(PinnedHandle.made(library().gpu_vmm_pinned_new, checked(backend)._handle, bytes_))
        self._size = bytes_

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.PinnedMemory{', closed' if self.closed else ''} of {self._size} bytes>"

    def __len__(self) -> int:
        """Returns the size in bytes."""
        return self._size

    def buffer(self) -> memoryview:
        """Returns the bytes, without a copy. The buffer keeps the memory, also after ``close``."""
        data, handle = ctypes.c_void_p(), self._handle
        check(library().gpu_vmm_pinned_data(handle, ctypes.byref(data)))
        memory: Any = (ctypes.c_ubyte * self._size).from_address(data.value or 0)
        memory.keeper = handle
        return memoryview(memory).cast("B")


class CopyQueue(Closable):
    """A queue of copies between one device and page-locked memory. :meth:`hold` and :meth:`record` order it with other streams.

    CUDA: cuStreamCreate; HIP: hipStreamCreateWithFlags. Raises NoSuchDevice.

    Any thread may use it; calls of several threads run one at a time.
    """

    __slots__ = ()

    def __init__(self, backend: Backend, device: SupportsIndex = 0) -> None:
        number = unsigned("device", device, 32)
        self._own(CopyQueueHandle.made(library().gpu_vmm_copy_queue_new, checked(backend)._handle, number))

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.CopyQueue{', closed' if self.closed else ''}>"

    def write(
        self,
        region: Region,
        offset: SupportsIndex,
        pinned: PinnedMemory,
        pinned_offset: SupportsIndex,
        size: SupportsIndex,
    ) -> None:
        """Queues a copy of page-locked memory to a region and returns at once.

        Until :meth:`finish`, nothing may write to either range. The queue's device must own the range and have write access.

        Raises OutOfRange, NotMapped, AccessDenied, Suspended, and InvalidArgument for memory of another device or backend.
        """
        first, from_, count = unsigned("offset", offset), unsigned("pinned_offset", pinned_offset), unsigned("size", size)
        device, host = handle_of("region", region, Region), handle_of("pinned", pinned, PinnedMemory)
        check(library().gpu_vmm_copy_queue_write(self._handle, device, first, host, from_, count))

    def read(
        self,
        region: Region,
        offset: SupportsIndex,
        pinned: PinnedMemory,
        pinned_offset: SupportsIndex,
        size: SupportsIndex,
    ) -> None:
        """Queues a copy of a region to page-locked memory, where the bytes are after :meth:`finish`. Raises as :meth:`write` does."""
        first, to, count = unsigned("offset", offset), unsigned("pinned_offset", pinned_offset), unsigned("size", size)
        device, host = handle_of("region", region, Region), handle_of("pinned", pinned, PinnedMemory)
        check(library().gpu_vmm_copy_queue_read(self._handle, device, first, host, to, count))

    def hold(self, event: Event) -> None:
        """Makes all copies that are queued from now on wait for the work that an event has recorded.

        The CPU does not wait, except on host memory. Raises InvalidArgument for an event of another backend. The event must not record work
        of a stream that captures: later copies would become part of the graph.
        """
        check(library().gpu_vmm_copy_queue_hold(self._handle, handle_of("event", event, Event)))

    def record(self, event: Event) -> None:
        """Records the copies that are queued now in an event of the same device. ``Event.hold`` makes other streams wait for them.

        Raises InvalidArgument for an event of another device or backend.
        """
        check(library().gpu_vmm_copy_queue_record(self._handle, handle_of("event", event, Event)))

    def finish(self) -> None:
        """Waits until all queued copies are done. Raises the error of one that failed."""
        check(library().gpu_vmm_copy_queue_finish(self._handle))
