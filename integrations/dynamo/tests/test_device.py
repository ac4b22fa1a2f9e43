"""All methods of GpuVmmDevice, on the backend that GPU_VMM_TEST_BACKEND names."""

import ctypes
import enum
import inspect
import os
import sys
import threading
import types
import unittest
from abc import ABC
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / "plugins/python/tests")]

import gpu_vmm  # noqa: E402
from gpu_vmm_dynamo import GpuVmmDevice, install, streams  # noqa: E402
from support import NAME, Case, in_threads  # noqa: E402

# The methods of VMMDevice and their parameters.
METHODS = {
    "ensure_initialized": (), "synchronize": (), "list_devices": (), "device_memory_info": ("device",),
    "get_allocation_granularity": ("device",), "create_tolerate_oom": ("size", "device"), "release": ("handle",),
    "export_to_shareable_handle": ("handle",), "import_shareable_handle_close_fd": ("fd",), "address_reserve": ("size", "granularity"),
    "address_free": ("va", "size"), "map": ("va", "size", "handle"), "unmap": ("va", "size"),
    "set_access": ("va", "size", "device", "access"), "validate_pointer": ("va",), "runtime_check_result": ("result", "name"),
    "runtime_set_device": ("device",), "host_register": ("ptr", "size"), "host_unregister": ("ptr",), "stream_create_nonblocking": (),
    "stream_destroy": ("stream",), "stream_synchronize": ("stream",), "memcpy_h2d_async": ("dst_ptr", "src_ptr", "size", "stream"),
    "memcpy_d2h_async": ("dst_ptr", "src_ptr", "size", "stream"),
}  # fmt: skip


class GrantedLockType(str, enum.Enum):
    RW = "rw"
    RO = "ro"


def host(contents):
    """Returns host memory with these bytes, and its address."""
    memory = (ctypes.c_ubyte * len(contents)).from_buffer_copy(contents)
    return memory, ctypes.addressof(memory)


def descriptors():
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


