"""Copies, second calls of __init__, half-initialized objects, and threads that take away memory that others read."""

import copy
import gc
import pickle
import sys
import unittest

import gpu_vmm
from support import MIB, NAME, Case, backend

COPIES = copy.copy, copy.deepcopy, lambda owner: pickle.loads(pickle.dumps(owner))


class Copies(Case):
    def test_vector_copy_is_another_vector(self):
        for make in copy.copy, copy.deepcopy, gpu_vmm.DeviceVec.copy, lambda vec: copy.deepcopy({"of": [vec]})["of"][0]:
            for count in (0, 3, 700_000):
                vec = gpu_vmm.DeviceVec("int32", range(1, count + 1), backend=backend(), reserve=4 * MIB)
                other = make(vec)
                self.assertEqual(other.tolist(), list(range(1, count + 1)))
                self.assertNotEqual(other.address, vec.address)
                self.assertEqual((other.dtype, other.__dlpack_device__()), (vec.dtype, vec.__dlpack_device__()))
                self.assertIs(other.backend, vec.backend)
                vec.append(-1)
                other.append(-2)
                self.assertEqual((vec.read(count, 1), other.read(count, 1)), ([-1], [-2]))
                del vec
                gc.collect()
                self.assertEqual(len(other.tolist()), count + 1)
        vec = gpu_vmm.DeviceVec("int32", [1], backend=backend())
        vec.suspend()
        with self.raises(gpu_vmm.Suspended):
            copy.copy(vec)

    def test_a_copy_of_a_read_only_view(self):
        vec = gpu_vmm.DeviceVec("int32", [1], backend=backend())
        shallow, deep = copy.copy(vec.read_only()), copy.deepcopy(vec.read_only())
        vec.write(0, [2])
        self.assertEqual((shallow.tolist(), deep.tolist()), ([2], [1]))

    def test_what_has_no_copy(self):
        pool = backend().pool()
        block = pool.alloc(64)
        block.write(b"kept")
        for owner, instead in (
            (pool, "Backend.pool()"), (block, "block.read()"), (backend(), "gpu_vmm.open"), (pool._handle, "copied or pickled"),
        ):  # fmt: skip
            for make in COPIES:
                with self.assertRaisesRegex(TypeError, "cannot be copied or pickled") as raised:
                    make(owner)
                self.assertIn(instead, str(raised.exception))
        vec = gpu_vmm.DeviceVec("int8", [1], backend=backend())
        for owner in vec, vec.read_only():
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                with self.assertRaisesRegex(TypeError, "cannot be pickled.*tolist"):
                    pickle.dumps(owner, protocol)
        gc.collect()
        self.assertEqual(block.read(0, 4), b"kept")
        self.assertEqual(pool.stats()["live"], 64)

    def test_errors_can_be_pickled(self):
        try:
            gpu_vmm.open("metal")
        except gpu_vmm.Error as error:
            other = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(other), str(other), other.status), (type(error), str(error), error.status))


class Shown(Case):
    def test_repr(self):
        opened = backend()
        pool = opened.pool()
        vec = gpu_vmm.DeviceVec("float32", [1, 2], backend=opened)
        block = pool.alloc(64)
        where = f"<gpu_vmm.DeviceVec of 2 float32 on {NAME} device 0 at {vec.address:#x}>"
        for owner, text in (
            (opened, f"<gpu_vmm.Backend {NAME}>"), (pool, f"<gpu_vmm.Pool on {NAME} device 0>"),
            (pool.tagged("weights"), f"<gpu_vmm.Pool on {NAME} device 0, tag 'weights'>"),
            (vec, where), (vec.read_only(), f"<gpu_vmm.ReadOnlyVec of {where}>"),
            (block, f"<gpu_vmm.Block of 64 bytes at {block.address:#x}>"),
            (gpu_vmm.Status.BUSY, "<Status.BUSY: 9>"), (gpu_vmm.Busy("in use"), "Busy('in use')"),
        ):  # fmt: skip
            self.assertEqual(repr(owner), text)
        self.assertRegex(repr(pool.find(block.address)), r"^BlockInfo\(base=\d+, capacity=\d+, offset=0, device=0, stream=0, tag=''\)$")
        block.free()
        self.assertEqual(repr(block), "<gpu_vmm.Block of 64 bytes freed>")
        vec.suspend()
        self.assertEqual(repr(vec), where)

    def test_every_public_class_has_its_own(self):
        for name in gpu_vmm.__all__:
            kind = getattr(gpu_vmm, name)
            if isinstance(kind, type):
                self.assertIsNot(kind.__repr__, object.__repr__, name)


