"""One address range with several banks of memory, of which one is mapped at a time."""

from __future__ import annotations

import ctypes
from typing import Optional, Sequence, SupportsIndex

from .._arguments import unsigned
from .._callbacks import changing
from .._handles import BankedHandle
from .._library import check, library
from .._typing import Buffer
from ..backend import Backend
from ..errors import InvalidArgument
from ._bytes import room, source, target
from ._closable import Closable, handle_of
from ._options import options
from .device import checked
from .observer import After, Before, observe_banked
from .physical import PhysicalMemory
from .properties import DEFAULT, Placement, Properties

_NO_BANK = 4294967295  # GPU_VMM_NO_BANK


class BankedRegion(Closable):
    """A fixed range of addresses and several banks of memory, of which one at a time is mapped there. The others keep their contents.

    ``size`` is that of the largest bank, in bytes. Raises what :class:`Region` raises.

    Any thread may use it; calls of several threads run one at a time.
    """

    __slots__ = ("_backend", "_size")

    def __init__(
        self,
        backend: Backend,
        size: SupportsIndex,
        memory: Properties = DEFAULT,
        *,
        placement: Placement = Placement.ANYWHERE,
        address: SupportsIndex = 0,
        alignment: SupportsIndex = 0,
        portable: bool = False,
    ) -> None:
        wanted = options(memory, size, placement, address, alignment, portable=portable)
        self._own(BankedHandle.made(library().gpu_vmm_banked_new, checked(backend)._handle, ctypes.byref(wanted)))
        self._backend, self._size = backend, wanted.size

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.BankedRegion{', closed' if self.closed else f' on {self._backend.name} at {self.address:#x}'}>"

    @property
    def address(self) -> int:
        """The first address. It never changes."""
        address = ctypes.c_uint64()
        check(library().gpu_vmm_banked_address(self._handle, ctypes.byref(address)))
        return address.value

    def add(self, size: SupportsIndex) -> int:
        """Adds a bank of new memory of at least ``size`` bytes and returns its number. Nothing is mapped.

        Raises OutOfMemory, and OutOfRange for a bank larger than the address range.
        """
        bank = ctypes.c_uint32()
        check(library().gpu_vmm_banked_add(self._handle, unsigned("size", size), ctypes.byref(bank)))
        return bank.value

    def add_physical(self, pieces: Sequence[PhysicalMemory]) -> int:
        """Adds a bank of existing memory, one piece behind the other, and returns its number.

        Raises OutOfRange, Unaligned, PeerUnreachable, and InvalidArgument for no piece or memory of another backend.
        """
        handles = [handle_of("pieces", piece, PhysicalMemory) for piece in pieces]  # kept during the call
        if not handles:
            raise InvalidArgument("add bank: there is no piece of memory; pass at least one")
        pointers = (ctypes.c_void_p * len(handles))(*(handle._as_parameter_ for handle in handles))
        bank = ctypes.c_uint32()
        check(library().gpu_vmm_banked_add_physical(self._handle, pointers, len(handles), ctypes.byref(bank)))
        return bank.value

    def select(self, bank: SupportsIndex) -> None:
        """Maps a bank at the address, after waiting for the devices. The previous bank keeps its contents.

        Raises NotFound if there is no such bank, and Busy for a capture or if an observer refuses.
        """
        changing(library().gpu_vmm_banked_select, self._handle, unsigned("bank", bank, 32))

    def hide(self) -> None:
        """Unmaps the selected bank, after waiting for the devices. Raises Busy as :meth:`select` does."""
        changing(library().gpu_vmm_banked_hide, self._handle)

    def remove(self, bank: SupportsIndex) -> None:
        """Removes a bank, hides it first if it is selected, and releases its memory. Raises what :meth:`select` raises."""
        changing(library().gpu_vmm_banked_remove, self._handle, unsigned("bank", bank, 32))

    @property
    def selected(self) -> Optional[int]:
        """The number of the selected bank; None if no bank is mapped."""
        bank = ctypes.c_uint32()
        check(library().gpu_vmm_banked_selected(self._handle, ctypes.byref(bank)))
        return None if bank.value == _NO_BANK else bank.value

    def read(self, offset: SupportsIndex, size: SupportsIndex) -> bytes:
        """Returns bytes of the selected bank. Does not wait for work on streams. Raises OutOfRange, NotMapped."""
        first, contents = unsigned("offset", offset), room(unsigned("size", size), self._size)
        place, count = target(contents)
        check(library().gpu_vmm_banked_read(self._handle, first, place, count))
        return bytes(contents)

    def write(self, contents: Buffer, offset: SupportsIndex = 0) -> None:
        """Copies bytes of the host to the selected bank. Does not wait for work on streams. Raises OutOfRange, NotMapped."""
        given, size = source(contents)
        check(library().gpu_vmm_banked_write(self._handle, unsigned("offset", offset), given, size))

    def on_backing_change(self, before: Optional[Before] = None, after: Optional[After] = None) -> None:
        """Adds callbacks, as :meth:`Region.on_backing_change` does. They are removed with the banked region."""
        observe_banked(self._handle, before, after)
