"""Pointers that own the library's objects and free them when they are garbage-collected.

A handle that was closed is a null pointer to the library, which returns an error. This happens if objects that refer to each other
are collected together. When the interpreter ends, remaining objects are not freed, since no driver may be called then.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, ClassVar, Dict, Optional, Tuple, Type, TypeVar, cast

from . import _callbacks
from ._library import check, library
from ._owner import Owner


_Made = TypeVar("_Made", bound="Handle")


class _Place(ctypes.c_void_p):
    """A handle's place, which frees the object if a signal's exception came at the beginning of the handle's own ``__del__``.

    It ends behind the handle, and in a garbage collection too: that ends objects in the order of their creation.
    """

    __slots__ = ()
    _free = ""

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.value and not ending():
            free = getattr(library(), self._free)
            address, self.value = self.value, None
            free(address)


class Handle(Owner):
    """The base class of the pointers.

    The handle exists before the object, and the library writes into the handle's own place. So an exception of a signal's handler, which can
    come as soon as the library returns, loses no object.
    """

    __slots__ = ("_as_parameter_",)  # ctypes passes this instead of the object
    _free = ""
    _more: Tuple[Any, ...] = ()
    """What the function that frees the object takes besides."""
    _place: Type[ctypes.c_void_p] = ctypes.c_void_p

    def __init_subclass__(cls) -> None:
        if "_free" in vars(cls) and "_place" not in vars(cls):
            cls._place = type(f"{cls.__name__}Place", (_Place,), {"__slots__": (), "_free": cls._free})

    def __init__(self, array: Any = None, at: int = 0) -> None:
        """``array``: an array in which the library writes the pointer, ``at`` a number of bytes; None for a place of its own."""
        self._as_parameter_: Optional[ctypes.c_void_p] = self._place() if array is None else self._place.from_buffer(array, at)

    @classmethod
    def made(cls: Type[_Made], call: Callable[..., int], *arguments: Any) -> _Made:
        """Returns the handle of the object that a function of the library creates. The place is its last argument."""
        handle = cls()
        check(call(*arguments, handle.place()))
        return handle

    def place(self) -> Any:
        """Returns where a function of the library writes the pointer, as an argument."""
        return ctypes.byref(cast(ctypes.c_void_p, self._as_parameter_))

    @property
    def address(self) -> int:
        """The address of the object; 0 once it is closed."""
        pointer = self._as_parameter_
        return (pointer.value or 0) if pointer is not None else 0

    def close(self) -> None:
        """Frees the object."""
        if getattr(self, "_as_parameter_", None) is None:
            return
        free = getattr(library(), self._free)
        place = self._as_parameter_
        # Python handles signals and switches threads behind calls alone. So one thread takes the pointer, and it frees the object.
        if place is not None:
            address, place.value, self._as_parameter_ = place.value, None, None
            if address:
                free(address, *self._more)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.close()


class TextHandle(Handle):
    """A string of the library."""

    __slots__ = ()
    _free = "gpu_vmm_string_free"


def text_of(call: Callable[..., int], *arguments: Any) -> str:
    """Returns the string that a function of the library creates. The place for it is its last argument."""
    text = TextHandle.made(call, *arguments)
    return ctypes.string_at(text.address).decode("utf-8") if text.address else ""


class TensorHandle(Handle):
    """A tensor of DLPack, ``DLManagedTensor *`` or ``DLManagedTensorVersioned *``, which no capsule owns."""

    __slots__ = ("_more",)
    _free = "gpu_vmm_dlpack_delete"
    _place = ctypes.c_void_p

    def __init__(self, versioned: bool) -> None:
        super().__init__()
        self._more = (versioned,)


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
    _place = ctypes.c_void_p  # the handle's own end can be too early
    # Streams of other libraries, by pool and handle: each must exist as long as its pool, or until the pool forgets it. A garbage collection
    # that finds a pool and a stream together would end either first, so no pool refers to them.
    _streams: ClassVar[Dict[int, Dict[int, Any]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.blocks: Dict[int, int] = {}
        """The addresses of the blocks that are freed through this pointer, by the identity of their references in the pool's table."""
        self._left = False

    def keep_stream(self, handle: int, stream: Any) -> None:
        """Keeps a stream until the pool is closed or forgets it."""
        if self.address:
            self._streams.setdefault(self.address, {}).setdefault(handle, stream)

    def drop_stream(self, handle: int) -> None:
        """Keeps a stream no longer."""
        self._streams.get(self.address, {}).pop(handle, None)

    def close(self) -> None:
        """Frees the pool, and lets its streams go after it."""
        pointer = self.address
        super().close()
        self._streams.pop(pointer, None)

    def settle(self, block: int) -> None:
        """Forgets a block that was freed, and closes the pool if the handle is garbage and this was its last block."""
        self.blocks.pop(block, None)
        if self._left and not self.blocks:
            self.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # If the pool and its blocks are collected together, the order is arbitrary: the last block then closes the pool.
        self._left = True
        if not self.blocks and not ending():
            self.close()


class _Observed(Handle):
    """The pointer of a region that can have observers."""

    __slots__ = ("observers",)

    def __init__(self, array: Any = None, at: int = 0) -> None:
        self.observers: Dict[int, _callbacks.Observer] = {}
        super().__init__(array, at)

    def close(self) -> None:
        """Frees the object. Raises what a callback of an observer has raised."""
        if getattr(self, "observers", None):
            _callbacks.close(self.observers, super().close)
        else:
            super().close()


class RegionHandle(_Observed):
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


class BankedHandle(_Observed):
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


class LeaseHandle(_Observed):
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
    _place = ctypes.c_void_p

    def __init__(self, lease: LeaseHandle) -> None:
        super().__init__()
        self._lease: Optional[LeaseHandle] = lease
        self.observers = lease.observers

    def close(self) -> None:
        """Lets the lease go."""
        self._as_parameter_ = self._lease = None
