"""A plug-in for pytest that runs ModelExpress's own ``test_vmm_arena.py`` over gpu-vmm instead of over its stub.

Its stub records the calls. This class records them as well, and makes them.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import project  # noqa: E402, F401
from gpu_vmm_modelexpress import GpuVmmBackend  # noqa: E402
from modelexpress.vmm import arena  # noqa: E402

# The granularity that the tests expect.
UNIT = 2 << 20


class Recorded(GpuVmmBackend):
    def __init__(self):
        super().__init__(0, os.environ.get("GPU_VMM_TEST_BACKEND", "host"))
        assert UNIT % super().allocation_granularity() == 0
        self.reserved, self.allocations, self.deallocations, self.released = [], [], [], []

    def allocation_granularity(self):
        return UNIT

    def reserve(self, total_bytes):
        base = super().reserve(total_bytes)
        self.reserved.append((base, total_bytes))
        return base

    def allocate(self, va, size):
        handle = super().allocate(va, size)
        self.allocations.append((va, size, handle))
        return handle

    def deallocate(self, va, size, handle):
        super().deallocate(va, size, handle)
        self.deallocations.append((va, size, handle))

    def release_reserve(self, base, total_bytes):
        super().release_reserve(base, total_bytes)
        self.released.append((base, total_bytes))


arena._StubBackend = Recorded
