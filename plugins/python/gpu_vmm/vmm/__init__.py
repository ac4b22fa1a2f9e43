"""The low-level calls: physical memory, address ranges, mappings, access, events, and the memory behind a fixed address.

Every argument but a stream is checked before it reaches a driver. Objects are released when they are closed, at the end of ``with``, or when they are
garbage-collected::

    from gpu_vmm import vmm

    backend = vmm.open("host")
    unit = vmm.granularity(backend)
    with vmm.PhysicalMemory(backend, unit) as memory, vmm.Region(backend, 4 * unit) as region:
        region.map(0, memory)
        region.set_access(0, unit, 0, vmm.Access.READ_WRITE)
        region.write(b"kept")
"""

from ..backend import Backend, open
from ..results import CapabilityInfo, PageListStats
from ._mappings import DmaBuf, Mapping
from .banked import BankedRegion
from .copies import CopyQueue, PinnedMemory
from .device import Device, devices, first_supported, granularity, recommended_granularity, reservation_unit
from .event import Event
from .exchange import ExchangeEvent, Exporter, FollowedRegion, Listener, ReleaseOutcome
from .multicast import Multicast
from .observer import After, BackingChange, BackingEffect, Before, Outcome, Range
from .offer import Offer
from .pages import PageList
from .physical import PhysicalMemory
from .properties import HOST, Access, HandleTypes, Location, OfferBy, Placement, Properties
from .region import Region
from .snapshot import restore, snapshot
from .view import View

__all__ = [
    "HOST", "Access", "After", "Backend", "BackingChange", "BackingEffect", "BankedRegion", "Before", "CapabilityInfo", "CopyQueue",
    "Device", "DmaBuf", "Event", "ExchangeEvent", "Exporter", "FollowedRegion", "HandleTypes", "Listener", "Location", "Mapping", "Multicast", "Offer",
    "OfferBy", "Outcome", "PageList", "PageListStats", "PhysicalMemory", "PinnedMemory", "Placement", "Properties", "Range", "Region", "ReleaseOutcome", "View",
    "devices", "first_supported", "granularity", "open", "recommended_granularity", "reservation_unit", "restore", "snapshot",
]  # fmt: skip
