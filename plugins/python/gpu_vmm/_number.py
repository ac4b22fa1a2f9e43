"""Enumerations of the C library's numbers."""

from __future__ import annotations

from enum import IntEnum


class Number(IntEnum):
    """An enumeration whose members are printed as their numbers, as Python 3.11 and later do."""

    def __str__(self) -> str:
        return str(int(self))
