"""Checks of what callers pass: ctypes would cut numbers and strings short without a word."""

from __future__ import annotations

import operator
import os
from typing import Optional, SupportsIndex, Union

from .errors import InvalidArgument

KEEP_NOTHING = 1
"""``GPU_VMM_KEEP_NOTHING``. In C, zero is the default."""

Folder = Union[str, "os.PathLike[str]"]


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
    try:
        encoded = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what}: {value!r} is not Unicode: {error.reason}") from error
    if b"\0" in encoded:
        raise InvalidArgument(f"{what}: {value!r} has a zero character in it")
    return encoded


def kept_in(keep: Optional[str], directory: Optional[Folder] = None) -> Optional[bytes]:
    """Where contents go: what ``gpu_vmm_suspend`` takes as ``keep``."""
    if directory is not None:
        if keep != "file":
            raise InvalidArgument(f"suspend: a directory is for keep=\"file\", not keep={keep!r}")
        folder = os.fspath(directory)
        if not isinstance(folder, str):
            raise TypeError(f"directory: a str is needed, not {type(folder).__name__}")
        if not folder:
            raise InvalidArgument("directory: '' is no folder; None is the one for temporary files")
        return text("directory", f"file:{folder}")
    return None if keep is None else text("keep", keep)


def limit(what: str, value: Optional[SupportsIndex], bits: int = 64) -> int:
    """A setting for C, where 0 says nothing."""
    if value is None:
        return 0
    number = unsigned(what, value, bits)
    if number == 0:
        raise InvalidArgument(f"{what}: 0 is none; None is as if nothing were said")
    return number


def kept_free(keep: Optional[SupportsIndex]) -> int:
    """How much free memory a pool keeps, for C: None is all."""
    return 0 if keep is None else max(unsigned("keep", keep), KEEP_NOTHING)
