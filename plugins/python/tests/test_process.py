"""Processes: a missing library, forks, and the end of the interpreter."""

import os
import sys
import tempfile
import unittest

import gpu_vmm
from support import NAME, Case, backend


class Processes(Case):
    def test_no_library(self):
        said = self.script(
            """
            import gpu_vmm
            for _ in range(2):
                try:
                    gpu_vmm.open()
                except gpu_vmm.Unsupported as error:
                    print(error.status, error)
            try:
                gpu_vmm.DeviceVec()
            except gpu_vmm.Unsupported:
                print("goes on", gpu_vmm.__version__)
            """,
            GPU_VMM_C_LIBRARY="/nonexistent",
        )
        self.assertIn("4 load gpu-vmm's library: GPU_VMM_C_LIBRARY is '/nonexistent', which is not a file", said)
        self.assertIn("goes on 0.1.0", said)

    def test_no_library_of_ours(self):
        said = self.script(
            """
            import gpu_vmm
            try:
                gpu_vmm.open()
            except gpu_vmm.Unsupported as error:
                print(error)
            """,
            GPU_VMM_C_LIBRARY=__file__,
        )
        self.assertIn(os.path.basename(__file__), said)

    def test_where_it_looks(self):
        said = self.script(
            """
            import gpu_vmm._library
            try:
                print(gpu_vmm._library.find())
            except gpu_vmm.Unsupported as error:
                print(error)
            """,
            GPU_VMM_C_LIBRARY="",
        )
        self.assertIn("libgpu_vmm_c", said)
        self.assertIn("gpu_vmm", said)

    def test_rocm_wheels_are_named(self):
        with tempfile.TemporaryDirectory() as site:
            wheel = os.path.join(site, "_rocm_sdk_core")
            folder = os.path.join(wheel, "bin" if os.name == "nt" else "lib")
            os.makedirs(folder)
            with open(os.path.join(wheel, "__init__.py"), "w", encoding="utf-8"):
                pass
            code = f"""
                import os, sys
                import gpu_vmm._library
                sys.path.append({site!r})
                gpu_vmm._library.library()
                print(os.environ["GPU_VMM_HIP_FOLDER"])
            """
            self.assertEqual(self.script(code, GPU_VMM_HIP_FOLDER="").strip(), folder)
            self.assertEqual(self.script(code, GPU_VMM_HIP_FOLDER="/named").strip(), "/named")
            # The folder of a parent of another environment, which that has found and named.
            parents = {"GPU_VMM_HIP_FOLDER": "/parents", "GPU_VMM_HIP_FOLDER_FOUND": "/parents"}
            self.assertEqual(self.script(code, **parents).strip(), folder)
            without = """
                import os
                import gpu_vmm._library
                gpu_vmm._library.library()
                print(os.environ.get("GPU_VMM_HIP_FOLDER"))
            """
            self.assertEqual(self.script(without, **parents).strip(), "None")

    def test_version(self):
        self.assertEqual(gpu_vmm._library.version(), gpu_vmm.__version__)

    def test_what_is_left_at_the_end(self):
        self.script(
            f"""
            import atexit, gpu_vmm
            backend = gpu_vmm.open({NAME!r})
            pool = backend.pool()
            block = pool.tagged("left").alloc(1 << 20)
            vec = gpu_vmm.DeviceVec("int8", b"left", backend=backend)
            capsule = vec.__dlpack__()
            other = gpu_vmm.DeviceVec("int8", b"left", backend=backend).__dlpack__()
            cycle = [pool.alloc(1)]
            cycle.append(cycle)
            atexit.register(lambda: block.read(0, 1))

            class Late:
                # The names of its module are deleted before it is.
                def __init__(self):
                    self.block, self.vec = pool.alloc(1), gpu_vmm.DeviceVec("int8", b"left", backend=backend)
                    self.capsule = self.vec.__dlpack__()
                    self.itself = self

            import sys
            sys.late = Late()
            """
        )

    @unittest.skipUnless(sys.platform == "linux", "no fork")
    def test_forked(self):
        said = self.script(
            f"""
            import gc, os, gpu_vmm
            backend = gpu_vmm.open({NAME!r})
            pool = backend.pool()
            block, vec = pool.alloc(1 << 20), gpu_vmm.DeviceVec("int8", b"kept", backend=backend)
            capsule = vec.__dlpack__()
            shown = [repr(owner) for owner in (backend, pool, block, vec)]
            child = os.fork()
            if child == 0:
                if shown != [repr(owner) for owner in (backend, pool, block, vec)]:
                    print("they are shown otherwise", flush=True)
                calls = {{
                    "memory": backend.memory,
                    "alloc": lambda: pool.alloc(1),
                    "tagged": lambda: pool.tagged("t").alloc(1),
                    "suspend": lambda: pool.suspend(""),
                    "trim": pool.trim,
                    "grow": lambda: vec.resize(100_000_000),
                    "read": vec.tolist,
                    "capacity": lambda: vec.capacity,
                    "element": lambda: vec[0],
                    "slice": lambda: vec[1:],
                    "iterate": lambda: list(vec),
                    "assign": lambda: vec.__setitem__(0, 1),
                    "record": lambda: block.record_use(0),
                    "read a block": lambda: block.read(0, 1),
                    "write a block": lambda: block.write(b"1"),
                    "export": vec.__dlpack__,
                    "show": lambda: getattr(vec, "__array_interface__" if {NAME!r} == "host" else "__cuda_array_interface__"),
                    "copy": vec.copy,
                    "sleep": vec.suspend,
                    "free": lambda: pool.free(block.address),
                }}
                for name, call in calls.items():
                    try:
                        call()
                        print(name, "went through", flush=True)
                    except gpu_vmm.Error as error:
                        if error.status != gpu_vmm.Status.FORKED or not isinstance(error, gpu_vmm.Forked):
                            print(name, error.status, error, flush=True)
                del block, capsule, vec, pool, backend, call, calls
                gc.collect()
                raise SystemExit(0)
            print("child", os.waitpid(child, 0)[1])
            print(vec.tolist(), block.read(0, 1) is not None)
            pool.alloc(1).free()
            """
        )
        self.assertEqual(said, "child 0\n[107, 101, 112, 116] True\n")

    @unittest.skipUnless(sys.platform == "linux" and NAME == "cuda", "NVIDIA's driver alone knows that it was forked")
    def test_forked_from_foreign_driver(self):
        said = self.script(
            """
            import ctypes, os, gpu_vmm
            assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
            child = os.fork()
            if child == 0:
                for name in None, "cuda":
                    try:
                        print("opened", gpu_vmm.open(name).name, flush=True)
                    except gpu_vmm.Forked as error:
                        pass
                os._exit(0)
            print("child", os.waitpid(child, 0)[1], gpu_vmm.open().name)
            """
        )
        self.assertEqual(said, "child 0 cuda\n")

    @unittest.skipUnless(sys.platform == "linux", "no fork")
    def test_forked_while_another_thread_is_inside(self):
        said = self.script(
            f"""
            import os, signal, threading, warnings, gpu_vmm
            warnings.simplefilter("ignore")  # newer Pythons warn of forks in processes with threads, which this tests
            backend = gpu_vmm.open({NAME!r})
            pool = backend.pool()
            block, vec = pool.alloc(64), gpu_vmm.DeviceVec("int8", b"kept", backend=backend)
            inside, leave = threading.Event(), threading.Event()
            def hold():
                with vec._lock, pool._blocks.lock:
                    inside.set()
                    leave.wait()
            thread = threading.Thread(target=hold)
            thread.start()
            inside.wait()
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                for call in vec.suspend, lambda: vec.append(1), vec.__dlpack__, lambda: pool.suspend(""), lambda: pool.free(block.address):
                    try:
                        call()
                        print("went through", flush=True)
                    except gpu_vmm.Forked:
                        pass
                os._exit(0)
            print("child", os.waitpid(child, 0)[1])
            leave.set()
            thread.join()
            """
        )
        self.assertEqual(said, "child 0\n")

    @unittest.skipUnless(sys.platform == "linux", "no fork")
    def test_forked_while_another_thread_loads_the_library(self):
        said = self.script(
            """
            import os, signal, threading, warnings, gpu_vmm
            from gpu_vmm import _library
            warnings.simplefilter("ignore")  # as above
            inside, leave, load = threading.Event(), threading.Event(), _library._load
            def slowly():
                inside.set()
                leave.wait()
                return load()
            _library._load = slowly
            thread = threading.Thread(target=_library.library)
            thread.start()
            inside.wait()
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                leave.set()
                gpu_vmm.open("host").pool().alloc(64).free()
                os._exit(0)
            print("child", os.waitpid(child, 0)[1])
            leave.set()
            thread.join()
            """
        )
        self.assertEqual(said, "child 0\n")

    @unittest.skipUnless(sys.platform == "linux", "no fork")
    def test_forked_child_suspends_memory_of_its_own(self):
        said = self.script(
            """
            import os, signal, warnings
            from gpu_vmm import vmm
            warnings.simplefilter("ignore")  # as above
            def suspended():
                region = vmm.Region(vmm.open("host"), 1)
                region.grow(1)
                region.write(b"kept", 0)
                region.suspend()
                region.resume()
                return region.read(0, 4)
            print(suspended(), flush=True)
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                print(suspended(), flush=True)
                os._exit(0)
            print("child", os.waitpid(child, 0)[1])
            """
        )
        self.assertEqual(said, "b'kept'\nb'kept'\nchild 0\n")

    @unittest.skipUnless(sys.platform == "linux", "no sockets that pass descriptors")
    def test_an_exchange_ends_at_the_interpreters_end(self):
        said = self.script(
            """
            import atexit, os, tempfile, threading
            from gpu_vmm import vmm
            region = vmm.Region(vmm.open("host"), 1, vmm.Properties(handle_types=vmm.HandleTypes.FD))
            region.grow(1)
            path = os.path.join(tempfile.mkdtemp(), "socket")
            listener, made = vmm.Listener(path), []
            thread = threading.Thread(target=lambda: made.append(vmm.FollowedRegion(vmm.open("host"), path, 20)))
            thread.start()
            exporter = listener.export(region, 20)
            thread.join()
            def end():
                exporter.request_release()
                print("asked", flush=True)
            atexit.register(end)
            """
        )
        self.assertEqual(said, "asked\n")

    def test_the_package_loads_nothing(self):
        said = self.script(
            """
            import sys, gpu_vmm
            print(gpu_vmm._library._loaded, "torch" in sys.modules, "cupy" in sys.modules, gpu_vmm.torch.__name__)
            """
        )
        self.assertEqual(said, "None False False gpu_vmm.torch\n")

    def test_backend_is_there(self):
        self.assertEqual(backend().name, NAME)


if __name__ == "__main__":
    unittest.main()
