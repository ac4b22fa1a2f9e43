"""What calls return: dictionaries for Python, whose keys type checkers know. Sizes and offsets are bytes, times seconds."""

from __future__ import annotations

from typing import List, Literal, Optional, Tuple, TypedDict


class DeviceInfo(TypedDict):
    """A device of a backend."""

    device: int
    name: str
    total: int
    granularity: int
    """The driver maps memory in multiples of this."""
    unusable: Optional[str]
    """Why it cannot be used; None for a device that can."""


class BackendInfo(TypedDict):
    """``Backend.info()``."""

    backend: Literal["cuda", "hip", "host"]
    driver: str
    driver_number: int
    library: str
    devices: List[DeviceInfo]
    quirks: List[str]
    """The known deviations of this driver."""


class DriverCalls(TypedDict):
    """How often a pool has called the driver, by function."""

    create: int
    map: int
    unmap: int
    set_access: int
    other: int


class BinStats(TypedDict):
    """Small blocks of one size."""

    size: int
    """Requests are rounded up to this."""
    live: int
    """The number of blocks in use."""
    free: int
    """The number of blocks that are ready."""


class PoolStats(TypedDict):
    """``Pool.stats()``."""

    live: int
    """What live blocks asked for."""
    live_blocks: int
    """The number of live blocks."""
    cached: int
    """Ready in front of threads, for the next request of the same size."""
    pending: int
    """Freed, and waits for a stream or a fence."""
    kept: int
    """Physical memory that no block uses."""
    held: int
    """All physical memory of the pool."""
    mapped: int
    """Addresses with memory; free memory may be behind several of them."""
    reserved: int
    """Addresses that are reserved."""
    peak_live: int
    """The most that blocks took at one time, rounded as they are."""
    peak_held: int
    """The most physical memory at one time."""
    allocations: int
    """The number of all blocks so far."""
    driver_calls: DriverCalls
    bins: List[BinStats]


class BlockSnapshot(TypedDict):
    """A part of a range of addresses."""

    offset: int
    size: int
    state: Literal["live", "cached", "pending", "bins", "free"]
    """``bins``: blocks of one small size lie in it, some of them free."""
    stream: int
    """The stream that it belongs to, by the vendor's handle."""


class PagesSnapshot(TypedDict):
    """Mapped pages that follow each other and are alike."""

    offset: int
    count: int
    frame: int
    """The number of the first page's physical memory; the following pages have the following numbers."""
    used: bool
    """Whether a block lies in them."""


class SpaceSnapshot(TypedDict):
    """One range of addresses, all of one tag."""

    tag: str
    base: int
    reserved: int
    suspended: bool
    blocks: List[BlockSnapshot]
    pages: List[PagesSnapshot]


class FramesSnapshot(TypedDict):
    """Physical memory of one page each, whose numbers follow each other."""

    frame: int
    count: int


class Moment(TypedDict):
    """A point of a pool's timeline."""

    at: float
    live: int
    pending: int
    held: int


class PoolSnapshot(TypedDict):
    """``Pool.snapshot()``."""

    version: int
    device: str
    """The backend, its driver and the device, for people."""
    at: float
    """When it was taken, since the pool was made."""
    page: int
    """The size of one piece of physical memory."""
    stats: PoolStats
    spaces: List[SpaceSnapshot]
    unmapped: List[FramesSnapshot]
    """Physical memory that is behind no address."""
    timeline: List[Moment]


class ArrayInterface(TypedDict):
    """``__array_interface__``."""

    shape: Tuple[int]
    typestr: str
    data: memoryview
    version: int


class CudaArrayInterface(TypedDict):
    """``__cuda_array_interface__``."""

    shape: Tuple[int]
    typestr: str
    data: Tuple[int, bool]
    """The address, and whether the memory is read-only."""
    version: int
    stream: Optional[int]
