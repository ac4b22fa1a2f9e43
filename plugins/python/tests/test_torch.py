"""gpu_vmm.torch with a fake PyTorch and the real library. Each test runs in its own process, since a process has one PyTorch."""

import unittest

from support import Case, backend

ENABLED = """
import ctypes, gpu_vmm, fake_torch
torch, calls = fake_torch.install()
library = gpu_vmm._library.library()
def alloc(size):
    return library.gpu_vmm_torch_alloc(size, 0, None)
def tag(address):
    return gpu_vmm.torch.device_pool().find(address).tag
"""


class Torch(Case):
    def test_without_pytorch(self):
        said = self.script(
            """
            import sys, gpu_vmm, gpu_vmm.torch, gpu_vmm.cupy
            sys.modules["torch"] = sys.modules["cupy"] = None
            def inside():
                with gpu_vmm.torch.pool("weights"):
                    pass
            for call in gpu_vmm.torch.enable, inside, gpu_vmm.torch.sleep, gpu_vmm.torch.wake, gpu_vmm.torch.stats, gpu_vmm.cupy.enable:
                try:
                    call()
                    print("went through", call)
                except ImportError as error:
                    print(isinstance(error, gpu_vmm.Unsupported), error.status, error)
            """
        )
        lines = said.splitlines()
        self.assertEqual(len(lines), 6)
        for line in lines[:5]:
            self.assertTrue(line.startswith("True 4 gpu_vmm.torch: PyTorch cannot be imported"), line)
        self.assertTrue(lines[5].startswith("True 4 gpu_vmm.cupy: CuPy cannot be imported"), lines[5])

    def test_a_pytorch_without_gpus(self):
        said = self.script(
            """
            import gpu_vmm, fake_torch
            fake_torch.install(cuda=None)
            try:
                gpu_vmm.torch.enable()
            except gpu_vmm.Unsupported as error:
                print(error)
            """
        )
        self.assertIn("built for neither CUDA nor ROCm", said)

    def test_enable(self):
        self.script(
            ENABLED
            + """
assert not gpu_vmm.torch.enabled()
gpu_vmm.torch.enable(budget=64 << 20)
assert gpu_vmm.torch.enabled()
assert repr(gpu_vmm.torch.device_pool()) == "<gpu_vmm.Pool on PyTorch's device 0, tag 'torch'>"
path = gpu_vmm._library.find()
assert calls[0] == ("allocator", "gpu_vmm_torch_alloc", "gpu_vmm_torch_free"), calls
assert [name for name, *_ in calls[1:]] == [*fake_torch.SETTERS, "change"], calls
functions = ["record_stream", "empty_cache", "begin_allocate_to_pool", "end_allocate_to_pool", "release_pool"]
for (_, address), function in zip(calls[1:6], functions):
    assert address == ctypes.cast(getattr(ctypes.CDLL(path), "gpu_vmm_torch_" + function), ctypes.c_void_p).value
gpu_vmm.torch.enable(budget=64 << 20)
assert len(calls) == 7
try:
    gpu_vmm.torch.enable(budget=65 << 20)
    raise AssertionError
except gpu_vmm.Error as error:
    assert "already served, with budget=67108864, keep=None, page=None, slack=None" in str(error), error
address = alloc(1 << 20)
assert tag(address) == "torch"
assert gpu_vmm.torch.stats()["live"] == 1 << 20
try:
    gpu_vmm.torch.device_pool().alloc(1 << 30)
    raise AssertionError
except gpu_vmm.OutOfMemory as error:
    assert "budget is 64 MiB" in str(error), error
library.gpu_vmm_torch_free(address, 1 << 20, 0, None)
assert gpu_vmm.torch.stats("cuda:0")["live"] == 0
assert gpu_vmm.torch.trim() > 0
"""
        )

    def test_blocks_of_the_same_pool(self):
        # Each call of device_pool() returns a new object for the same pool.
        self.script(
            ENABLED
            + """
gpu_vmm.torch.enable(keep=0)
assert "keep=0" in gpu_vmm.torch._said(gpu_vmm.torch._settings)
block = gpu_vmm.torch.device_pool().alloc(1 << 20)
gpu_vmm.torch.device_pool().free(block.address)
again = gpu_vmm.torch.device_pool().alloc(1 << 20)
try:
    block.free()
    raise AssertionError
except gpu_vmm.NotFound:
    pass
del block
assert gpu_vmm.torch.stats()["live"] == 1 << 20  # the other block is still there
again.free()
"""
        )

    def test_enable_too_late(self):
        said = self.script(
            """
            import gpu_vmm, fake_torch
            torch, calls = fake_torch.install(used=True)
            try:
                gpu_vmm.torch.enable()
            except gpu_vmm.Error as error:
                print(error.status, error)
            assert not gpu_vmm.torch.enabled()
            with gpu_vmm.torch.pool("weights"):
                torch.empty(1)
            try:
                gpu_vmm.torch.enable()
            except gpu_vmm.Error as error:
                print(error.status, error)
            """
        )
        first, second = said.splitlines()
        self.assertIn("9 enable: call it before the first use of the GPU", first)
        self.assertIn("already initialized allocator", first)
        self.assertIn("before gpu_vmm.torch.pool()", second)

    def test_too_old(self):
        said = self.script(
            """
            import gpu_vmm, fake_torch
            torch, calls = fake_torch.install(setters=fake_torch.SETTERS[:2], mem_pools=False)
            def inside():
                with gpu_vmm.torch.pool("weights"):
                    pass
            for call in gpu_vmm.torch.enable, inside:
                try:
                    call()
                except gpu_vmm.Unsupported as error:
                    print(error)
            assert ("change",) not in calls
            """
        )
        self.assertEqual(
            said.splitlines(),
            [
                "gpu_vmm.torch: PyTorch 2.0.9 has no set_begin_allocate_to_pool; use PyTorch 2.3 or later",
                "gpu_vmm.torch: PyTorch 2.0.9 has no MemPool; use PyTorch 2.5 or later",
            ],
        )

    def test_nested_tags(self):
        self.script(
            ENABLED
            + """
import threading
gpu_vmm.torch.enable()
assert tag(alloc(1)) == "torch"
with gpu_vmm.torch.pool("outer"):
    with gpu_vmm.torch.pool("inner"):
        assert tag(alloc(1)) == "inner"
        with gpu_vmm.torch.pool("inner"):
            assert tag(alloc(1)) == "inner"
        assert tag(alloc(1)) == "inner"
        other = []
        thread = threading.Thread(target=lambda: other.append(tag(alloc(1))))
        thread.start()
        thread.join()
        assert other == ["torch"], other
    assert tag(alloc(1)) == "outer"
    try:
        with gpu_vmm.torch.pool("inner"):
            raise KeyError
    except KeyError:
        pass
    assert tag(alloc(1)) == "outer"
assert tag(alloc(1)) == "torch"
"""
        )

    def test_nested_mem_pools(self):
        self.script(
            """
            import gpu_vmm, fake_torch
            torch, calls = fake_torch.install()
            def tag():
                return gpu_vmm.torch.device_pool().find(torch.empty(1 << 20)).tag
            with gpu_vmm.torch.pool("outer"):
                assert tag() == "outer"
                with gpu_vmm.torch.pool("inner"):
                    assert tag() == "inner"
                    with gpu_vmm.torch.pool("outer"):
                        assert tag() == "outer"
                    assert tag() == "inner"
                    try:
                        with gpu_vmm.torch.pool("inner"):
                            assert tag() == "inner"
                            raise KeyError
                    except KeyError:
                        pass
                assert tag() == "outer"
                try:
                    gpu_vmm.torch.sleep("outer")
                    raise AssertionError
                except gpu_vmm.Error as error:
                    assert "cannot run inside" in str(error), error
            assert torch.active == []
            assert gpu_vmm.torch.sleep("outer", "host") > 0
            assert gpu_vmm.torch.wake("outer") > 0
            """
        )

    def test_mem_pools_of_each_device(self):
        if backend().devices < 2:
            self.skipTest("there is one device")
        self.script(
            """
            import gpu_vmm, fake_torch
            torch, calls = fake_torch.install()
            for torch.cuda.device in (0, 1):
                with gpu_vmm.torch.pool("weights"):
                    torch.empty(20 << 20)
            for device in (0, 1):
                torch.cuda.device = device
                assert gpu_vmm.torch.stats(device)["live"] == 20 << 20
                assert gpu_vmm.torch.sleep("weights", "host") > 0
                assert gpu_vmm.torch.wake("weights") > 0
            """
        )

    def test_a_tag_that_sleeps_serves_no_request(self):
        self.script(
            """
            import gpu_vmm, fake_torch
            torch, calls = fake_torch.install()
            with gpu_vmm.torch.pool("weights"):
                torch.empty(20 << 20)
            gpu_vmm.torch.sleep("weights", "host")
            try:
                with gpu_vmm.torch.pool("weights"):
                    raise AssertionError
            except gpu_vmm.Suspended as error:
                assert '"weights"' in str(error)
            assert torch.active == []
            gpu_vmm.torch.wake("weights")
            with gpu_vmm.torch.pool("weights"):
                torch.empty(1 << 20)
            """
        )

    def test_sleep_and_wake(self):
        self.script(
            ENABLED
            + """
import json, os, tempfile
from support import NAME, overwrite
gpu_vmm.torch.enable(page=2 << 20, slack=1)
size = 4 << 20
with gpu_vmm.torch.pool("weights"):
    weights = alloc(size)
other = alloc(size)
pool = gpu_vmm.torch.device_pool()
contents = {weights: os.urandom(size), other: os.urandom(size)}
for address in weights, other:
    gpu_vmm._library.check(library.gpu_vmm_write(pool._handle, address, contents[address], size))
def read(address):
    room = ctypes.create_string_buffer(size)
    gpu_vmm._library.check(library.gpu_vmm_read(pool._handle, address, room, size))
    return room.raw
del calls[:]
assert size <= gpu_vmm.torch.sleep("weights", "pinned") < 2 * size
assert calls == [("synchronize", 0), ("empty_cache",)], calls
assert gpu_vmm.torch.sleep("weights") == 0
assert size <= gpu_vmm.torch.sleep() < 2 * size  # the other tags
assert gpu_vmm.torch.sleep() == 0
assert gpu_vmm.torch.stats()["live"] == 2 * size
overwrite(gpu_vmm.open(NAME), 2 * size)
assert size <= gpu_vmm.torch.wake("weights") < 2 * size
assert read(weights) == contents[weights]
assert size <= gpu_vmm.torch.wake(device=0) < 2 * size
assert read(other) == contents[other]
assert gpu_vmm.torch.wake() == 0
with tempfile.TemporaryDirectory() as folder:
    assert gpu_vmm.torch.sleep(keep="file", directory=folder, device="cuda:0") >= 2 * size
    overwrite(gpu_vmm.open(NAME), 2 * size)
    assert gpu_vmm.torch.wake(device="cuda") >= 2 * size
    assert read(other) == contents[other] and read(weights) == contents[weights]
    gpu_vmm.torch.report(os.path.join(folder, "x.json"))
    with open(os.path.join(folder, "x.json")) as file:
        assert {space["tag"] for space in json.load(file)["spaces"]} == {"torch", "weights"}
    try:
        gpu_vmm.torch.report(os.path.join(folder, "x.html"))
        raise AssertionError
    except gpu_vmm.InvalidArgument as error:
        assert "gpu-vmm report" in str(error)
assert gpu_vmm.torch.sleep(keep=None) >= 2 * size
assert gpu_vmm.torch.wake() >= 2 * size
for call in gpu_vmm.torch.sleep, gpu_vmm.torch.wake:
    try:
        call("nothing")
        raise AssertionError
    except gpu_vmm.NotFound as error:
        assert 'existing tags: ' in str(error), error
for address in weights, other:
    library.gpu_vmm_torch_record_stream(address, None)
    library.gpu_vmm_torch_free(address, size, 0, None)
library.gpu_vmm_torch_empty_cache()
assert gpu_vmm.torch.stats()["held"] == 0, gpu_vmm.torch.stats()
"""
        )

    def test_sixty_four_tags(self):
        self.script(
            """
            import gpu_vmm, fake_torch
            torch, calls = fake_torch.install()
            for number in range(64):
                with gpu_vmm.torch.pool(str(number)):
                    pass
            with gpu_vmm.torch.pool("0"):
                assert torch.empty(1)
            for tag, kind in ("64", gpu_vmm.InvalidArgument), ("x\\0y", gpu_vmm.InvalidArgument), (5, TypeError):
                try:
                    with gpu_vmm.torch.pool(tag):
                        raise AssertionError
                except kind as error:
                    assert not isinstance(error, AssertionError)
            """
        )


if __name__ == "__main__":
    unittest.main()
