"""Streams of copies between the host and a device, through page-locked memory of their own."""

from __future__ import annotations

import ctypes
import threading
from typing import List, Tuple

from gpu_vmm import Backend
from gpu_vmm.vmm import CopyQueue, PinnedMemory, Region

ROOM = 16 << 20
"""The page-locked memory of a stream, in bytes."""


class Stream:
    """A queue of copies in order. Calls return before a copy is done, unless the stream's page-locked memory is full.

    A source on the host may change as soon as the call returns. The bytes of a target on the host are there after ``synchronize``.
    """

    def __init__(self, backend: Backend, device: int) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._queue = CopyQueue(backend, device)
        self._pinned = PinnedMemory(backend, ROOM)
        buffer = self._pinned.buffer()
        self._data = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self._buffer = buffer
        self._used = 0
        # Copies to the host: the target, the offset in the page-locked memory, the size.
        self._targets: List[Tuple[int, int, int]] = []

    def to_device(self, region: Region, offset: int, source: int, size: int) -> None:
        """Queues a copy of host memory to a region."""
        with self._lock:
            done = 0
            while done < size:
                at, count = self._take(size - done)
                ctypes.memmove(self._data + at, source + done, count)
                self._queue.write(region, offset + done, self._pinned, at, count)
                done += count

    def to_host(self, target: int, region: Region, offset: int, size: int) -> None:
        """Queues a copy of a region to host memory."""
        with self._lock:
            done = 0
            while done < size:
                at, count = self._take(size - done)
                self._queue.read(region, offset + done, self._pinned, at, count)
                self._targets.append((target + done, at, count))
                done += count

    def synchronize(self) -> None:
        """Waits until all queued copies are done. Raises the error of one that failed."""
        with self._lock:
            self._finish()

    def wait(self) -> None:
        """Waits as ``synchronize`` does. A stream that is closed has no copies."""
        with self._lock:
            if not self._queue.closed:
                self._finish()

    def close(self) -> None:
        """Ends the stream after its copies."""
        with self._lock:
            try:
                self._finish()
            finally:
                self._queue.close()
                self._pinned.close()

    def _take(self, size: int) -> Tuple[int, int]:
        """Returns a free part of the page-locked memory: its offset and its size, at most `size`."""
        if self._used == ROOM:
            self._finish()
        at = self._used
        count = min(size, ROOM - at)
        self._used += count
        return at, count

    def _finish(self) -> None:
        targets, self._targets, self._used = self._targets, [], 0
        self._queue.finish()
        for target, at, size in targets:
            ctypes.memmove(target, self._data + at, size)
