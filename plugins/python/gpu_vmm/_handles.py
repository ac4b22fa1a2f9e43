"""Pointers to the library's objects, which let go of them when nobody has them any more.

One that was let go, as objects are that become garbage together, is null for the library, which answers with an error. When the
interpreter ends, what is left is left to the process's end: no driver is called then.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Callable, Optional, Set

from ._library import library
from ._owner import Owner


class _Handle(Owner):
    __slots__ = ("_as_parameter_",)  # what ctypes takes in place of the object
    _free = ""

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        self._as_parameter_: Optional[int] = pointer.value

    def close(self) -> None:
        """Lets go of the object."""
        pointer, self._as_parameter_ = getattr(self, "_as_parameter_", None), None
        if pointer:
            getattr(library(), self._free)(pointer)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.close()


class BackendHandle(_Handle):
    """A ``gpu_vmm_backend *``."""

    __slots__ = ()
    _free = "gpu_vmm_close"


class PoolHandle(_Handle):
    """A ``gpu_vmm_pool *``."""

    __slots__ = ("blocks", "_left")
    _free = "gpu_vmm_pool_free"

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        super().__init__(pointer)
        self.blocks: Set[int] = set()
        """The addresses of the blocks that are freed by this pointer."""
        self._left = False

    def settle(self) -> None:
        """A block was freed."""
        if self._left and not self.blocks:
            self.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # Where pool and blocks are garbage together, they may come in any order: the last block closes it then.
        self._left = True
        if not self.blocks and not ending():
            self.close()


class RegionHandle(_Handle):
    """A ``gpu_vmm_region *``."""

    __slots__ = ()
    _free = "gpu_vmm_region_free"
