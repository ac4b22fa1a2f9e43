"""Ranges of addresses that do not overlap, found by any address in them."""

from __future__ import annotations

import bisect
from typing import Dict, Generic, List, Optional, Tuple, TypeVar

from ._lock import new_lock

Value = TypeVar("Value")


class Ranges(Generic[Value]):
    """A map from ranges to values. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._starts: List[int] = []
        self._values: Dict[int, Tuple[int, Value]] = {}

    def add(self, start: int, size: int, value: Value) -> bool:
        """Adds a range. Returns False if it overlaps another one."""
        with self._lock:
            at = bisect.bisect_left(self._starts, start)
            if at and self._starts[at - 1] + self._values[self._starts[at - 1]][0] > start:
                return False
            if at < len(self._starts) and self._starts[at] < start + size:
                return False
            self._starts.insert(at, start)
            self._values[start] = (size, value)
            return True

    def find(self, address: int) -> Optional[Tuple[int, int, Value]]:
        """Returns the start, the size and the value of the range that contains an address."""
        with self._lock:
            at = bisect.bisect_right(self._starts, address) - 1
            if at < 0:
                return None
            start = self._starts[at]
            size, value = self._values[start]
            return (start, size, value) if address < start + size else None

    def remove(self, start: int, size: Optional[int] = None) -> Optional[Value]:
        """Removes the range that begins at an address and, unless it is None, has this size. Returns its value."""
        with self._lock:
            found = self._values.get(start)
            if found is None or (size is not None and found[0] != size):
                return None
            del self._values[start]
            del self._starts[bisect.bisect_left(self._starts, start)]
            return found[1]
