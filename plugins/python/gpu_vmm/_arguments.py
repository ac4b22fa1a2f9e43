"""Checks of arguments: ctypes would silently truncate numbers and strings."""

from __future__ import annotations

import operator
import os
import sys
from enum import IntEnum
from typing import Any, Optional, SupportsIndex, Type, TypeVar, Union

from ._dtype import digits, shown
from .errors import InvalidArgument

KEEP_NOTHING = 1
"""``GPU_VMM_KEEP_NOTHING``. In C, zero is the default."""

_IN_BYTES = {
    "alignment", "budget", "extend_by", "guard", "keep", "length", "offset", "other_offset", "page", "pinned_offset", "size", "source_offset",
}  # fmt: skip
"""The arguments that are numbers of bytes."""

Kind = TypeVar("Kind", bound=IntEnum)

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
"""A path of a file or a directory."""


def unsigned(what: str, value: SupportsIndex, bits: int = 64) -> int:
    """Returns an unsigned integer of ``bits`` bits. Raises InvalidArgument if it does not fit, TypeError if it is no integer."""
    try:
        number = operator.index(value)
    except TypeError:
        unit = ", a number of bytes" if what in _IN_BYTES else ""
        raise TypeError(f"{what}: expected an integer{unit}, not {shown(value)}") from None
    if not 0 <= number < 1 << bits:
        raise InvalidArgument(f"{what}: {digits(number)} is not between 0 and 2^{bits} - 1")
    return number


def signed(what: str, value: SupportsIndex, bits: int) -> int:
    """Returns a signed integer of ``bits`` bits. Raises InvalidArgument if it does not fit, TypeError if it is no integer."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}: expected an integer, not {shown(value)}") from None
    most = (1 << bits - 1) - 1
    if not -most - 1 <= number <= most:
        raise InvalidArgument(f"{what}: {digits(number)} is not between {-most - 1} and {most}")
    return number


def member(what: str, value: Any, kind: Type[Kind]) -> Kind:
    """Returns a member of an enumeration. Raises InvalidArgument for another number, TypeError for no number."""
    try:
        return kind(operator.index(value))
    except TypeError:
        raise TypeError(f"{what}: expected a {kind.__name__}, not {shown(value)}") from None
    except ValueError:
        raise InvalidArgument(f"{what}: {shown(value)} is no {kind.__name__}; expected one of {', '.join(kind.__members__)}") from None


def text(what: str, value: str) -> bytes:
    """Returns a string for C. Raises InvalidArgument if it contains a zero character, TypeError if it is no string."""
    if not isinstance(value, str):
        raise TypeError(f"{what}: expected a str, not {type(value).__name__}")
    try:
        encoded = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what}: {value!r} is not Unicode: {error.reason}") from error
    if b"\0" in encoded:
        raise InvalidArgument(f"{what}: {value!r} contains a zero character")
    return encoded


def path_of(what: str, value: Path) -> bytes:
    """Returns a path for C: the bytes of the name that Python's own ``open`` gives the file, in any locale.

    Raises InvalidArgument for a character that no file name of the locale can have, TypeError if it is no path.
    """
    try:
        encoded = os.fsencode(value)
    except TypeError:
        raise TypeError(f"{what}: expected a str, bytes or os.PathLike, not {type(value).__name__}") from None
    except UnicodeEncodeError as error:
        encoding = f"{sys.getfilesystemencoding()}, the encoding of file names here"
        raise InvalidArgument(f"{what}: {value!r} cannot be encoded as {encoding}: {error.reason}") from error
    if b"\0" in encoded:
        raise InvalidArgument(f"{what}: {value!r} contains a zero character")
    return encoded


def kept_in(keep: Optional[str], directory: Optional[Path] = None) -> Optional[bytes]:
    """Returns the argument ``keep`` of ``gpu_vmm_suspend``."""
    if directory is not None:
        if keep != "file":
            raise InvalidArgument(f"suspend: directory needs keep=\"file\", not keep={keep!r}")
        folder = path_of("directory", directory)
        if not folder:
            raise InvalidArgument("directory: '' is no directory; pass None for the one for temporary files")
        return b"file:" + folder
    if isinstance(keep, str) and keep.startswith(("file:", "files:")):
        return path_of("keep", keep)
    return None if keep is None else text("keep", keep)


def limit(what: str, value: Optional[SupportsIndex], bits: int = 64) -> int:
    """Returns a setting for C, in which 0 means the default."""
    if value is None:
        return 0
    number = unsigned(what, value, bits)
    if number == 0:
        raise InvalidArgument(f"{what}: 0 is not allowed; pass None for the default")
    return number


def kept_free(keep: Optional[SupportsIndex]) -> int:
    """Returns the number of free bytes that a pool keeps, for C. None means all."""
    return 0 if keep is None else max(unsigned("keep", keep), KEEP_NOTHING)
