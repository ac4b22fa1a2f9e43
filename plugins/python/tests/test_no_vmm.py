"""Vectors and pools on a device without virtual memory management, which the fake NVIDIA driver can be."""

import unittest

from support import NAME, Case, backend


def is_fake():
    return NAME == "cuda" and backend().info()["devices"][0]["name"].startswith("fake CUDA")


@unittest.skipUnless(is_fake(), "runs on the fake NVIDIA driver")
class WithoutVirtualMemory(Case):
    def run_there(self, code):
        before = """
            import gpu_vmm
            from support import MIB
            opened = gpu_vmm.open("cuda")
            device = opened.info()["devices"][0]
            assert device["unusable"] is None
            assert "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0" in device["no_virtual_memory"], device
            assert device["compute_mode"] == "default", device
        """
        self.script(before + code, FAKE_CUDA_VMM="0")

    def test_a_vector_moves_and_keeps_its_elements(self):
        self.run_there("""
            vec = gpu_vmm.DeviceVec("int64", range(1000), backend=opened)
            first = vec.address
            vec.resize(4 * MIB, 7)
            assert vec.address != first and vec[:1000] == list(range(1000)) and vec[-1] == 7
            vec.resize(10)
            vec.shrink_to_fit()
            assert vec.capacity == 2 * MIB // 8 and vec.tolist() == list(range(10))
            assert f"{vec.address:#x}" in repr(vec)
        """)

    def test_viewed_vector_does_not_move(self):
        self.run_there("""
            vec = gpu_vmm.DeviceVec("uint8", bytes(100), backend=opened)
            tensor = vec.__dlpack__()
            for change in (lambda: vec.resize(4 * MIB), lambda: vec.shrink_to_fit(force=True)):
                try:
                    change()
                except gpu_vmm.Busy:
                    continue
                raise AssertionError("the vector moved")
            vec.resize(2 * MIB)  # there is memory for that
            del tensor
            vec.resize(4 * MIB)
            vec.__cuda_array_interface__
            try:
                vec.resize(8 * MIB)
            except gpu_vmm.Busy as error:
                assert "__cuda_array_interface__" in str(error) and "force" not in str(error), error
            else:
                raise AssertionError("the vector moved")
        """)

    def test_observer_refuses_growth(self):
        self.run_there("""
            from gpu_vmm import vmm
            for kind in ValueError, KeyboardInterrupt:
                region = vmm.Region(opened, MIB)
                region.grow(MIB)

                def before(change):
                    raise kind("in use")

                number = region.on_backing_change(before)
                try:
                    region.grow(16 * MIB)
                except (gpu_vmm.Busy, KeyboardInterrupt) as error:
                    assert type(error.__cause__ or error) is kind, error
                else:
                    raise AssertionError("the region grew")
                region.remove_observer(number)
        """)

    def test_pools_and_refused_calls(self):
        self.run_there("""
            from gpu_vmm import vmm
            pool = opened.pool()
            block = pool.alloc(10 * MIB)
            assert pool.stats()["held"] == 10 * MIB
            block.free()
            assert pool.trim() == 10 * MIB
            vec = gpu_vmm.DeviceVec("uint8", bytes(100), backend=opened)
            for refused in (vec.suspend, lambda: vmm.PhysicalMemory(opened, 2 * MIB)):
                try:
                    refused()
                except gpu_vmm.Unsupported as error:
                    assert "has no virtual memory management" in str(error), error
                else:
                    raise AssertionError("it was not refused")
        """)


if __name__ == "__main__":
    unittest.main()
