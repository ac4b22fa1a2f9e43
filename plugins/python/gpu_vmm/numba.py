# The class for Numba extends one of Numba's, which has no types.
# mypy: allow-subclassing-any
"""Numba-CUDA's device memory from pools of gpu-vmm, one for each device, by its External Memory Management interface."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import weakref
from typing import Any, Dict, Iterator, List, Optional, SupportsIndex, Tuple

from ._arguments import unsigned
from ._lock import is_mine, new_lock
from ._pool_options import LIBRARY_ALIGNMENT, options
from .backend import Backend
from .errors import Error, NotInstalled, OutOfMemory, Unsupported
from .pool import Block, Pool

_lock = new_lock()
_serving: Optional[_Devices] = None

# Freed memory is reused after a wait for the device. One wait serves this many bytes or this many blocks.
_BYTES = 64 << 20
_BLOCKS = 64


def _cuda() -> Any:
    try:
        # By name: a type checker could resolve `import numba` to this module.
        cuda = importlib.import_module("numba.cuda")
    except ImportError as error:
        raise NotInstalled(f"gpu_vmm.numba: Numba-CUDA cannot be imported: {error}") from error
    if not hasattr(cuda, "HostOnlyCUDAMemoryManager") or not hasattr(cuda, "set_memory_manager"):
        raise NotInstalled("gpu_vmm.numba: this Numba has no External Memory Management interface, or simulates CUDA")
    return cuda


class _Served:
    """The pool of a device, and its blocks that were freed and whose work may not be done: Numba names no stream.

    They belong to the device and not to a context: an array can outlive its context, which `numba.cuda.close()` ends.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.lock = new_lock()
        self.freed: List[Block] = []
        self.deferring = 0

    def add(self, block: Block) -> None:
        # Also called by the garbage collector, at any place: it must not wait.
        self.freed.append(block)

    def is_much(self) -> bool:
        blocks = list(self.freed)
        return self.deferring == 0 and (len(blocks) >= _BLOCKS or sum(block.size for block in blocks) >= _BYTES)

    def free(self, context: Any) -> bool:
        """Waits for the device and frees the blocks. Returns whether there were any."""
        if is_mine(self.lock):
            return False  # a signal's handler, inside of this very call
        with self.lock:
            count = len(self.freed)
            if count == 0:
                return False
            # Before a block leaves the list: those that are added meanwhile wait for the next time.
            with _current(context):
                context.synchronize()
            ended, self.freed[:count] = self.freed[:count], []
        for block in ended:
            block.free(force=True)
        return True

    @contextlib.contextmanager
    def defer(self) -> Iterator[None]:
        with self.lock:
            self.deferring += 1
        try:
            yield
        finally:
            with self.lock:
                self.deferring -= 1


@contextlib.contextmanager
def _current(context: Any) -> Iterator[None]:
    # `numba.cuda.close()` resets the contexts when the thread has none, and the driver waits for the thread's only.
    context.push()
    try:
        yield
    finally:
        context.pop()


class _Devices:
    """What serves the devices."""

    def __init__(self, settings: Tuple[Optional[int], Optional[int]]) -> None:
        self.settings = settings
        self.backend = Backend("cuda")
        self.served: Dict[int, _Served] = {}

    def of(self, device: int) -> _Served:
        with _lock:
            served = self.served.get(device)
            if served is None:
                budget, keep = self.settings
                served = self.served[device] = _Served(self.backend.pool(device, budget, keep))
            return served


@functools.lru_cache(maxsize=None)
def _manager() -> Any:
    """Returns the class that Numba instantiates for each context."""
    cuda = _cuda()
    base: Any = cuda.HostOnlyCUDAMemoryManager

    class MemoryManager(base):
        @property
        def interface_version(self) -> int:
            return 1

        @property
        def _served(self) -> _Served:
            return _devices().of(int(self.context.device.id))

        def initialize(self) -> None:
            """Does nothing: the pool of a device is created with its first block."""

        def memalloc(self, size: int) -> Any:
            served = self._served
            if served.is_much():
                served.free(self.context)
            try:
                block = served.pool.alloc(size, LIBRARY_ALIGNMENT)
            except OutOfMemory:
                if served.deferring or not served.free(self.context):
                    raise
                block = served.pool.alloc(size, LIBRARY_ALIGNMENT)
            block._lent = "an array of Numba"  # taking its memory away needs force=True
            # The finalizer, and not this object: a pointer may outlive its context.
            free = functools.partial(served.add, block)
            return cuda.MemoryPointer(weakref.proxy(self.context), ctypes.c_void_p(block.address), size, finalizer=free)

        def get_memory_info(self) -> Any:
            free, total = _devices().backend.memory(int(self.context.device.id))
            return cuda.MemoryInfo(free=free, total=total)

        def get_ipc_handle(self, memory: Any) -> Any:
            raise Unsupported(
                "get_ipc_handle: CUDA's legacy IPC does not know memory of virtual memory management; use Pool.memory_at and "
                "PhysicalMemory.export_fd"
            )

        def reset(self) -> None:
            # Page-locked memory too: freeing it may need the context.
            with _current(self.context):
                super().reset()
                self._served.free(self.context)

        @contextlib.contextmanager
        def defer_cleanup(self) -> Iterator[None]:
            with super().defer_cleanup(), self._served.defer():
                yield

    return MemoryManager


def __getattr__(name: str) -> Any:
    # Numba imports the module that NUMBA_CUDA_MEMORY_MANAGER names, and takes this from it.
    if name == "_numba_memory_manager":
        return _manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _devices() -> _Devices:
    global _serving
    with _lock:
        if _serving is None:
            _serving = _Devices((None, None))
        return _serving


def enable(*, budget: Optional[SupportsIndex] = None, keep: Optional[SupportsIndex] = None) -> None:
    """Makes Numba-CUDA allocate device memory from pools of gpu-vmm: ``numba.cuda.set_memory_manager``.

    Call it before Numba uses a device: contexts keep the memory manager that they have begun with. The environment variable
    ``NUMBA_CUDA_MEMORY_MANAGER=gpu_vmm.numba`` does the same without a call. ``budget``: the largest number of bytes that a device's pool
    may hold, None for no limit. ``keep``: the largest number of free bytes that it keeps, None for all. A second call with the same settings
    does nothing.

    Numba names no stream. So memory of arrays that have ended is reused after a wait for the device, which an allocation makes for
    64 MiB or 64 arrays at a time, and not within ``numba.cuda.defer_cleanup``. If memory is short, Numba's callers get OutOfMemory, a MemoryError.

    Raises NotInstalled without Numba-CUDA, Unsupported without a driver, Error if it is enabled with other settings.
    """
    global _serving
    cuda = _cuda()
    wanted = options(0, budget, keep)  # checks them
    settings = (wanted.budget or None, None if keep is None else unsigned("keep", keep))
    with _lock:
        if _serving is not None and _serving.settings != settings:
            raise Error(f"enable: Numba is already served with (budget, keep) = {_serving.settings}")
        made = _serving or _Devices(settings)
        cuda.set_memory_manager(_manager())
        _serving = made


def pool(device: Optional[SupportsIndex] = None) -> Pool:
    """Returns the pool of a device, None for Numba's current one. Raises Error before :func:`enable`."""
    if _serving is None:
        raise Error("pool: Numba is not served by gpu-vmm; call gpu_vmm.numba.enable() first")
    number = int(_cuda().current_context().device.id) if device is None else int(device)
    return _serving.of(number).pool
