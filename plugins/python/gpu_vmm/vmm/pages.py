"""Lists of free pages with a budget, from which regions grow and resume."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, SupportsIndex

from .._arguments import unsigned
from .._handles import PageListHandle, PhysicalHandle
from .._library import check, library
from ..backend import Backend
from ..results import PageListStats
from ._closable import Closable, handle_of
from .device import checked
from .physical import PhysicalMemory
from .properties import DEFAULT, Properties, pointer_to


class PageList(Closable):
    """A list of free pages: physical memory in pieces of one size, of at least ``page`` bytes. All pages take at most ``budget`` bytes.

    A page returns to the list when no region maps it and no object names it any more, so a paged cache needs no records of its own.
    ``close`` returns free pages to the device now, and pages in use when they are no longer used.

    Any thread may use it, and calls of several threads run at the same time.

    Raises InvalidArgument for a page of 0 bytes, NoSuchDevice, OutOfMemory for a page that exceeds the device's memory, or Unsupported if
    the driver has no such memory.
    """

    __slots__ = ("_backend",)

    def __init__(self, backend: Backend, page: SupportsIndex, budget: SupportsIndex, properties: Properties = DEFAULT) -> None:
        wanted = pointer_to(properties)
        size, most = unsigned("page", page), unsigned("budget", budget)
        self._own(PageListHandle.made(library().gpu_vmm_page_list_new, checked(backend)._handle, wanted, size, most))
        self._backend = backend

    def __repr__(self) -> str:
        if self.closed:
            return "<gpu_vmm.vmm.PageList, closed>"
        stats = self.stats()
        return f"<gpu_vmm.vmm.PageList of {stats['held'] // stats['page']} pages on {self._backend.name}>"

    @property
    def page_size(self) -> int:
        """The size of a page: the one that was asked for, rounded up to the granularity."""
        return self.stats()["page"]

    def stats(self) -> PageListStats:
        """Returns the size of a page, of all pages, of the free ones and of the budget; zeros for pages in a forked child."""
        page, held, free, budget = (ctypes.c_uint64() for _ in range(4))
        places = (ctypes.byref(place) for place in (page, held, free, budget))
        check(library().gpu_vmm_page_list_sizes(self._handle, *places))
        return {"page": page.value, "held": held.value, "free": free.value, "budget": budget.value}

    def set_budget(self, budget: SupportsIndex) -> None:
        """Changes the budget. Free pages beyond it return to the device now, and pages in use when they are no longer used."""
        check(library().gpu_vmm_page_list_set_budget(self._handle, unsigned("budget", budget)))

    def take(self) -> PhysicalMemory:
        """Returns one page, a free one or a new one, with the bytes of its last owner. Raises OutOfMemory if the budget is exhausted."""
        return PhysicalMemory._from(self._backend, PhysicalHandle.made(library().gpu_vmm_page_list_take, self._handle))


def list_of(pages: Optional[PageList]) -> Any:
    """Returns a list for C, in which null means none. Raises TypeError for another object."""
    return None if pages is None else handle_of("pages", pages, PageList)
