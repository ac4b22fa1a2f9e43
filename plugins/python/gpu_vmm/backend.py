"""Backends: open drivers of a vendor."""

from __future__ import annotations

import contextlib
import ctypes
import json
from typing import Iterator, Optional, SupportsIndex, Tuple

from ._arguments import text, unsigned
from ._handles import BackendHandle, CaptureHandle, PoolHandle, text_of
from ._library import check, library
from ._owner import Owner
from ._pool_options import options
from .errors import NotFound
from .pool import Pool
from .results import AddressInfo, BackendInfo


class Backend(Owner):
    """An open driver: ``cuda``, ``hip``, or ``host`` for host memory. :func:`open` creates it.

    Any thread may use it, and calls of several threads run at the same time.
    """

    __slots__ = ("_handle",)
    _instead = "any thread and any object may use the same one; gpu_vmm.open(name) opens another one, also in another process"

    def __init__(self, name: Optional[str] = None) -> None:
        self._make_once("_handle")
        encoded = None if name is None else text("the backend's name", name)
        self._handle = BackendHandle.made(library().gpu_vmm_open, encoded)

    def __repr__(self) -> str:
        return f"<gpu_vmm.Backend {self.name}>"

    @property
    def name(self) -> str:
        """``cuda``, ``hip`` or ``host``."""
        return str(library().gpu_vmm_backend_name(self._handle).decode())

    @property
    def devices(self) -> int:
        """The number of devices, including devices that cannot be used."""
        count = ctypes.c_uint32()
        check(library().gpu_vmm_backend_devices(self._handle, ctypes.byref(count)))
        return count.value

    def info(self) -> BackendInfo:
        """Returns a description of the driver, its devices and its known deviations."""
        found: BackendInfo = json.loads(text_of(library().gpu_vmm_backend_info, self._handle))
        return found

    def memory(self, device: SupportsIndex = 0) -> Tuple[int, int]:
        """Returns the free and the total bytes of a device, as its driver reports them."""
        free, total = ctypes.c_uint64(), ctypes.c_uint64()
        number = unsigned("device", device, 32)
        check(library().gpu_vmm_memory(self._handle, number, ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value

    def _begin_capture(self) -> CaptureHandle:
        return CaptureHandle.made(library().gpu_vmm_capture_begin, self._handle)

    @contextlib.contextmanager
    def announce_capture(self) -> Iterator[None]:
        """Announces a capture of a stream into a graph, which begins and ends in the ``with`` block.

        Vendors refuse to wait for a device while one of its streams captures, and the attempt invalidates the capture. Objects that end
        then, such as those that the garbage collector finds, keep their memory, which a later call frees; calls that need to wait
        raise Busy. This holds for all backends of the vendor and all threads. Blocks can be nested.

        Captures of PyTorch and CuPy that :mod:`gpu_vmm.torch` and :mod:`gpu_vmm.cupy` serve need no announcement, nor do captures of
        streams that blocks of a pool were allocated for.
        """
        announced = self._begin_capture()
        try:
            yield
        finally:
            announced.close()

    def collect(self) -> int:
        """Waits for the devices of all memory that was kept because of a capture, and frees it. Returns its size in bytes.

        Raises Busy if a capture still forbids the wait.
        """
        freed = ctypes.c_uint64()
        check(library().gpu_vmm_collect(self._handle, ctypes.byref(freed)))
        return freed.value

    def pool(
        self,
        device: SupportsIndex = 0,
        budget: Optional[SupportsIndex] = None,
        keep: Optional[SupportsIndex] = None,
        scrub: bool = False,
        debug: bool = False,
        page: Optional[SupportsIndex] = None,
        slack: Optional[SupportsIndex] = None,
        *,
        restorable: bool = False,
    ) -> Pool:
        """Creates a pool of a device's memory. :meth:`Pool.restore` creates one from a file.

        ``budget``: the largest amount of physical memory that the pool may hold, in bytes; None for what the environment variable
        ``GPU_VMM_BUDGET`` says (such as ``8GiB``), or no limit. ``keep``: the largest
        amount of free memory that it keeps, in bytes; None for all. ``scrub``: whether it overwrites memory with zeros when it passes
        from one tag to another. ``debug``: whether it records where each block was allocated. ``page``: the size in which it creates and
        maps physical memory, in bytes, a power of two; None for 2 MiB (8 MiB on devices with 64 GiB and more) or the driver's
        granularity, whichever is larger. ``slack``: how far the memory held may exceed the largest amount ever needed at one time, in
        percent, before the pool maps free memory from elsewhere instead of creating new memory; None for 1, and for 7 once it serves several streams.
        ``restorable``: whether it reserves addresses that other processes can reserve as well, for :meth:`Pool.save`.

        Raises InvalidArgument if there is no such device, Unsupported if it cannot be used.
        """
        wanted = options(device, budget, keep, page, slack, scrub, debug, restorable)
        handle = PoolHandle.made(library().gpu_vmm_pool_new, self._handle, ctypes.byref(wanted))
        return Pool(handle, f"{self.name} device {wanted.device}", backend=self)


def open(name: Optional[str] = None) -> Backend:
    """Opens a backend: ``cuda``, ``hip`` or ``host``.

    None opens the backend that the environment variable ``GPU_VMM_BACKEND`` names. If that is not set, None opens the backend whose driver
    library the process has already loaded, or else the best one.

    Raises InvalidArgument for another name, Unsupported if the driver or gpu-vmm's library is missing, and Forked in a child of a process
    that has initialized the driver: host memory does not replace the GPU there.
    """
    return Backend(name)


def at(address: SupportsIndex) -> Optional[AddressInfo]:
    """Returns what this process has at an address: the region or the pool that has reserved it, its tag, the mapping there with the
    access of each device, and the block of a pool. Returns None for an address in no region of this process.

    It finds the regions of all backends, calls no driver, and can be called by any thread.
    """
    try:
        found: AddressInfo = json.loads(text_of(library().gpu_vmm_at, unsigned("address", address)))
    except NotFound:
        return None
    return found
