"""Calls that take memory away raise Busy while another library may use the memory, unless force=True is passed."""

import gc
import unittest

import gpu_vmm
from support import MIB, NAME, Case, backend
from test_cupy import fake
from test_dlpack import Taken
from test_vec import numpy

MANY = 3 * MIB


class Dlpack(Case):
    def setUp(self):
        self.vec = gpu_vmm.DeviceVec("float32", [1, 2, 3], backend=backend())

    def test_a_tensor_keeps_the_memory(self):
        for version in (None, (1, 0)):
            taken = Taken(self.vec.__dlpack__(max_version=version))
            for call in self.vec.suspend, self.vec.shrink_to_fit:
                with self.raises(gpu_vmm.Busy, "force"):
                    call()
            self.assertEqual(self.vec.tolist(), [1, 2, 3])
            taken.delete()
            self.assertGreater(self.vec.suspend(), 0)
            self.assertGreater(self.vec.resume(), 0)
            self.assertEqual(self.vec.tolist(), [1, 2, 3])

    def test_read_only_views_count(self):
        taken = Taken(self.vec.read_only().__dlpack__(max_version=(1, 0)))
        with self.raises(gpu_vmm.Busy):
            self.vec.suspend()
        taken.delete()
        self.vec.suspend()

    def test_force(self):
        self.vec.reserve(MANY)  # its own memory handle
        taken = Taken(self.vec.__dlpack__())
        self.assertGreater(self.vec.suspend(force=True), 0)
        self.assertGreater(self.vec.resume(), 0)
        before = self.vec.capacity
        self.vec.shrink_to_fit(force=True)
        self.assertTrue(3 <= self.vec.capacity < before)
        with self.raises(gpu_vmm.Busy):  # force applies to one call
            self.vec.suspend()
        taken.delete()
        self.assertEqual(self.vec.tolist(), [1, 2, 3])

    def test_growth_and_resume_move_nothing(self):
        taken = Taken(self.vec.__dlpack__())
        address = self.vec.address
        self.vec.resize(MANY, 5)
        self.vec.suspend(force=True)
        self.vec.resume()
        self.assertEqual((self.vec.address, taken.managed.tensor.data), (address, address))
        self.assertEqual(self.vec.read(0, 4), [1, 2, 3, 5])
        taken.delete()

    @unittest.skipIf(NAME == "host", "the memory is the host's")
    def test_cuda_array_interface_needs_force_later(self):
        self.vec.suspend()
        with self.raises(gpu_vmm.Suspended):
            self.vec.__cuda_array_interface__
        self.vec.resume()
        self.vec.__cuda_array_interface__
        for _ in range(2):
            for call in self.vec.suspend, self.vec.shrink_to_fit:
                with self.raises(gpu_vmm.Busy, "__cuda_array_interface__"):
                    call()
            self.vec.shrink_to_fit(force=True)
            self.assertGreater(self.vec.suspend(force=True), 0)
            self.vec.resume()


@unittest.skipIf(numpy is None or NAME != "host", "NumPy and the host's memory are needed")
class Numpy(Case):
    # Each in a child process, which a failure would end.

    def said(self, code):
        vec = "import gc, numpy, gpu_vmm\nvec = gpu_vmm.DeviceVec('float32', [1, 2, 3], backend=gpu_vmm.open('host'))\n"
        return self.script(vec + code).splitlines()

    def test_suspend_under_an_array(self):
        for view in "numpy.asarray(vec)", "numpy.from_dlpack(vec)", "numpy.asarray(vec.read_only())", "numpy.asarray(vec)[1:][:1]":
            with self.subTest(view=view):
                said = self.said(
                    f"""
view = {view}
for call in vec.suspend, vec.shrink_to_fit:
    try:
        call()
    except gpu_vmm.Busy as error:
        print(error)
print(view.tolist() == vec.tolist() or view.tolist() == [2])
del view
print(vec.suspend() > 0, vec.resume() > 0, vec.tolist())
vec.shrink_to_fit()
"""
                )
                self.assertEqual(len(said), 4, said)
                self.assertTrue(said[0].startswith("suspend: ") and "force" in said[0], said)
                self.assertTrue(said[1].startswith("shrink: ") and "force" in said[1], said)
                self.assertEqual(said[2:], ["True", "True True [1.0, 2.0, 3.0]"])

    def test_an_array_of_what_sleeps(self):
        said = self.said(
            """
vec.suspend()
for show in numpy.asarray, lambda vec: numpy.asarray(vec.read_only()), numpy.from_dlpack:
    try:
        print(show(vec)[0])
    except gpu_vmm.Suspended as error:
        print("refused")
vec.resume()
print(numpy.asarray(vec).tolist())
"""
        )
        self.assertEqual(said, ["refused"] * 3 + ["[1.0, 2.0, 3.0]"])

    def test_force_and_what_arrays_see_then(self):
        said = self.said(
            """
view, other = numpy.asarray(vec), numpy.from_dlpack(vec)
vec.suspend(force=True)
vec.resume()
view[0] = 9
print(view.tolist(), other.tolist(), vec.tolist())
"""
        )
        self.assertEqual(said, ["[9.0, 2.0, 3.0] " * 2 + "[9.0, 2.0, 3.0]"])

    def test_arrays_keep_a_gone_vectors_memory(self):
        said = self.said(
            """
view = numpy.asarray(vec)
del vec
gc.collect()
print(view.tolist())
"""
        )
        self.assertEqual(said, ["[1.0, 2.0, 3.0]"])

    def test_hasattr_is_no_view(self):
        vec = gpu_vmm.DeviceVec("int8", [1], backend=backend())
        self.assertTrue(hasattr(vec, "__array_interface__"))
        vec.suspend()

    def test_a_cycle_counts_until_it_is_collected(self):
        vec = gpu_vmm.DeviceVec("int8", [1], backend=backend())
        cycle = [numpy.asarray(vec)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        vec.suspend()


class Lent(Case):
    """Blocks that CuPy's arrays use."""

    def setUp(self):
        self.cupy = fake()
        allocate = gpu_vmm.cupy._Allocator.__new__(gpu_vmm.cupy._Allocator)
        allocate.cupy, allocate.pools, allocate.streams = self.cupy, {0: backend().pool()}, {}
        self.pool = allocate.pool(0)
        self.memory = allocate(MIB)

    def test_block_and_tag(self):
        address = self.memory.ptr
        block = self.memory.mem.owner
        block.write(b"lent")
        for call in block.free, lambda: self.pool.free(address), lambda: self.pool.suspend(""):
            with self.raises(gpu_vmm.Busy, "force=True"):
                call()
        self.pool.tagged("other").alloc(1).free()
        self.assertEqual(block.read(0, 4), b"lent")
        self.assertGreater(self.pool.suspend("", force=True), 0)
        self.assertGreater(self.pool.resume(""), 0)
        self.assertEqual(block.read(0, 4), b"lent")
        self.pool.free(address, force=True)
        with self.raises(gpu_vmm.NotFound):
            block.free()
        del block, self.memory
        self.assertEqual(self.pool.stats()["live"], 0)

    def test_other_tags_are_not_asked_for_force(self):
        with self.pool.tagged("other").alloc(MIB):
            self.assertGreater(self.pool.suspend("other"), 0)
            self.pool.resume("other")

    def test_gone_array_frees_its_block(self):
        del self.memory
        self.assertEqual(self.pool.stats()["live"], 0)
        self.pool.suspend("")


if __name__ == "__main__":
    unittest.main()
