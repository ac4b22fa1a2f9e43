"""Element types, and values as bytes: what a vector of a type takes, and what it gives back. Nothing but the standard library."""

from __future__ import annotations

import math
import struct
from array import array
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Tuple, Union

from .errors import InvalidArgument

Buffer = Union[bytes, bytearray, memoryview]

# Kinds of DLPack's DLDataType.
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6


@dataclass(frozen=True)
class DType:
    """An element type."""

    name: str
    code: int
    """DLPack's kind."""
    bits: int
    typestr: str
    """NumPy's name for it, or a name for raw bytes where it has none."""
    char: str
    """The letter of the modules ``struct`` and ``array``; empty where they have none."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.bits // 8


def _dtypes() -> Iterable[DType]:
    for char, bits in ("b", 8), ("h", 16), ("i", 32), ("q", 64):
        yield DType(f"int{bits}", _INT, bits, ("|" if bits == 8 else "<") + f"i{bits // 8}", char)
        yield DType(f"uint{bits}", _UINT, bits, ("|" if bits == 8 else "<") + f"u{bits // 8}", char.upper())
    for char, bits in ("e", 16), ("f", 32), ("d", 64):
        yield DType(f"float{bits}", _FLOAT, bits, f"<f{bits // 8}", char)
    yield DType("bfloat16", _BFLOAT, 16, "<V2", "")
    yield DType("complex64", _COMPLEX, 64, "<c8", "")
    yield DType("complex128", _COMPLEX, 128, "<c16", "")
    yield DType("bool", _BOOL, 8, "|b1", "?")


_BY_NAME: Dict[str, DType] = {dtype.name: dtype for dtype in _dtypes()}
_BY_CHAR: Dict[str, DType] = {dtype.char: dtype for dtype in _BY_NAME.values() if dtype.char}
for _char in "lL":  # as long as the platform has them
    _BY_CHAR[_char] = _BY_NAME[("int" if _char == "l" else "uint") + str(8 * struct.calcsize(_char))]
for _char, _name in (("Zf", "complex64"), ("Zd", "complex128")):
    _BY_CHAR[_char] = _BY_NAME[_name]


def dtype_of(name: str) -> DType:
    """The type of a name (``float32``) or a letter of ``struct`` (``f``). Raises InvalidArgument for another."""
    if not isinstance(name, str):
        raise TypeError(f"dtype: a str is needed, not {type(name).__name__}")
    found = _BY_NAME.get(name) or _BY_CHAR.get(name)
    if found is None:
        raise InvalidArgument(f"dtype: there is no {name!r}; there are {', '.join(_BY_NAME)}")
    return found


def as_bytes(dtype: DType, values: Any) -> Tuple[Buffer, int]:
    """The bytes of values, and how many elements they are.

    ``bytes`` and ``bytearray`` are contents as they lie. Other buffers have to be C-contiguous and of the type. All else is taken
    for numbers. Raises InvalidArgument, TypeError, or OverflowError for numbers that the type cannot hold.
    """
    if isinstance(values, bytearray):
        values = memoryview(values)  # whose size nothing changes meanwhile
        contents = True
    else:
        contents = isinstance(values, bytes)
    if contents:
        if len(values) % dtype.itemsize:
            raise InvalidArgument(f"values: {len(values)} bytes are no multiple of the {dtype.itemsize} of {dtype.name}")
        return values, len(values) // dtype.itemsize
    if isinstance(values, (str, dict)):
        raise TypeError(f"values: a buffer or numbers are needed, not {type(values).__name__}")
    try:
        view = memoryview(values)
    except TypeError:
        packed = pack(dtype, list(values))
        return packed, len(packed) // dtype.itemsize
    form = view.format.lstrip("@=<") if view.format else "B"
    if _BY_CHAR.get(form) is not dtype or view.format.startswith((">", "!")):
        raise InvalidArgument(f"values: a buffer of format {view.format!r} is none of {dtype.name}")
    if view.itemsize != dtype.itemsize:
        raise InvalidArgument(f"values: elements of {view.itemsize} bytes are none of {dtype.name}")
    if not view.c_contiguous:
        raise InvalidArgument("values: the buffer is not C-contiguous")
    return view, view.nbytes // dtype.itemsize


def pack(dtype: DType, numbers: List[Any]) -> bytes:
    """Numbers as bytes."""
    if dtype.code == _BOOL:
        return bytes(map(_to_bool, numbers))
    if dtype.code == _COMPLEX:
        parts = [part for number in map(_to_complex, numbers) for part in (number.real, number.imag)]
        return (_float32s(dtype, parts) if dtype.bits == 64 else array("d", parts)).tobytes()
    if dtype.code == _BFLOAT:
        singles = _float32s(dtype, numbers)
        halves = array("H", map(_to_bfloat16, singles))
        for single, half in zip(singles, halves):
            if half & 0x7FFF == 0x7F80 and not math.isinf(single):
                raise OverflowError(f"values: {single} is too large for {dtype.name}")
        return halves.tobytes()
    if dtype.char == "e":
        return struct.pack(f"{len(numbers)}e", *numbers)
    if dtype.char == "f":
        return _float32s(dtype, numbers).tobytes()
    return array(dtype.char, numbers).tobytes()


def _float32s(dtype: DType, numbers: List[Any]) -> array[float]:
    """Numbers as float32. Raises OverflowError for one that would become infinite, which ``array`` does without a word."""
    packed = array("f", numbers)
    if math.inf in packed or -math.inf in packed:
        for number, got in zip(numbers, packed):
            if math.isinf(got) and not math.isinf(number):
                raise OverflowError(f"values: {number} is too large for {dtype.name}")
    return packed


def _to_bool(number: Any) -> bool:
    # Not what bool() takes: the strings "no" and "False" are true there.
    if not hasattr(number, "__float__") and not hasattr(number, "__index__"):
        raise TypeError(f"values: a bool or a number is needed, not {type(number).__name__}")
    return bool(number)


def _to_complex(number: Any) -> complex:
    if isinstance(number, str):  # which complex() would parse
        raise TypeError("values: a number is needed, not str")
    return complex(number)


def unpack(dtype: DType, contents: Buffer) -> List[Any]:
    """Bytes as numbers."""
    if dtype.code == _BOOL:
        return [bool(byte) for byte in bytes(contents)]
    if dtype.code == _COMPLEX:
        parts = memoryview(contents).cast("B").cast("f" if dtype.bits == 64 else "d").tolist()
        return [complex(real, imaginary) for real, imaginary in zip(parts[::2], parts[1::2])]
    if dtype.code == _BFLOAT:
        halves = memoryview(contents).cast("B").cast("H")
        wide = array("I", (half << 16 for half in halves))
        return memoryview(wide).cast("B").cast("f").tolist()
    if dtype.char == "e":
        return list(struct.unpack(f"{len(contents) // 2}e", contents))
    numbers = array(dtype.char)
    numbers.frombytes(contents)
    return numbers.tolist()


def _to_bfloat16(number: float) -> int:
    """The upper half of the float32, rounded to the nearest, ties to even."""
    bits: int = struct.unpack("I", struct.pack("f", number))[0]
    if math.isnan(number):
        return bits >> 16 | 0x40  # so that it stays one
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
