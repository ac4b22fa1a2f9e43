"""Buffers of host memory whose users are counted."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from ._handles import RegionHandle


class _Keeper:
    """Exists as long as a buffer does, and keeps the region alive."""

    __slots__ = ("region", "__weakref__")

    def __init__(self, region: RegionHandle) -> None:
        self.region = region


class Views:
    """The buffers of a region's memory that are in use. NumPy keeps the buffer of ``__array_interface__``, not the vector."""

    __slots__ = ("_keepers",)

    def __init__(self) -> None:
        self._keepers: weakref.WeakSet[_Keeper] = weakref.WeakSet()

    def __len__(self) -> int:
        """Returns the number of buffers in use."""
        return len(self._keepers)

    def make(self, region: RegionHandle, address: int, size: int, read_only: bool) -> memoryview:
        """Returns a buffer of host memory, which is counted until it is garbage-collected."""
        memory: Any = (ctypes.c_char * size).from_address(address)
        memory.keeper = _Keeper(region)
        self._keepers.add(memory.keeper)
        view = memoryview(memory)
        return view.toreadonly() if read_only else view
