"""Pointers that own the library's objects and free them when they are garbage-collected.

A handle that was closed is a null pointer to the library, which returns an error. This happens if objects that refer to each other
are collected together. When the interpreter ends, remaining objects are not freed, since no driver may be called then.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, ClassVar, Dict, Optional, Set

from ._library import library
from ._owner import Owner


class Handle(Owner):
    """The base class of the pointers."""

    __slots__ = ("_as_parameter_",)  # ctypes passes this instead of the object
    _free = ""

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        self._as_parameter_: Optional[int] = pointer.value

    def close(self) -> None:
        """Frees the object."""
        pointer, self._as_parameter_ = getattr(self, "_as_parameter_", None), None
        if pointer:
            getattr(library(), self._free)(pointer)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.close()


class BackendHandle(Handle):
    """A ``gpu_vmm_backend *``."""

    __slots__ = ()
    _free = "gpu_vmm_close"


class CaptureHandle(Handle):
    """A ``gpu_vmm_capture *``."""

    __slots__ = ()
    _free = "gpu_vmm_capture_end"


class PoolHandle(Handle):
    """A ``gpu_vmm_pool *``."""

    __slots__ = ("blocks", "_left")
    _free = "gpu_vmm_pool_free"
    # Streams of other libraries, by pool and handle: each must exist as long as its pool. A garbage collection that finds a pool and a
    # stream together would end either first, so no pool refers to them.
    _streams: ClassVar[Dict[int, Dict[int, Any]]] = {}

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        super().__init__(pointer)
        self.blocks: Set[int] = set()
        """The addresses of the blocks that are freed through this pointer."""
        self._left = False

    def keep_stream(self, handle: int, stream: Any) -> None:
        """Keeps a stream until the pool is closed."""
        if self._as_parameter_:
            self._streams.setdefault(self._as_parameter_, {}).setdefault(handle, stream)

    def close(self) -> None:
        """Frees the pool, and lets its streams go after it."""
        pointer = self._as_parameter_
        super().close()
        if pointer:
            self._streams.pop(pointer, None)

    def settle(self) -> None:
        """Closes the pool after a block was freed, if the handle is garbage and this was its last block."""
        if self._left and not self.blocks:
            self.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # If the pool and its blocks are collected together, the order is arbitrary: the last block then closes the pool.
        self._left = True
        if not self.blocks and not ending():
            self.close()


class RegionHandle(Handle):
    """A ``gpu_vmm_region *``."""

    __slots__ = ()
    _free = "gpu_vmm_region_free"


class PhysicalHandle(Handle):
    """A ``gpu_vmm_physical *``."""

    __slots__ = ()
    _free = "gpu_vmm_physical_release"


class MulticastHandle(Handle):
    """A ``gpu_vmm_multicast *``."""

    __slots__ = ()
    _free = "gpu_vmm_multicast_free"


class PageListHandle(Handle):
    """A ``gpu_vmm_page_list *``."""

    __slots__ = ()
    _free = "gpu_vmm_page_list_free"


class BankedHandle(Handle):
    """A ``gpu_vmm_banked *``."""

    __slots__ = ()
    _free = "gpu_vmm_banked_free"


class OfferHandle(Handle):
    """A ``gpu_vmm_offer *``."""

    __slots__ = ()
    _free = "gpu_vmm_offer_free"


class EventHandle(Handle):
    """A ``gpu_vmm_event *``."""

    __slots__ = ()
    _free = "gpu_vmm_event_free"


class PinnedHandle(Handle):
    """A ``gpu_vmm_pinned *``."""

    __slots__ = ()
    _free = "gpu_vmm_pinned_free"


class CopyQueueHandle(Handle):
    """A ``gpu_vmm_copy_queue *``."""

    __slots__ = ()
    _free = "gpu_vmm_copy_queue_free"


class ListenerHandle(Handle):
    """A ``gpu_vmm_listener *``."""

    __slots__ = ()
    _free = "gpu_vmm_listener_free"


class ExporterHandle(Handle):
    """A ``gpu_vmm_exporter *``."""

    __slots__ = ()
    _free = "gpu_vmm_exporter_free"


class FollowedHandle(Handle):
    """A ``gpu_vmm_followed *``."""

    __slots__ = ()
    _free = "gpu_vmm_followed_free"


class ClientHandle(Handle):
    """A ``gpu_vmm_client *``."""

    __slots__ = ()
    _free = "gpu_vmm_client_free"


class LeaseHandle(Handle):
    """A ``gpu_vmm_lease *``."""

    __slots__ = ()
    _free = "gpu_vmm_lease_free"


class LayoutHandle(Handle):
    """A ``gpu_vmm_layout *``."""

    __slots__ = ()
    _free = "gpu_vmm_layout_free"


class LeasedRegionHandle(RegionHandle):
    """The ``gpu_vmm_region *`` of a lease, which frees it. It keeps the lease."""

    __slots__ = ("_lease",)

    def __init__(self, pointer: ctypes.c_void_p, lease: LeaseHandle) -> None:
        super().__init__(pointer)
        self._lease: Optional[LeaseHandle] = lease

    def close(self) -> None:
        """Lets the lease go."""
        self._as_parameter_ = self._lease = None
