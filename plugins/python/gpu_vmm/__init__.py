"""gpu-vmm: GPU memory that grows in place and sleeps, for PyTorch, CuPy, RMM and every library that takes DLPack.

Importing the package loads nothing. The C library is loaded at the first use. PyTorch, CuPy, Numba and RMM are imported when functions of
:mod:`gpu_vmm.torch`, :mod:`gpu_vmm.cupy`, :mod:`gpu_vmm.numba` and :mod:`gpu_vmm.rmm` are called.
"""

from . import cupy, numba, results, rmm, serve, torch, vmm
from ._dtype import DTypeLike, DTypeName
from .backend import Backend, at, open
from .block_cache import BlockCache, BlockTensor, TensorShape
from .device_vec import DeviceVec, ReadOnlyVec
from .errors import (
    AccessDenied,
    AddressTaken,
    AlreadyMapped,
    Busy,
    DeviceLost,
    DriverError,
    Error,
    Exiting,
    FileError,
    Forked,
    InternalError,
    InvalidArgument,
    NoListener,
    NoSuchDevice,
    NotFound,
    NotInstalled,
    NotMapped,
    OutOfAddressSpace,
    OutOfDescriptors,
    OutOfMemory,
    OutOfRange,
    PeerError,
    PeerUnreachable,
    Poisoned,
    StaleSocket,
    Status,
    Suspended,
    TimedOut,
    Unaligned,
    Unsupported,
)
from .pool import Block, BlockInfo, BlockMemory, Pool, RestoredPool
from .results import AddressInfo, BackendInfo, PoolSnapshot, PoolStats
from .serve import connect, set_pool_server

__version__ = "0.1.0"

__all__ = [
    "AccessDenied", "AddressInfo", "AddressTaken", "AlreadyMapped", "Backend", "BackendInfo", "Block", "BlockCache", "BlockInfo",
    "BlockMemory", "BlockTensor", "Busy", "DTypeLike", "DTypeName", "DeviceLost", "DeviceVec", "DriverError", "Error", "Exiting",
    "FileError", "Forked", "InternalError",
    "InvalidArgument", "NoListener", "NoSuchDevice", "NotFound", "NotInstalled", "NotMapped", "OutOfAddressSpace", "OutOfDescriptors",
    "OutOfMemory", "OutOfRange", "PeerError", "PeerUnreachable", "Poisoned", "Pool", "PoolSnapshot", "PoolStats",
    "ReadOnlyVec", "RestoredPool", "StaleSocket", "Status", "Suspended", "TensorShape", "TimedOut", "Unaligned", "Unsupported", "at",
    "connect", "cupy", "numba", "open", "results", "rmm", "serve", "set_pool_server", "torch", "vmm",
]  # fmt: skip