class Made(Case):
    def test_init_is_called_once(self):
        pool = backend().pool()
        block = pool.alloc(64)
        vec = gpu_vmm.DeviceVec("float32", [1, 2], backend=backend())
        view = vec.read_only()
        address = vec.address
        for owner, arguments in (
            (vec, ("int8", [1])), (pool, (pool._handle,)), (block, (pool, 1, 2, 3)), (vec.backend, ("host",)), (view, (vec,)),
        ):  # fmt: skip
            with self.assertRaisesRegex(TypeError, "exists already"):
                owner.__init__(*arguments)
        self.assertEqual((vec.tolist(), vec.address, view.tolist()), ([1, 2], address, [1, 2]))
        block.free()
        self.assertEqual(pool.stats()["live"], 0)

    def test_of_what_is_something_else(self):
        opened = backend()
        for make in (
            lambda: gpu_vmm.DeviceVec(backend="host"),
            lambda: gpu_vmm.DeviceVec(backend=opened.pool()),
            lambda: gpu_vmm.DeviceVec(backend=opened._handle),
            lambda: gpu_vmm.Pool("abc"),
            lambda: gpu_vmm.Pool(1234),
            lambda: gpu_vmm.Pool(opened._handle),
            lambda: gpu_vmm.Block(None, 1, 2, 3),
            lambda: gpu_vmm.ReadOnlyVec([1]),
        ):
            with self.assertRaises(TypeError) as raised:
                make()
            self.assertRegex(str(raised.exception), "created by|expected a gpu_vmm.Backend, not")

    def test_a_block_made_by_hand_frees_nothing(self):
        pool = backend().pool()
        block = pool.alloc(64)
        block.write(b"kept")
        other = gpu_vmm.Block(pool, block.address, 1 << 20, 0)
        self.assertEqual(other.read(0, 4), b"kept")
        with self.raises(gpu_vmm.OutOfRange):
            other.read(0, 1 << 20)
        with self.raises(gpu_vmm.NotFound):
            other.free()
        del other
        with self.assertRaises(TypeError):
            gpu_vmm.Block(pool, [], 1, 0)
        self.assertEqual(pool.stats()["live"], 64)
        block.free()
        self.assertEqual(pool.stats()["live"], 0)

    def test_half_made(self):
        # __del__ must not report an exception for such objects.
        noted = []
        before, sys.unraisablehook = sys.unraisablehook, noted.append
        self.addCleanup(setattr, sys, "unraisablehook", before)
        opened = backend()
        for make in (
            gpu_vmm.Block, gpu_vmm.Pool, lambda: gpu_vmm.Block(None, 1, 2, 3), lambda: gpu_vmm.Pool(None),
            lambda: gpu_vmm.open("metal"), lambda: gpu_vmm.DeviceVec("int8", [1000], backend=opened),
            lambda: gpu_vmm.DeviceVec("int8", device=77, backend=opened), lambda: gpu_vmm.DeviceVec("int8", reserve=-1, backend=opened),
        ):  # fmt: skip
            with self.assertRaises((TypeError, ValueError, OverflowError)):
                make()
        for kind in gpu_vmm.Block, gpu_vmm.Pool, gpu_vmm.DeviceVec, gpu_vmm.Backend, gpu_vmm.ReadOnlyVec:
            kind.__new__(kind)
        for kind in gpu_vmm._handles.BackendHandle, gpu_vmm._handles.RegionHandle:
            kind.__new__(kind)
        gc.collect()
        self.assertEqual(noted, [])


class Threads(Case):
    # In a child process, which a failure would end.

    @unittest.skipUnless(NAME == "host", "a GPU's copies wait for each other")
    def test_copy_keeps_the_memory(self):
        said = self.script(
            """
            import threading, gpu_vmm
            pool = gpu_vmm.open("host").pool(keep=0)
            tagged, size = pool.tagged("t"), 128 << 20  # large enough that other threads run during a copy

            def against(copy, take):
                ended = []
                def copies():
                    while not ended:
                        try:
                            copy()
                        except (gpu_vmm.Suspended, gpu_vmm.NotFound):
                            pass
                thread = threading.Thread(target=copies)
                thread.start()
                for _ in range(15):
                    take()
                ended.append(True)
                thread.join()

            def sleep():
                pool.suspend("t", None)
                pool.resume("t")
            blocks, contents = [tagged.alloc(size)], bytes(size)
            against(lambda: blocks[0].read(), sleep)
            against(lambda: blocks[0].write(contents), sleep)
            def free():
                blocks[0].free()
                blocks[0] = tagged.alloc(size)
            against(lambda: blocks[0].read(), free)
            print("ended")
            """
        )
        self.assertEqual(said, "ended\n")


if __name__ == "__main__":
    unittest.main()
