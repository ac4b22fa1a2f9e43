"""Pools that get their budget from a server."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from typing import Optional, SupportsIndex

from .._arguments import Path, path_of, signed, text, unsigned
from .._library import check
from .._signatures import ProgramOptionsStruct
from .._waits import linux_function, seconds_of

WAIT = 10.0
"""How long a request of a pool waits for memory that other programs have, in seconds."""


def set_pool_server(
    path: Optional[Path],
    *,
    name: Optional[str] = None,
    priority: SupportsIndex = 0,
    wait: float = WAIT,
    user: Optional[SupportsIndex] = None,
) -> None:
    """Lets the server at ``path``, ``gpu-vmm serve``, divide the memory of its devices between this program's pools and those of others.

    It applies to pools that are created from now on, those for PyTorch and CuPy included: each has the budget that the server grants, and
    gives memory back when others need it. None as ``path``: new pools have no server. Before the first call, the server is the one at the path
    in the environment variable ``GPU_VMM_POOL_SERVER``, if that is set.

    ``name``: the program's name in lists and errors; None for the name of its script. ``priority``: programs of a lower one are asked first
    for memory, and their requests wait longer; those above 0 are for the server's own user and for root. ``wait``: how long a request waits
    for memory that other programs have, in seconds. ``user``: the number of the effective user that the server must have; None for this
    process's.

    The call does not connect. The creation of a pool raises what :func:`connect` raises, and InvalidArgument for a priority that is not
    allowed. Raises Unsupported without Linux.
    """
    call = linux_function("gpu_vmm_set_pool_server")
    if path is None:
        check(call(None, None))
        return
    shown = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    options = ProgramOptionsStruct(
        name=text("name", shown if name is None else name),
        priority=signed("priority", priority, 8),
        user=0 if user is None else unsigned("user", user, 32),
        has_user=user is not None,
        wait_ms=max(1, math.ceil(1000 * seconds_of(wait, "wait"))),
    )
    check(call(path_of("path", path), ctypes.byref(options)))
