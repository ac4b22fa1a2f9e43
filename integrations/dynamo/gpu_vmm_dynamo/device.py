"""A class with the methods of Dynamo's ``VMMDevice``."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from typing import Any, Dict, List, Optional, Tuple, Union

import gpu_vmm
from gpu_vmm import vmm
from gpu_vmm._ranges import Ranges

from .streams import Stream


class GpuVmmDevice:
    """Virtual memory management of one backend. Any thread may use it.

    A call with wrong arguments raises an error of gpu_vmm and does not reach the driver. Pointers to host memory are not checked. Handles
    are numbers of this object; a stream must come from :meth:`stream_create_nonblocking`.
    """

    def __init__(self, backend: Optional[str] = None) -> None:
        """Chooses a backend: ``cuda``, ``hip``, ``host``, or None as for ``gpu_vmm.open``. The first call opens it."""
        self._name = backend
        self._opening = threading.Lock()
        self._opened: Optional[gpu_vmm.Backend] = None
        self._own = threading.local()
        # Guards the handles, during a driver's call with one as well, and the set of streams.
        self._lock = threading.Lock()
        self._handles: Dict[int, Union[vmm.PhysicalMemory, _Descriptor]] = {}
        self._numbers = itertools.count(1)
        self._reservations: Ranges[vmm.Region] = Ranges()
        self._registered: Ranges[None] = Ranges()
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()

    # The driver.

    def ensure_initialized(self) -> None:
        """Opens the backend. Later calls do nothing. Raises Unsupported without a driver."""
        self._backend  # noqa: B018

    @property
    def _backend(self) -> gpu_vmm.Backend:
        with self._opening:
            if self._opened is None:
                self._opened = gpu_vmm.open(self._name)
            return self._opened

    def synchronize(self) -> None:
        """Waits for the default stream of this thread's device and for all streams of this object, but not for non-blocking streams that
        other code has created.

        ``unmap`` and ``address_free`` themselves wait for all work of the devices.
        """
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.wait()
        event = vmm.Event(self._backend, self._device)
        event.record()
        event.wait()

    # Discovery.

    def list_devices(self) -> List[int]:
        """Returns the numbers of the devices. Raises NoSuchDevice if there is none."""
        devices = list(range(self._backend.devices))
        if not devices:
            raise gpu_vmm.NoSuchDevice(f"list_devices: {self._backend.name} has no device")
        return devices

    def device_memory_info(self, device: int) -> Tuple[int, int]:
        """Returns the free and the total bytes of a device."""
        return self._backend.memory(device)

    def get_allocation_granularity(self, device: int) -> int:
        """Returns the unit of the sizes of memory that other processes can import."""
        return vmm.granularity(self._backend, _shareable(device))

    # Physical memory.

    def create_tolerate_oom(self, size: int, device: int) -> Tuple[bool, int]:
        """Creates memory of exactly ``size`` bytes. Returns True and its handle; False and 0 if the device is out of memory.

        Raises Unaligned for a size that is no multiple of the granularity.
        """
        unit = self.get_allocation_granularity(device)
        if size <= 0 or size % unit:
            raise gpu_vmm.Unaligned(f"create: {size} bytes are no positive multiple of the granularity ({unit})")
        try:
            return True, self._add(vmm.PhysicalMemory(self._backend, size, _shareable(device)))
        except gpu_vmm.OutOfMemory:
            return False, 0

    def release(self, handle: int) -> None:
        """Releases a handle. Mappings of the memory stay. Raises NotFound for a handle that is not there."""
        with self._lock:
            memory = self._get(handle)
            del self._handles[handle]
        memory.close()

    def export_to_shareable_handle(self, handle: int) -> int:
        """Returns a new file descriptor of the memory, which the caller must close."""
        with self._lock:
            memory = self._get(handle)
            return os.dup(memory.number) if isinstance(memory, _Descriptor) else memory.export_fd()

    def import_shareable_handle_close_fd(self, fd: int) -> int:
        """Takes a file descriptor of another process's memory, closes it in any case, and returns a handle.

        The driver imports the memory at the first ``map``, which knows its size, as memory of the thread's device then; see
        ``runtime_set_device``.
        """
        try:
            return self._add(_Descriptor(os.dup(fd)))
        finally:
            os.close(fd)

    # Addresses.

    def address_reserve(self, size: int, granularity: int) -> int:
        """Reserves ``size`` bytes of addresses, aligned to ``granularity``. Returns the first one."""
        if size <= 0:
            raise gpu_vmm.InvalidArgument(f"address_reserve: the size is {size}; expected a positive number")
        region = vmm.Region(self._backend, size, _shareable(self._device), alignment=granularity)
        if not self._reservations.add(region.address, size, region):
            raise gpu_vmm.InternalError(f"address_reserve: {region.address:#x} was reserved twice")
        return region.address

    def address_free(self, va: int, size: int) -> None:
        """Frees a reservation, after waiting for the devices if something is still mapped there."""
        region = self._reservations.remove(va, size)
        if region is None:
            raise gpu_vmm.NotFound(f"address_free: no reservation of {size} bytes begins at {va:#x}")
        region.close()

    def map(self, va: int, size: int, handle: int) -> None:
        """Maps memory as a whole: ``size`` must be its size. No device has access before ``set_access``."""
        region, offset = self._region("map", va, size)
        with self._lock:
            memory = self._get(handle)
            if isinstance(memory, _Descriptor):
                memory = self._import(handle, memory, size)
            if memory.size != size:
                raise gpu_vmm.InvalidArgument(f"map: {size} bytes; memory is mapped as a whole, and this one has {memory.size}")
            region.map(offset, memory)

    def unmap(self, va: int, size: int) -> None:
        """Unmaps whole mappings after waiting for the devices. The addresses stay reserved."""
        region, offset = self._region("unmap", va, size)
        region.unmap(offset, size)

    def set_access(self, va: int, size: int, device: int, access: Any) -> None:
        """Sets a device's access to whole mappings: ``GrantedLockType.RO`` (``"ro"``) is reads only, ``RW`` (``"rw"``) all."""
        name = getattr(access, "value", access)
        rights = {"ro": vmm.Access.READ, "rw": vmm.Access.READ_WRITE}.get(name)
        if rights is None:
            raise gpu_vmm.InvalidArgument(f"set_access: {access!r} is no access; use ro or rw")
        region, offset = self._region("set_access", va, size)
        region.set_access(offset, size, device, rights)

    def validate_pointer(self, va: int) -> None:
        """Raises NotFound or NotMapped if no memory of this object is mapped at an address."""
        region, offset = self._region("validate_pointer", va, 1)
        region.mapping(offset)

    # The runtime.

    def runtime_check_result(self, result: Any, name: str) -> Any:
        """Returns what a result tuple has behind its status, or an empty tuple. Raises DriverError for a status that is not 0: the
        runtime's numbers are not those of gpu_vmm.
        """
        status, *payload = result if isinstance(result, tuple) else (result,)
        if int(status):
            raise gpu_vmm.DriverError(f"{name}: the runtime returned status {int(status)}")
        return payload[0] if len(payload) == 1 else tuple(payload)

    def runtime_set_device(self, device: int) -> None:
        """Sets this thread's device for reservations, imports, streams and ``synchronize``. The runtime's current device stays."""
        if device not in self.list_devices():
            raise gpu_vmm.NoSuchDevice(f"runtime_set_device: there is no device {device}; {self._backend.name} has {self._backend.devices}")
        self._own.device = device

    set_current_device = runtime_set_device

    def host_register(self, ptr: int, size: int) -> None:
        """Notes a range of host memory. Copies need no pinned source: they go through page-locked memory of their stream."""
        if ptr <= 0 or size <= 0 or not self._registered.add(ptr, size, None):
            raise gpu_vmm.InvalidArgument(f"host_register: {size} bytes at {ptr:#x} are empty or overlap a registered range")

    def host_unregister(self, ptr: int) -> None:
        """Removes a noted range."""
        found = self._registered.find(ptr)
        if found is None or found[0] != ptr:
            raise gpu_vmm.NotFound(f"host_unregister: no registered range begins at {ptr:#x}")
        self._registered.remove(ptr)

    def stream_create_nonblocking(self) -> Stream:
        """Creates a stream of this thread's device. It has no order with other streams."""
        stream = Stream(self._backend, self._device)
        with self._lock:
            self._streams.add(stream)
        return stream

    def stream_destroy(self, stream: Stream) -> None:
        """Ends a stream after its copies."""
        with self._lock:
            self._streams.discard(stream)
        stream.close()

    def stream_synchronize(self, stream: Stream) -> None:
        """Waits until all copies of a stream are done."""
        stream.synchronize()

    def memcpy_h2d_async(self, dst_ptr: int, src_ptr: int, size: int, stream: Stream) -> None:
        """Queues a copy of host memory to mapped memory of the stream's device."""
        region, offset = self._region("memcpy_h2d_async", dst_ptr, size)
        stream.to_device(region, offset, src_ptr, size)

    def memcpy_d2h_async(self, dst_ptr: int, src_ptr: int, size: int, stream: Stream) -> None:
        """Queues a copy of mapped memory of the stream's device to host memory, where the bytes are after a synchronization."""
        region, offset = self._region("memcpy_d2h_async", src_ptr, size)
        stream.to_host(dst_ptr, region, offset, size)

    # What the methods share.

    @property
    def _device(self) -> int:
        return int(getattr(self._own, "device", 0))

    def _add(self, memory: Union[vmm.PhysicalMemory, _Descriptor]) -> int:
        with self._lock:
            number = next(self._numbers)
            self._handles[number] = memory
            return number

    def _get(self, handle: int) -> Union[vmm.PhysicalMemory, _Descriptor]:
        found = self._handles.get(handle)
        if found is None:
            raise gpu_vmm.NotFound(f"there is no handle {handle}; it was released, or another object made it")
        return found

    def _import(self, handle: int, descriptor: _Descriptor, size: int) -> vmm.PhysicalMemory:
        memory = vmm.PhysicalMemory.import_fd(self._backend, descriptor.number, size, _shareable(self._device))
        self._handles[handle] = memory
        descriptor.close()
        return memory

    def _region(self, operation: str, va: int, size: int) -> Tuple[vmm.Region, int]:
        found = self._reservations.find(va)
        if found is None:
            raise gpu_vmm.NotFound(f"{operation}: no reservation contains {va:#x}")
        start, reserved, region = found
        if size < 0 or size > reserved - (va - start):
            raise gpu_vmm.OutOfRange(f"{operation}: {size} bytes at {va:#x}; the reservation ends after {reserved - (va - start)}")
        return region, va - start


class _Descriptor:
    """A file descriptor of memory that the driver has not imported yet."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._close = weakref.finalize(self, os.close, number)

    def close(self) -> None:
        self._close()


def _shareable(device: int) -> vmm.Properties:
    return vmm.Properties(device=device, handle_types=vmm.HandleTypes.FD)