class Device(Case):
    def setUp(self):
        self.device = GpuVmmDevice(NAME)
        self.device.ensure_initialized()
        self.unit = self.device.get_allocation_granularity(0)

    def mapped(self, count=1, access=GrantedLockType.RW):
        size = count * self.unit
        allocated, handle = self.device.create_tolerate_oom(size, 0)
        self.assertTrue(allocated and handle)
        va = self.device.address_reserve(size, self.unit)
        self.device.map(va, size, handle)
        self.device.set_access(va, size, 0, access)
        return va, size, handle

    def copied(self, device, va, contents):
        """Copies bytes to a device and back on one stream."""
        source, at = host(contents)
        target, to = host(bytes(len(contents)))
        stream = device.stream_create_nonblocking()
        device.memcpy_h2d_async(va, at, len(contents), stream)
        ctypes.memset(at, 0, len(contents))  # the source may change at once
        device.memcpy_d2h_async(to, va, len(contents), stream)
        device.stream_synchronize(stream)
        device.stream_destroy(stream)
        return bytes(target)

    def test_the_methods_are_those_of_vmm_device(self):
        for name, parameters in METHODS.items():
            of = inspect.signature(getattr(GpuVmmDevice, name)).parameters
            self.assertEqual(tuple(of)[1:], parameters, name)
        self.assertEqual(len(METHODS), 24)

    def test_devices(self):
        devices = self.device.list_devices()
        self.assertEqual(devices, list(range(len(devices))))
        free, total = self.device.device_memory_info(0)
        self.assertTrue(0 < free <= total)
        with self.raises(gpu_vmm.NoSuchDevice):
            self.device.device_memory_info(99)
        with self.raises(gpu_vmm.NoSuchDevice):
            self.device.get_allocation_granularity(99)
        with self.raises(gpu_vmm.NoSuchDevice, "there is no device 99"):
            self.device.runtime_set_device(99)

    def test_copies(self):
        va, size, handle = self.mapped(2)
        self.device.validate_pointer(va + size - 1)
        contents = bytes(range(256)) * (size // 256)
        self.assertEqual(self.copied(self.device, va, contents), contents)
        self.device.synchronize()
        # A released handle stays as long as it is mapped.
        self.device.release(handle)
        self.assertEqual(self.copied(self.device, va + 5, b"odd offsets"), b"odd offsets")
        self.device.unmap(va, size)
        with self.raises(gpu_vmm.NotMapped):
            self.device.validate_pointer(va)
        self.device.address_free(va, size)
        with self.raises(gpu_vmm.NotFound):
            self.device.validate_pointer(va)

    def test_copies_larger_than_the_page_locked_memory(self):
        before, streams.ROOM = streams.ROOM, 1 << 16
        try:
            va, size, _ = self.mapped(2 if self.unit > 1 << 16 else 64)
            contents = os.urandom(size)
            self.assertEqual(self.copied(self.device, va, contents), contents)
        finally:
            streams.ROOM = before

    def test_memory_of_another_process_object(self):
        va, size, handle = self.mapped()
        self.copied(self.device, va, b"shared")
        other = GpuVmmDevice(NAME)
        other.ensure_initialized()
        # Drivers open descriptors of their own at the first export.
        os.close(self.device.export_to_shareable_handle(handle))
        before = descriptors()
        imported = other.import_shareable_handle_close_fd(self.device.export_to_shareable_handle(handle))
        again = other.export_to_shareable_handle(imported)
        there = other.address_reserve(size, self.unit)
        other.map(there, size, imported)
        os.close(again)
        other.set_access(there, size, 0, GrantedLockType.RO)
        self.assertEqual(self.device_bytes(other, there, 6), b"shared")
        if NAME != "host":  # the queue checks the device's access
            with self.raises(gpu_vmm.AccessDenied):
                self.copied(other, there, b"x")
        other.set_access(there, size, 0, "rw")
        self.copied(other, there, b"SHARED")
        self.assertEqual(self.device_bytes(self.device, va, 6), b"SHARED")
        other.release(imported)
        other.address_free(there, size)
        if NAME != "hip":  # HIP 6.4 keeps a descriptor of each import
            self.assertEqual(descriptors(), before)

    def device_bytes(self, device, va, count):
        target, to = host(bytes(count))
        stream = device.stream_create_nonblocking()
        device.memcpy_d2h_async(to, va, count, stream)
        device.stream_destroy(stream)  # after its copies
        return bytes(target)

    def test_a_descriptor_is_closed_in_any_case(self):
        before = descriptors()
        reading, writing = os.pipe()
        os.close(writing)
        handle = self.device.import_shareable_handle_close_fd(reading)
        with self.assertRaises(OSError):
            os.fstat(reading)
        va = self.device.address_reserve(self.unit, self.unit)
        with self.assertRaises(gpu_vmm.Error):
            self.device.map(va, self.unit, handle)
        self.device.release(handle)
        self.device.address_free(va, self.unit)
        with self.assertRaises(OSError):
            self.device.import_shareable_handle_close_fd(reading)
        self.assertEqual(descriptors(), before)

    def test_out_of_memory_is_no_error(self):
        # More than the addresses of any device. The host has no limit of its own below that.
        self.assertEqual(self.device.create_tolerate_oom(self.unit << 33, 0), (False, 0))

    def test_wrong_calls(self):
        va, size, handle = self.mapped(2)
        device, unit = self.device, self.unit
        local = ctypes.c_int()
        stream = device.stream_create_nonblocking()
        device.host_register(4096, 4096)
        for kind, call in (
            (gpu_vmm.Unaligned, lambda: device.create_tolerate_oom(unit + 1, 0)),
            (gpu_vmm.Unaligned, lambda: device.create_tolerate_oom(0, 0)),
            (gpu_vmm.NoSuchDevice, lambda: device.create_tolerate_oom(unit, 99)),
            (gpu_vmm.NotFound, lambda: device.release(4711)),
            (gpu_vmm.NotFound, lambda: device.export_to_shareable_handle(4711)),
            (gpu_vmm.NotFound, lambda: device.map(va, size, 4711)),
            (gpu_vmm.NotFound, lambda: device.map(ctypes.addressof(local), size, handle)),
            (gpu_vmm.InvalidArgument, lambda: device.map(va, unit, handle)),
            (gpu_vmm.AlreadyMapped, lambda: device.map(va, size, handle)),
            (gpu_vmm.OutOfRange, lambda: device.map(va + unit, size, handle)),
            (gpu_vmm.InvalidArgument, lambda: device.unmap(va, unit)),
            (gpu_vmm.NotFound, lambda: device.unmap(va + size, unit)),
            (gpu_vmm.InvalidArgument, lambda: device.set_access(va, size, 0, "rwx")),
            (gpu_vmm.NoSuchDevice, lambda: device.set_access(va, size, 99, GrantedLockType.RO)),
            (gpu_vmm.NotFound, lambda: device.address_free(va, unit)),
            (gpu_vmm.InvalidArgument, lambda: device.address_reserve(0, unit)),
            (gpu_vmm.InvalidArgument, lambda: device.address_reserve(unit, 3)),
            (gpu_vmm.OutOfRange, lambda: device.memcpy_d2h_async(ctypes.addressof(local), va, size + 1, stream)),
            (gpu_vmm.NotFound, lambda: device.memcpy_h2d_async(ctypes.addressof(local), va, 1, stream)),
            (gpu_vmm.InvalidArgument, lambda: device.host_register(8191, 10)),
            (gpu_vmm.InvalidArgument, lambda: device.host_register(1, 0)),
            (gpu_vmm.NotFound, lambda: device.host_unregister(4097)),
        ):  # fmt: skip
            with self.raises(kind):
                call()
        device.host_unregister(4096)
        device.stream_destroy(stream)
        with self.raises(gpu_vmm.InvalidArgument):
            device.memcpy_h2d_async(va, ctypes.addressof(local), 1, stream)

    def test_results_of_the_runtime(self):
        check = self.device.runtime_check_result
        self.assertEqual([check(0, "a"), check((0, 7), "a"), check((0, 7, 8), "a")], [(), 7, (7, 8)])
        # A number of the runtime means something else than the same number of gpu_vmm.
        for number in (1, 2, 999):
            with self.raises(gpu_vmm.DriverError, f"copy: the runtime returned status {number}"):
                check((number, None), "copy")

    def test_threads_have_their_own_device(self):
        count = len(self.device.list_devices())
        self.device.runtime_set_device(count - 1)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(self.device.stream_create_nonblocking().device))
        thread.start()
        thread.join()
        self.assertEqual((seen, self.device.stream_create_nonblocking().device), ([0], count - 1))

        def work(number):
            for _ in range(10):
                va, size, handle = self.mapped()
                self.assertEqual(self.copied(self.device, va, bytes([number]) * 1000), bytes([number]) * 1000)
                self.device.unmap(va, size)
                self.device.release(handle)
                self.device.address_free(va, size)

        self.device.runtime_set_device(0)
        self.assertEqual(in_threads(4, work), [])

    def test_threads_share_one_imported_handle(self):
        va, size, handle = self.mapped()
        for _ in range(5):
            imported = self.device.import_shareable_handle_close_fd(self.device.export_to_shareable_handle(handle))
            places = [self.device.address_reserve(size, self.unit) for _ in range(4)]
            self.assertEqual(in_threads(4, lambda number: self.device.map(places[number], size, imported)), [])
            errors = in_threads(4, lambda _: self.device.release(imported))
            self.assertEqual([type(error) for error in errors], [gpu_vmm.NotFound] * 3)
            for place in places:
                self.device.set_access(place, size, 0, "rw")
                self.device.address_free(place, size)

    def test_a_handle_is_released_after_its_import(self):
        va, size, handle = self.mapped()
        imported = self.device.import_shareable_handle_close_fd(self.device.export_to_shareable_handle(handle))
        place = self.device.address_reserve(size, self.unit)
        releasing, real = threading.Thread(target=lambda: self.device.release(imported)), self.device._import

        def slow(*arguments):
            releasing.start()
            releasing.join(0.1)  # it waits for the import
            return real(*arguments)

        self.device._import = slow
        self.device.map(place, size, imported)
        releasing.join()
        with self.raises(gpu_vmm.NotFound):
            self.device.release(imported)
        self.device.set_access(place, size, 0, "rw")
        self.device.address_free(place, size)

    def test_streams_end_while_another_thread_synchronizes(self):
        def work(number):
            for _ in range(20):
                if number:
                    self.device.stream_destroy(self.device.stream_create_nonblocking())
                else:
                    self.device.synchronize()

        before, streams.ROOM = streams.ROOM, 1 << 16
        try:
            self.assertEqual(in_threads(3, work), [])
        finally:
            streams.ROOM = before
        stream = self.device.stream_create_nonblocking()
        stream.close()
        self.device.synchronize()  # the stream is closed, and not yet removed

    def test_first_call_reports_missing_backend(self):
        device = GpuVmmDevice("no such backend")
        with self.raises(gpu_vmm.InvalidArgument):
            device.ensure_initialized()


class Install(Case):
    def test_the_service_gets_the_device(self):
        class VMMDevice(ABC):
            pass

        module = types.ModuleType("gpu_memory_service.common.vmm")
        module._lock, module._vmm_instance, module._vmm_device_type = threading.Lock(), None, None
        module.VMMDeviceType = types.SimpleNamespace(CUDA="cuda")
        names = {"": None, ".common": None, ".common.vmm": module, ".common.vmm.device": types.SimpleNamespace(VMMDevice=VMMDevice)}
        sys.modules.update({f"gpu_memory_service{name}": of or types.ModuleType("parent") for name, of in names.items()})
        try:
            made = install(NAME)
            self.assertIs(module._vmm_instance, made)
            self.assertIs(install(), made)
            self.assertIsInstance(made, VMMDevice)
            module._vmm_instance = object()
            with self.raises(gpu_vmm.Busy, "uses object already"):
                install()
        finally:
            for name in names:
                del sys.modules[f"gpu_memory_service{name}"]


if __name__ == "__main__":
    unittest.main()
