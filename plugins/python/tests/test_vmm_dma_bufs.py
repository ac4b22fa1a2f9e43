"""Dma-bufs of regions, which host memory does not have."""

import os
import unittest
from unittest import mock

import gpu_vmm
from gpu_vmm import vmm
from gpu_vmm.vmm import _mappings
from support import NAME, Case, backend


def region_of(opened, devices):
    """Returns a region with a unit of memory of each device, and the unit."""
    unit = vmm.reservation_unit(opened)
    region = vmm.Region(opened, len(devices) * unit)
    for place, device in enumerate(devices):
        region.map(place * unit, vmm.PhysicalMemory(opened, unit, vmm.Properties(device=device)))
    return region, unit


def closed(found):
    """Closes dma-bufs and returns their ranges."""
    for one in found:
        os.close(one.fd)
    return [(one.offset, one.length) for one in found]


@unittest.skipUnless(NAME == "host", "host memory has none")
class Nowhere(Case):
    def test_host_memory_has_none(self):
        region, unit = region_of(backend(), [0])
        with self.raises(gpu_vmm.Unsupported, "memfd"):
            region.dma_bufs(0, unit)


@unittest.skipIf(NAME == "host" or backend().devices < 2, "needs dma-bufs and two devices")
class DmaBufs(Case):
    def test_run_of_one_device_is_covered(self):
        region, unit = region_of(backend(), [0, 0])
        parts = closed(region.dma_bufs(0, 2 * unit))
        # HIP makes one for each mapping.
        self.assertEqual(parts, [(0, 2 * unit)] if NAME == "cuda" else [(0, unit), (unit, unit)])
        self.assertEqual(closed(region.dma_bufs(unit, unit)), [(unit, unit)])

    def test_each_device_has_its_own(self):
        region, unit = region_of(backend(), [0, 1, 0])
        parts = [(place * unit, unit) for place in range(3)]
        self.assertEqual(closed(region.dma_bufs(0, 3 * unit)), parts)
        # In several calls of the library.
        with mock.patch.object(_mappings, "MOST", 1):
            self.assertEqual(closed(region.dma_bufs(0, 3 * unit)), parts)

    def test_wrong_range_is_refused(self):
        region, unit = region_of(backend(), [0, 0])
        with self.raises(gpu_vmm.Unaligned):
            region.dma_bufs(1, unit)
        with self.raises(gpu_vmm.OutOfRange):
            region.dma_bufs(0, 3 * unit)
        with self.raises(gpu_vmm.InvalidArgument):
            region.dma_bufs(0, 0)
        region.unmap(unit, unit)
        with self.raises(gpu_vmm.NotMapped):
            region.dma_bufs(0, 2 * unit)

    def test_failed_call_closes_descriptors(self):
        region, unit = region_of(backend(), [0, 1])

        def unmaps_the_rest(status):
            check(status)
            region.unmap(unit, unit)

        # The memory has a descriptor on the fake driver, and lives as long as this object.
        memory = region.physical(unit)
        before, check = len(os.listdir("/proc/self/fd")), _mappings.check
        with mock.patch.object(_mappings, "MOST", 1), mock.patch.object(_mappings, "check", unmaps_the_rest):
            with self.raises(gpu_vmm.NotMapped):
                region.dma_bufs(0, 2 * unit)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        memory.close()


if __name__ == "__main__":
    unittest.main()
