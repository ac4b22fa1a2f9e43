"""The C library: its file, the types of its functions, and the exceptions for their errors."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
from ctypes import POINTER, c_bool, c_char, c_char_p, c_int, c_int32, c_int64, c_ssize_t, c_uint8, c_uint16, c_uint32, c_uint64
from ctypes import c_void_p
from typing import Any, Dict, List, Optional, Tuple

from ._lock import new_lock
from ._signatures import FUNCTIONS as LOW_LEVEL
from ._signatures import PropertiesStruct
from .errors import Error, Unsupported, from_status

VARIABLE = "GPU_VMM_C_LIBRARY"
"""The environment variable that names the library's file. It has precedence over the package's directory."""

HIP_FOLDER = "GPU_VMM_HIP_FOLDER"
"""The environment variable that names the folder in which the library looks first for AMD's HIP runtime."""

HIP_FOLDER_FOUND = "GPU_VMM_HIP_FOLDER_FOUND"
"""The folder that this package has found and named in ``GPU_VMM_HIP_FOLDER``, so that a child of another environment finds its own."""

_PATTERNS = ("libgpu_vmm_c*.so", "libgpu_vmm_c*.dylib", "gpu_vmm_c*.dll", "libgpu_vmm_c*.pyd")


class PoolOptions(ctypes.Structure):
    """``gpu_vmm_pool_options``."""

    _fields_ = [
        ("device", c_uint32), ("budget", c_uint64), ("keep", c_uint64), ("page", c_uint64), ("slack", c_uint32), ("scrub", c_bool),
        ("debug", c_bool), ("shareable", c_bool), ("restorable", c_bool), ("reserved", c_uint64 * 4),
    ]  # fmt: skip


class MempoolId(ctypes.Structure):
    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


class BlockFound(ctypes.Structure):
    """``gpu_vmm_block``."""

    _fields_ = [
        ("base", c_uint64), ("capacity", c_uint64), ("offset", c_uint64), ("stream", c_void_p), ("device", c_uint32),
        ("tag", c_char * 64),
    ]  # fmt: skip


class RestoredBlock(ctypes.Structure):
    """``gpu_vmm_restored_block``."""

    _fields_ = [
        ("address", c_uint64), ("size", c_uint64), ("capacity", c_uint64), ("stream", c_void_p), ("tag", c_char * 64),
    ]  # fmt: skip


_OBJECT = c_void_p  # opaque: backends, pools, regions
_STATUS = c_int32
_U64 = POINTER(c_uint64)

