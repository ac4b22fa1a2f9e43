"""The keys of ``vec[key]``: one position, or a range of positions."""

from __future__ import annotations

import operator
from typing import Any

from ._dtype import digits, shown
from .errors import InvalidArgument, OutOfRange


def position(key: Any, length: int) -> int:
    """Returns the position of one element; negative numbers count from the end.

    Raises OutOfRange, an IndexError, if the element does not exist, TypeError if the key is no integer.
    """
    try:
        at = operator.index(key)
    except TypeError:
        raise TypeError(f"index: {shown(key)} is neither an integer nor a slice; a vector has one dimension") from None
    if not -length <= at < length:
        raise OutOfRange(f"index: {digits(at)} is out of range for {length} elements")
    return at if at >= 0 else at + length


def positions(key: slice, length: int) -> range:
    """Returns the positions of a slice, as for a list. Raises InvalidArgument for a step of zero, TypeError for other bounds."""
    try:
        return range(*key.indices(length))
    except ValueError:
        raise InvalidArgument("index: the step of a slice must not be 0") from None
