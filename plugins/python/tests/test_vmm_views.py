"""A region's memory in other libraries: DLPack tensors, and buffers of memory that the CPU can access."""

import ctypes
import gc
import sys
import unittest

import gpu_vmm
from gpu_vmm import vmm
from support import NAME, Case, backend
from test_dlpack import Taken
from test_vmm import region_of

try:
    import numpy
except ImportError:
    numpy = None

ON_HOST = NAME == "host"


class Views(Case):
    def test_arguments(self):
        region, unit = region_of(backend(), 1)
        view = region.view("float32", 8, 4)
        self.assertEqual((len(view), view.dtype), (4, "float32"))
        self.assertEqual(len(region.view("int64", 16)), unit // 8 - 2)
        self.assertEqual((len(region.view("int64", unit)), len(region.view("int64", unit, 0))), (0, 0))
        self.assertEqual(view.__dlpack_device__()[0], {"host": 1, "cuda": 2, "hip": 10}[NAME])
        with self.raises(gpu_vmm.InvalidArgument):
            region.view("float32", 2)
        with self.assertRaises(TypeError):
            vmm.View(None, None, None, 0, 0, False)
        for offset, count, last in (0, unit, 4 * unit), (unit - 4, 2, unit + 4), (unit, 1, unit + 4), (1 << 40, 1, (1 << 40) + 4):
            numbers = f"{count} float32 at offset {offset} end at {last}, beyond the end of the region's memory at {unit}"
            with self.raises(gpu_vmm.OutOfRange, numbers):
                region.view("float32", offset, count)
        with self.raises(gpu_vmm.OutOfRange, f"0 float32 at offset {unit + 4} end at {unit + 4}"):
            region.view("float32", unit + 4)
        region.shrink(0)
        with self.raises(gpu_vmm.NotMapped):
            view.__dlpack__()

    def test_copies(self):
        region, unit = region_of(backend(), 2)
        region.write(b"copied", unit - 2)
        view, is_copied = region.view("uint8", unit - 2, 6, read_only=True), 2
        for device in None, view.__dlpack_device__(), (1, 0):
            taken = Taken(view.__dlpack__(copy=True, dl_device=device, max_version=(1, 0)))
            tensor = taken.managed.tensor
            self.assertEqual(((tensor.device_type, tensor.device_id), taken.managed.flags), (device or view.__dlpack_device__(), is_copied))
            if tensor.device_type == 1:
                self.assertEqual(ctypes.string_at(tensor.data + tensor.byte_offset, 6), b"copied")
            self.assertEqual((region.suspend(), region.resume()), (2 * unit, 2 * unit))  # no tensor of the region exists
            taken.delete()
        with self.assertRaisesRegex(BufferError, r"\(3, 7\)"):
            view.__dlpack__(dl_device=(3, 7))

    def test_a_suspended_region_has_no_views(self):
        region, unit = region_of(backend(), 2)
        view, address = region.view("float32", 8, 4), f"{region.address:#x} is suspended; resume it first"
        region.suspend()
        for call in (
            view.buffer, view.__dlpack__, view.__dlpack_device__, lambda: view.__array_interface__, region.view,
            lambda: region.view("float32", 8, 4), lambda: region.mapping(0), lambda: region.physical(unit), region.mappings,
        ):  # fmt: skip
            with self.raises(gpu_vmm.Suspended, address):
                call()
        self.assertEqual(region.resume(), 2 * unit)
        self.assertEqual((len(region.mappings()), region.mapping(0).offset, region.physical(unit).size), (2, 0, unit))
        self.assertEqual(view.__dlpack_device__(), region.view().__dlpack_device__())
        del view
        empty = vmm.Region(backend(), unit)
        self.assertEqual((len(empty.view()), empty.mappings()), (0, []))

    def test_a_tensor_keeps_the_memory(self):
        region, unit = region_of(backend(), 1)
        capsule = region.view("float32").__dlpack__(max_version=(1, 0))
        for call in (region.suspend, lambda: region.shrink(0), lambda: region.unmap(0, unit)):
            with self.raises(gpu_vmm.Busy):
                call()
        del capsule
        gc.collect()
        self.assertEqual(region.suspend(), unit)
        region.resume()
        capsule = region.view().__dlpack__()
        region.suspend(force=True)
        region.resume()
        del capsule

    @unittest.skipUnless(ON_HOST, "the buffer is the host's")
    def test_buffers_of_host_memory(self):
        region, unit = region_of(backend(), 2)
        buffer = region.view("int32", unit - 8, 4).buffer()
        self.assertEqual((buffer.format, buffer.nbytes, buffer.readonly), ("i", 16, False))
        self.assertEqual(buffer.tolist(), [0x01010101] * 2 + [0x02020202] * 2)
        buffer[1] = 7
        self.assertEqual(region.read(unit - 4, 4), (7).to_bytes(4, sys.byteorder))
        with self.raises(gpu_vmm.Busy):
            region.shrink(0)
        region.close()
        self.assertEqual(buffer[1], 7)  # the buffer keeps the memory
        buffer.release()
        region, _ = region_of(backend(), 1)
        shown = region.view("bfloat16", 0, 3, read_only=True).buffer()
        self.assertEqual((shown.format, shown.readonly, bytes(shown)), ("B", True, b"\1" * 6))
        self.assertEqual(bytes(region.view("int8", 0, 0).buffer()), b"")
        if sys.version_info >= (3, 12):
            self.assertEqual(bytes(memoryview(region.view("int8", 0, 2))), b"\1\1")

    @unittest.skipUnless(ON_HOST, "the buffer is the host's")
    def test_a_buffer_needs_access(self):
        opened = backend()
        unit = vmm.reservation_unit(opened)
        region = vmm.Region(opened, unit)
        region.map(0, vmm.PhysicalMemory(opened, unit))
        with self.raises(gpu_vmm.AccessDenied):
            region.view().buffer()
        region.set_access(0, unit, 0, vmm.Access.READ)
        with self.raises(gpu_vmm.AccessDenied):
            region.view().buffer()
        self.assertEqual(region.view(read_only=True).buffer()[0], 0)

    @unittest.skipIf(ON_HOST, "the memory is a device's")
    def test_buffers_of_device_memory(self):
        opened = backend()
        region, unit = region_of(opened, 1)
        with self.raises(gpu_vmm.AccessDenied, "HOST"):
            region.view().buffer()
        with self.assertRaises(AttributeError):
            region.view().__array_interface__
        # Memory of the host, to which the driver may give the CPU access.
        host = vmm.Properties(location=vmm.Location.HOST_NODE)
        try:
            memory = vmm.PhysicalMemory(opened, unit, host)
            other = vmm.Region(opened, 2 * unit)
            other.map(0, memory)
            other.set_access(0, memory.size, 0, vmm.Access.READ_WRITE)
            other.write(b"seen")
            other.set_access(0, memory.size, vmm.HOST, vmm.Access.READ)
        except gpu_vmm.Unsupported as error:
            self.assertTrue(str(error))
            return
        with self.raises(gpu_vmm.AccessDenied):
            other.view("uint8", 0, 4).buffer()
        with self.raises(gpu_vmm.AccessDenied, "the host"):
            other.write(b"no")
        self.assertEqual(bytes(other.view("uint8", 0, 4, read_only=True).buffer()), b"seen")

    @unittest.skipUnless(numpy and ON_HOST, "needs NumPy, and the host's memory")
    def test_numpy(self):
        region, unit = region_of(backend(), 1)
        array = numpy.from_dlpack(region.view("float32", 0, 4))
        array[:] = range(4)
        self.assertEqual(numpy.asarray(region.view("float32", 4, 2)).tolist(), [1, 2])
        self.assertEqual(numpy.asarray(region.view("bool", 0, 1)).dtype, numpy.bool_)
        del array
        gc.collect()
        self.assertEqual(region.suspend(), unit)


if __name__ == "__main__":
    unittest.main()
