"""DLPack capsules, which share a region's memory with other libraries."""

from __future__ import annotations

import ctypes
import operator
from ctypes import c_char_p, c_int64, c_void_p, py_object, pythonapi
from typing import Any, Optional, Sequence, SupportsIndex, Tuple

from ._dtype import DType, digits, shown
from ._handles import RegionHandle, TensorHandle
from ._library import address_of, check, library
from ._typing import CapsuleType
from .errors import InvalidArgument

# A capsule points to its name as long as it exists, so these objects must never be freed.
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
for _stays in (_PLAIN, _VERSIONED):
    pythonapi.Py_IncRef(py_object(_stays))

_FLAGS, _IS_COPIED = 24, 1 << 1
"""The offset of the flags in a DLManagedTensorVersioned, and the flag of a tensor that is a copy."""

_TENSOR = 32
"""The offset of the DLTensor in a DLManagedTensorVersioned; in a DLManagedTensor it is 0."""


class _TensorStruct(ctypes.Structure):
    """DLTensor. The arrays of the shape and of the strides belong to the tensor, and have a number for each dimension."""

    _fields_ = [
        ("data", c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_HOST_DEVICE = 1, 0
"""DLPack's type and number of the host."""

_new = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", pythonapi))


def _destructor() -> int:
    """Returns the address of the capsules' destructor, which deletes a tensor that was not taken.

    It is native, since an exception may be propagating when Python calls it, and Python code would lose that.
    """
    ending = "Py_IsFinalizing" if hasattr(pythonapi, "Py_IsFinalizing") else "_Py_IsFinalizing"
    names = "PyCapsule_IsValid", "PyCapsule_GetPointer", ending
    functions = (ctypes.cast(getattr(pythonapi, name), c_void_p) if hasattr(pythonapi, name) else None for name in names)
    library().gpu_vmm_python_capsules(*functions)
    return address_of("gpu_vmm_python_capsule_dropped")


def tensor_of(region: RegionHandle, offset: int, dtype: DType, length: int, read_only: bool, versioned: bool) -> TensorHandle:
    """Returns a tensor of ``length`` elements of a region from ``offset`` bytes on."""
    return _tensor_of(region, offset, (dtype.code, dtype.bits, 1), (c_int64 * 1)(length), None, read_only, versioned)


def _tensor_of(
    region: RegionHandle,
    offset: int,
    element: Tuple[int, int, int],
    shape: ctypes.Array[c_int64],
    strides: Optional[ctypes.Array[c_int64]],
    read_only: bool,
    versioned: bool,
) -> TensorHandle:
    made = TensorHandle(versioned)
    check(
        library().gpu_vmm_region_dlpack(
            region, offset, *element, len(shape), shape, strides, read_only, versioned, made.place()
        )
    )
    return made


def capsule(
    region: RegionHandle, dtype: DType, length: int, read_only: bool, versioned: bool, offset: int = 0, copied: bool = False
) -> CapsuleType:
    """Returns a capsule with a tensor of a region's elements. A consumer that takes the tensor renames the capsule.

    ``copied``: whether the consumer has the only use of the region. Versioned tensors report that.
    """
    destructor = _destructor()
    tensor = tensor_of(region, offset, dtype, length, read_only, versioned)
    return _capsule_of(tensor, versioned, destructor, copied)


def part_capsule(
    region: RegionHandle,
    offset: int,
    element: Tuple[int, int, int],
    shape: Sequence[int],
    strides: Optional[Sequence[int]],
    read_only: bool,
    versioned: bool,
) -> CapsuleType:
    """Returns a capsule with a tensor of any shape. ``element``: the code, the bits and the lanes of its type in DLPack."""
    destructor, numbers = _destructor(), c_int64 * len(shape)
    steps = None if strides is None else numbers(*strides)
    tensor = _tensor_of(region, offset, element, numbers(*shape), steps, read_only, versioned)
    return _capsule_of(tensor, versioned, destructor)


def reserved_capsule(
    region: RegionHandle,
    offset: int,
    element: Tuple[int, int, int],
    shape: Sequence[int],
    strides: Sequence[int],
    versioned: bool,
) -> CapsuleType:
    """Returns a capsule with a tensor of addresses that may have no memory yet. The caller checks that the region has these addresses.

    The library exports mapped elements alone, so it exports none, and the shape is set before another library has the tensor.
    """
    destructor, none = _destructor(), (c_int64 * len(shape))()
    tensor = _tensor_of(region, offset, element, none, none, False, versioned)
    fields = _TensorStruct.from_address(tensor.address + (_TENSOR if versioned else 0))
    for at, (size, step) in enumerate(zip(shape, strides)):
        fields.shape[at], fields.strides[at] = size, step
    return _capsule_of(tensor, versioned, destructor)


def _capsule_of(tensor: TensorHandle, versioned: bool, destructor: int, copied: bool = False) -> CapsuleType:
    """Returns a capsule that owns a tensor, which the handle then does not."""
    if copied and versioned:
        flags = ctypes.c_uint64.from_address(tensor.address + _FLAGS)
        flags.value |= _IS_COPIED
    name = _VERSIONED if versioned else _PLAIN
    # Python handles signals behind calls alone. So the handle or the capsule deletes the tensor, and never both.
    pointer, tensor._as_parameter_ = tensor._as_parameter_, None
    made: CapsuleType = _new(pointer, name, destructor)
    return made


def _pair(what: str, value: Any) -> Tuple[int, int]:
    """Returns a pair of integers. Raises TypeError for other values."""
    try:
        one, other = value
        return operator.index(one), operator.index(other)
    except (TypeError, ValueError):
        raise TypeError(f"__dlpack__: {what} must be a pair of integers, not {shown(value)}") from None


def is_copy(here: Tuple[int, int], dl_device: Optional[Tuple[int, int]], copy: Optional[bool]) -> bool:
    """Returns whether the arguments of ``__dlpack__`` request a copy, on the same device or on the host.

    Raises BufferError for another device, TypeError for a device that is no pair of integers.
    """
    wanted = here if dl_device is None else _pair("dl_device", dl_device)
    if wanted not in (here, _HOST_DEVICE):
        raise BufferError(f"__dlpack__: the memory is on the device {here} and cannot be exported to ({', '.join(map(digits, wanted))})")
    if wanted == here:
        return bool(copy)
    if copy is not None and not copy:
        raise BufferError(f"__dlpack__: the memory is on the device {here}, and the host needs a copy; pass copy=True")
    return True


def versioned(
    here: Tuple[int, int],
    stream: Optional[SupportsIndex],
    max_version: Optional[Tuple[int, int]],
    read_only: bool,
) -> bool:
    """Checks the other arguments of ``__dlpack__``. Returns True if the consumer takes versioned tensors.

    Raises BufferError for a read-only tensor that is not versioned, InvalidArgument for a number that is no stream of the device.
    """
    if stream is not None:
        # The stream is only checked: the vector's own writes are complete when they return, so no stream must wait for them.
        number = operator.index(stream)
        if not -1 <= number < 1 << 64 or here[0] == 1 and number != -1:
            raise InvalidArgument(f"__dlpack__: {digits(number)} is no stream of the device {here}")
    if max_version is not None and _pair("max_version", max_version)[0] >= 1:
        return True
    if read_only:
        raise BufferError("__dlpack__: DLPack before 1.0 cannot mark memory as read-only; pass max_version=(1, 0)")
    return False
