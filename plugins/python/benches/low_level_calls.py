"""Compares calls of gpu_vmm.vmm with the same calls written by hand with ctypes, each with a check of its status.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/benches/low_level_calls.py [BACKEND]

Both are measured in turns in one run. Each line has the least time of each, and their quotient.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Callable, List

from gpu_vmm import vmm
from gpu_vmm._library import library

ROUNDS = 25


def nanoseconds(call: Callable[[], object], times: int) -> float:
    """Returns the time of one call."""
    start = time.perf_counter_ns()
    for _ in range(times):
        call()
    return (time.perf_counter_ns() - start) / times


def compare(name: str, ours: Callable[[], object], by_hand: Callable[[], object], times: int) -> None:
    """Prints the least times of both."""
    ours(), by_hand()
    taken: List[List[float]] = [[], []]
    for turn in range(2 * ROUNDS):
        # Each is first in every other round.
        which = (turn + turn // 2) % 2
        taken[which].append(nanoseconds((ours, by_hand)[which], times))
    first, second = map(min, taken)
    print(f"{name:28} {first:9.0f} ns {second:9.0f} ns  {first / second:5.2f}  ({first - second:+.0f} ns)")


def main() -> None:
    backend = vmm.open(sys.argv[1] if len(sys.argv) > 1 else "host")
    unit = vmm.reservation_unit(backend)
    c, opened = library(), backend._handle
    memory = vmm.PhysicalMemory(backend, unit)
    region = vmm.Region(backend, 4 * unit)
    region.map(0, memory)
    region.set_access(0, unit, 0, vmm.Access.READ_WRITE)
    at, held = region._handle, memory._handle

    def checked(status: int) -> None:
        if status:
            raise RuntimeError(c.gpu_vmm_last_error())

    def address() -> int:
        found = ctypes.c_uint64()
        checked(c.gpu_vmm_region_address(at, ctypes.byref(found)))
        return found.value

    def access() -> int:
        level = ctypes.c_uint32()
        checked(c.gpu_vmm_region_access(at, 0, 0, ctypes.byref(level)))
        return level.value

    def write() -> None:
        checked(c.gpu_vmm_region_write(at, 0, b"x" * 64, 64))

    def cycle() -> None:
        checked(c.gpu_vmm_region_map(at, unit, held))
        checked(c.gpu_vmm_region_set_access(at, unit, unit, 0, 3))
        checked(c.gpu_vmm_region_unmap(at, unit, unit, False))

    def our_cycle() -> None:
        region.map(unit, memory)
        region.set_access(unit, unit, 0, vmm.Access.READ_WRITE)
        region.unmap(unit, unit)

    def create() -> None:
        pointer = ctypes.c_void_p()
        checked(c.gpu_vmm_physical_create(opened, None, unit, ctypes.byref(pointer)))
        c.gpu_vmm_physical_release(pointer)

    print(f"{backend.name:28} {'gpu_vmm.vmm':>12} {'ctypes':>12}  quotient; the least of {ROUNDS} rounds")
    compare("region.address", lambda: region.address, address, 4000)
    compare("region.access", lambda: region.access(0, 0), access, 4000)
    compare("region.write, 64 bytes", lambda: region.write(b"x" * 64), write, 4000)
    compare("map, set_access, unmap", our_cycle, cycle, 400)
    compare("create and release", lambda: vmm.PhysicalMemory(backend, unit).close(), create, 400)


if __name__ == "__main__":
    main()
