"""Properties of physical memory, and the values that calls take."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Dict, SupportsIndex

from .._arguments import unsigned
from .._number import Number
from .._signatures import PropertiesStruct

HOST = 127
"""The CPU, in calls that set or query access. It is not a device."""


class Location(Number):
    """The place of physical memory."""

    DEVICE = 0
    HOST = 1
    """Host memory on a NUMA node that the driver chooses."""
    HOST_NODE = 2
    """Host memory on the NUMA node ``node``."""


class HandleTypes(IntFlag):
    """The handles by which memory can be exported."""

    NONE = 0
    FD = 1
    """File descriptors, for processes of one Linux machine."""
    FABRIC = 8
    """Fabric handles, for machines whose GPUs share a fabric."""


class Access(Number):
    """Access rights."""

    NONE = 0
    READ = 1
    READ_WRITE = 3


class Placement(Number):
    """The choice of a region's address."""

    ANYWHERE = 0
    """Any address that the driver chooses."""
    PREFER = 1
    """``address`` if it is free, else any address."""
    EXACT = 2
    """``address``, or AddressTaken."""
    RESTORABLE = 3
    """A random address that other processes can reserve as well."""
    BELOW = 4
    """Any addresses that are all below ``address``, also after growth and moves: for hardware that reaches fewer addresses."""


class OfferBy(Number):
    """The way in which other processes import an offer."""

    PROCESS = 0
    """Processes of this machine take the descriptors from this process. Linux only."""
    FABRIC = 1
    """Processes on all machines of the fabric import fabric handles."""


@dataclass(frozen=True)
class Properties:
    """The properties of physical memory. The default is memory of device 0 that cannot be exported."""

    device: int = 0
    """The device that owns the memory. For host memory, the device that copies to and from it."""
    location: Location = Location.DEVICE
    node: int = 0
    """The NUMA node for ``Location.HOST_NODE``, else zero."""
    handle_types: HandleTypes = HandleTypes.NONE
    """The handles by which the memory can be exported, which the driver must know when it creates the memory."""
    compressible: bool = False
    """Whether the driver may compress the memory."""
    remote_dma: bool = False
    """Whether a network card can access the memory without the host."""


DEFAULT = Properties()
"""Memory of device 0 that cannot be exported."""

ACCESS_OF_LEVEL: Dict[int, Access] = {int(access): access for access in Access}
"""The access rights by their number in C; the class of an enumeration looks members up more slowly."""


def pointer_to(properties: Properties) -> Any:
    """Returns a pointer to the properties for C."""
    return None if properties is DEFAULT else ctypes.byref(struct_of(properties))


def struct_of(properties: Properties) -> PropertiesStruct:
    """Returns the properties for C."""
    if not isinstance(properties, Properties):
        raise TypeError(f"properties: expected a gpu_vmm.vmm.Properties, not {type(properties).__name__}")
    return PropertiesStruct(
        device=_u32("device", properties.device),
        location=_u32("location", properties.location),
        node=_u32("node", properties.node),
        handle_types=_u32("handle_types", properties.handle_types),
        compressible=bool(properties.compressible),
        remote_dma=bool(properties.remote_dma),
    )


def properties_of(found: PropertiesStruct) -> Properties:
    """Returns the properties that C has filled in."""
    return Properties(
        found.device, Location(found.location), found.node, HandleTypes(found.handle_types), found.compressible, found.remote_dma
    )


def _u32(what: str, value: SupportsIndex) -> int:
    return unsigned(what, value, 32)
