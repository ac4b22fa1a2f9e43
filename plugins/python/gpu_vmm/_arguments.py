"""Checks of what callers pass: ctypes would cut numbers and strings short without a word."""

from __future__ import annotations

import operator
from typing import Optional, SupportsIndex

from .errors import InvalidArgument

ALL = (1 << 64) - 1
"""``UINT64_MAX``: keep all."""


def unsigned(what: str, value: SupportsIndex, bits: int = 64) -> int:
    """A number that fits. Raises InvalidArgument where it does not, TypeError where it is no integer."""
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise InvalidArgument(f"{what}: {number} is not between 0 and 2^{bits} - 1")
    return number


def text(what: str, value: str) -> bytes:
    """A string for C. Raises InvalidArgument where it has a zero in it, TypeError where it is no string."""
    if not isinstance(value, str):
        raise TypeError(f"{what}: a str is needed, not {type(value).__name__}")
    encoded = value.encode("utf-8", "surrogateescape")
    if b"\0" in encoded:
        raise InvalidArgument(f"{what}: {value!r} has a zero character in it")
    return encoded


def kept_in(keep: Optional[str], directory: Optional[str] = None) -> Optional[bytes]:
    """Where contents go: what ``gpu_vmm_suspend`` takes as ``keep``."""
    if directory is not None:
        if keep != "file":
            raise InvalidArgument(f"suspend: a directory is for keep=\"file\", not keep={keep!r}")
        return text("directory", f"file:{directory}")
    return None if keep is None else text("keep", keep)


def limit(what: str, value: Optional[SupportsIndex], bits: int = 64) -> int:
    """A setting for C, where 0 says nothing."""
    if value is None:
        return 0
    number = unsigned(what, value, bits)
    if number == 0:
        raise InvalidArgument(f"{what}: 0 is none; None is as if nothing were said")
    return number
