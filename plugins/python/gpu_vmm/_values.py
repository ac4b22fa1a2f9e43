"""Conversion of a vector's values to bytes and back, with only the standard library."""

from __future__ import annotations

import math
import struct
from array import array
from typing import Any, List, Sequence, Tuple, Union

from ._dtype import BFLOAT, BOOL, COMPLEX, INT, UINT, DType, digits, dtype_of_format, shown
from ._typing import Values
from .errors import InvalidArgument

Contents = Union[bytes, bytearray, memoryview]

_LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
    "complex64": 3.4028234663852886e38,
    "complex128": 1.7976931348623157e308,
}


def as_bytes(dtype: DType, values: Values) -> Tuple[Contents, int]:
    """Returns the bytes of values and the number of elements.

    ``bytes`` and ``bytearray`` are raw contents. Other buffers must be C-contiguous, of the same type, and have at most one dimension.
    All other values are sequences of numbers. Raises InvalidArgument, TypeError, or OverflowError for numbers that the type cannot hold.
    """
    given: Any = values
    if isinstance(given, bytearray):
        given = memoryview(given)  # keeps other threads from changing its size
        contents = True
    else:
        contents = isinstance(given, bytes)
    if contents:
        if len(given) % dtype.itemsize:
            raise InvalidArgument(f"values: {len(given)} bytes are not a multiple of the {dtype.itemsize} of {dtype.name}")
        return given, len(given) // dtype.itemsize
    if isinstance(given, (str, dict)):
        raise TypeError(f"values: expected a buffer or numbers, not {type(given).__name__}")
    try:
        view = memoryview(given)
    except TypeError:
        packed = pack(dtype, list(given))
        return packed, len(packed) // dtype.itemsize
    shape = view.shape or ()
    if len(shape) > 1:
        raise InvalidArgument(
            f"values: an array of shape {shape} has {len(shape)} dimensions, and a vector has one; pass the elements as one row, in "
            f"NumPy array.ravel(), and see rows in a view: from_dlpack(vec).reshape({', '.join(map(str, (-1, *shape[1:])))})"
        )
    found = dtype_of_format(view.format)
    if found is not dtype or view.itemsize != dtype.itemsize:
        kind = "elements of another type" if found is None else found.name
        raise InvalidArgument(
            f"values: the buffer holds {kind} (format {view.format!r}), not {dtype.name}; convert it first, in NumPy by "
            f"array.astype(\"{dtype.name}\")"
        )
    if not view.c_contiguous:
        raise InvalidArgument("values: the buffer is not C-contiguous; copy it first, in NumPy by array.copy()")
    return view, view.nbytes // dtype.itemsize


def check_target(dtype: DType, into: Any) -> Tuple[memoryview, int]:
    """Returns a view of the buffer ``into``, and the number of elements that it takes.

    A buffer of bytes takes raw contents; any other one must be of the type. Raises InvalidArgument, TypeError.
    """
    try:
        view = memoryview(into)
    except TypeError:
        raise TypeError(f"into: expected a writable buffer, such as a NumPy array, not {type(into).__name__}") from None
    found = dtype_of_format(view.format)
    if view.format not in ("B", "c") and (found is not dtype or view.itemsize != dtype.itemsize):
        kind = "elements of another type" if found is None else found.name
        raise InvalidArgument(
            f"into: the buffer is for {kind} (format {view.format!r}), not {dtype.name}; pass one of that type or of bytes, such as a bytearray"
        )
    if view.nbytes % dtype.itemsize:
        raise InvalidArgument(f"into: {view.nbytes} bytes are not a multiple of the {dtype.itemsize} of {dtype.name}")
    return view, view.nbytes // dtype.itemsize


def pack(dtype: DType, numbers: Sequence[Any]) -> bytes:
    """Returns numbers as bytes.

    Raises InvalidArgument for nested sequences, TypeError for an element that is no number, and OverflowError for a number that the
    type cannot hold. The text names the first such element.
    """
    _check_flat(numbers)
    try:
        return _pack(dtype, numbers)
    except (OverflowError, TypeError, struct.error):
        for at, number in enumerate(numbers):
            _check_one(dtype, at, number)
        raise


