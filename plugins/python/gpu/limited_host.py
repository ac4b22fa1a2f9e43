#!/usr/bin/env python3
"""Lets tensors sleep while a control group limits the host's memory: to 1.2 times what they need, and to half of it.

With too little memory, `sleep` must raise OutOfMemory and leave the tensors as they are. With enough, the GPU compares every word after
each wake. It needs PyTorch with CUDA, the right to create control groups of version 2, and some seconds.
"""

import argparse
from pathlib import Path
from typing import Any

import training
from harness import GIB, MIB, Checks, Failed, gpu_vmm, start
from training import VMM

ROOT = Path("/sys/fs/cgroup")
TAG, PIECE = "limited", 256 * MIB


def enter_group() -> Path:
    """Moves this process into a new group whose memory can be limited."""
    own = next((line[3:].strip("/") for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), None)
    if own is None:
        raise Failed("this system has no control groups of version 2")
    above, group = ROOT / own, ROOT / own / "gpu-vmm-limited"
    try:
        group.mkdir(exist_ok=True)
        # A group with processes cannot limit its groups: all of them move.
        for process in (above / "cgroup.procs").read_text().split():
            try:
                (group / "cgroup.procs").write_text(process)
            except ProcessLookupError:
                pass
        (above / "cgroup.subtree_control").write_text("+memory")
    except OSError as error:
        raise Failed(f"no control group can be made here: {error}") from None
    return group


def limit(group: Path, more: int) -> None:
    """Lets the processes of the group have a number of bytes more than now. Cached files make room."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    cached = int(stat["file"]) - int(stat["shmem"]) + int(stat["slab_reclaimable"])
    (group / "memory.max").write_text(str(int((group / "memory.current").read_text()) - cached + more))


def expected(torch: Any, number: int) -> Any:
    words = torch.arange(PIECE // 8, dtype=torch.int64, device="cuda")
    return words * 2654435761 + number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8, help="GiB of tensors (default: %(default)s)")
    given = parser.parse_args()
    need = given.size * GIB
    group = enter_group()
    training.enable(VMM)
    import torch

    vmm_torch, checks = gpu_vmm("torch"), Checks()
    with vmm_torch.pool(TAG):
        tensors = [torch.empty(PIECE // 8, dtype=torch.int64, device="cuda") for _ in range(need // PIECE)]
    for number, tensor in enumerate(tensors):
        tensor.copy_(expected(torch, number))

    def are_whole() -> bool:
        return all(bool((tensor == expected(torch, number)).all()) for number, tensor in enumerate(tensors))

    checks.equal("the tensors", True, are_whole())
    for keep in ("host", "host-kept", "pinned"):
        if keep != "pinned":  # the driver's own memory, which no group limits
            limit(group, need // 2)
            too_little = (gpu_vmm().OutOfMemory,)
            checks.raises(f"sleep with keep={keep!r} and half of the memory", too_little, lambda: vmm_torch.sleep(TAG, keep=keep))
            checks.equal("the tensors afterwards", True, are_whole())
        limit(group, need * 6 // 5)
        for number in range(2):
            checks.equal(f"sleep {number + 1} with keep={keep!r} and 1.2 times the memory", need, int(vmm_torch.sleep(TAG, keep=keep)))
            # Other data takes the place of the tensors meanwhile.
            other = torch.full((torch.cuda.mem_get_info()[0] // 16,), -1, dtype=torch.int64, device="cuda")
            torch.cuda.synchronize()
            del other
            torch.cuda.empty_cache()
            vmm_torch.wake(TAG)
            checks.equal("the tensors after the wake", True, are_whole())
    return checks.end()


if __name__ == "__main__":
    start(main)
