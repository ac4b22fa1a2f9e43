"""The dictionaries that calls return have exactly the keys and types of gpu_vmm.results."""

import typing
import unittest

import gpu_vmm
from gpu_vmm import results, vmm
from support import MIB, NAME, Case, backend


class Results(Case):
    def fits(self, value, kind, where):
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if typing.is_typeddict(kind) if hasattr(typing, "is_typeddict") else hasattr(kind, "__total__"):
            fields = typing.get_type_hints(kind)
            self.assertEqual(set(value), set(fields), where)
            for name, field in fields.items():
                self.fits(value[name], field, f"{where}.{name}")
        elif origin is list:
            for number, one in enumerate(value):
                self.fits(one, arguments[0], f"{where}[{number}]")
        elif origin is tuple:
            self.assertEqual([type(one) for one in value], list(arguments), where)
        elif origin is typing.Union:
            # None, or another type.
            if value is not None:
                self.fits(value, arguments[0], where)
        elif origin is typing.Literal:
            self.assertIn(value, arguments, where)
        else:
            self.assertIsInstance(value, tuple(arguments) or kind, where)

    def test_backend(self):
        info = backend().info()
        self.assertTrue(info["devices"])
        self.fits(info, results.BackendInfo, "info")

    def test_pool(self):
        pool = backend().pool()
        blocks = [pool.alloc(size) for size in (1, 1000, 3 * MIB, 5 * MIB)]
        blocks.pop().free()
        with pool.tagged("t").alloc(3 * MIB):
            pool.suspend("t")
            stats, snapshot = pool.stats(), pool.snapshot()
            pool.resume("t")
        space = snapshot["spaces"][0]
        for filled in (stats["bins"], snapshot["spaces"], snapshot["timeline"], space["blocks"], space["pages"]):
            self.assertTrue(filled)
        self.fits(stats, results.PoolStats, "stats")
        self.fits(snapshot, results.PoolSnapshot, "snapshot")

    def test_pages(self):
        opened = backend()
        unit = vmm.reservation_unit(opened)
        self.fits(vmm.PageList(opened, unit, unit).stats(), results.PageListStats, "stats")

    def test_at(self):
        opened = backend()
        self.assertIsNone(gpu_vmm.at(0))
        region = vmm.Region(opened, 2 * vmm.reservation_unit(opened), placement=vmm.Placement.BELOW, address=1 << 46)
        self.assertLessEqual(region.address + region.reserved, 1 << 46)
        region.grow(1)
        found = gpu_vmm.at(region.address + 5)
        self.fits(found, results.AddressInfo, "at")
        self.assertEqual((found["mapping"]["address"], found["is_pool"]), (region.address, False))
        self.assertEqual(found["mapping"]["access"], [{"device": 0, "level": int(vmm.Access.READ_WRITE)}])
        with self.assertRaisesRegex(gpu_vmm.Unsupported, "region"):
            vmm.PhysicalMemory.adopt(opened, region.address)
        # HIP looks up memory by its address from 7.15 on.
        refused = (gpu_vmm.NotMapped, gpu_vmm.Unsupported) if NAME == "hip" else gpu_vmm.NotMapped
        with self.assertRaises(refused):
            vmm.PhysicalMemory.adopt(opened, 0)
        block = opened.pool().tagged("t").alloc(1000)
        found = gpu_vmm.at(block.address)
        self.fits(found, results.AddressInfo, "at")
        self.assertEqual((found["block"]["address"], found["block"]["tag"]), (block.address, "t"))

    def test_interfaces(self):
        vec = gpu_vmm.DeviceVec("float32", [1, 2], backend=backend())
        if NAME == "host":
            self.fits(vec.__array_interface__, results.ArrayInterface, "interface")
        else:
            self.fits(vec.__cuda_array_interface__, results.CudaArrayInterface, "interface")


if __name__ == "__main__":
    unittest.main()
