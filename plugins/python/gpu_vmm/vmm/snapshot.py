"""Several regions in one file."""

from __future__ import annotations

import ctypes
from typing import List, Sequence

from .._arguments import Path, path_of
from .._handles import RegionHandle
from .._library import check, library
from .._restoring import Devices, restore_options
from ..backend import Backend
from ._closable import handle_of
from .device import checked
from .region import Region


def snapshot(regions: Sequence[Region], path: Path, *, compress: bool = False) -> None:
    """Writes regions of one backend to a file at one point of time, as :meth:`Region.snapshot` writes one.

    Memory that is mapped in several of them is written once. Raises what that raises, and InvalidArgument for no region, more than 1024,
    the same region twice, or regions of several backends.
    """
    handles = [handle_of("regions", region, Region) for region in regions]  # kept during the call
    pointers = (ctypes.c_void_p * len(handles))(*(handle._as_parameter_ for handle in handles))
    check(library().gpu_vmm_regions_snapshot(pointers, len(handles), path_of("path", path), bool(compress)))


def restore(
    backend: Backend, path: Path, *, relocate: bool = False, devices: Devices = None, by_uuid: bool = False
) -> List[Region]:
    """Recreates all regions of a file in the order in which they were written, as :meth:`Region.restore` recreates one."""
    name, count = path_of("path", path), ctypes.c_uint64()
    opened, wanted = checked(backend)._handle, restore_options(relocate, devices, by_uuid)
    check(library().gpu_vmm_snapshot_count(name, ctypes.byref(count)))
    pointers = (ctypes.c_void_p * count.value)()
    # Each has its place in the array.
    places = range(0, ctypes.sizeof(pointers), ctypes.sizeof(ctypes.c_void_p))
    handles = [RegionHandle(pointers, at) for at in places]
    check(library().gpu_vmm_regions_restore(opened, name, ctypes.byref(wanted), pointers, count.value))
    return [Region._from(backend, handle) for handle in handles]
