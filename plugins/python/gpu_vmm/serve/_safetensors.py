"""Reads safetensors files: 8 bytes with the length of a header in JSON, the header, and the bytes of the tensors without a gap."""

from __future__ import annotations

import json
import math
import os
import struct
from types import TracebackType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Type

from .._arguments import Path, path_of
from ..errors import FileError, Unsupported
from ._layout import Layout, Part

_MAX_HEADER = 100_000_000
"""The format's limit of the header, in bytes."""
_MAX_DIMENSIONS = 32
_PIECE = 16 << 20
_ALIGNMENT = 256

# The file's element types, with the number of bytes of an element.
_DTYPES: Dict[str, Tuple[str, int]] = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2), "I64": ("int64", 8), "I32": ("int32", 4),
    "I16": ("int16", 2), "I8": ("int8", 1), "U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "U8": ("uint8", 1),
    "BOOL": ("bool", 1), "C64": ("complex64", 8), "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
}  # fmt: skip


class _Tensor(NamedTuple):
    name: str
    dtype: str
    shape: Tuple[int, ...]
    begin: int
    end: int


class File:
    """An open file, and the layout that its tensors get in a region."""

    def __init__(self, path: Path) -> None:
        self._shown = os.fsdecode(path_of("path", path))
        try:
            self._file = open(path, "rb", buffering=0)
        except OSError as error:
            raise self._failed(error) from error
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> File:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._file.close()

    def _failed(self, error: OSError) -> FileError:
        return FileError(f"load safetensors: {self._shown}: {error.strerror or error}")

    def _malformed(self, why: str) -> FileError:
        return FileError(f"load safetensors: {self._shown}: {why}")

    def _fill(self, into: memoryview) -> None:
        """Reads the next bytes of the file."""
        at = 0
        while at < len(into):
            try:
                count = self._file.readinto(into[at:])
            except OSError as error:
                raise self._failed(error) from error
            if not count:
                raise self._malformed(f"the file is truncated: {len(into) - at} bytes are missing")
            at += count

    def _read(self) -> None:
        length = bytearray(8)
        try:
            whole = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise self._failed(error) from error
        self._fill(memoryview(length))
        (size,) = struct.unpack("<Q", length)
        if size > min(_MAX_HEADER, whole - 8):
            raise self._malformed(f"its header has {size} bytes, and the limit is {min(_MAX_HEADER, whole - 8)}")
        header = bytearray(size)
        self._fill(memoryview(header))
        self._start = 8 + size
        tensors, notes = self._parsed(bytes(header))
        tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
        at = 0
        for tensor in tensors:
            if tensor.begin != at:
                raise self._malformed(f"the tensor {tensor.name!r} begins at {tensor.begin}, and the one before it ends at {at}")
            at = tensor.end
        if at != whole - self._start:
            raise self._malformed(f"its tensors have {at} bytes, and the file has {whole - self._start} for them")
        self._tensors, self.layout, end = tensors, Layout(notes=notes), 0
        for tensor in tensors:
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT
            self.layout.parts[tensor.name] = Part(offset, tensor.dtype, tensor.shape)
            end = offset + tensor.end - tensor.begin
        self.size = end
        """The size of the region that the layout needs, in bytes."""

    def _parsed(self, header: bytes) -> Tuple[List[_Tensor], Dict[str, str]]:
        try:
            found = json.loads(header.decode("utf-8"), object_pairs_hook=self._object)
        except (ValueError, RecursionError) as error:
            raise self._malformed(f"its header is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise self._malformed("its header is not an object")
        notes = found.pop("__metadata__", {})
        if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
            raise self._malformed("its metadata are not texts")
        return [self._tensor(name, fields) for name, fields in found.items()], notes

    def _object(self, pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise self._malformed("its header has a key twice")
        return made

    def _tensor(self, name: str, fields: Any) -> _Tensor:
        def wrong(why: str) -> FileError:
            return self._malformed(f"the tensor {name!r} has {why}")

        if not isinstance(fields, dict) or not {"dtype", "shape", "data_offsets"} <= fields.keys():
            raise wrong("no dtype, shape and data_offsets")
        shape, offsets, kind = fields["shape"], fields["data_offsets"], fields["dtype"]
        for numbers in shape, offsets:
            # bool is an int in Python, and no number in JSON.
            if not isinstance(numbers, list) or not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
                raise wrong("a shape or data_offsets that are not lists of integers from 0 on")
        if len(offsets) != 2 or len(shape) > _MAX_DIMENSIONS:
            raise wrong(f"{len(offsets)} data_offsets and {len(shape)} dimensions; expected 2 and at most {_MAX_DIMENSIONS}")
        if not isinstance(kind, str) or kind not in _DTYPES:
            raise Unsupported(f"load safetensors: {self._shown}: the tensor {name!r} has the element type {kind!r}; expected one of {', '.join(_DTYPES)}")
        dtype, itemsize = _DTYPES[kind]
        (begin, end), size = offsets, math.prod(shape) * itemsize
        if end - begin != size:
            raise wrong(f"data_offsets {begin} to {end}, and its shape needs {size} bytes")
        return _Tensor(name, dtype, tuple(shape), begin, end)

    def copy(self, write: Callable[[memoryview, int], None]) -> None:
        """Calls ``write`` with the bytes of all tensors, piece by piece, and the offset of each piece in the region."""
        room = memoryview(bytearray(min(_PIECE, max((tensor.end - tensor.begin for tensor in self._tensors), default=0))))
        try:
            self._file.seek(self._start)
        except OSError as error:
            raise self._failed(error) from error
        for tensor in self._tensors:
            offset, left = self.layout.parts[tensor.name].offset, tensor.end - tensor.begin
            while left:
                piece = room[: min(left, len(room))]
                self._fill(piece)
                write(piece, offset)
                offset, left = offset + len(piece), left - len(piece)
