"""Memory of the host as a buffer that reports when nothing uses it any more."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from ._handles import RegionHandle


class _Keeper:
    """Lives as long as a buffer, and the region with it."""

    __slots__ = ("region", "__weakref__")

    def __init__(self, region: RegionHandle) -> None:
        self.region = region


class Views:
    """The buffers of a region's memory that are in use. NumPy keeps the buffer that ``__array_interface__`` names, not the vector."""

    __slots__ = ("_keepers",)

    def __init__(self) -> None:
        self._keepers: weakref.WeakSet[_Keeper] = weakref.WeakSet()

    def __len__(self) -> int:
        """How many buffers are in use."""
        return len(self._keepers)

    def make(self, region: RegionHandle, address: int, size: int, read_only: bool) -> memoryview:
        """A buffer of memory of the host, which counts until nothing has it any more."""
        memory: Any = (ctypes.c_char * size).from_address(address)
        memory.keeper = _Keeper(region)
        self._keepers.add(memory.keeper)
        view = memoryview(memory)
        return view.toreadonly() if read_only else view
