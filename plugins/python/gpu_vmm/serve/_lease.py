"""Leases: regions of a server that are mapped in this process."""

from __future__ import annotations

import ctypes
from typing import Dict, Literal, Optional, SupportsIndex, Tuple

from .._arguments import Path, path_of, unsigned
from .._callbacks import changing
from .._handles import LeasedRegionHandle, LeaseHandle
from .._library import check
from .._number import Number
from .._signatures import RangeStruct
from ..backend import Backend
from ..errors import Error, NotFound, Status
from ..vmm._closable import Closable
from .._waits import in_slices, linux_function, seconds_of
from ..vmm.region import Region
from ._layout import Layout, from_library, to_library
from ._part import LeasedPart


class LeaseEvent(Number):
    """An event of a lease, which :meth:`Lease.next` returns."""

    NONE = 0
    """No event has arrived in time."""
    NEW_EPOCH = 1
    """A writer has committed an epoch, which :meth:`Lease.apply` maps."""
    DROPPED = 2
    """The region was dropped from the server. The lease keeps the memory that it has."""
    SERVER_GONE = 3
    """The server has ended. The lease keeps the memory that it has."""


class Lease(Closable):
    """A region of a server that is mapped in this process, at the region's address. :class:`Client` creates it.

    A **read lease** has the memory mapped read-only. :meth:`next` receives new epochs, and :meth:`apply` maps them. A **write lease** gets
    new memory with :meth:`renew`, fills it, and commits it with :meth:`commit`; :meth:`downgrade` makes it a read lease.

    :meth:`close`, the end of the ``with`` block and the end of the process end the lease. Memory that was not committed is lost then. While
    a tensor of the memory exists, the memory stays, and the lease ends with the last of them.

    Any thread may use it; calls of several threads run one at a time.
    """

    __slots__ = ("_backend", "_cached", "_name")
    _backend: Backend
    _cached: Optional[Tuple[int, Layout]]
    _name: str

    @classmethod
    def _leased(cls, backend: Backend, name: Optional[str], handle: LeaseHandle) -> Lease:
        made = cls._of(handle)
        made._backend, made._cached = backend, None
        # The library names regions as the server does.
        made._name = made.region.tag if name is None else name
        return made

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.kind}, epoch {self.epoch}"
        return f"<gpu_vmm.serve.Lease of {self._name!r}, {state}>"

    @property
    def name(self) -> str:
        """The name of the region."""
        return self._name

    def _state(self) -> Tuple[int, int]:
        kind, epoch = ctypes.c_uint32(), ctypes.c_uint64()
        check(linux_function("gpu_vmm_lease_state")(self._handle, ctypes.byref(kind), ctypes.byref(epoch)))
        return kind.value, epoch.value

    @property
    def kind(self) -> Literal["read", "write"]:
        """``"read"`` or ``"write"``."""
        return "write" if self._state()[0] else "read"

    @property
    def epoch(self) -> int:
        """The epoch that is mapped; 0 for a region that was never committed."""
        return self._state()[1]

    @property
    def region(self) -> Region:
        """The region, whose bytes and views are those of the memory. The lease decides what is mapped where."""
        region = LeasedRegionHandle(self._handle)
        check(linux_function("gpu_vmm_lease_region")(region._lease, region.place()))
        return Region._from(self._backend, region)

    @property
    def address(self) -> int:
        """The first address, which is the same in every process."""
        return self.region.address

    @property
    def size(self) -> int:
        """The size of the region in bytes."""
        return self.region.size

    @property
    def layout(self) -> Layout:
        """A copy of the layout of the epoch that is mapped. Raises PeerError for texts with a zero byte."""
        found = self._layout()
        return Layout(dict(found.parts), dict(found.notes))

    def _layout(self) -> Layout:
        """Returns the layout, which the caller must not change."""
        while True:
            epoch, cached = self.epoch, self._cached
            if cached is not None and cached[0] == epoch:
                return cached[1]
            found = from_library(self._handle)
            # Another thread may have mapped another epoch meanwhile.
            if self.epoch == epoch:
                self._cached = epoch, found
                return found

    @property
    def parts(self) -> Tuple[str, ...]:
        """The names of the parts, in order."""
        return tuple(self._layout().parts)

    @property
    def notes(self) -> Dict[str, str]:
        """A copy of the notes of the layout."""
        return dict(self._layout().notes)

    def __getitem__(self, name: str) -> LeasedPart:
        """Returns a part, for libraries that take DLPack. Raises NotFound if there is none of the name."""
        part = self._layout().parts.get(name)
        if part is None:
            raise NotFound(f"lease: the region {self._name!r} has no part {name!r}")
        return LeasedPart(self._backend, self.region._handle, name, part)

    def fileno(self) -> int:
        """Returns the descriptor of the connection, for ``select``: it is readable when :meth:`next` has something to receive."""
        fd = ctypes.c_int32()
        check(linux_function("gpu_vmm_lease_fd")(self._handle, ctypes.byref(fd)))
        return fd.value

    def next(self, wait: float = 0) -> LeaseEvent:
        """Waits up to ``wait`` seconds for an event, and returns a :class:`LeaseEvent`: NONE if none has arrived in time.

        The server sends a further epoch when the last one was applied, and skips those between. After the end of the server, the event is
        always SERVER_GONE. Raises PeerError for invalid data; the lease then keeps the memory that it has.
        """
        event, handle, receive = ctypes.c_uint32(), self._handle, linux_function("gpu_vmm_lease_next")
        seconds = seconds_of(wait, "wait")
        in_slices(seconds, lambda some: receive(handle, some, ctypes.byref(event)), lambda: event.value != LeaseEvent.NONE)
        return LeaseEvent(event.value)

    def apply(self) -> int:
        """Maps the epoch that was received, at the same addresses, after waiting for the devices. Returns the epoch that is mapped.

        Tensors then show its contents. Without a new epoch it does nothing. Raises Busy for a capture or if an observer refuses; the region
        is then as before.
        """
        epoch = ctypes.c_uint64()
        changing(linux_function("gpu_vmm_lease_apply"), self._handle, ctypes.byref(epoch))
        return epoch.value

    def renew(
        self, offset: SupportsIndex = 0, length: Optional[SupportsIndex] = None, *, copy: bool = True
    ) -> Tuple[int, int]:
        """Replaces the memory of a range by new memory, which this lease may write, after waiting for the devices.

        ``length``: None for all up to the end. ``copy``: whether the new memory has the contents of the old one, or undefined bytes. Readers
        keep the old memory until they apply the next epoch. Whole handles are replaced: returns the offset and the length of the range,
        which contains the wanted one. Memory that was replaced since the last commit stays as it is.

        Raises AccessDenied for a read lease; OutOfMemory, also if the server's budget has no room beside the old memory; OutOfRange;
        NotFound if the region was dropped; PeerError if the server has ended; Busy for a capture or if an observer refuses. What was
        replaced before the error stays so; a second call does the rest, and :meth:`commit` fails until then.
        """
        first, renewed = unsigned("offset", offset), RangeStruct()
        count = max(0, self.size - first) if length is None else unsigned("length", length)
        renew = linux_function("gpu_vmm_lease_renew")
        changing(renew, self._handle, first, count, bool(copy), ctypes.byref(renewed))
        return renewed.offset, renewed.length

    def commit(self, layout: Optional[Layout] = None) -> int:
        """Makes the new memory the region's next epoch, and returns its number. A layout replaces the former one; None keeps it.

        Clients that open the region from now on have it, and readers when they apply it. The call waits for all work on the device; this
        lease then has the epoch mapped read-only.

        Raises AccessDenied for a read lease, NotFound if the region was dropped, PeerError if the server has ended, and InvalidArgument for
        a layout of more than 16 MiB and after a renewal that has failed. The new memory is then writable and uncommitted, as before.
        """
        epoch, given = ctypes.c_uint64(), None if layout is None else to_library(layout)
        check(linux_function("gpu_vmm_lease_commit")(self._handle, given, ctypes.byref(epoch)))
        return epoch.value

    def save_safetensors(self, path: Path) -> int:
        """Writes the region, with its layout, name and address, to a file for ``Client.load_safetensors``. Returns the size of the file.

        A file of that name is replaced when the new one is complete. Other readers of the format find the parts whose elements follow each
        other. Raises FileError.
        """
        size = ctypes.c_uint64()
        check(linux_function("gpu_vmm_lease_save")(self._handle, path_of("path", path), ctypes.byref(size)))
        return size.value

    def downgrade(self) -> None:
        """Makes a write lease a read lease, so that another client can write, after waiting for the devices.

        New memory that was not committed is lost, and the epoch's memory is mapped in its place. Raises AccessDenied for a read lease,
        InvalidArgument for a region that was never committed, PeerError if the server has ended, and Busy for a capture or if an observer
        refuses.
        """
        changing(linux_function("gpu_vmm_lease_downgrade"), self._handle)

    def close(self) -> None:
        """Unmaps the memory after waiting for the devices, and ends the lease: the server has then freed memory that only it had.

        While a tensor of the memory exists, the memory stays, and the lease ends with the last of them. Later calls, except ``close``,
        raise InvalidArgument. Raises DriverError if the driver cannot unmap the memory.
        """
        if self.closed:
            return
        handle = self._handle
        super().close()
        try:
            changing(linux_function("gpu_vmm_lease_close"), handle)
        except Error as error:
            # A thread that closes it at the same time may have been first, and in a forked child the memory is the parent's.
            if error.status not in (Status.BUSY, Status.INVALID_ARGUMENT, Status.FORKED):
                raise
