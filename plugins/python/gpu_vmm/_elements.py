"""A region's memory as elements of a type: reads, writes and growth. All positions and counts are elements."""

from __future__ import annotations

import ctypes
from typing import Any, Iterator, List

from ._arguments import unsigned
from ._dtype import DType
from ._handles import RegionHandle
from ._library import check, library
from ._values import Contents, unpack
from .errors import InvalidArgument, OutOfAddressSpace, OutOfMemory

_PIECE = 1 << 20
"""The number of bytes that are copied at a time."""


class Elements:
    """The memory of a region. The vector that owns the region keeps the number of elements in use."""

    __slots__ = ("_address", "_dtype", "_on_host", "_region", "moves")

    def __init__(self, region: RegionHandle, dtype: DType, on_host: bool) -> None:
        self._region, self._dtype, self._on_host = region, dtype, on_host
        plain = ctypes.c_bool()
        check(library().gpu_vmm_region_is_plain(region, ctypes.byref(plain)))
        # Whether the memory moves when it grows or shrinks.
        self.moves: bool = plain.value
        self._address = self._first()

    @property
    def address(self) -> int:
        return self._first() if self.moves else self._address

    def _first(self) -> int:
        address = ctypes.c_uint64()
        check(library().gpu_vmm_region_address(self._region, ctypes.byref(address)))
        return address.value

    def capacity(self) -> int:
        """Returns the number of elements that fit the region's memory; 0 while the region is suspended."""
        size = ctypes.c_uint64()
        check(library().gpu_vmm_region_size(self._region, ctypes.byref(size)))
        return size.value // self._dtype.itemsize

    def pieces(self, start: int, end: int) -> Iterator[range]:
        """Yields the positions from ``start`` to ``end`` in pieces of at most 1 MiB, each copied at once."""
        some = _PIECE // self._dtype.itemsize
        for at in range(start, end, some):
            yield range(at, min(at + some, end))

    def at(self, where: range) -> List[Any]:
        """Returns the elements at these positions. Also reads the elements between them, up to 1 MiB at a time."""
        if where.step < 0:
            return self.at(where[::-1])[::-1]
        found: List[Any] = []
        some = max(1, _PIECE // self._dtype.itemsize // where.step)
        for first in range(0, len(where), some):
            part = where[first : first + some]
            found += unpack(self._dtype, self.get(part[0], part[-1] - part[0] + 1))[:: where.step]
        return found

    def get(self, start: int, count: int) -> bytearray:
        """Returns the bytes of ``count`` elements, starting at ``start``."""
        contents = bytearray(count * self._dtype.itemsize)
        if contents:
            room = (ctypes.c_char * len(contents)).from_buffer(contents)
            check(library().gpu_vmm_region_read(self._region, start * self._dtype.itemsize, room, len(contents)))
        return contents

    def get_into(self, start: int, place: Any, size: int) -> None:
        """Copies ``size`` bytes from the element ``start`` on to a place in host memory, an array of ctypes."""
        if size and self._holds(ctypes.addressof(place), size):
            # The library cannot copy a region's memory to itself.
            ctypes.memmove(place, bytes(self.get(start, size // self._dtype.itemsize)), size)
        elif size:
            check(library().gpu_vmm_region_read(self._region, start * self._dtype.itemsize, place, size))

    def put(self, start: int, contents: Contents) -> None:
        """Writes the bytes of elements, starting at ``start``."""
        view = memoryview(contents)
        if view.nbytes:
            # bytes are passed directly. For any other read-only buffer, ctypes cannot find the address, so it is copied.
            given: Any = contents if isinstance(contents, bytes) else None
            if given is None:
                flat = view.cast("B")
                given = None if view.readonly else (ctypes.c_char * view.nbytes).from_buffer(flat)
                # The library cannot copy a region's memory to itself.
                if given is None or self._holds(ctypes.addressof(given), view.nbytes):
                    given = flat.tobytes()
            check(library().gpu_vmm_region_write(self._region, start * self._dtype.itemsize, given, view.nbytes))

    def put_apart(self, where: range, contents: Contents) -> None:
        """Writes each of these elements on its own and does not touch the bytes between them."""
        size, apart = self._dtype.itemsize, memoryview(contents).tobytes()  # a copy, since the values may be in this region
        for number, at in enumerate(where):
            self.put(at, apart[number * size : (number + 1) * size])

    def fill(self, where: range, one: bytes) -> None:
        """Writes the bytes of one element to all of these positions."""
        if where.step != 1:
            for at in where:
                self.put(at, one)
            return
        for part in self.pieces(where.start, where.stop):
            self.put(part.start, one * len(part))

    def grow(self, count: int) -> None:
        """Maps memory for ``count`` elements."""
        self._grow(self._bytes(count))

    def make_room(self, count: int) -> None:
        """Maps memory for ``count`` elements, and at least an eighth more than before, so that small steps rarely call the driver."""
        needed = self._bytes(count)
        capacity = self.capacity() * self._dtype.itemsize
        if needed <= capacity:
            return
        more = capacity + capacity // 8
        if more > needed:
            try:
                return self._grow(more)
            except (OutOfMemory, OutOfAddressSpace, InvalidArgument):
                pass  # there may still be enough for `count` elements
        self._grow(needed)

    def _grow(self, size: int) -> None:
        check(library().gpu_vmm_region_grow(self._region, size))

    def _bytes(self, count: int) -> int:
        return unsigned(f"{count} elements of {self._dtype.name}, in bytes", count * self._dtype.itemsize)

    def _holds(self, address: int, size: int) -> bool:
        """Returns whether some of these host bytes are in this memory."""
        if not self._on_host:
            return False
        start = self.address
        return address < start + self.capacity() * self._dtype.itemsize and start < address + size
