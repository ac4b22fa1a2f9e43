"""Tensors in a snapshot file: an index and the contents, in one region of host memory that gpu-vmm writes with checksums."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Dict, List, Mapping, Tuple, Union

import gpu_vmm
from gpu_vmm import torch as vmm
from gpu_vmm._arguments import text
from gpu_vmm._handles import RegionHandle
from gpu_vmm._library import check, library

_ALIGNMENT = 4096
_HEADER = 16  # the length of the index in decimal digits

Path = Union[str, "os.PathLike[str]"]


def save(path: Path, tensors: Mapping[str, Any]) -> int:
    """Writes tensors to a file. Returns the number of bytes of their contents."""
    sizes = {name: _size("save", name, tensor) for name, tensor in tensors.items()}
    index = json.dumps(sizes).encode()
    places, end = _places(sizes, len(index))
    host = gpu_vmm.open("host")
    region = _new_region(host, end)
    address = _address(region)
    ctypes.memmove(address, b"%0*d" % (_HEADER, len(index)) + index, _HEADER + len(index))
    for name, offset in places.items():
        if sizes[name]:
            check(library().gpu_vmm_read(_pool(tensors[name]), tensors[name].data_ptr(), address + offset, sizes[name]))
    check(library().gpu_vmm_region_snapshot(region, _path(path), False))
    return sum(sizes.values())


def restore(path: Path, tensors: Mapping[str, Any]) -> int:
    """Reads the contents of tensors from a file. Returns their number of bytes."""
    sizes = {name: _size("restore", name, tensor) for name, tensor in tensors.items()}
    host, pointer = gpu_vmm.open("host"), ctypes.c_void_p()
    check(library().gpu_vmm_region_restore(host._handle, _path(path), True, ctypes.byref(pointer)))
    region = RegionHandle(pointer)
    address, length = _address(region), ctypes.c_uint64()
    check(library().gpu_vmm_region_size(region, ctypes.byref(length)))
    saved, index = _index(path, address, length.value)
    if saved != sizes:
        raise gpu_vmm.InvalidArgument(f"restore: {os.fspath(path)} has other tensors: {_difference(saved, sizes)}")
    places, end = _places(saved, index)  # in the file's order
    if end > length.value:
        raise gpu_vmm.FileError(f"restore: {os.fspath(path)} has {length.value} bytes of contents, and its index needs {end}")
    for name, offset in places.items():
        if sizes[name]:
            check(library().gpu_vmm_write(_pool(tensors[name]), tensors[name].data_ptr(), address + offset, sizes[name]))
    return sum(sizes.values())


def _places(sizes: Mapping[str, int], index: int) -> Tuple[Dict[str, int], int]:
    """Returns the offset of each tensor, and the end of the last."""
    places, end = {}, _HEADER + index
    for name, size in sizes.items():
        places[name] = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = places[name] + size
    return places, end


def _index(path: Path, address: int, length: int) -> Tuple[Dict[str, int], int]:
    """Reads the index of restored memory, which may come from any file. Returns the sizes and the index's length."""
    try:
        size = int(ctypes.string_at(address, _HEADER)) if length >= _HEADER else -1
        if not 0 <= size <= length - _HEADER:
            raise ValueError(f"an index of {size} bytes in {length}")
        found = json.loads(ctypes.string_at(address + _HEADER, size))
        return {str(name): int(of) for name, of in found.items()}, size
    except (ValueError, AttributeError, TypeError) as error:
        raise gpu_vmm.FileError(f"restore: {os.fspath(path)} is a snapshot, but not one of tensors: {error}") from error


def _difference(saved: Mapping[str, int], wanted: Mapping[str, int]) -> str:
    names = sorted(saved.keys() | wanted.keys())
    differing = [name for name in names if saved.get(name) != wanted.get(name)]
    shown: List[str] = [f"{name!r} has {saved.get(name, 'no')} bytes there and {wanted.get(name, 'no')} here" for name in differing[:3]]
    return "; ".join(shown) + (f"; and {len(differing) - 3} more" if len(differing) > 3 else "")


def _size(operation: str, name: str, tensor: Any) -> int:
    if not tensor.is_contiguous():
        raise gpu_vmm.InvalidArgument(f"{operation}: the tensor {name!r} is not contiguous")
    return int(tensor.nbytes)


def _pool(tensor: Any) -> Any:
    return vmm.device_pool(tensor.device)._handle


def _path(path: Path) -> bytes:
    return text("path", os.fspath(path))


def _new_region(host: gpu_vmm.Backend, size: int) -> RegionHandle:
    pointer = ctypes.c_void_p()
    check(library().gpu_vmm_region_new(host._handle, 0, size, ctypes.byref(pointer)))
    region = RegionHandle(pointer)
    check(library().gpu_vmm_region_grow(region, size))
    return region


def _address(region: RegionHandle) -> int:
    found = ctypes.c_uint64()
    check(library().gpu_vmm_region_address(region, ctypes.byref(found)))
    return found.value
