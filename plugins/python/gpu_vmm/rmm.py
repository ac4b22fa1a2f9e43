"""RMM's memory from pools of gpu-vmm, one for each device: memory of cuDF and the other libraries of RAPIDS, and of CuPy."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from typing import Any, Dict, List, Optional, SupportsIndex, Tuple

from ._arguments import unsigned
from ._lock import new_lock
from ._pool_options import LIBRARY_ALIGNMENT, options
from .backend import Backend
from .errors import Error, InvalidArgument, NoSuchDevice, NotInstalled
from .pool import Block, Pool

# The budget, what is kept, and whether CuPy allocates by RMM.
_Settings = Tuple[Optional[int], Optional[int], bool]

_lock = new_lock()
_enabled: Optional[_Resources] = None
# RMM's containers of C++ call the functions of a resource for as long as they have memory of it, and keep no reference to them.
_kept: List[Any] = []

# The handle of the per-thread default stream, which means another stream in each thread.
_PER_THREAD = 2


def _imported(name: str, library: str) -> Any:
    try:
        # By name: a type checker could resolve `import rmm` to this module.
        return importlib.import_module(name)
    except ImportError as error:
        raise NotInstalled(f"gpu_vmm.rmm: {library} cannot be imported: {error}") from error


def _handle(stream: Any) -> int:
    return int(stream.__cuda_stream__()[1])


class _Device:
    """The functions that RMM calls for one device."""

    def __init__(self, backend: Backend, number: int, settings: _Settings) -> None:
        self.backend = backend
        self.number = number
        self.settings = settings
        self.made: Optional[Pool] = None
        self.blocks: Dict[int, Block] = {}

    def pool(self) -> Pool:
        # With the first use: some devices may be of no use to this process.
        if self.made is None:
            with _lock:
                if self.made is None:
                    budget, keep, _ = self.settings
                    self.made = self.backend.pool(self.number, budget, keep)
        return self.made

    def allocate(self, size: int, stream: Any) -> int:
        if size == 0:
            return 0
        handle = _handle(stream)
        if handle == _PER_THREAD:
            raise InvalidArgument(
                "allocate: the stream is the per-thread default stream, whose handle means another stream in each thread; "
                "use a stream of rmm.pylibrmm.stream.Stream()"
            )
        block = self.pool().alloc(size, LIBRARY_ALIGNMENT, handle)
        block._lent = "a buffer of RMM"  # taking its memory away needs force=True
        address = block.address
        self.blocks[address] = block
        return address

    def deallocate(self, address: int, size: int, stream: Any) -> None:
        block = self.blocks.pop(address, None)
        if block is None:
            return
        try:
            handle = _handle(stream)
            if handle != block.stream:
                block.record_use(handle)
            block.free(force=True)
        except Error as error:
            # RMM's destructors call this function: an exception would end the process.
            if not sys.is_finalizing():
                warnings.warn(f"gpu_vmm.rmm: a block of {size} bytes cannot be freed: {error}", RuntimeWarning, stacklevel=2)


class _Resources:
    """The resources of all devices."""

    def __init__(self, rmm: Any, settings: _Settings) -> None:
        self.settings = settings
        self.backend = Backend("cuda")
        self.devices = [_Device(self.backend, number, settings) for number in range(self.backend.devices)]
        self.former = [(device.number, rmm.mr.get_per_device_resource(device.number)) for device in self.devices]
        self.cupy: Optional[Any] = None

    def restore(self, rmm: Any) -> None:
        """Restores what RMM and CuPy had before."""
        for number, resource in self.former:
            rmm.mr.set_per_device_resource(number, resource)
        if self.cupy is not None:
            self.cupy.cuda.set_allocator(self.cupy.get_default_memory_pool().malloc)


def enable(*, budget: Optional[SupportsIndex] = None, keep: Optional[SupportsIndex] = None, cupy: bool = True) -> None:
    """Makes RMM allocate from pools of gpu-vmm on every device, and thereby cuDF, cuML and all libraries that allocate by RMM.

    ``budget``: the largest number of bytes that a device's pool may hold, None for no limit. ``keep``: the largest number of free bytes
    that it keeps, None for all. ``cupy``: whether CuPy, if it is installed, allocates by RMM from then on as well. A second call with
    the same settings does nothing. If memory is short, callers get a MemoryError with the pool's statistics.

    Call it before the first allocation: memory of an earlier resource stays its own. Streams that RMM allocates on must exist until the
    process ends or ``pool().forget_stream(stream)`` is called.

    Raises NotInstalled without RMM, Unsupported without a driver, Error if it is enabled with other settings.
    """
    global _enabled
    rmm = _imported("rmm", "RMM")
    wanted = options(0, budget, keep)  # checks them
    settings = (wanted.budget or None, None if keep is None else unsigned("keep", keep), cupy)
    with _lock:
        if _enabled is not None:
            if _enabled.settings != settings:
                raise Error(f"enable: RMM is already served with (budget, keep, cupy) = {_enabled.settings}; call disable() first")
            return
        served, allocator = None, None
        if cupy and importlib.util.find_spec("cupy") is not None:
            served = _imported("cupy", "CuPy")
            allocator = _imported("rmm.allocators.cupy", "RMM").rmm_cupy_allocator
        made = _Resources(rmm, settings)
        try:
            for device in made.devices:
                resource = rmm.mr.CallbackMemoryResource(device.allocate, device.deallocate)
                _kept.append((resource, device))
                rmm.mr.set_per_device_resource(device.number, resource)
            made.cupy = served
            if served is not None:
                served.cuda.set_allocator(allocator)
            _enabled = made
        except BaseException:
            made.restore(rmm)
            raise


def disable() -> None:
    """Restores the resources that RMM had before, and CuPy's own default memory pool, and returns free memory to the driver.

    Existing memory stays: it returns to its pool when it is freed.
    """
    global _enabled
    with _lock:
        ended = _enabled
        if ended is None:
            return
        ended.restore(_imported("rmm", "RMM"))
        _enabled = None
    for device in ended.devices:
        if device.made is not None:
            device.made.trim()


def pool(device: SupportsIndex = 0) -> Pool:
    """Returns the pool of a device, for its statistics and its limit. Raises Error before :func:`enable`; NoSuchDevice."""
    serving, number = _enabled, unsigned("device", device, 32)
    if serving is None:
        raise Error("pool: RMM is not served by gpu-vmm; call gpu_vmm.rmm.enable() first")
    if number >= len(serving.devices):
        raise NoSuchDevice(f"pool: device {number} does not exist; there are {len(serving.devices)}")
    return serving.devices[number].pool()
