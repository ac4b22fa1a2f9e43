"""Element types, and the objects that name them. NumPy's and PyTorch's types are recognized without importing these packages."""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from typing import Any, Dict, Literal, Optional, Protocol, Tuple, Type, Union

from .errors import InvalidArgument

DTypeName = Literal[
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
    "complex64", "complex128", "bool",
]  # fmt: skip
"""The name of an element type."""

_Letter = Literal["b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d", "?"]


class _NumpyDType(Protocol):
    """``numpy.dtype``."""

    @property
    def name(self) -> str: ...

    @property
    def isnative(self) -> bool: ...


class _NumpyScalar(Protocol):
    """A NumPy scalar, such as an instance of ``numpy.float32``."""

    @property
    def dtype(self) -> Any: ...

    @property
    def itemsize(self) -> int: ...


class _TorchDType(Protocol):
    """``torch.dtype``."""

    @property
    def is_floating_point(self) -> bool: ...

    @property
    def itemsize(self) -> int: ...


DTypeLike = Union[
    DTypeName, _Letter, _NumpyDType, Type[_NumpyScalar], _TorchDType, Type[bool], Type[int], Type[float], Type[complex]
]
"""An object that names an element type: its name, a letter of the module ``struct``, or a type of NumPy, PyTorch or Python."""

# The type codes of DLPack's DLDataType.
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6


@dataclass(frozen=True)
class DType:
    """An element type."""

    name: DTypeName
    code: int
    """DLPack's type code."""
    bits: int
    typestr: str
    """NumPy's type string, or one for raw bytes if NumPy does not have the type."""
    char: str
    """The letter of the modules ``struct`` and ``array``; empty if they do not have the type."""

    @property
    def itemsize(self) -> int:
        """The number of bytes of an element."""
        return self.bits // 8


_DTYPES = (
    DType("int8", INT, 8, "|i1", "b"),
    DType("uint8", UINT, 8, "|u1", "B"),
    DType("int16", INT, 16, "<i2", "h"),
    DType("uint16", UINT, 16, "<u2", "H"),
    DType("int32", INT, 32, "<i4", "i"),
    DType("uint32", UINT, 32, "<u4", "I"),
    DType("int64", INT, 64, "<i8", "q"),
    DType("uint64", UINT, 64, "<u8", "Q"),
    DType("float16", FLOAT, 16, "<f2", "e"),
    DType("float32", FLOAT, 32, "<f4", "f"),
    DType("float64", FLOAT, 64, "<f8", "d"),
    DType("bfloat16", BFLOAT, 16, "<V2", ""),
    DType("complex64", COMPLEX, 64, "<c8", ""),
    DType("complex128", COMPLEX, 128, "<c16", ""),
    DType("bool", BOOL, 8, "|b1", "?"),
)
_BY_NAME: Dict[str, DType] = {dtype.name: dtype for dtype in _DTYPES}
_BY_CHAR: Dict[str, DType] = {dtype.char: dtype for dtype in _DTYPES if dtype.char}
for _char in "lL":  # whose size depends on the platform
    _BY_CHAR[_char] = _BY_NAME[("int" if _char == "l" else "uint") + str(8 * struct.calcsize(_char))]
# As in NumPy and PyTorch on Linux.
_BY_TYPE: Dict[Any, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
# Names that mean different types in NumPy, PyTorch and C.
_AMBIGUOUS = {"int": ("int32", "int64"), "float": ("float32", "float64"), "complex": ("complex64", "complex128")}


def dtype_of(dtype: DTypeLike) -> DType:
    """Returns the element type that ``dtype`` names.

    Raises InvalidArgument for a type that vectors do not support, TypeError for an object that names no type.
    """
    name = _name(dtype)
    if name is None:
        raise TypeError(
            f"dtype: {shown(dtype)} names no element type; pass a name such as \"float32\", a numpy.dtype, a torch.dtype, or bool, "
            "int, float or complex; values are the second argument"
        )
    found = _BY_NAME.get(name) or (_BY_CHAR.get(name) if isinstance(dtype, str) else None)
    if found is not None:
        return found
    if name in _AMBIGUOUS:
        small, large = _AMBIGUOUS[name]
        raise InvalidArgument(f"dtype: {name!r} means {small} to some libraries and {large} to others; pass one of these")
    raise InvalidArgument(f"dtype: there is no {name!r:.60}; expected one of {', '.join(_BY_NAME)}")


def dtype_of_format(form: Optional[str]) -> Optional[DType]:
    """Returns the element type of a buffer's format, or None if vectors do not support it."""
    letters = "B" if form is None else form.lstrip("@=" + ("<" if sys.byteorder == "little" else ">"))
    return _BY_NAME.get({"Zf": "complex64", "Zd": "complex128"}.get(letters, "")) or _BY_CHAR.get(letters)


def digits(number: Any) -> str:
    """Returns a number for the text of an error. Python refuses to print integers of many thousand digits."""
    if isinstance(number, int) and number.bit_length() > 256:
        return f"an integer of {number.bit_length()} bits"
    try:
        return str(number)
    except ValueError:
        return f"a {type(number).__name__} of many digits"


def shown(value: object) -> str:
    """Returns a value for the text of an error: its first characters and its type."""
    try:
        text = digits(value) if isinstance(value, int) and not isinstance(value, bool) else repr(value)
    except Exception:
        text = object.__repr__(value)  # such as a list with an integer of many thousand digits
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _name(dtype: Any) -> Optional[str]:
    if isinstance(dtype, str):
        return dtype
    numpy = sys.modules.get("numpy")
    if isinstance(dtype, type):
        if numpy is None or not issubclass(dtype, numpy.generic):
            return _BY_TYPE.get(dtype)
        # numpy.dtype() would accept abstract types with a warning. They have no instances.
        try:
            dtype = dtype().dtype
        except TypeError:
            return None
    if numpy is not None and isinstance(dtype, numpy.dtype):
        if not dtype.isnative:
            raise InvalidArgument(f"dtype: {dtype!r} has the bytes of its elements swapped; pass \"{dtype.name}\"")
        return str(dtype.name)
    if type(dtype).__module__ == "torch" and type(dtype).__name__ == "dtype":
        return str(dtype).split(".")[-1]
    return None
