"""A program that type checkers must accept, and lines that they must refuse: an unused `type: ignore` is an error itself.

The tests check this file with mypy and pyright, and never run it.
"""

from __future__ import annotations

import array
import select
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np
from typing_extensions import CapsuleType, assert_type

import gpu_vmm
from gpu_vmm import serve, vmm


def accepted(name: gpu_vmm.DTypeName, dtype: gpu_vmm.DTypeLike, rows: "np.ndarray[Any, np.dtype[np.float64]]") -> None:
    backend = gpu_vmm.open()
    vec = gpu_vmm.DeviceVec(np.float32, [1, 2.5, np.float64(3), True], backend=backend)
    for made in (
        gpu_vmm.DeviceVec(), gpu_vmm.DeviceVec("bfloat16"), gpu_vmm.DeviceVec("f"), gpu_vmm.DeviceVec(name), gpu_vmm.DeviceVec(dtype),
        gpu_vmm.DeviceVec(np.bool_), gpu_vmm.DeviceVec(np.dtype("int16")), gpu_vmm.DeviceVec(rows.dtype, rows.ravel()),
        gpu_vmm.DeviceVec(bool), gpu_vmm.DeviceVec(int), gpu_vmm.DeviceVec(float, array.array("d", [1])),
        gpu_vmm.DeviceVec(complex, [1j]), gpu_vmm.DeviceVec(vec.dtype, vec), gpu_vmm.DeviceVec("int8", b"raw"),
        gpu_vmm.DeviceVec("int8", (number for number in range(3))),
    ):  # fmt: skip
        made.append(1)
    assert_type(vec.dtype, gpu_vmm.DTypeName)
    assert_type(vec[1:], List[Any])
    assert_type(iter(vec), Iterator[Any])
    assert_type(len(vec), int)
    vec[0] = 1
    vec[np.int64(0)] = np.float32(1)
    vec[:2] = [1, 2]
    vec[::2] = 0
    vec.write(0, rows)
    assert_type(vec.read_into(rows, 1), int)
    assert_type(vec.__dlpack__(), CapsuleType)
    assert_type(vec.__array_interface__["data"], memoryview)
    assert_type(vec.__cuda_array_interface__["data"], Tuple[int, bool])
    for view in vec, vec.read_only():
        print(np.from_dlpack(view).sum(), np.asarray(view).sum())

    pool = backend.pool()
    assert_type(backend.info()["devices"][0]["name"], str)
    assert_type(pool.stats()["held"], int)
    assert_type(pool.snapshot()["timeline"][0]["at"], float)
    stats: gpu_vmm.PoolStats = gpu_vmm.torch.stats()
    print(stats["driver_calls"]["map"])
    gpu_vmm.torch.save("state.pool", {"step": 50}, compress=True)
    assert_type(gpu_vmm.torch.restore("state.pool"), Dict[str, Any])
    with pool.alloc(64) as block:
        block.write(rows)
        assert_type(block.read(), bytes)
    pool.save("model.pool", ["weights"], compress=True)
    assert_type(gpu_vmm.Pool.restore(backend, b"model.pool", budget=1 << 30), gpu_vmm.RestoredPool)
    restored, blocks = gpu_vmm.Pool.restore(backend, "model.pool")
    assert_type(restored.alloc(64, address=blocks[0].address), gpu_vmm.Block)


def low_level(backend: vmm.Backend, transfers: List[str]) -> None:
    unit = vmm.granularity(backend, vmm.Properties(handle_types=vmm.HandleTypes.FD))
    assert_type(vmm.devices(backend)[0].capabilities()[0]["feature"], str)
    with vmm.PhysicalMemory(backend, unit) as memory, vmm.Region(backend, 4 * unit) as region:
        assert_type(region, vmm.Region)
        region.map(0, memory)
        region.set_access(0, unit, vmm.HOST, vmm.Access.READ)
        assert_type(region.access(0, 0), vmm.Access)
        assert_type([mapping.length for mapping in region.mappings()], List[int])
        region.write(bytearray(8))
        region.write(np.zeros(8))
        region.read_into(0, np.zeros(8))
        assert_type(region.read(0, 8), bytes)
        assert_type(region.view(np.float32, 0, 2).buffer(), memoryview)
        print(np.from_dlpack(region.view()), np.asarray(region.view()))

        def before(change: vmm.BackingChange) -> None:
            transfers.append(change.operation)

        assert_type(region.on_backing_change(before, lambda change, outcome: transfers.append(outcome.name)), int)
        with region.offer() as offer:
            assert_type(vmm.Region.import_offer(backend, bytes(offer)), vmm.Region)
    with vmm.PageList(backend, unit, 4 * unit) as pages, vmm.Region(backend, unit) as sequence:
        assert_type(pages.stats()["held"], int)
        sequence.grow(unit, pages)
        sequence.fork(unit, vmm.Region(backend, unit))
        assert_type(sequence.make_private(0, unit, pages), int)
        sequence.resume(sequence)  # type: ignore[arg-type]
    with vmm.BankedRegion(backend, unit) as banked:
        assert_type(banked.selected, Optional[int])


def of_a_server(path: str) -> None:
    client = gpu_vmm.connect(path)
    assert_type(client, serve.Client)
    assert_type(client.status()["server"]["held"], int)
    assert_type([region["epoch"] for region in client.regions()], List[int])
    with client.create("name", 1, vmm.Properties(device=1), mode=0o640) as lease:
        assert_type(lease, serve.Lease)
        assert_type(lease.renew(0, copy=False), Tuple[int, int])
        layout = serve.Layout({"a": serve.Part(0, np.float32, (2,)), "b": serve.Part(8, "float8_e4m3fn", ())}, {"key": "note"})
        assert_type(lease.commit(layout), int)
        assert_type(lease.layout.notes, Dict[str, str])
        assert_type(lease.next(1.5), serve.LeaseEvent)
        assert_type(lease["a"].shape, Tuple[int, ...])
        print(np.from_dlpack(lease["a"]), select.select([lease], [], [], 0))
    client.open("name", "append")  # type: ignore[arg-type]


def refused(vec: gpu_vmm.DeviceVec, view: gpu_vmm.ReadOnlyVec, name: str) -> None:
    gpu_vmm.DeviceVec("float31")  # type: ignore[arg-type]
    gpu_vmm.DeviceVec(name)  # type: ignore[arg-type]
    gpu_vmm.DeviceVec(str)  # type: ignore[arg-type]
    gpu_vmm.DeviceVec([1, 2])  # type: ignore[arg-type]
    gpu_vmm.DeviceVec("float32", [[1, 2], [3, 4]])  # type: ignore[list-item]
    gpu_vmm.DeviceVec("float32", ["1"])  # type: ignore[list-item]
    vec.extend("12")  # type: ignore[arg-type]
    vec.append([1])  # type: ignore[arg-type]
    vec[0, 1]  # type: ignore[call-overload]
    vec["x"]  # type: ignore[call-overload]
    vec[0] = "1"  # type: ignore[assignment]
    view[0] = 1  # type: ignore[index]
    gpu_vmm.open().pool().stats()["hold"]  # type: ignore[typeddict-item]
    vmm.Region(gpu_vmm.open()).map(0, b"memory")  # type: ignore[arg-type]
    vmm.Region(gpu_vmm.open()).on_backing_change(lambda: None)  # type: ignore[arg-type,misc]
    vmm.Region(gpu_vmm.open()).place  # type: ignore[attr-defined]
