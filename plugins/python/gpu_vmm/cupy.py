"""CuPy's memory from pools of gpu-vmm, one for each device, in the order of CuPy's current stream."""

from __future__ import annotations

import functools
import importlib
import threading
import warnings
from typing import Any, Dict, Optional, SupportsIndex, Tuple

from ._arguments import Path, unsigned
from ._handles import CaptureHandle
from ._lock import new_lock
from ._pool_options import LIBRARY_ALIGNMENT, options
from .backend import Backend
from .errors import Error, InvalidArgument, NotInstalled
from .pool import Pool
from .serve._pools import WAIT, set_pool_server

_lock = new_lock()
_enabled: Optional[_Allocator] = None


def _cupy() -> Any:
    try:
        # By name: a type checker could resolve `import cupy` to this module.
        return importlib.import_module("cupy")
    except ImportError as error:
        raise NotInstalled(f"gpu_vmm.cupy: CuPy cannot be imported: {error}") from error


# The handle of the per-thread default stream, which means another stream in each thread.
_PER_THREAD = 2
# The announced captures, by the handle of the stream, and by the thread for its per-thread default stream.
_captures: Dict[Tuple[int, int], CaptureHandle] = {}


def _key(stream: Any) -> Tuple[int, int]:
    handle = int(stream.ptr)
    return handle, threading.get_ident() if handle == _PER_THREAD else 0


