"""Multicast objects on the fake NVIDIA driver alone: on hardware an object takes resources of the whole machine."""

import os
import unittest

import gpu_vmm
from gpu_vmm import vmm
from support import NAME, Case, backend


def is_fake():
    return NAME == "cuda" and backend().info()["devices"][0]["name"].startswith("fake CUDA")


@unittest.skipIf(NAME == "cuda", "CUDA has multicast")
class Nowhere(Case):
    def test_other_vendors_have_none(self):
        with self.raises(gpu_vmm.Unsupported):
            vmm.Multicast(backend(), [0], 1)


@unittest.skipUnless(is_fake(), "runs on the fake NVIDIA driver")
class Multicast(Case):
    def memory(self, device, size, **properties):
        return vmm.PhysicalMemory(backend(), size, vmm.Properties(device=device, **properties))

    def test_whole_life(self):
        opened = backend()
        with vmm.Multicast(opened, [0, 1], 1) as small:
            unit = small.granularity
            self.assertEqual((small.size, small.backend), (unit, opened))
            self.assertGreaterEqual(small.recommended_granularity, unit)
            self.assertIn(f"of {unit} bytes on cuda", repr(small))
        self.assertIn("closed", repr(small))
        object_ = vmm.Multicast(opened, [0, 1], 2 * unit)
        first, second = self.memory(0, 2 * unit), self.memory(1, 3 * unit)
        object_.bind(first)
        with self.raises(gpu_vmm.NotMapped):
            object_.map()
        object_.bind(second, 0, 2 * unit)
        object_.bind(second, unit, 0, unit)
        with self.raises(gpu_vmm.AlreadyMapped):
            object_.bind(second, unit, unit, unit)
        address = object_.map()
        self.assertEqual(address % object_.recommended_granularity, 0)
        for call in (object_.map, lambda: object_.unbind(1), lambda: object_.bind(first)):
            with self.raises(gpu_vmm.Busy):
                call()
        object_.unmap()
        with self.raises(gpu_vmm.NotMapped):
            object_.unmap()
        object_.unbind(1, unit)
        with self.raises(gpu_vmm.NotMapped):
            object_.unbind(1, unit)
        first.close()
        object_.close()

    def test_two_halves(self):
        opened = backend()
        own = vmm.Multicast(opened, [0], 1, elsewhere=1)
        fd = own.export_fd()
        other = vmm.Multicast.import_fd(opened, fd, [1], 1, elsewhere=1)
        os.close(fd)
        with self.raises(gpu_vmm.Unsupported):
            other.export_fd()
        with self.raises(gpu_vmm.Unsupported, "shareable"):
            own.bind(self.memory(0, own.size))
        own.bind(self.memory(0, own.size, handle_types=vmm.HandleTypes.FD))
        other.bind(self.memory(1, own.size, handle_types=vmm.HandleTypes.FD))
        self.assertNotEqual(own.map(), other.map())
        with self.raises(gpu_vmm.Busy):
            own.export_fd()
        # No process unbinds while another one has the object mapped.
        own.unmap()
        other.unmap()

    def test_wrong_team_is_refused(self):
        opened = backend()
        for devices, size, kind in (
            ([], 1, gpu_vmm.InvalidArgument),
            ([0, 0], 1, gpu_vmm.InvalidArgument),
            ([4711], 1, gpu_vmm.NoSuchDevice),
            ([0], 1 << 46, gpu_vmm.OutOfMemory),
        ):
            with self.raises(kind):
                vmm.Multicast(opened, devices, size)
        with self.assertRaises(TypeError):
            vmm.Multicast(opened, ["0"], 1)


if __name__ == "__main__":
    unittest.main()
