"""Memory that several regions share until they write it."""

from __future__ import annotations

import ctypes
from typing import Optional, SupportsIndex

from .._arguments import unsigned
from .._callbacks import changing
from .._library import check, library
from ._closable import Closable, handle_of
from .pages import PageList, list_of


class Sharing(Closable):
    """The part of :class:`Region` that shares memory with other regions."""

    __slots__ = ()

    def fork(self, length: SupportsIndex, into: Sharing) -> None:
        """Maps the memory of the first ``length`` bytes in another region as well, at the same offsets. No byte is copied.

        Both regions may only read the part then, until :meth:`make_private`: a write is AccessDenied, and one of a kernel through a tensor
        is a fault. The part must consist of whole mappings, and nothing may be mapped there in ``into``. Waits for the devices.

        Raises Unaligned, OutOfRange, NotMapped, AlreadyMapped, Suspended, Busy for a capture, and InvalidArgument for the same region, for
        a part of a mapping or for regions of two backends. Both regions are then as before.
        """
        check(library().gpu_vmm_region_fork(self._handle, unsigned("length", length), handle_of("into", into, Sharing, "Region")))

    def make_private(self, offset: SupportsIndex, length: SupportsIndex, pages: Optional[PageList] = None) -> int:
        """Gives a range memory of its own, with the same contents, so that it can be written. Returns the number of bytes copied.

        Memory with another holder is copied by its device into pages of the list, which are mapped in its place; other memory stays. Without
        ``pages``, the copy is in new memory, outside of every list's budget. The range must consist of whole mappings. Tensors stay valid.
        Waits for the devices.

        Raises Unaligned, OutOfRange, NotMapped, OutOfMemory, OutOfAddressSpace, Suspended, InvalidArgument for a part of a mapping, and
        Busy for a capture or if an observer refuses. What was copied before an error stays private, and a second call does the rest.
        """
        copied, list_ = ctypes.c_uint64(), list_of(pages)
        first, bytes_ = unsigned("offset", offset), unsigned("length", length)
        changing(library().gpu_vmm_region_make_private, self._handle, first, bytes_, list_, ctypes.byref(copied))
        return copied.value

    def holders(self, offset: SupportsIndex) -> int:
        """Returns the number of mappings and objects that hold the memory at an offset: 1 for memory of this mapping alone.

        All suspended regions that share the memory count as one. Another thread can change the number at any time. Raises NotMapped,
        Suspended.
        """
        number = ctypes.c_uint64()
        check(library().gpu_vmm_region_holders(self._handle, unsigned("offset", offset), ctypes.byref(number)))
        return number.value
