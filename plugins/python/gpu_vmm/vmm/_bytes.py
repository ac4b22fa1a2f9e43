"""Bytes of the host for copies: buffers as ctypes passes them."""

from __future__ import annotations

import ctypes
from typing import Any, Tuple

from .._typing import Buffer
from ..errors import InvalidArgument, OutOfRange


def source(contents: Buffer) -> Tuple[Any, int]:
    """Returns the bytes of a C-contiguous buffer for a call that reads them, and their number."""
    if isinstance(contents, bytes):
        return contents, len(contents)
    given: Any = contents
    view = _flat("write", given)
    # ctypes cannot find the address of a read-only buffer, so it is copied.
    return (view.tobytes() if view.readonly else (ctypes.c_char * view.nbytes).from_buffer(view)), view.nbytes


def target(into: Buffer) -> Tuple[Any, int]:
    """Returns the place of a writable C-contiguous buffer for a call that writes it, and its size."""
    given: Any = into
    view = _flat("read", given)
    if view.readonly:
        raise InvalidArgument("read: the buffer is read-only; pass a bytearray or another writable buffer")
    return (ctypes.c_char * view.nbytes).from_buffer(view), view.nbytes


def room(size: int, limit: int) -> bytearray:
    """Returns a buffer for ``size`` bytes of memory of ``limit`` bytes. Raises OutOfRange instead of allocating a larger one."""
    if size > limit:
        raise OutOfRange(f"read: {size} bytes exceed the memory of {limit} bytes")
    return bytearray(size)


def _flat(operation: str, given: Any) -> memoryview:
    view = memoryview(given)
    if not view.c_contiguous:
        raise InvalidArgument(f"{operation}: the buffer is not C-contiguous; copy it first")
    if view.nbytes == 0:
        return memoryview(bytearray())  # cast refuses shapes with a zero
    return view.cast("B")
