"""What lies where in a region of a server."""

from __future__ import annotations

import ctypes
import operator
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, SupportsIndex, Tuple, Union

from .._arguments import text, unsigned
from .._dtype import _DTYPES, DTypeLike, digits, dtype_of, shown
from .._handles import LayoutHandle, LeaseHandle
from .._library import check
from .._signatures import PartStruct
from ..errors import InvalidArgument
from .._waits import linux_function

PartDType = Union[DTypeLike, str]
"""The element type of a part: as for ``DeviceVec``, or the name of a type of 8 bits and less, such as ``"float8_e4m3fn"``."""

Element = Tuple[int, int, int]
"""The code, the bits and the lanes of an element type in DLPack."""

_MAX_DIMENSIONS = 32
_DIGITS = 20

# The types that vectors do not support, by DLPack's codes.
_ELEMENTS: Dict[str, Element] = {
    **{dtype.name: (dtype.code, dtype.bits, 1) for dtype in _DTYPES},
    "float8_e3m4": (7, 8, 1),
    "float8_e4m3": (8, 8, 1),
    "float8_e4m3b11fnuz": (9, 8, 1),
    "float8_e4m3fn": (10, 8, 1),
    "float8_e4m3fnuz": (11, 8, 1),
    "float8_e5m2": (12, 8, 1),
    "float8_e5m2fnuz": (13, 8, 1),
    "float8_e8m0fnu": (14, 8, 1),
    "float4_e2m1fn_x2": (17, 4, 2),
}
_NAMES: Dict[Element, str] = {element: name for name, element in _ELEMENTS.items()}


def element_of(dtype: PartDType) -> Element:
    """Returns DLPack's fields of an element type. Raises InvalidArgument for a type that has no name here, TypeError for no type."""
    if isinstance(dtype, str):
        found = _ELEMENTS.get(dtype)
        if found is not None:
            return found
        kind, _, numbers = dtype.partition(":")
        fields = numbers.split(":")
        if kind == "dlpack" and len(fields) == 3 and all(one.isascii() and one.isdecimal() for one in fields):
            # More digits than that are no number of 16 bits, and Python does not convert thousands of them.
            code, bits, lanes = (int(one[:_DIGITS]) for one in fields)
            element = unsigned("code", code, 8), unsigned("bits", bits, 8), unsigned("lanes", lanes, 16)
            if not bits * lanes:
                raise InvalidArgument(f"dtype: {dtype!r} has elements of 0 bits")
            return element
    elif type(dtype).__module__ == "torch" and str(dtype).split(".")[-1] in _ELEMENTS:
        return _ELEMENTS[str(dtype).split(".")[-1]]
    known = dtype_of(dtype)  # type: ignore[arg-type]
    return known.code, known.bits, 1


def name_of(element: Element) -> str:
    """Returns the name of an element type; ``"dlpack:CODE:BITS:LANES"`` for one that has no other name here."""
    return _NAMES.get(element) or "dlpack:" + ":".join(map(str, element))


def itemsize(element: Element) -> int:
    """Returns the number of bytes of an element, rounded up."""
    return (element[1] * element[2] + 7) // 8


def extent(shape: Sequence[int], strides: Optional[Sequence[int]]) -> int:
    """Returns the number of elements from the first one to the last one in memory."""
    if 0 in shape:
        return 0
    steps = contiguous(shape) if strides is None else strides
    return 1 + sum((size - 1) * step for size, step in zip(shape, steps))


def contiguous(shape: Sequence[int]) -> Tuple[int, ...]:
    """Returns the strides of row-major order."""
    steps: List[int] = [1] * len(shape)
    for at in range(len(shape) - 1, 0, -1):
        steps[at - 1] = steps[at] * max(1, shape[at])
    return tuple(steps)