def _check_flat(numbers: Sequence[Any]) -> None:
    """Raises InvalidArgument for an element that is a sequence. Otherwise arrays of one element would count as numbers."""
    sized = {kind for kind in set(map(type, numbers)) if hasattr(kind, "__len__") and not issubclass(kind, (str, bytes))}
    if sized:
        for at, number in enumerate(numbers):
            if type(number) in sized and getattr(number, "ndim", None) != 0:
                raise InvalidArgument(
                    f"values: element {at} is {shown(number)}, and a vector has one dimension; pass the elements as one row, and see "
                    "rows in a view: from_dlpack(vec).reshape(rows, columns)"
                )


def _check_one(dtype: DType, at: int, number: Any) -> None:
    """Raises an error that names this element if it cannot be packed."""
    try:
        _pack(dtype, [number])
    except OverflowError:
        raise OverflowError(f"values: {digits(number)} does not fit {dtype.name} ({_limits(dtype)})") from None
    except (TypeError, struct.error):
        wanted = "an integer" if dtype.code in (INT, UINT) else "a number"
        raise TypeError(f"values: element {at} is {shown(number)}; {dtype.name} takes {wanted}") from None


def _limits(dtype: DType) -> str:
    if dtype.code == INT:
        return f"{-(1 << dtype.bits - 1)} to {(1 << dtype.bits - 1) - 1}"
    if dtype.name in _LARGEST:
        parts = "parts of " if dtype.code == COMPLEX else ""
        return f"{parts}{-_LARGEST[dtype.name]:.9g} to {_LARGEST[dtype.name]:.9g}"
    return f"0 to {(1 << dtype.bits) - 1}"


def _pack(dtype: DType, numbers: Sequence[Any]) -> bytes:
    if dtype.code == BOOL:
        return bytes(map(_to_bool, numbers))
    if dtype.code == COMPLEX:
        parts = [part for number in map(_to_complex, numbers) for part in (number.real, number.imag)]
        return _floats("f" if dtype.bits == 64 else "d", parts).tobytes()
    if dtype.code == BFLOAT:
        singles = _floats("f", numbers)
        halves = array("H", map(_to_bfloat16, singles))
        for single, half in zip(singles, halves):
            if half & 0x7FFF == 0x7F80 and not math.isinf(single):
                raise OverflowError
        return halves.tobytes()
    if dtype.char == "e":
        # struct's error for an integer beyond the largest number is no OverflowError.
        return struct.pack(f"{len(numbers)}e", *_floats("d", numbers))
    if dtype.char in ("f", "d"):
        return _floats(dtype.char, numbers).tobytes()
    return array(dtype.char, numbers).tobytes()


def _floats(char: str, numbers: Sequence[Any]) -> array[float]:
    """Returns numbers as floats. Raises OverflowError for one that would become infinite, which ``array`` does silently."""
    packed = array(char, numbers)
    if math.inf in packed or -math.inf in packed:
        for number, got in zip(numbers, packed):
            # The number itself decides: float() makes an infinity of a large Decimal.
            if math.isinf(got) and number not in (math.inf, -math.inf):
                raise OverflowError
    return packed


def _to_bool(number: Any) -> bool:
    # Stricter than bool(), to which the strings "no" and "False" are true.
    if not hasattr(number, "__float__") and not hasattr(number, "__index__"):
        raise TypeError
    return bool(number)


def _to_complex(number: Any) -> complex:
    if isinstance(number, str):  # which complex() would parse
        raise TypeError
    return complex(number)


def unpack(dtype: DType, contents: Contents) -> List[Any]:
    """Returns bytes as numbers."""
    if dtype.code == BOOL:
        return [bool(byte) for byte in bytes(contents)]
    if dtype.code == COMPLEX:
        parts = memoryview(contents).cast("B").cast("f" if dtype.bits == 64 else "d").tolist()
        return [complex(real, imaginary) for real, imaginary in zip(parts[::2], parts[1::2])]
    if dtype.code == BFLOAT:
        halves = memoryview(contents).cast("B").cast("H")
        wide = array("I", (half << 16 for half in halves))
        return memoryview(wide).cast("B").cast("f").tolist()
    if dtype.char == "e":
        return list(struct.unpack(f"{len(contents) // 2}e", contents))
    numbers = array(dtype.char)
    numbers.frombytes(contents)
    return numbers.tolist()


def _to_bfloat16(number: float) -> int:
    """Returns the upper half of the float32, rounded to nearest, ties to even."""
    bits: int = struct.unpack("I", struct.pack("f", number))[0]
    if math.isnan(number):
        return bits >> 16 | 0x40  # stays NaN even if the upper bits of the payload are zero
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
