"""The options of pools, for C."""

from __future__ import annotations

from typing import Optional, SupportsIndex

from ._arguments import kept_free, limit, unsigned
from ._library import PoolOptions

LIBRARY_ALIGNMENT = 512
"""The alignment of memory for a library in the place of cudaMalloc's, which suits textures of linear memory."""


def options(
    device: SupportsIndex = 0,
    budget: Optional[SupportsIndex] = None,
    keep: Optional[SupportsIndex] = None,
    page: Optional[SupportsIndex] = None,
    slack: Optional[SupportsIndex] = None,
    scrub: bool = False,
    debug: bool = False,
    restorable: bool = False,
) -> PoolOptions:
    """Returns the options of a pool, for C."""
    return PoolOptions(
        device=unsigned("device", device, 32),
        budget=limit("budget", budget),
        keep=kept_free(keep),
        page=limit("page", page),
        slack=limit("slack", slack, 32),
        scrub=bool(scrub),
        debug=bool(debug),
        restorable=bool(restorable),
    )
