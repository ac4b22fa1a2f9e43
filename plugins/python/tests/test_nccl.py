"""NCCL registers memory of gpu-vmm on one or two GPUs, and reduces in it. Multicast stays off: NCCL would create objects of it."""

import ctypes
import glob
import os
import site
import struct
import sys
import unittest

import gpu_vmm
from gpu_vmm import vmm
from support import MIB, NAME, Case, backend

FLOAT, SUM = 7, 0
COUNT = 16 * MIB


def nccl():
    """Returns NCCL's library, of the system or of PyTorch's packages, or None."""
    folders = [*site.getsitepackages(), *sys.path]
    packaged = [found for folder in folders for found in glob.glob(f"{folder}/nvidia/nccl/lib/libnccl.so.2")]
    for name in [*packaged, "libnccl.so.2"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def gpus():
    return gpu_vmm.open(NAME).devices if NAME == "cuda" else 0


class Nccl(Case):
    @classmethod
    def setUpClass(cls):
        cls.devices = range(min(gpus(), 2))
        cls.library = nccl() if cls.devices else None
        if cls.library is None:
            raise unittest.SkipTest("needs an NVIDIA GPU and libnccl.so.2")
        # Read when the first communicator is made.
        os.environ.update(NCCL_NVLS_ENABLE="0", NCCL_CUMEM_ENABLE="1", NCCL_LOCAL_REGISTER="1")

    def call(self, name, *arguments):
        answer = getattr(self.library, name)(*arguments)
        self.assertEqual(answer, 0, f"{name} returned {answer}")

    def regions(self, opened):
        """Returns a region of 64 MiB on each GPU, which all of them can reach and NCCL can export."""
        regions = []
        for device in self.devices:
            kind = vmm.Properties(device=device, handle_types=vmm.HandleTypes.FD)
            memory = vmm.PhysicalMemory(opened, 4 * COUNT, kind)
            region = vmm.Region(opened, memory.size)
            region.map(0, memory)
            for reader in self.devices:
                region.set_access(0, memory.size, reader, vmm.Access.READ_WRITE)
            regions.append(region)
        return regions

    def blocks(self, opened):
        """Returns a block of 64 MiB of a pool of each GPU, whose memory all GPUs can reach and NCCL can export."""
        blocks = []
        for device in self.devices:
            pool = opened.pool(device=device).with_memory(vmm.Properties(device=device, handle_types=vmm.HandleTypes.FD))
            for reader in self.devices:
                if reader != device:
                    pool.allow_access(reader)
            # The block begins in the middle of a page.
            self.addCleanup(pool.alloc(1 * MIB).free)
            blocks.append(pool.alloc(4 * COUNT))
        return blocks

    def reduce(self, opened, places):
        """Registers memory on each GPU, and reduces all of it in place. ``places`` have an address, ``read`` and ``write``."""
        for number, (_, _, write) in enumerate(places):
            write(struct.pack("<f", number + 1.5) * COUNT)
        count = len(places)
        communicators = (ctypes.c_void_p * count)()
        self.call("ncclCommInitAll", communicators, count, (ctypes.c_int * count)(*self.devices))
        registered = [ctypes.c_void_p() for _ in places]
        for communicator, (address, _, _), handle in zip(communicators, places, registered):
            given = (ctypes.c_void_p(communicator), ctypes.c_void_p(address), ctypes.c_size_t(4 * COUNT), ctypes.byref(handle))
            self.call("ncclCommRegister", *given)
            self.assertTrue(handle.value, "NCCL took the memory without registering it")
        self.call("ncclGroupStart")
        for communicator, (address, _, _) in zip(communicators, places):
            at = ctypes.c_void_p(address)
            self.call("ncclAllReduce", at, at, ctypes.c_size_t(COUNT), FLOAT, SUM, ctypes.c_void_p(communicator), None)
        self.call("ncclGroupEnd")
        for device in self.devices:
            event = vmm.Event(opened, device)
            event.record(0)
            event.wait()
        total = sum(number + 1.5 for number in self.devices)
        for _, read, _ in places:
            for offset in (0, 4 * COUNT - 4, 2 * COUNT):
                self.assertEqual(struct.unpack("<f", read(offset, 4)), (total,))
        for communicator, handle in zip(communicators, registered):
            self.call("ncclCommDeregister", ctypes.c_void_p(communicator), handle)
            self.call("ncclCommDestroy", ctypes.c_void_p(communicator))

    def test_registered_memory_is_reduced(self):
        opened = backend()
        self.reduce(opened, [(region.address, region.read, region.write) for region in self.regions(opened)])

    def test_registered_blocks_are_reduced(self):
        opened = backend()
        self.reduce(opened, [(block.address, block.read, block.write) for block in self.blocks(opened)])


if __name__ == "__main__":
    unittest.main()
