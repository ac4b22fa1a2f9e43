"""A typed vector in a device's memory, which grows in place: its address stays, and what was exported of it stays good."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Dict, List, Optional, SupportsIndex, Tuple

from ._arguments import kept_in, unsigned
from ._dlpack import capsule, versioned
from ._handles import RegionHandle
from ._library import check, library
from ._values import Buffer, DType, as_bytes, dtype_of, pack, unpack
from .backend import Backend
from .errors import Busy, InvalidArgument, OutOfAddresses, OutOfMemory

_CHUNK = 1 << 20


class _Shown:
    """What vectors and read-only views of them have in common: their numbers, and the protocols by which others see the memory."""

    __slots__ = ()

    def _vec(self) -> DeviceVec:
        raise NotImplementedError

    _read_only = False

    def __len__(self) -> int:
        """How many elements there are."""
        return self._vec()._length

    @property
    def dtype(self) -> str:
        """The elements' type, by name."""
        return self._vec()._dtype.name

    @property
    def address(self) -> int:
        """The first address. It stays for the vector's whole life."""
        return self._vec()._address

    def read(self, start: SupportsIndex, count: SupportsIndex) -> List[Any]:
        """Elements as a list. Work of streams is not waited for. Raises InvalidArgument where there are not so many."""
        vec = self._vec()
        first, number = vec._within("read", start, count)
        size = number * vec._dtype.itemsize
        contents = bytearray(size)
        if size:
            room = (ctypes.c_char * size).from_buffer(contents)
            check(library().gpu_vmm_region_read(vec._region, first * vec._dtype.itemsize, room, size))
            del room
        return unpack(vec._dtype, contents)

    def tolist(self) -> List[Any]:
        """All elements as a list."""
        return self.read(0, len(self))

    def __dlpack_device__(self) -> Tuple[int, int]:
        """DLPack's type and number of the device: 1 host, 2 CUDA, 10 ROCm."""
        return self._vec()._device

    def __dlpack__(
        self,
        *,
        stream: Optional[Any] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> object:
        """A DLPack capsule of the elements that there are now, without a copy. The memory stays as long as the tensor.

        Raises BufferError for a copy, for another device, and for a read-only view where the consumer cannot be told so.
        """
        vec = self._vec()
        new = versioned(vec._device, stream, max_version, dl_device, copy, self._read_only)
        with vec._lock:
            return capsule(vec._region, vec._dtype, vec._length, self._read_only, new)

    def _interface(self, name: str, on_host: bool) -> Dict[str, Any]:
        vec = self._vec()
        if (vec._device[0] == 1) is not on_host:
            where = "the host" if vec._device[0] == 1 else "a GPU"
            raise AttributeError(f"{name}: the memory is {where}'s")
        with vec._lock:
            vec._seen = True
            length = vec._length
        # Of nothing, a GPU's protocol wants null, and NumPy an address.
        data = (vec._address if length or on_host else 0, self._read_only)
        return {"shape": (length,), "typestr": vec._dtype.typestr, "data": data, "version": 3}

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        """NumPy's view of memory of the host; AttributeError for a GPU's."""
        return self._interface("__array_interface__", on_host=True)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """CuPy's, Numba's and PyTorch's view of a GPU's memory, CUDA's or HIP's; AttributeError for the host's."""
        # No stream: what was written is there.
        return {**self._interface("__cuda_array_interface__", on_host=False), "stream": None}


class ReadOnlyVec(_Shown):
    """A view of a vector that says to everybody that it is not to be written. It has the vector's length at each moment."""

    __slots__ = ("_of",)
    _read_only = True

    def __init__(self, vec: DeviceVec) -> None:
        self._of = vec

    def _vec(self) -> DeviceVec:
        return self._of

    def __repr__(self) -> str:
        return f"<gpu_vmm.ReadOnlyVec of {self._of!r}>"


class DeviceVec(_Shown):
    """A vector of numbers in a device's memory, at an address that stays while it grows.

    ``dtype``: a name (``float32``, ``bfloat16``, ``int64``, ``bool``, ``complex64``, …) or a letter of ``struct``. ``values``: a
    C-contiguous buffer of that type, ``bytes`` (contents as they lie), or numbers. ``backend``: None is the best one that there is.
    ``reserve``: how many bytes it can grow to, None for as many as the device has; addresses cost nothing.

    Any thread may use it, one at a time changes it. Raises InvalidArgument, OutOfMemory, OutOfAddresses, Unavailable.
    """

    __slots__ = ("_address", "_backend", "_device", "_dtype", "_length", "_lock", "_region", "_seen", "__weakref__")

    def __init__(
        self,
        dtype: str = "float32",
        values: Any = None,
        *,
        backend: Optional[Backend] = None,
        device: SupportsIndex = 0,
        reserve: Optional[SupportsIndex] = None,
    ) -> None:
        self._dtype: DType = dtype_of(dtype)
        self._backend = Backend() if backend is None else backend
        number = unsigned("device", device, 32)
        room = 0 if reserve is None else unsigned("reserve", reserve)
        if reserve is not None and room < self._dtype.itemsize:
            raise InvalidArgument(f"reserve: {room} bytes hold no {self._dtype.name}; None is as much as the device has")
        kind, name = ctypes.c_int32(), ctypes.c_int32()
        check(library().gpu_vmm_dlpack_device(self._backend._handle, number, ctypes.byref(kind), ctypes.byref(name)))
        self._device: Tuple[int, int] = (kind.value, name.value)
        pointer = ctypes.c_void_p()
        check(library().gpu_vmm_region_new(self._backend._handle, number, room, ctypes.byref(pointer)))
        self._region = RegionHandle(pointer)
        address = ctypes.c_uint64()
        check(library().gpu_vmm_region_address(self._region, ctypes.byref(address)))
        self._address: int = address.value
        self._length = 0
        self._lock = threading.RLock()
        # Whether somebody was told the address by a protocol that does not tell when they are done.
        self._seen = False
        if values is not None:
            self.extend(values)

    def _vec(self) -> DeviceVec:
        return self

    def __repr__(self) -> str:
        return f"<gpu_vmm.DeviceVec of {self._length} {self.dtype} on {self._backend.name} at {self._address:#x}>"

    @property
    def backend(self) -> Backend:
        """Whose memory it is."""
        return self._backend

    @property
    def capacity(self) -> int:
        """For how many elements there is memory; 0 while it is suspended."""
        size = ctypes.c_uint64()
        check(library().gpu_vmm_region_size(self._region, ctypes.byref(size)))
        return size.value // self._dtype.itemsize

    def append(self, value: Any) -> None:
        """Puts one element behind the others."""
        self.extend([value])

    def extend(self, values: Any) -> None:
        """Puts elements behind the others: a buffer of the type, bytes, or numbers. Nothing has changed after an error."""
        contents, count = as_bytes(self._dtype, values)
        with self._lock:
            self._make_room(self._length + count)
            self._put(self._length, contents)
            self._length += count

    def write(self, start: SupportsIndex, values: Any) -> None:
        """Overwrites elements from ``start`` on. Work of streams is not waited for. Raises InvalidArgument where they end before."""
        contents, count = as_bytes(self._dtype, values)
        with self._lock:
            first, _ = self._within("write", start, count)
            self._put(first, contents)

    def resize(self, n: SupportsIndex, value: Any = 0) -> None:
        """Has ``n`` elements: what is new is ``value``. Memory stays; :meth:`shrink_to_fit` gives it back."""
        length = unsigned("n", n)
        one = pack(self._dtype, [value])
        with self._lock:
            new = length - self._length
            if new > 0:
                self._make_room(length)
                some = min(new, max(1, _CHUNK // len(one)))
                contents = one * some
                for at in range(self._length, length, some):
                    self._put(at, contents[: (length - at) * len(one)])
            self._length = length

    def reserve(self, n: SupportsIndex) -> None:
        """Has memory for ``n`` elements at least, so that growing up to them asks the driver for nothing."""
        with self._lock:
            self._grow(self._bytes(unsigned("n", n)))

    def shrink_to_fit(self, *, views_gone: bool = False) -> None:
        """Gives memory back that no element is in, in the driver's pieces; waits for the devices.

        Raises Busy while a DLPack tensor of it lives. Also where it was shown by ``__array_interface__`` or
        ``__cuda_array_interface__``, which do not tell when views are gone: say so by ``views_gone=True``.
        """
        with self._lock:
            if self._seen and not views_gone:
                raise Busy(
                    "shrink: the memory was shown by __array_interface__ or __cuda_array_interface__, whose views may be in use; "
                    "shrink_to_fit(views_gone=True) when they are gone"
                )
            check(library().gpu_vmm_region_shrink(self._region, self._length * self._dtype.itemsize))
            self._seen = False

    def suspend(self, keep: Optional[str] = "host", directory: Optional[str] = None) -> int:
        """Gives the memory back to the driver and keeps the address; gives how many bytes went. ``keep`` is as for ``Pool.suspend``.

        Until :meth:`resume` nobody may use the memory, tensors of it included.
        """
        went = ctypes.c_uint64()
        with self._lock:
            check(library().gpu_vmm_region_suspend(self._region, kept_in(keep, directory), ctypes.byref(went)))
        return went.value

    def resume(self) -> int:
        """Brings the memory back at the same address; gives how many bytes came."""
        came = ctypes.c_uint64()
        with self._lock:
            check(library().gpu_vmm_region_resume(self._region, ctypes.byref(came)))
        return came.value

    def read_only(self) -> ReadOnlyVec:
        """A view that is exported as read-only."""
        return ReadOnlyVec(self)

    def _within(self, operation: str, start: SupportsIndex, count: SupportsIndex) -> Tuple[int, int]:
        first, number = unsigned("start", start), unsigned("count", count)
        if first + number > self._length:
            raise InvalidArgument(f"{operation}: {number} elements from {first} on, and there are {self._length}")
        return first, number

    def _bytes(self, elements: int) -> int:
        return unsigned(f"{elements} elements of {self._dtype.name}, in bytes", elements * self._dtype.itemsize)

    def _put(self, start: int, contents: Buffer) -> None:
        view = memoryview(contents)
        if view.nbytes:
            # bytes are given as they are; of what else cannot be written ctypes knows no address without a copy.
            given: Any = contents if isinstance(contents, bytes) else None
            if given is None:
                flat = view.cast("B")
                given = flat.tobytes() if view.readonly else (ctypes.c_char * view.nbytes).from_buffer(flat)
            offset = start * self._dtype.itemsize
            check(library().gpu_vmm_region_write(self._region, offset, given, view.nbytes))

    def _make_room(self, elements: int) -> None:
        needed = self._bytes(elements)
        capacity = self.capacity * self._dtype.itemsize
        if needed <= capacity:
            return
        more = capacity + capacity // 8
        if more > needed:
            try:
                return self._grow(more)
            except (OutOfMemory, OutOfAddresses, InvalidArgument):
                pass  # what is needed may be there still
        self._grow(needed)

    def _grow(self, size: int) -> None:
        check(library().gpu_vmm_region_grow(self._region, size))
