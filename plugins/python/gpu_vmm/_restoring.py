"""The options of restoring regions from files, for C."""

from __future__ import annotations

from typing import List, Mapping, Optional, SupportsIndex, Union

from ._arguments import unsigned
from ._dtype import shown
from ._signatures import DevicePair, RestoreOptions

Devices = Optional[Union[SupportsIndex, Mapping[int, SupportsIndex]]]
"""The device for all memory of a file, or the replacement of each device; None for the devices with the same numbers."""

ALL = 0xFFFF_FFFF
"""``GPU_VMM_DEVICE_ALL``."""


def restore_options(relocate: bool, devices: Devices, by_uuid: bool) -> RestoreOptions:
    """Returns ``gpu_vmm_restore_options``."""
    pairs: List[DevicePair]
    if devices is None:
        pairs = []
    elif isinstance(devices, Mapping):
        pairs = [DevicePair(unsigned("devices", was, 31), unsigned("devices", now, 32)) for was, now in devices.items()]
    elif isinstance(devices, SupportsIndex):
        pairs = [DevicePair(ALL, unsigned("devices", devices, 32))]
    else:
        raise TypeError(f"devices: expected the number of a device, or a dict of numbers, not {shown(devices)}")
    made = (DevicePair * len(pairs))(*pairs)
    return RestoreOptions(relocate=bool(relocate), by_uuid=bool(by_uuid), devices=made, device_count=len(pairs))