def _announce_captures(cupy: Any) -> None:
    """Announces the captures that begin with CuPy's functions while it is served. The pools know only streams that memory was allocated for.

    CuPy keeps the functions after :func:`disable`: a capture that has begun before must end.
    """
    kinds = [kind for kind in cupy.cuda.Stream.__mro__ if "begin_capture" in vars(kind)]
    if not kinds or hasattr(kinds[0].begin_capture, "of_gpu_vmm"):
        return
    begin, end = kinds[0].begin_capture, kinds[0].end_capture

    @functools.wraps(begin)
    def begin_capture(stream: Any, *args: Any, **kwargs: Any) -> Any:
        allocator = _enabled
        if allocator is None:
            return begin(stream, *args, **kwargs)
        announced = allocator.backend._begin_capture()
        try:
            begun = begin(stream, *args, **kwargs)
        except BaseException:
            announced.close()
            raise
        _captures[_key(stream)] = announced
        return begun

    @functools.wraps(end)
    def end_capture(stream: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(stream, *args, **kwargs)
        finally:
            announced = _captures.pop(_key(stream), None)
            if announced is not None:
                announced.close()

    begin_capture.of_gpu_vmm = True  # type: ignore[attr-defined]
    try:
        kinds[0].begin_capture, kinds[0].end_capture = begin_capture, end_capture
    except TypeError as error:
        warnings.warn(
            f"gpu_vmm.cupy: this CuPy's captures cannot be announced ({error}); use gpu_vmm.Backend.announce_capture", stacklevel=3
        )


class _Allocator:
    """The allocator that CuPy calls."""

    def __init__(self, cupy: Any, settings: Tuple[Optional[int], Optional[int]]) -> None:
        self.cupy = cupy
        self.settings = settings
        self.backend = Backend("hip" if cupy.cuda.runtime.is_hip else "cuda")
        self.pools: Dict[int, Pool] = {}

    def pool(self, device: int) -> Pool:
        pool = self.pools.get(device)
        if pool is None:
            with _lock:
                pool = self.pools.get(device)
                if pool is None:
                    budget, keep = self.settings
                    pool = self.pools[device] = self.backend.pool(device, budget, keep)
        return pool

    def __call__(self, size: int) -> Any:
        cuda = self.cupy.cuda
        device = int(cuda.runtime.getDevice())
        if size == 0:
            return cuda.MemoryPointer(cuda.UnownedMemory(0, 0, None, device), 0)
        stream = cuda.get_current_stream()
        handle = int(stream.ptr)
        pool = self.pool(device)
        pool._handle.keep_stream(handle, stream)
        block = pool.alloc(size, LIBRARY_ALIGNMENT, handle)
        block._lent = "a CuPy array"  # taking its memory away needs force=True
        return cuda.MemoryPointer(cuda.UnownedMemory(block.address, size, block, device), 0)


def enable(
    *,
    budget: Optional[SupportsIndex] = None,
    keep: Optional[SupportsIndex] = None,
    server: Optional[Path] = None,
    priority: SupportsIndex = 0,
    wait: float = WAIT,
) -> None:
    """Makes CuPy allocate from pools of gpu-vmm in all threads: ``cupy.cuda.set_allocator``.

    ``budget``: the largest number of bytes that a device's pool may hold, None for no limit. ``keep``: the largest number of free bytes
    that it keeps, None for all. ``server``: the path of the socket of a ``gpu-vmm serve`` that divides the memory between programs, with
    ``priority`` and ``wait`` as for :func:`gpu_vmm.set_pool_server`; None for what that function or the environment has chosen. A second call
    with the same settings does nothing. If memory is short, CuPy's callers get OutOfMemory, a
    MemoryError. Captures that begin with ``Stream.begin_capture`` are announced, so that no object that ends meanwhile invalidates them.

    Raises NotInstalled without CuPy, Unsupported without a driver, Error if it is enabled with other settings.
    """
    global _enabled
    cupy = _cupy()
    wanted = options(0, budget, keep)  # checks them
    settings = (wanted.budget or None, None if keep is None else unsigned("keep", keep))
    with _lock:
        if _enabled is not None:
            if _enabled.settings != settings:
                raise Error(f"enable: CuPy is already served with (budget, keep) = {_enabled.settings}; call disable() first")
            return
        if server is not None:
            set_pool_server(server, priority=priority, wait=wait)
        made = _Allocator(cupy, settings)
        _announce_captures(cupy)
        try:
            cupy.cuda.set_allocator(made)
            _enabled = made
        except BaseException:
            cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
            raise


def disable() -> None:
    """Restores CuPy's own default memory pool, and returns free memory to the driver.

    Existing arrays keep their memory. The pool of a device ends with the last of its arrays.
    """
    global _enabled
    cupy = _cupy()
    if _enabled is not None:
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
        ended, _enabled = _enabled.pools, None
        # CuPy may still refer to the allocator, and other threads may call it.
        while ended:
            ended.popitem()[1].trim()


def set_limit(
    size: Optional[SupportsIndex] = None, fraction: Optional[float] = None, device: Optional[SupportsIndex] = None
) -> None:
    """Limits the memory that the pool of a device may hold, None for CuPy's current one, as ``cupy.cuda.MemoryPool.set_limit`` does.

    ``size`` is a number of bytes, 0 for no limit. ``fraction`` is a part of the device's memory, from 0 to 1. A pool that holds more
    returns free memory to the driver at once. Raises InvalidArgument unless one of the two is given; Error before :func:`enable`.
    """
    if (size is None) == (fraction is None):
        raise InvalidArgument("set_limit: pass either size or fraction")
    serving, number = _serving("set_limit", device)
    if fraction is None:
        limit = unsigned("size", size) if size is not None else 0
    elif 0 <= fraction <= 1:
        limit = int(fraction * serving.backend.memory(number)[1])
    else:
        raise InvalidArgument(f"set_limit: fraction {fraction} is not between 0 and 1")
    serving.pool(number).set_budget(limit if limit or fraction is not None else None)


def pool(device: Optional[SupportsIndex] = None) -> Pool:
    """Returns the pool of a device, None for CuPy's current one. Raises Error before :func:`enable`."""
    serving, number = _serving("pool", device)
    return serving.pool(number)


def _serving(operation: str, device: Optional[SupportsIndex]) -> Tuple[_Allocator, int]:
    """Returns the allocator that CuPy calls, and the number of a device, None for CuPy's current one."""
    if _enabled is None:
        raise Error(f"{operation}: CuPy is not served by gpu-vmm; call gpu_vmm.cupy.enable() first")
    return _enabled, int(_enabled.cupy.cuda.runtime.getDevice()) if device is None else int(device)
