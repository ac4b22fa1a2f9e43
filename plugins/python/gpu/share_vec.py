#!/usr/bin/env python3
"""CuPy and PyTorch share one gpu_vmm.DeviceVec without a copy while it grows in place; CuPy allocates from a pool; invalid
arguments raise exceptions.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/gpu/share_vec.py

It needs PyTorch with CUDA, CuPy, 2 GiB of a GPU and about 30 s.

- share: views by DLPack and by __cuda_array_interface__ have the vector's address; each library reads the others' writes; views
  stay valid while the vector grows to 1000 times its length; it cannot shrink while a view exists; the memory outlives the
  vector as long as a view exists.
- capsules: versions and flags of DLPack, capsules that are not consumed, and read-only views.
- cupy: gpu_vmm.cupy.enable() and work on two streams; all memory is freed at the end.
- errors: invalid arguments of all kinds raise an exception with a text, and the process continues.
"""

import argparse
import array
import ctypes
import gc
import sys
from typing import Any

import harness
from harness import Checks, say

LENGTH, TIMES = 1 << 16, 1000
READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


class Versioned(ctypes.Structure):
    """The beginning of DLManagedTensorVersioned."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p)]
    _fields_ += [("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64)]


def share(checks: Checks) -> None:
    import cupy
    import torch

    vmm = harness.gpu_vmm()
    vec = vmm.DeviceVec("float32", values=array.array("f", range(LENGTH)))
    address = vec.address
    checks.equal("DLPack device", (2, 0), tuple(map(int, vec.__dlpack_device__())))
    t, c = torch.from_dlpack(vec), cupy.from_dlpack(vec)
    t_cai, c_cai = torch.as_tensor(vec, device="cuda"), cupy.asarray(vec)
    checks.equal("address of torch.from_dlpack", hex(address), hex(t.data_ptr()))
    checks.equal("address of cupy.from_dlpack", hex(address), hex(c.data.ptr))
    checks.equal("address of torch.as_tensor", hex(address), hex(t_cai.data_ptr()))
    checks.equal("address of cupy.asarray", hex(address), hex(c_cai.data.ptr))
    kinds = [(str(view.dtype).removeprefix("torch."), tuple(view.shape)) for view in (t, c, t_cai, c_cai)]
    checks.equal("their types and shapes", [("float32", (LENGTH,))] * 4, kinds)

    def read(start: int = 0) -> list[list[float]]:
        """Returns four elements as each view and the vector read them."""
        torch.cuda.synchronize()
        some = slice(start, start + 4)
        seen = [view[some].tolist() for view in (t, c, t_cai, c_cai)]
        return [*seen, [float(value) for value in vec.read(start, 4)]]

    checks.equal("the first values, read by all", [[0.0, 1.0, 2.0, 3.0]] * 5, read())
    t.mul_(2)
    torch.cuda.synchronize()
    checks.equal("doubled by PyTorch, read by all", [[0.0, 2.0, 4.0, 6.0]] * 5, read())
    c += cupy.float32(1)
    cupy.cuda.Device().synchronize()
    checks.equal("and 1 added by CuPy", [[1.0, 3.0, 5.0, 7.0]] * 5, read())
    vec.write(LENGTH - 4, array.array("f", [9, 8, 7, 6]))
    checks.equal("the last 4 written by the vector", [[9.0, 8.0, 7.0, 6.0]] * 5, read(LENGTH - 4))

    expected = t.double().sum().item()
    vec.resize(TIMES * LENGTH, 7)
    checks.equal("the vector's length and address", (TIMES * LENGTH, hex(address)), (len(vec), hex(vec.address)))
    checks.equal("length and address of an old view", (LENGTH, hex(address)), (t.numel(), hex(t.data_ptr())))
    checks.equal("sums of old views", [expected] * 2, [t.double().sum().item(), float(c.sum(dtype="float64"))])
    longer_t, longer_c = torch.from_dlpack(vec), cupy.from_dlpack(vec)
    checks.equal("addresses of new views", [hex(address)] * 2, [hex(longer_t.data_ptr()), hex(longer_c.data.ptr)])
    checks.equal("lengths of new views", [TIMES * LENGTH] * 2, [longer_t.numel(), int(longer_c.size)])
    # Counts, since a single truth value could be in memory by chance if no kernel has run.
    new = (TIMES - 1) * LENGTH
    checks.equal("new elements by PyTorch", new, int((longer_t[LENGTH:] == 7).sum()))
    checks.equal("new elements by CuPy", new, int((longer_c[LENGTH:] == 7).sum()))
    longer_c[-1] = 5
    cupy.cuda.Device().synchronize()
    t[0] = -1
    torch.cuda.synchronize()
    checks.equal("written by CuPy at the end, read by PyTorch", 5.0, longer_t[-1].item())
    checks.equal("written in the old view, read in the new ones", [-1.0] * 2, [longer_t[0].item(), float(longer_c[0])])

    checks.raises("suspend while views exist", (vmm.Busy,), lambda: vec.suspend("host"))
    slept = vec.suspend("host", force=True)
    # Overwrite the released memory, so that the contents can only come from the store.
    other = vmm.DeviceVec("uint8")
    other.resize(slept, 0xEE)
    other = None
    vec.resume()
    checks.equal("after suspend and resume", [-1.0, 3.0, 5.0], [longer_t[0].item(), float(c[1]), longer_t[-1].item()])
    checks.equal("and the address", hex(address), hex(vec.address))

    capacity = vec.capacity
    vec.resize(LENGTH)
    c = longer_t = longer_c = t_cai = c_cai = None
    gc.collect()
    checks.raises("shrink while PyTorch has a view by DLPack", (vmm.Busy,), vec.shrink_to_fit)
    checks.equal("that view", [-1.0, 3.0], t[:2].tolist())
    checks.equal("the capacity then", capacity, vec.capacity)
    t = None
    gc.collect()
    # __cuda_array_interface__ does not report when its views are gone.
    checks.raises("shrink without force after __cuda_array_interface__", (vmm.Busy,), vec.shrink_to_fit)
    vec.shrink_to_fit(force=True)
    checks.check("the capacity once the view is gone", f"less than {capacity}", vec.capacity, LENGTH <= vec.capacity < capacity)
    checks.equal("what is left", (LENGTH, [-1.0, 3.0], hex(address)), (len(vec), list(vec.read(0, 2)), hex(vec.address)))

    t = torch.from_dlpack(vec)
    vec = None
    gc.collect()
    checks.equal("a view whose vector is gone", [-1.0, 3.0], t[:2].tolist())
    t.fill_(4)
    checks.equal("and written to", 4.0 * LENGTH, t.double().sum().item())


def capsules(checks: Checks) -> None:
    vmm = harness.gpu_vmm()
    python = ctypes.pythonapi
    python.PyCapsule_IsValid.argtypes, python.PyCapsule_IsValid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
    python.PyCapsule_GetPointer.argtypes, python.PyCapsule_GetPointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    vec = vmm.DeviceVec("float32")
    vec.resize(LENGTH)
    vec.resize(LENGTH * TIMES)
    old, new = vec.__dlpack__(), vec.__dlpack__(max_version=(1, 0))
    checks.equal("a capsule for old consumers", 1, python.PyCapsule_IsValid(old, b"dltensor"))
    checks.equal("a capsule for new consumers", 1, python.PyCapsule_IsValid(new, b"dltensor_versioned"))
    head = Versioned.from_address(python.PyCapsule_GetPointer(new, b"dltensor_versioned"))
    checks.equal("its version and the read-only flag", (1, 0), (head.major, head.flags & READ_ONLY))
    vec.resize(LENGTH)
    checks.raises("shrink while capsules exist", (vmm.Busy,), vec.shrink_to_fit)
    del old, new, head
    gc.collect()
    vec.shrink_to_fit()
    checks.check("capacity after unconsumed capsules are deleted", f"less than {LENGTH * TIMES}", vec.capacity, vec.capacity < LENGTH * TIMES)
    checks.equal("writable by __cuda_array_interface__", (vec.address, False), tuple(vec.__cuda_array_interface__["data"]))
    checks.raises("a copy, which is not supported", (BufferError, RuntimeError, ValueError), lambda: vec.__dlpack__(copy=True))
    checks.raises("the host's memory", (BufferError, RuntimeError, ValueError), lambda: vec.__dlpack__(dl_device=(1, 0)))

    vec.write(0, array.array("f", [1, 2, 3, 4]))
    closed = vec.read_only()
    new = closed.__dlpack__(max_version=(1, 0))
    head = Versioned.from_address(python.PyCapsule_GetPointer(new, b"dltensor_versioned"))
    checks.equal("the read-only flag of a read-only vector", READ_ONLY, head.flags & READ_ONLY)
    checks.equal("and of its __cuda_array_interface__", (vec.address, True), tuple(closed.__cuda_array_interface__["data"]))
    del new, head
    checks.raises("read-only for old consumers, which have no flags", (BufferError,), closed.__dlpack__)
    import cupy
    import torch

    for name, take in (("PyTorch", torch.from_dlpack), ("CuPy", cupy.from_dlpack)):
        # Libraries may honor the flag or refuse the tensor: an exception counts as much as a tensor with the right values.
        try:
            view = take(closed)
            says = getattr(getattr(view, "flags", None), "writeable", None) is False
            seen = f"{view[:4].tolist()}, {'read-only' if says else 'not marked as read-only'}"
            ok = view[:4].tolist() == [1.0, 2.0, 3.0, 4.0]
            view = None
        except Exception as error:
            seen, ok = f"{type(error).__name__}: {error}", bool(str(error))
        checks.check(f"a read-only vector for {name}", "the values, or a refusal with text", seen, ok)


def cupy_pool(checks: Checks) -> None:
    import cupy

    plugin = harness.gpu_vmm("cupy")
    before = cupy.arange(8).sum()  # from CuPy's own pool, and later freed into it
    plugin.enable()
    count, streams = 1 << 22, [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]

    def account() -> dict[str, Any]:
        return dict(plugin.pool().stats())

    parts = []
    most = 0
    for stream in streams:
        with stream:
            parts.append(cupy.arange(count, dtype=cupy.float32) % 1000)
            for _ in range(50):  # allocates and frees temporaries
                parts[-1] = (parts[-1] + 1) * 2 / 2 - 1
        most = max(most, account()["live"])
    first, second = streams
    least = 2 * 4 * count
    checks.check("live while both streams' arrays exist", f"at least {least}", most, most >= least)
    second.wait_event(first.record())
    with second:
        both = parts[0] + parts[1]
        total = float(both.sum(dtype=cupy.float64))
    expected = 2.0 * (sum(range(1000)) * (count // 1000) + sum(range(count % 1000)))
    checks.equal("the sum of both streams' work", expected, total)
    with first:
        sizes = [int(cupy.full(size, 3, dtype=cupy.int32).sum()) for size in (1, 1000, 1 << 20, (1 << 24) + 1)]
    checks.equal("arrays of all sizes", [3, 3000, 3 << 20, (3 << 24) + 3], sizes)
    checks.equal("an array from before", 28, int(before))
    del parts, both, before
    gc.collect()
    for stream in streams:
        stream.synchronize()
    checks.equal("live at the end", 0, account()["live"])
    say(f"account: {account()}")
    plugin.disable()


def errors(checks: Checks) -> None:
    import torch

    vmm, plugin = harness.gpu_vmm(), harness.gpu_vmm("torch")
    backend = vmm.open()
    pool = backend.pool()
    refused = (vmm.Error, ValueError, TypeError, OverflowError)
    say(f"{backend.name}, {backend.devices} devices, free and total: {backend.memory()}")
    checks.raises("an unknown backend", refused, lambda: vmm.open("abacus"))
    checks.raises("a pool of device 99", refused, lambda: backend.pool(device=99).alloc(1))
    checks.raises("an allocation of 0 bytes", refused, lambda: pool.alloc(0))
    checks.raises("an allocation of -1 bytes", refused, lambda: pool.alloc(-1))
    checks.raises("an alignment of 3", refused, lambda: pool.alloc(256, alignment=3))
    checks.raises("an allocation of 2**50 bytes", (vmm.OutOfMemory,), lambda: pool.alloc(1 << 50))
    checks.raises("free of a foreign pointer", (vmm.NotFound,), lambda: pool.free(0x1234567890))
    checks.raises("free of null", (vmm.Error,), lambda: pool.free(0), None)
    foreign = torch.ones(1024, device="cuda")
    checks.raises("free of PyTorch's memory", (vmm.NotFound,), lambda: pool.free(foreign.data_ptr()))
    checks.raises("find of PyTorch's memory", (vmm.NotFound,), lambda: pool.find(foreign.data_ptr()))
    block = pool.alloc(4096)
    address = block.address
    block.free()
    checks.raises("a second free by address", (vmm.NotFound,), lambda: pool.free(address))
    checks.raises("a second free by its owner", (vmm.Error,), block.free, None)
    checks.raises("suspend of an unknown tag", (vmm.NotFound,), lambda: pool.suspend("unknown"))
    checks.raises("resume of an unknown tag", (vmm.NotFound,), lambda: pool.resume("unknown"))
    tagged = pool.tagged("some")
    block = tagged.alloc(1 << 20)
    checks.raises("resume of a tag that does not sleep", (vmm.Error,), lambda: pool.resume("some"), 0)
    checks.raises("contents kept in the moon", refused, lambda: pool.suspend("some", keep="moon"))
    pool.suspend("some", keep="host")
    checks.raises("an allocation with a tag that is suspended", (vmm.Suspended,), lambda: tagged.alloc(1 << 20))
    pool.resume("some")
    block.free()
    checks.raises("wake by torch without sleep", (vmm.Error, RuntimeError), plugin.wake, 0)
    checks.raises("sleep by torch of an unknown tag", (vmm.Error, RuntimeError), lambda: plugin.sleep("unknown"))
    checks.raises("enable by torch after CUDA was used", (vmm.Error, RuntimeError), plugin.enable)
    checks.raises("a vector of an unknown type", refused, lambda: vmm.DeviceVec("float33"))
    vec = vmm.DeviceVec("float32", values=[1, 2, 3])
    checks.raises("a vector of -1 elements", refused, lambda: vec.resize(-1))
    checks.raises("a vector of 2**60 elements", (*refused, MemoryError), lambda: vec.resize(1 << 60))
    checks.raises("a read beyond the end", (*refused, IndexError), lambda: vec.read(2, 2))
    checks.raises("values that are no numbers", refused, lambda: vec.extend(["one"]))
    empty = vmm.DeviceVec("float32")
    checks.equal("an empty vector", (0, []), (len(empty), empty.tolist()))
    checks.raises("a tensor of an empty vector", (*refused, BufferError), lambda: torch.from_dlpack(empty).numel(), 0)

    checks.equal("the vector is unchanged", [1.0, 2.0, 3.0], list(vec.tolist()))
    with pool.alloc(1 << 20) as block:
        checks.check("the pool still allocates", "an address", hex(block.address), block.address != 0)
    checks.equal("nothing of it is live", 0, pool.stats()["live"])
    checks.equal("PyTorch's memory is unchanged", 1024.0, foreign.sum().item())


PARTS = {"share": share, "capsules": capsules, "cupy": cupy_pool, "errors": errors}


def main() -> int:
    parser = argparse.ArgumentParser(description="CuPy and PyTorch share a vector that grows; CuPy's pool; invalid arguments.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    given = parser.parse_args()
    if unknown := [name for name in given.parts if name not in PARTS]:
        parser.error(f"{', '.join(unknown)} is none of {', '.join(PARTS)}")
    checks = Checks()
    for name in given.parts or PARTS:
        checks.section(name, PARTS[name])
    import torch

    print(f"\n{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, gpu-vmm {harness.gpu_vmm().__version__}")
    return checks.end()


if __name__ == "__main__":
    import faulthandler

    faulthandler.enable()
    sys.exit(main())