class Part(NamedTuple):
    """A named part of a region, such as a tensor of a model."""

    offset: int
    """The offset of the first element in the region, in bytes: a multiple of the element's size."""
    dtype: PartDType
    """The element type; its name in a layout that was received."""
    shape: Tuple[int, ...]
    """The number of elements in each dimension."""
    strides: Optional[Tuple[int, ...]] = None
    """The distance in elements between neighbours in each dimension; None for row-major order."""


@dataclass
class Layout:
    """The named parts of a region, and a program's own notes about the contents."""

    parts: Dict[str, Part] = field(default_factory=dict)
    """The parts by their names."""
    notes: Dict[str, str] = field(default_factory=dict)
    """Texts that the programs agree upon, such as a digest of a model's configuration."""


def _numbers(what: str, values: Sequence[SupportsIndex], name: str) -> List[int]:
    try:
        numbers = [operator.index(value) for value in values]
    except TypeError:
        raise TypeError(f"{what} of the part {name!r}: expected integers, not {shown(values)}") from None
    if len(numbers) > _MAX_DIMENSIONS:
        raise InvalidArgument(f"{what} of the part {name!r}: {len(numbers)} dimensions are more than {_MAX_DIMENSIONS}")
    for number in numbers:
        if not -(1 << 63) <= number < 1 << 63:
            raise InvalidArgument(f"{what} of the part {name!r}: {digits(number)} does not fit 64 bits")
    return numbers


def to_library(layout: Layout) -> LayoutHandle:
    """Returns a layout for the library. Raises InvalidArgument for a part that is none, TypeError for another object."""
    if not isinstance(layout, Layout):
        raise TypeError(f"layout: expected a gpu_vmm.serve.Layout, not {shown(layout)}")
    made = LayoutHandle.made(linux_function("gpu_vmm_layout_new"))
    for name, part in layout.parts.items():
        offset, dtype, shape, strides = part
        sizes = _numbers("shape", shape, name)
        steps = None if strides is None else _numbers("strides", strides, name)
        if steps is not None and len(steps) != len(sizes):
            raise InvalidArgument(f"strides of the part {name!r}: {len(steps)} strides for {len(sizes)} dimensions")
        numbers = ctypes.c_int64 * len(sizes)
        code, bits, lanes = element_of(dtype)
        given = PartStruct(
            name=text("name", name),
            offset=unsigned("offset", offset),
            code=code,
            bits=bits,
            lanes=lanes,
            ndim=len(sizes),
            shape=numbers(*sizes),
            strides=None if steps is None else numbers(*steps),
        )
        check(linux_function("gpu_vmm_layout_set_part")(made, ctypes.byref(given)))
    for key, note in layout.notes.items():
        check(linux_function("gpu_vmm_layout_set_note")(made, text("key", key), text("note", note)))
    return made


def from_library(lease: LeaseHandle) -> Layout:
    """Returns the layout of a lease. Raises PeerError for one that Python cannot have."""
    handle, parts, notes = LayoutHandle.made(linux_function("gpu_vmm_lease_layout"), lease), ctypes.c_uint64(), ctypes.c_uint64()
    layout, part = Layout(), PartStruct()
    check(linux_function("gpu_vmm_layout_sizes")(handle, ctypes.byref(parts), ctypes.byref(notes)))
    for at in range(parts.value):
        check(linux_function("gpu_vmm_layout_part")(handle, at, ctypes.byref(part)))
        shape = tuple(part.shape[: part.ndim]) if part.ndim else ()
        strides = tuple(part.strides[: part.ndim]) if part.strides else None
        dtype = name_of((part.code, part.bits, part.lanes))
        layout.parts[_decoded(part.name)] = Part(part.offset, dtype, shape, strides)
    key, note = ctypes.c_char_p(), ctypes.c_char_p()
    for at in range(notes.value):
        check(linux_function("gpu_vmm_layout_note")(handle, at, ctypes.byref(key), ctypes.byref(note)))
        layout.notes[_decoded(key.value)] = _decoded(note.value)
    return layout


def _decoded(found: Any) -> str:
    # The library passes on UTF-8 alone.
    return str(found.decode("utf-8"))
