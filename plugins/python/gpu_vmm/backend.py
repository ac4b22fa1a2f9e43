"""Backends: a vendor's driver, opened."""

from __future__ import annotations

import ctypes
import json
from typing import Optional, SupportsIndex, Tuple

from ._arguments import kept_free, limit, text, unsigned
from ._handles import BackendHandle, PoolHandle
from ._library import PoolOptions, check, library, take_text
from ._owner import Owner
from .pool import Pool
from .results import BackendInfo


def options(
    device: SupportsIndex = 0,
    budget: Optional[SupportsIndex] = None,
    keep: Optional[SupportsIndex] = None,
    page: Optional[SupportsIndex] = None,
    slack: Optional[SupportsIndex] = None,
    scrub: bool = False,
    debug: bool = False,
) -> PoolOptions:
    """What a pool is to be, for C."""
    return PoolOptions(
        device=unsigned("device", device, 32),
        budget=limit("budget", budget),
        keep=kept_free(keep),
        page=limit("page", page),
        slack=limit("slack", slack, 32),
        scrub=bool(scrub),
        debug=bool(debug),
    )


class Backend(Owner):
    """A driver: ``cuda``, ``hip``, or ``host`` for memory of the host. Made by :func:`open`. Any thread may use it."""

    __slots__ = ("_handle",)
    _instead = "any thread and any object may use the same one; gpu_vmm.open(name) opens another one, also in another process"

    def __init__(self, name: Optional[str] = None) -> None:
        self._make_once("_handle")
        encoded = None if name is None else text("the backend's name", name)
        pointer = ctypes.c_void_p()
        check(library().gpu_vmm_open(encoded, ctypes.byref(pointer)))
        self._handle = BackendHandle(pointer)

    def __repr__(self) -> str:
        return f"<gpu_vmm.Backend {self.name}>"

    @property
    def name(self) -> str:
        """``cuda``, ``hip`` or ``host``."""
        return str(library().gpu_vmm_backend_name(self._handle).decode())

    @property
    def devices(self) -> int:
        """How many devices there are, usable or not."""
        count = ctypes.c_uint32()
        check(library().gpu_vmm_backend_devices(self._handle, ctypes.byref(count)))
        return count.value

    def info(self) -> BackendInfo:
        """The driver, its devices and its known deviations."""
        pointer = ctypes.c_void_p()
        check(library().gpu_vmm_backend_info(self._handle, ctypes.byref(pointer)))
        found: BackendInfo = json.loads(take_text(pointer))
        return found

    def memory(self, device: SupportsIndex = 0) -> Tuple[int, int]:
        """Free and total bytes of a device, as its driver says now."""
        free, total = ctypes.c_uint64(), ctypes.c_uint64()
        number = unsigned("device", device, 32)
        check(library().gpu_vmm_memory(self._handle, number, ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value

    def pool(
        self,
        device: SupportsIndex = 0,
        budget: Optional[SupportsIndex] = None,
        keep: Optional[SupportsIndex] = None,
        scrub: bool = False,
        debug: bool = False,
        page: Optional[SupportsIndex] = None,
        slack: Optional[SupportsIndex] = None,
    ) -> Pool:
        """A pool of a device's memory.

        ``budget``: the most physical memory in bytes that it may hold, None for no limit. ``keep``: how many bytes of free memory it
        keeps, None for all. ``scrub``: memory is overwritten with zeros where it passes from one tag to another. ``debug``: the pool
        remembers where each block came from. ``page``: in pieces of how many bytes, a power of two, memory is created and mapped,
        None for the driver's granularity. ``slack``: how many hundredths more than was ever needed at one time it may hold, before
        it maps free memory from elsewhere rather than create new; None for 1, and 7 once it serves several streams.

        Raises InvalidArgument where there is no such device, Unavailable where it cannot be used.
        """
        wanted = options(device, budget, keep, page, slack, scrub, debug)
        pointer = ctypes.c_void_p()
        check(library().gpu_vmm_pool_new(self._handle, ctypes.byref(wanted), ctypes.byref(pointer)))
        return Pool(PoolHandle(pointer), f"{self.name} device {wanted.device}")


def open(name: Optional[str] = None) -> Backend:
    """Opens a backend: ``cuda``, ``hip`` or ``host``; None is the one whose driver library the process has loaded, else the best there is.

    Raises InvalidArgument for another name, Unavailable where there is no driver or no library of gpu-vmm.
    """
    return Backend(name)
