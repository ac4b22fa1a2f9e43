"""DLPack capsules: parts of a region for who takes tensors of others."""

from __future__ import annotations

import ctypes
import operator
import sys
from ctypes import c_char_p, c_int64, c_void_p, py_object, pythonapi
from typing import Any, Callable, Dict, Optional, Tuple

from ._handles import RegionHandle
from ._library import check, library
from ._values import DType
from .errors import InvalidArgument

# Capsules point to their names and their destructor for as long as they live: these stay until the process ends.
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_NAMES = ((_PLAIN, False), (_VERSIONED, True))

# Of what is called with a capsule that is just going, the capsule's address alone can be given.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", pythonapi))
_occurred = ctypes.PYFUNCTYPE(c_void_p)(("PyErr_Occurred", pythonapi))
_new = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", pythonapi))


def _dropped(
    capsule: int,
    ending: Callable[[], bool] = sys.is_finalizing,
    occurred: Any = _occurred,
    is_valid: Any = _is_valid,
    pointer_of: Any = _pointer_of,
    names: Any = _NAMES,
    loaded: Any = library,
) -> None:
    """A capsule goes: where nobody has taken its tensor, the tensor goes too. Who takes one renames the capsule."""
    pending = None
    try:
        # First of all: an exception may be on its way, with which no Python can run. ctypes looks for one behind each call into
        # the interpreter, so it is raised here. A C function that was interrupted by it will miss it; see Exporter.
        occurred()
    except BaseException as error:
        pending = error
    if not ending():
        for name, versioned in names:
            if is_valid(capsule, name):
                loaded().gpu_vmm_dlpack_delete(pointer_of(capsule, name), versioned)
    if pending is not None:
        raise pending  # nobody can catch it; it is told by sys.unraisablehook at least


_DROPPED = ctypes.PYFUNCTYPE(None, c_void_p)(_dropped)
_DESTRUCTOR = ctypes.cast(_DROPPED, c_void_p)
for _stays in (_PLAIN, _VERSIONED, _DROPPED):
    pythonapi.Py_IncRef(py_object(_stays))


class Exporter:
    """What gives capsules of a region, and has each thread's last one, which nobody may have taken.

    A library that refuses a tensor drops its capsule while its exception is on the way, and ctypes cannot run the destructor then
    without losing that exception. So the capsule stays here until the thread asks for the next one, the vector takes memory away, or
    it is collected: then none is on its way.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Dict[int, object] = {}

    def forget(self) -> None:
        """Lets go of capsules; tensors that somebody has taken stay."""
        self._last.clear()

    def __del__(self) -> None:
        # Python keeps exceptions aside around this, and not where attributes are cleared behind it.
        self.forget()

    def capsule(
        self, region: RegionHandle, dtype: DType, length: int, read_only: bool, versioned: bool, thread: int
    ) -> object:
        """A capsule with a tensor of the region's first elements."""
        self._last.pop(thread, None)
        tensor = c_void_p()
        shape = (c_int64 * 1)(length)
        check(
            library().gpu_vmm_region_dlpack(
                region, 0, dtype.code, dtype.bits, 1, 1, shape, None, read_only, versioned, ctypes.byref(tensor)
            )
        )
        try:
            capsule: object = _new(tensor, _VERSIONED if versioned else _PLAIN, _DESTRUCTOR)
        except BaseException:
            library().gpu_vmm_dlpack_delete(tensor, versioned)
            raise
        self._last[thread] = capsule
        return capsule


def versioned(
    here: Tuple[int, int],
    stream: Optional[Any],
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
    if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != here:
        raise BufferError(f"__dlpack__: the memory is on the device {here} and cannot be given on {tuple(dl_device)}")
    if copy:
        raise BufferError("__dlpack__: cannot copy: the memory itself is given")
    if max_version is not None and max_version[0] >= 1:
        return True
    if read_only:
        raise BufferError("__dlpack__: DLPack before 1.0 cannot say that memory is read-only; ask with max_version=(1, 0)")
    return False
