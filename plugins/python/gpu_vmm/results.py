"""The results of calls: dictionaries with typed keys. Sizes and offsets are bytes, times are seconds."""

from __future__ import annotations

from typing import List, Literal, Optional, Tuple, TypedDict


class DeviceInfo(TypedDict):
    """A device of a backend."""

    device: int
    name: str
    uuid: Optional[str]
    """The identifier by which files of regions name the device; None if the driver reports none."""
    total: int
    granularity: int
    """The driver maps memory in multiples of this size."""
    unusable: Optional[str]
    """Why the device cannot be used; None if it can."""
    no_virtual_memory: Optional[str]
    """Why the device has no virtual memory management, so that vectors and pools are plain allocations; None if it has."""
    compute_mode: Optional[Literal["default", "exclusive process", "prohibited"]]
    """Which processes may create contexts on the device, as of the opening; None if the driver does not report it."""


class BackendInfo(TypedDict):
    """``Backend.info()``."""

    backend: Literal["cuda", "hip", "host"]
    driver: str
    driver_number: int
    library: str
    devices: List[DeviceInfo]
    quirks: List[str]
    """The known deviations of this driver."""


class AddressRange(TypedDict):
    """A range of addresses."""

    address: int
    size: int


class AddressAccess(TypedDict):
    """The access of a device to a mapping."""

    device: int
    level: int
    """As ``vmm.Access``."""


class AddressMapping(AddressRange):
    """The mapping that contains an address."""

    device: int
    """The device that owns the memory."""
    memory: str
    """The properties of the memory."""
    poisoned: bool
    """Whether an operation on it failed and so did the rollback."""
    access: List[AddressAccess]


class AddressBlock(AddressRange):
    """The block of a pool that contains an address."""

    tag: str


class AddressInfo(TypedDict):
    """``at()``: what this process has at an address."""

    backend: Literal["cuda", "hip", "host"]
    region: AddressRange
    tag: str
    """The region's tag, or the tag of the pool whose blocks it holds."""
    is_pool: bool
    is_guard: bool
    """Whether the address lies in a guard, where nothing is ever mapped."""
    suspended: bool
    mapping: Optional[AddressMapping]
    block: Optional[AddressBlock]
    text: str
    """The same in one line."""


class CapabilityInfo(TypedDict):
    """``vmm.Device.capabilities()``: what a device can do."""

    feature: str
    """Its name, such as ``peer access``."""
    available: bool
    found_by: str
    """How it was found."""
    note: str
    """Why the feature is missing, or its limits."""


class PageListStats(TypedDict):
    """``vmm.PageList.stats()``."""

    page: int
    """The size of one page."""
    held: int
    """All pages, free and in use."""
    free: int
    budget: int
    """Rounded down to whole pages."""


class DriverCalls(TypedDict):
    """The number of a pool's driver calls, by function."""

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
    """The number of free blocks."""


class PoolStats(TypedDict):
    """``Pool.stats()``."""

    live: int
    """The sum of the sizes that live blocks requested."""
    live_blocks: int
    """The number of live blocks."""
    cached: int
    """Free blocks in the caches of threads, for the next request of the same size."""
    pending: int
    """Freed blocks that wait for a stream or a fence."""
    kept: int
    """Physical memory that no block uses."""
    held: int
    """All physical memory of the pool."""
    mapped: int
    """Mapped addresses; the same free memory may be mapped at several addresses."""
    reserved: int
    """Reserved addresses."""
    peak_live: int
    """The largest sum of the rounded sizes of live blocks so far."""
    peak_held: int
    """The largest amount of physical memory so far."""
    allocations: int
    """The number of allocations so far."""
    driver_calls: DriverCalls
    bins: List[BinStats]


class KindInfo(TypedDict):
    """``Pool.kinds()``: a kind of memory of a pool."""

    memory: str
    """What the memory is, such as ``host memory of device 0``."""
    stats: PoolStats


class BlockSnapshot(TypedDict):
    """A part of an address range."""

    offset: int
    size: int
    state: Literal["live", "cached", "pending", "bins", "free"]
    """``bins``: contains blocks of one small size, some of them free."""
    stream: int
    """The vendor's handle of the stream that it belongs to."""


class PagesSnapshot(TypedDict):
    """Consecutive mapped pages in the same state."""

    offset: int
    count: int
    frame: int
    """The number of the first page's physical memory; the numbers of the following pages are consecutive."""
    used: bool
    """Whether a block uses them."""


class SpaceSnapshot(TypedDict):
    """One address range, all of one tag."""

    tag: str
    base: int
    reserved: int
    suspended: bool
    blocks: List[BlockSnapshot]
    pages: List[PagesSnapshot]


class FramesSnapshot(TypedDict):
    """Physical pages with consecutive numbers."""

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
    """The backend, its driver and the device, as readable text."""
    at: float
    """The time of the snapshot, since the pool was created."""
    page: int
    """The size of a page."""
    stats: PoolStats
    spaces: List[SpaceSnapshot]
    unmapped: List[FramesSnapshot]
    """Physical memory that is not mapped at any address."""
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


class ServerInfo(TypedDict):
    """A server that keeps memory."""

    version: str
    """The version of gpu-vmm that runs."""
    vendor: str
    process: int
    held: int
    """The memory that it holds or has promised, in bytes."""
    old: int
    """The part of it that is in no region any more and that clients still use."""
    budget: Optional[int]
    clients: int
    """The number of connections, this one included."""


class RegionInfo(TypedDict):
    """A region of a server."""

    name: str
    address: int
    """Its address in every client."""
    size: int
    handles: int
    """The number of its memory handles."""
    device: str
    """The UUID of the device."""
    epoch: int
    """0 before the first commit."""
    layout: int
    """The size of its layout, in bytes."""
    user: int
    group: int
    mode: str
    """In octal, such as ``640``."""
    readers: int
    has_writer: bool
    waiting: int
    """The number of clients that wait for a lease."""


class ClientInfo(TypedDict):
    """A client of a server with a lease, or one that waits for a lease."""

    process: int
    """0 if the server cannot see it."""
    user: int
    region: str
    lease: Literal["read", "write"]
    waits: bool
    epoch: int
    """The epoch that it has mapped."""
    bytes: int
    """The memory that it keeps alive or fills."""
    lingers: bool
    """Whether its connection has ended without notice and its process has not: it may still map the memory."""


class ProgramInfo(TypedDict):
    """A pool that a server grants its budget."""

    process: int
    """0 if the server cannot see it."""
    user: int
    name: str
    """Empty for a program of another user."""
    device: str
    """The UUID of the device."""
    priority: int
    granted: int
    """Its part of the budget."""
    reserved: int
    """The part of the budget that it keeps, by its last report."""
    held: int
    live: int
    can_sleep: int
    """The memory of its tags that can sleep and do not yet."""
    asleep: int
    wants: int
    """What it has requested and waits for; 0 if it does not wait."""
    waited_ms: int
    waits_for: str
    answers: bool
    """False if it has not answered the last question in time."""
    lingers: bool
    """Whether its connection has ended without notice and its process has not: it may still hold the memory."""


class DeviceBudget(TypedDict):
    """A device of which a server divides the memory."""

    device: str
    """Its UUID."""
    name: str
    budget: int
    held: int
    """What regions and programs have."""
    granted: int
    """The part of it that programs have."""


class ServerStatus(TypedDict):
    """``Client.status()``."""

    server: ServerInfo
    regions: List[RegionInfo]
    """The regions that this user may read, by name."""
    clients: List[ClientInfo]
    programs: List[ProgramInfo]
    devices: List[DeviceBudget]
