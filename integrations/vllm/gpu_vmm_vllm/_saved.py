"""Tensors in a snapshot file: an index and the contents, in one region of host memory that gpu-vmm writes with checksums."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any, Dict, List, Mapping, Tuple, Union

import gpu_vmm
from gpu_vmm import torch as vmm
from gpu_vmm._library import check, library
from gpu_vmm.vmm import Region

_ALIGNMENT = 4096
_HEADER = 16  # the length of the index in decimal digits

Path = Union[str, "os.PathLike[str]"]


def save(path: Path, tensors: Mapping[str, Any]) -> int:
    """Writes tensors to a file. Returns the number of bytes of their contents."""
    sizes = {name: _size("save", name, tensor) for name, tensor in tensors.items()}
    index = json.dumps(sizes).encode()
    places, end = _places(sizes, len(index))
    region = Region(gpu_vmm.open("host"), end)
    region.grow(end)
    region.write(b"%0*d" % (_HEADER, len(index)) + index)
    address = region.address
    _synchronize(tensors)
    for name, offset in places.items():
        if sizes[name]:
            check(library().gpu_vmm_read(_pool(tensors[name]), tensors[name].data_ptr(), address + offset, sizes[name]))
    region.snapshot(path)
    return sum(sizes.values())


def restore(path: Path, tensors: Mapping[str, Any]) -> int:
    """Reads the contents of tensors from a file. Returns their number of bytes."""
    sizes = {name: _size("restore", name, tensor) for name, tensor in tensors.items()}
    region = Region.restore(gpu_vmm.open("host"), path, relocate=True)
    contents = _contents(path, region)
    address, length = region.address, len(contents)
    saved, index = _index(path, contents)
    if saved != sizes:
        raise gpu_vmm.InvalidArgument(f"restore: {os.fspath(path)} has other tensors: {_difference(saved, sizes)}")
    places, end = _places(saved, index)  # in the file's order
    if end > length:
        raise gpu_vmm.FileError(f"restore: {os.fspath(path)} has {length} bytes of contents, and its index needs {end}")
    _synchronize(tensors)
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


def _contents(path: Path, region: Region) -> memoryview:
    """Returns restored memory, which may come from any file: with holes, or without access by the CPU."""
    try:
        return region.view(read_only=True).buffer()
    except (gpu_vmm.InvalidArgument, gpu_vmm.AccessDenied) as error:
        raise gpu_vmm.FileError(f"restore: {os.fspath(path)} is a snapshot, but not one of tensors: {error}") from error


def _index(path: Path, contents: memoryview) -> Tuple[Dict[str, int], int]:
    """Reads the index. Returns the sizes and the index's length."""
    try:
        length = len(contents)
        size = int(bytes(contents[:_HEADER])) if length >= _HEADER else -1
        if not 0 <= size <= length - _HEADER:
            raise ValueError(f"an index of {size} bytes in {length}")
        found = json.loads(bytes(contents[_HEADER : _HEADER + size]))
        return {str(name): int(of) for name, of in found.items()}, size
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
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


def _synchronize(tensors: Mapping[str, Any]) -> None:
    """Waits for the tensors' devices: the copies have no order with the kernels that write or read the tensors."""
    torch: Any = importlib.import_module("torch")
    for device in dict.fromkeys(tensor.device for tensor in tensors.values()):
        torch.cuda.synchronize(device)


def _pool(tensor: Any) -> Any:
    return vmm.device_pool(tensor.device)._handle
