"""DLPack capsules: parts of a region for who takes tensors of others."""

from __future__ import annotations

import ctypes
import operator
from ctypes import c_char_p, c_int64, c_void_p, py_object, pythonapi
from typing import Any, Optional, SupportsIndex, Tuple

from ._dtype import DType
from ._handles import RegionHandle
from ._library import address_of, check, library
from ._typing import CapsuleType
from .errors import InvalidArgument

# Capsules point to their names for as long as they live: these stay until the process ends.
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
for _stays in (_PLAIN, _VERSIONED):
    pythonapi.Py_IncRef(py_object(_stays))

_new = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", pythonapi))


def _destructor() -> int:
    """The library's function that lets a tensor go that nobody has taken. Python could not: an exception may be on its way."""
    ending = "Py_IsFinalizing" if hasattr(pythonapi, "Py_IsFinalizing") else "_Py_IsFinalizing"
    names = "PyCapsule_IsValid", "PyCapsule_GetPointer", ending
    functions = (ctypes.cast(getattr(pythonapi, name), c_void_p) if hasattr(pythonapi, name) else None for name in names)
    library().gpu_vmm_python_capsules(*functions)
    return address_of("gpu_vmm_python_capsule_dropped")


def capsule(region: RegionHandle, dtype: DType, length: int, read_only: bool, versioned: bool) -> CapsuleType:
    """A capsule with a tensor of a region's first elements. Who takes the tensor renames the capsule."""
    destructor = _destructor()
    tensor = c_void_p()
    shape = (c_int64 * 1)(length)
    check(
        library().gpu_vmm_region_dlpack(
            region, 0, dtype.code, dtype.bits, 1, 1, shape, None, read_only, versioned, ctypes.byref(tensor)
        )
    )
    try:
        made: CapsuleType = _new(tensor, _VERSIONED if versioned else _PLAIN, destructor)
    except BaseException:
        library().gpu_vmm_dlpack_delete(tensor, versioned)
        raise
    return made


def _pair(what: str, value: Any) -> Tuple[int, int]:
    """Two numbers. Raises TypeError for something else."""
    try:
        one, other = value
        return operator.index(one), operator.index(other)
    except (TypeError, ValueError):
        raise TypeError(f"__dlpack__: {what} must be a pair of integers, not {value!r}") from None


def versioned(
    here: Tuple[int, int],
    stream: Optional[SupportsIndex],
    max_version: Optional[Tuple[int, int]],
    dl_device: Optional[Tuple[int, int]],
    copy: Optional[bool],
    read_only: bool,
) -> bool:
    """Checks what ``__dlpack__`` was asked; true where the consumer takes versioned tensors.

    Raises BufferError for what cannot be done, InvalidArgument for a stream that there cannot be.
    """
    if stream is not None:
        # Nothing is done with it: our own writes have ended when they return, so no stream has anything to wait for.
        number = operator.index(stream)
        if number < -1 or here[0] == 1 and number != -1:
            raise InvalidArgument(f"__dlpack__: {number} is no stream of the device {here}")
    if dl_device is not None and _pair("dl_device", dl_device) != here:
        raise BufferError(f"__dlpack__: the memory is on the device {here} and cannot be given on {tuple(dl_device)}")
    if copy:
        raise BufferError("__dlpack__: cannot copy: the memory itself is given")
    if max_version is not None and _pair("max_version", max_version)[0] >= 1:
        return True
    if read_only:
        raise BufferError("__dlpack__: DLPack before 1.0 cannot say that memory is read-only; ask with max_version=(1, 0)")
    return False
