"""Regions and memory as bytes that other processes can import."""

from __future__ import annotations

import ctypes
from typing import Any

from .._arguments import member
from .._handles import OfferHandle
from .._library import check, library
from ._closable import Closable
from .properties import OfferBy


class Offer(Closable):
    """A region or memory that other processes can import. Keep it until all of them have imported it.

    :meth:`Region.offer` and :meth:`PhysicalMemory.offer` create it. ``bytes(offer)`` can be sent by any means. Treat the bytes of an offer
    by fabric as a secret: every process that has them can map the memory.

    Any thread may use it, and calls of several threads run at the same time.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.Offer{', closed' if self.closed else f' of {len(bytes(self))} bytes'}>"

    def __bytes__(self) -> bytes:
        """Returns the bytes for ``import_offer`` in another process."""
        data, size = ctypes.c_void_p(), ctypes.c_uint64()
        handle = self._handle  # kept until the bytes are copied
        check(library().gpu_vmm_offer_bytes(handle, ctypes.byref(data), ctypes.byref(size)))
        return ctypes.string_at(data.value or 0, size.value)


def offer_by(function: str, by: OfferBy, *objects: Any) -> Offer:
    """Returns the offer that a function of the library creates."""
    return Offer._of(OfferHandle.made(getattr(library(), function), *objects, int(member("by", by, OfferBy))))
