"""Descriptors that the library creates for the caller."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable

from .._library import check


def new_descriptor(call: Callable[..., int], *arguments: Any) -> int:
    """Returns the descriptor that a function of the library creates. The place for it is its last argument."""
    number = ctypes.c_int32(-1)
    try:
        check(call(*arguments, ctypes.byref(number)))
        return number.value
    except BaseException:
        # Of a signal's handler, after the library has created it.
        if number.value >= 0:
            os.close(number.value)
        raise
