"""Tensors of blocks, such as a cache of keys and values, that grow and shrink together behind fixed addresses."""

from __future__ import annotations

import math
import operator
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, SupportsIndex, Tuple

from ._arguments import Path, unsigned
from ._dlpack import is_copy, reserved_capsule, versioned
from ._dtype import shown
from ._lock import new_lock, unless_inside
from ._owner import Owner
from ._typing import CapsuleType
from .backend import Backend
from .device_vec import _dlpack_device, _opened
from .errors import InvalidArgument, NotFound, NotMapped, OutOfRange, Suspended
from .serve._layout import Element, PartDType, contiguous, element_of, itemsize, name_of
from .vmm.pages import PageList
from .vmm.physical import PhysicalMemory
from .vmm.properties import Access, Placement, Properties
from .vmm.region import Region

TensorShape = Tuple[PartDType, Sequence[SupportsIndex]]
"""The element type and the shape of a tensor, in which -1 stands for the number of blocks."""


class _Plan(NamedTuple):
    """A tensor as blocks: segments of equal size, in each of which block follows block."""

    element: Element
    shape: Tuple[int, ...]
    """With the largest number of blocks."""
    segments: int
    """The number of elements in the dimensions before that of the blocks."""
    block: int
    """The bytes of a block in a segment."""
    axis: int


