"""The options of regions, for C."""

from __future__ import annotations

from typing import SupportsIndex

from .._arguments import member, unsigned
from .._signatures import RegionOptions
from .properties import Placement, Properties, struct_of


def options(
    memory: Properties,
    size: SupportsIndex,
    placement: Placement,
    address: SupportsIndex,
    alignment: SupportsIndex,
    extend_by: SupportsIndex = 0,
    guard: SupportsIndex = 0,
    portable: bool = False,
    recommended_granularity: bool = False,
) -> RegionOptions:
    """Returns ``gpu_vmm_region_options``."""
    return RegionOptions(
        memory=struct_of(memory),
        size=unsigned("size", size),
        placement=int(member("placement", placement, Placement)),
        portable=bool(portable),
        recommended_granularity=bool(recommended_granularity),
        address=unsigned("address", address),
        alignment=unsigned("alignment", alignment),
        extend_by=unsigned("extend_by", extend_by),
        guard=unsigned("guard", guard),
    )