# The result type and the argument types of every function; those of gpu_vmm.vmm are in _signatures.
_FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    **LOW_LEVEL,
    "gpu_vmm_last_error": (c_char_p, []),
    "gpu_vmm_version": (c_char_p, []),
    "gpu_vmm_string_free": (None, [c_void_p]),
    "gpu_vmm_open": (_STATUS, [c_char_p, POINTER(_OBJECT)]),
    "gpu_vmm_close": (None, [_OBJECT]),
    "gpu_vmm_backend_name": (c_char_p, [_OBJECT]),
    "gpu_vmm_backend_devices": (_STATUS, [_OBJECT, POINTER(c_uint32)]),
    "gpu_vmm_at": (_STATUS, [c_uint64, POINTER(c_void_p)]),
    "gpu_vmm_backend_info": (_STATUS, [_OBJECT, POINTER(c_void_p)]),
    "gpu_vmm_memory": (_STATUS, [_OBJECT, c_uint32, _U64, _U64]),
    "gpu_vmm_capture_begin": (_STATUS, [_OBJECT, POINTER(_OBJECT)]),
    "gpu_vmm_capture_end": (_STATUS, [_OBJECT]),
    "gpu_vmm_collect": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_pool_new": (_STATUS, [_OBJECT, POINTER(PoolOptions), POINTER(_OBJECT)]),
    "gpu_vmm_pool_tagged": (_STATUS, [_OBJECT, c_char_p, POINTER(_OBJECT)]),
    "gpu_vmm_pool_with_memory": (_STATUS, [_OBJECT, POINTER(PropertiesStruct), POINTER(_OBJECT)]),
    "gpu_vmm_pool_kinds": (_STATUS, [_OBJECT, POINTER(c_void_p)]),
    "gpu_vmm_pool_allow_access": (_STATUS, [_OBJECT, c_uint32, c_uint32]),
    "gpu_vmm_pool_move_to_device": (_STATUS, [_OBJECT, c_uint32]),
    "gpu_vmm_pool_free": (None, [_OBJECT]),
    "gpu_vmm_alloc": (_STATUS, [_OBJECT, c_uint64, c_uint64, c_void_p, _U64]),
    "gpu_vmm_alloc_at": (_STATUS, [_OBJECT, c_uint64, c_uint64, c_void_p]),
    "gpu_vmm_pool_save": (_STATUS, [_OBJECT, c_char_p, POINTER(c_char_p), c_uint64, c_bool]),
    "gpu_vmm_saved_pool_count": (_STATUS, [c_char_p, _U64]),
    "gpu_vmm_pool_restore": (
        _STATUS, [_OBJECT, c_char_p, POINTER(PoolOptions), POINTER(_OBJECT), POINTER(RestoredBlock), c_uint64],
    ),
    "gpu_vmm_free": (_STATUS, [_OBJECT, c_uint64]),
    "gpu_vmm_record_use": (_STATUS, [_OBJECT, c_uint64, c_void_p]),
    "gpu_vmm_find": (_STATUS, [_OBJECT, c_uint64, POINTER(BlockFound)]),
    "gpu_vmm_read": (_STATUS, [_OBJECT, c_uint64, c_void_p, c_uint64]),
    "gpu_vmm_write": (_STATUS, [_OBJECT, c_uint64, c_void_p, c_uint64]),
    "gpu_vmm_suspend": (_STATUS, [_OBJECT, c_char_p, c_char_p, _U64]),
    "gpu_vmm_is_suspended": (_STATUS, [_OBJECT, c_char_p, POINTER(c_bool)]),
    "gpu_vmm_resume": (_STATUS, [_OBJECT, c_char_p, _U64]),
    "gpu_vmm_pool_forget_tag": (_STATUS, [_OBJECT, c_char_p]),
    "gpu_vmm_set_budget": (_STATUS, [_OBJECT, c_uint64]),
    "gpu_vmm_trim": (_STATUS, [_OBJECT, c_uint64, _U64]),
    "gpu_vmm_trim_host": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_host_memory": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_forget_stream": (_STATUS, [_OBJECT, c_void_p]),
    "gpu_vmm_pool_stats": (_STATUS, [_OBJECT, POINTER(c_void_p)]),
    "gpu_vmm_pool_snapshot": (_STATUS, [_OBJECT, POINTER(c_void_p)]),
    "gpu_vmm_region_free": (None, [_OBJECT]),
    "gpu_vmm_region_grow": (_STATUS, [_OBJECT, c_uint64]),
    "gpu_vmm_region_shrink": (_STATUS, [_OBJECT, c_uint64, c_bool, _U64]),
    "gpu_vmm_region_address": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_region_size": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_region_read": (_STATUS, [_OBJECT, c_uint64, c_void_p, c_uint64]),
    "gpu_vmm_region_write": (_STATUS, [_OBJECT, c_uint64, c_void_p, c_uint64]),
    "gpu_vmm_region_suspend": (_STATUS, [_OBJECT, c_char_p, c_bool, _U64]),
    "gpu_vmm_region_resume": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_region_is_suspended": (_STATUS, [_OBJECT, POINTER(c_bool)]),
    "gpu_vmm_region_dlpack": (
        _STATUS,
        [
            _OBJECT, c_uint64, c_uint8, c_uint8, c_uint16, c_int32, POINTER(c_int64), POINTER(c_int64), c_bool, c_bool,
            POINTER(c_void_p),
        ],
    ),
    "gpu_vmm_dlpack_delete": (None, [c_void_p, c_bool]),
    "gpu_vmm_dlpack_device": (_STATUS, [_OBJECT, c_uint32, POINTER(c_int32), POINTER(c_int32)]),
    "gpu_vmm_python_capsules": (None, [c_void_p, c_void_p, c_void_p]),
    "gpu_vmm_torch_alloc": (c_void_p, [c_ssize_t, c_int, c_void_p]),
    "gpu_vmm_torch_free": (None, [c_void_p, c_ssize_t, c_int, c_void_p]),
    "gpu_vmm_torch_record_stream": (None, [c_void_p, c_void_p]),
    "gpu_vmm_torch_empty_cache": (None, []),
    "gpu_vmm_torch_configure": (_STATUS, [c_char_p, POINTER(PoolOptions)]),
    "gpu_vmm_torch_set_tag": (_STATUS, [c_char_p]),
    "gpu_vmm_torch_functions": (_STATUS, [c_char_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "gpu_vmm_torch_pool_tag": (_STATUS, [c_int, MempoolId, c_char_p]),
    "gpu_vmm_torch_restore_pool": (_STATUS, [c_int, c_char_p, c_char_p, POINTER(RestoredBlock), c_uint64]),
    "gpu_vmm_torch_claim": (_STATUS, [c_int, c_uint64]),
    "gpu_vmm_torch_end_restore": (_STATUS, [c_int]),
    "gpu_vmm_torch_pool": (_STATUS, [c_int32, POINTER(_OBJECT)]),
}  # fmt: skip

_lock = new_lock()
_loaded: Optional[ctypes.CDLL] = None


def find() -> str:
    """Returns the path of the library's file.

    Raises Unsupported, which names the files and places that were tried.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if os.path.isfile(named):
            return os.path.abspath(named)
        raise Unsupported(f"load gpu-vmm's library: {VARIABLE} is {named!r}, which is not a file")
    folder = os.path.dirname(os.path.abspath(__file__))
    for pattern in _PATTERNS:
        for file in sorted(glob.glob(os.path.join(glob.escape(folder), pattern))):
            return file
    raise Unsupported(
        f"load gpu-vmm's library: there is no {', '.join(_PATTERNS)} in {folder}, and {VARIABLE} is not set; build it with "
        f"`cargo build --release -p gpu-vmm-c` and set {VARIABLE} to the file, or install the package on a machine with a Rust toolchain"
    )


def _name_rocm_wheels() -> None:
    """Names the folder of ROCm's wheels to the library, if they are installed and no other folder is named.

    PyTorch loads HIP from there, and a process must have one copy of it. A folder that the parent process has named for its own
    environment does not count.
    """
    named = os.environ.get(HIP_FOLDER)
    if named and named != os.environ.get(HIP_FOLDER_FOUND):
        return
    try:
        wheel = importlib.util.find_spec("_rocm_sdk_core")
    except (ImportError, ValueError):
        wheel = None
    places = (wheel.submodule_search_locations or []) if wheel else []
    folders = [os.path.join(os.path.abspath(place), "bin" if os.name == "nt" else "lib") for place in places]
    found = next(filter(os.path.isdir, folders), None)
    for variable in HIP_FOLDER, HIP_FOLDER_FOUND:
        if found:
            os.environ[variable] = found
        else:
            os.environ.pop(variable, None)


def _load() -> ctypes.CDLL:
    path = find()
    _name_rocm_wheels()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise Unsupported(f"load gpu-vmm's library: {path}: {error}") from error
    for name, (gives, takes) in _FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError as error:
            raise Unsupported(f"load gpu-vmm's library: {path} has no function {name}; its version differs from the package's") from error
        function.restype = gives
        function.argtypes = takes
    return loaded


def library() -> ctypes.CDLL:
    """Returns the library, which the first call loads.

    Raises Unsupported if it cannot be found or loaded. The next call tries again.
    """
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _load()
    return _loaded


def check(status: int) -> None:
    """Raises the exception for a status other than OK, with this thread's last error as its text."""
    if status:
        raise error_of(status)


def error_of(status: int) -> Error:
    """Returns the exception for a status other than OK."""
    # Another call of this thread, in a signal's handler that runs in between, would replace the text. The library has no call for both.
    text = library().gpu_vmm_last_error() or b""
    return from_status(status, text.decode("utf-8", "replace"))


def address_of(name: str) -> int:
    """Returns the address of a function, for native callers."""
    return int(ctypes.cast(getattr(library(), name), c_void_p).value or 0)


def version() -> str:
    """Returns the library's version."""
    return str(library().gpu_vmm_version().decode())