class BlockTensor(Owner):
    """A tensor of a :class:`BlockCache`, for libraries that take DLPack. ``cache[name]`` creates it.

    Its shape is that of all blocks that the cache can have. Elements of blocks that the cache does not have now must not be used: the device
    has no memory there. Tensors stay valid while the cache grows, shrinks, sleeps and wakes, and keep its memory when it is closed.

    Any thread may use it.
    """

    __slots__ = ("_cache", "_name", "_offset", "_plan", "_strides")
    _instead = "cache[name] creates another one"

    def __init__(self, cache: BlockCache, name: str, plan: _Plan, offset: int, stride: int) -> None:
        self._make_once("_cache")
        self._cache, self._name, self._plan, self._offset = cache, name, plan, offset
        outer, inner = plan.shape[: plan.axis], plan.shape[plan.axis + 1 :]
        step = stride // itemsize(plan.element)
        self._strides = (*(one * step for one in contiguous(outer)), math.prod(inner), *contiguous(inner))

    def __repr__(self) -> str:
        return f"<gpu_vmm.BlockTensor {self._name!r}: {self.dtype} {list(self.shape)} at offset {self._offset}>"

    @property
    def dtype(self) -> str:
        """The name of the element type."""
        return name_of(self._plan.element)

    @property
    def shape(self) -> Tuple[int, ...]:
        """The number of elements in each dimension, with all blocks that the cache can have."""
        return self._plan.shape

    @property
    def strides(self) -> Tuple[int, ...]:
        """The distance in elements between neighbours in each dimension."""
        return self._strides

    @property
    def address(self) -> int:
        """The address of the first element, which never changes."""
        return self._cache.region.address + self._offset

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Returns DLPack's type and number of the device. Types: 1 for the host, 2 for CUDA, 10 for ROCm."""
        return self._cache._dlpack_device

    def __dlpack__(
        self,
        *,
        stream: Optional[SupportsIndex] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> CapsuleType:
        """Returns a DLPack capsule of the elements, without a copy. Raises BufferError for a copy or another device, Suspended."""
        here = self.__dlpack_device__()
        if is_copy(here, dl_device, copy):
            raise BufferError("__dlpack__: blocks are exported without a copy alone; copy a slice of the consumer's tensor")
        new = versioned(here, stream, max_version, False)
        region = self._cache.region._handle
        return reserved_capsule(region, self._offset, self._plan.element, self._plan.shape, self._strides, new)


class BlockCache(Owner):
    """Tensors of blocks, such as the keys and values of all layers, that grow and shrink together. Their addresses never change.

    ``tensors``: the element type and the shape of each tensor by its name. One dimension of each shape is -1: that of the blocks, which may
    be behind others, as in ``(2, -1, 16, 8, 128)``. ``max_blocks``: the largest number of blocks; addresses are reserved for all of them, and
    memory is mapped for the first ``blocks`` blocks of each tensor::

        shape = ("bfloat16", (2, -1, 16, 8, 128))
        cache = gpu_vmm.BlockCache({f"layer.{n}": shape for n in range(32)}, max_blocks=100_000, blocks=1)
        layers = [torch.from_dlpack(cache[name]) for name in cache]  # of 100,000 blocks
        ...  # capture graphs, then measure the memory that is free
        cache.extend(20_000)
        cache.shrink(5_000)  # another program needs memory

    ``page``: the number of bytes that are mapped and unmapped at a time, 0 for the granularity. Blocks of one tensor share pages, so that each
    run of blocks takes up to one page more than its bytes. ``placement`` and ``address``: as for ``vmm.Region``.

    New blocks have undefined contents. Any thread may use it; calls of several threads run one at a time, and a call inside another one of
    the same thread raises Busy, as in a signal's handler. Needs virtual memory management.

    Raises InvalidArgument for no tensor, for a shape without a -1, and for sizes of 0; OutOfMemory, OutOfAddressSpace, AddressTaken,
    NoSuchDevice, Unsupported.
    """

    __slots__ = ("_blocks", "_device", "_dlpack_device", "_lock", "_max_blocks", "_page", "_pages", "_plans", "_region", "_starts", "_strides")
    _instead = "any thread and any object may use the same one"

    def __init__(
        self,
        tensors: Mapping[str, TensorShape],
        max_blocks: SupportsIndex,
        *,
        blocks: SupportsIndex = 0,
        backend: Optional[Backend] = None,
        device: SupportsIndex = 0,
        page: SupportsIndex = 0,
        placement: Placement = Placement.ANYWHERE,
        address: SupportsIndex = 0,
    ) -> None:
        self._make_once("_region")
        if not isinstance(tensors, Mapping):
            raise TypeError(f"tensors: expected a dict of element types and shapes by name, not {shown(tensors)}")
        most, opened, number = unsigned("max_blocks", max_blocks), _opened(backend), unsigned("device", device, 32)
        if not tensors or not most:
            raise InvalidArgument(f"BlockCache: {len(tensors)} tensors of up to {most} blocks; expected at least one of each")
        self._plans = {name: _planned(name, tensor, most) for name, tensor in tensors.items()}
        self._dlpack_device = _dlpack_device(opened, number)
        memory = Properties(device=number)
        unit = unsigned("page", page)
        # The list's own rounding decides, so it is asked before there is anything to budget.
        self._pages = PageList(opened, max(1, unit), 0, memory)
        self._page = self._pages.page_size
        self._strides: Dict[str, int] = {}
        self._starts: Dict[str, int] = {}
        end = 0
        for name, plan in self._plans.items():
            self._starts[name], self._strides[name] = end, -(-plan.block * most // self._page) * self._page
            end += plan.segments * self._strides[name]
        self._lock, self._blocks, self._max_blocks, self._device = new_lock(), 0, most, number
        self._region = Region(opened, unsigned("the size of all blocks, in bytes", end), memory, placement=placement, address=address)
        self.extend(blocks)

    def __repr__(self) -> str:
        where = f"{self._region.backend.name} device {self._device} at {self._region.address:#x}"
        return f"<gpu_vmm.BlockCache of {self._blocks} of {self._max_blocks} blocks in {len(self._plans)} tensors on {where}>"

    def __getitem__(self, name: str) -> BlockTensor:
        """Returns a tensor, for libraries that take DLPack. Raises NotFound if there is none of the name."""
        plan = self._plans.get(name)
        if plan is None:
            raise NotFound(f"BlockCache: there is no tensor {name!r}")
        return BlockTensor(self, name, plan, self._starts[name], self._strides[name])

    def __iter__(self) -> Iterator[str]:
        """Yields the names of the tensors, in order."""
        return iter(self._plans)

    def __len__(self) -> int:
        """Returns the number of blocks that have memory: in a suspended cache, those that :meth:`resume` restores."""
        return self._blocks

    @property
    def max_blocks(self) -> int:
        """The largest number of blocks, for which addresses are reserved."""
        return self._max_blocks

    @property
    def region(self) -> Region:
        """The region of all tensors. The cache decides what is mapped where."""
        return self._region

    @property
    def nbytes(self) -> int:
        """The number of bytes of device memory that the cache holds now; 0 while it is suspended."""
        return self._pages.stats()["held"]

    def extend(self, blocks: SupportsIndex) -> int:
        """Maps memory for more blocks behind the last one, in all tensors. Returns the number of bytes mapped.

        Waits for nothing, and may run while kernels use the other blocks. Raises OutOfRange for more than :attr:`max_blocks`, OutOfMemory,
        Suspended; the cache is then as before.
        """
        more = unsigned("blocks", blocks)
        with unless_inside(self._lock, "extend"):
            self._check_awake("extend")
            if more > self._max_blocks - self._blocks:
                raise OutOfRange(f"extend: {self._blocks} blocks and {more} more exceed max_blocks, {self._max_blocks}")
            runs = self._runs(self._blocks, self._blocks + more)
            size = sum(length for _, length in runs)
            try:
                self._pages.set_budget(self._size() + size)
                for at in self._offsets(runs):
                    self._region.map(at, self._pages.take())
                self._permit(runs)
                self._blocks += more
            except BaseException:
                self._unmap(runs)
                raise
            finally:
                self._settle()
        return size

    def shrink(self, blocks: SupportsIndex) -> int:
        """Returns the memory of the last blocks to the driver, in all tensors, after waiting for the devices. Returns the number of bytes.

        Nothing may use these blocks any more, also through tensors. A page that holds a part of another block stays. Raises OutOfRange for more
        blocks than there are, Suspended, and Busy for a capture or if an observer of the region refuses; the cache is then as before.
        """
        fewer = unsigned("blocks", blocks)
        with unless_inside(self._lock, "shrink"):
            self._check_awake("shrink")
            if fewer > self._blocks:
                raise OutOfRange(f"shrink: there are {self._blocks} blocks, {fewer - self._blocks} fewer than {fewer}")
            runs = self._runs(self._blocks - fewer, self._blocks)
            size = sum(length for _, length in runs)
            memory: Dict[int, PhysicalMemory] = {}
            try:
                # Their memory stays until all runs are unmapped, so that it can be mapped again.
                for at in self._offsets(runs):
                    memory[at] = self._region.physical(at)
                for first, length in runs:
                    self._region.unmap(first, length, force=True)
                self._blocks -= fewer
            except BaseException:
                self._put_back(runs, memory)
                raise
            finally:
                while memory:
                    memory.popitem()[1].close()
                self._settle()
        return size

    def suspend(self, keep: Optional[str] = "host", directory: Optional[Path] = None) -> int:
        """Returns all memory to the driver and keeps the addresses. Returns the number of bytes that went back.

        A cache that is suspended already stays as it is, and the result is 0. ``keep`` and ``directory`` are as for ``Pool.suspend``; None
        discards the contents. Nothing may use the tensors before :meth:`resume`. Raises Busy for a capture or if an observer refuses.
        """
        with unless_inside(self._lock, "suspend"):
            try:
                return self._region.suspend(keep, directory, force=True)
            finally:
                self._settle()

    def resume(self) -> int:
        """Maps memory for the same blocks at the same addresses. Returns the number of bytes mapped; 0 if it is not suspended.

        Raises OutOfMemory; the cache is then still suspended.
        """
        with unless_inside(self._lock, "resume"):
            try:
                self._pages.set_budget(self._size())
                return self._region.resume(self._pages)
            finally:
                self._settle()

    @property
    def is_suspended(self) -> bool:
        """Whether the cache is suspended."""
        return self._region.is_suspended

    def close(self) -> None:
        """Releases the cache now. Its memory and its addresses stay as long as a tensor of it exists. Later calls raise InvalidArgument."""
        self._region.close()
        self._pages.close()

    def _check_awake(self, operation: str) -> None:
        if self._region.is_suspended:
            raise Suspended(f"{operation}: the cache is suspended; resume it first")

    def _runs(self, before: int, after: int) -> List[Tuple[int, int]]:
        """Returns the offset and the length of the pages that the first ``after`` blocks need and the first ``before`` do not."""
        runs = []
        for name, plan in self._plans.items():
            have, end = (-(-plan.block * count // self._page) * self._page for count in (before, after))
            starts = (self._starts[name] + segment * self._strides[name] for segment in range(plan.segments))
            runs += [(start + have, end - have) for start in starts if end > have]
        return runs

    def _offsets(self, runs: Sequence[Tuple[int, int]]) -> Iterator[int]:
        """Yields the offset of each page."""
        for first, length in runs:
            yield from range(first, first + length, self._page)

    def _unmap(self, runs: Sequence[Tuple[int, int]]) -> None:
        """Unmaps what is mapped."""
        for first, length in runs:
            offsets = range(first, first + length, self._page)
            end = next((at for at in offsets if not self._is_mapped(at)), first + length)
            if end > first:
                self._region.unmap(first, end - first, force=True)

    def _put_back(self, runs: Sequence[Tuple[int, int]], memory: Mapping[int, PhysicalMemory]) -> None:
        """Maps memory again that was unmapped."""
        for at, one in memory.items():
            if not self._is_mapped(at):
                self._region.map(at, one)
        self._permit(runs)

    def _permit(self, runs: Sequence[Tuple[int, int]]) -> None:
        for first, length in runs:
            self._region.set_access(first, length, self._device, Access.READ_WRITE)

    def _is_mapped(self, at: int) -> bool:
        try:
            self._region.mapping(at)
        except NotMapped:
            return False
        return True

    def _size(self) -> int:
        """Returns the bytes of the pages of the blocks."""
        return sum(length for _, length in self._runs(0, self._blocks))

    def _settle(self) -> None:
        """Permits the pages of the blocks, or none in a suspended cache: the list returns others to the device."""
        self._pages.set_budget(0 if self._region.is_suspended else self._size())


def _planned(name: str, tensor: TensorShape, most: int) -> _Plan:
    """Checks the shape of a tensor."""
    try:
        dtype, given = tensor
        shape = [operator.index(size) for size in given]
    except (TypeError, ValueError):
        raise TypeError(f"BlockCache: the tensor {name!r} is {shown(tensor)}; expected an element type and a shape") from None
    if shape.count(-1) != 1 or any(size < 1 for size in shape if size != -1):
        raise InvalidArgument(f"BlockCache: the tensor {name!r} has the shape {shape}; expected positive sizes and one -1, for the blocks")
    element, axis = element_of(dtype), shape.index(-1)
    block = math.prod(shape[axis + 1 :]) * itemsize(element)
    return _Plan(element, (*shape[:axis], most, *shape[axis + 1 :]), math.prod(shape[:axis]), block, axis)
