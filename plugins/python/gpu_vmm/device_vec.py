"""A typed vector in device memory that grows in place: its address stays, and exported tensors stay valid."""

from __future__ import annotations

import copy
import ctypes
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, SupportsIndex, Tuple, Union, get_args, overload

from ._arguments import Path, kept_in, member, path_of, text, unsigned
from ._dlpack import capsule, is_copy, versioned
from ._dtype import DType, DTypeLike, DTypeName, dtype_of
from ._elements import Elements
from ._handles import RegionHandle, text_of
from ._index import position, positions
from ._library import check, library
from ._lock import new_lock, unless_inside
from ._owner import Owner
from ._restoring import Devices, restore_options
from ._signatures import MappingStruct
from ._typing import Buffer, CapsuleType, Number, Values
from ._values import as_bytes, check_target, pack
from ._views import Views
from .backend import Backend
from .errors import Busy, FileError, InvalidArgument, NotMapped, OutOfRange, Suspended
from .results import ArrayInterface, CudaArrayInterface
from .vmm._bytes import target
from .vmm._options import options
from .vmm.properties import Placement, Properties


class _Shown(Owner):
    """The common part of vectors and their read-only views: reading elements, and the protocols that share the memory."""

    __slots__ = ()
    _refuses = "pickled"
    _instead = "pickle tolist(), or copy it by copy.copy in this process"

    def _vec(self) -> DeviceVec:
        raise NotImplementedError

    _read_only = False

    def __len__(self) -> int:
        """Returns the number of elements."""
        return self._vec()._length

    @overload
    def __getitem__(self, key: SupportsIndex) -> Any: ...

    @overload
    def __getitem__(self, key: slice) -> List[Any]: ...

    def __getitem__(self, key: Union[SupportsIndex, slice]) -> Any:
        """Returns an element, or a copy of a slice's elements as a list. Does not wait for work on streams.

        Indices are as for lists. Raises OutOfRange for an element that does not exist, TypeError for another kind of key.
        """
        vec = self._vec()
        if isinstance(key, slice):
            return vec._elements.at(positions(key, vec._length))
        at = position(key, vec._length)
        return vec._elements.at(range(at, at + 1))[0]

    def __iter__(self) -> Iterator[Any]:
        """Yields the elements in order and reads 1 MiB ahead. Includes elements that are appended meanwhile, as for lists."""
        vec, at = self._vec(), 0
        while at < (end := vec._length):
            some = vec._elements.at(next(vec._elements.pieces(at, end)))
            yield from some
            at += len(some)

    @property
    def dtype(self) -> DTypeName:
        """The name of the elements' type."""
        return self._vec()._dtype.name

    @property
    def address(self) -> int:
        """The first address. It changes only if the vector grows or shrinks on a device without virtual memory management."""
        return self._vec()._elements.address

    def read(self, start: SupportsIndex, count: SupportsIndex) -> List[Any]:
        """Returns ``vec[start:start + count]``, but raises OutOfRange if there are fewer elements."""
        vec = self._vec()
        first, number = vec._within("read", start, count)
        return vec._elements.at(range(first, first + number))

    def read_into(self, into: Buffer, start: SupportsIndex = 0) -> int:
        """Copies elements from ``start`` on into a writable buffer, as many as it takes, and returns their number.

        The buffer, such as a NumPy array, is C-contiguous, and of the vector's type or of bytes. Does not wait for work on streams. Raises
        OutOfRange if there are fewer elements, and InvalidArgument for a buffer of another type.
        """
        vec = self._vec()
        view, number = check_target(vec._dtype, into)
        first, _ = vec._within("read", start, number)
        place, size = target(view)
        vec._elements.get_into(first, place, size)
        return number

    def tolist(self) -> List[Any]:
        """Returns all elements as a list."""
        return self.read(0, len(self))

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Returns DLPack's type and number of the device. Types: 1 for the host, 2 for CUDA, 10 for ROCm."""
        return self._vec()._device

    def __dlpack__(
        self,
        *,
        stream: Optional[SupportsIndex] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> CapsuleType:
        """Returns a DLPack capsule of the current elements, without a copy. The memory stays as long as the tensor exists.

        With ``copy=True`` the tensor has its own memory on the same device. With ``dl_device=(1, 0)`` it is on the host, and a copy if the
        vector is not. Copies do not wait for work on streams.

        Raises BufferError for another device, for a host tensor of GPU memory with ``copy=False``, and for a read-only view if the consumer
        takes only unversioned tensors, which cannot express that.
        """
        vec = self._vec()
        copies = is_copy(vec._device, dl_device, copy)
        new = versioned(vec._device, stream, max_version, self._read_only and not copies)
        if copies:
            with vec._change("__dlpack__"):
                return copied(vec._elements, 0, vec._length, vec._dtype, vec._backend, vec._number, dl_device, new)
        with vec._change("__dlpack__"):
            return capsule(vec._region, vec._dtype, vec._length, self._read_only, new)

    def _check_shown(self, name: str, on_host: bool) -> None:
        vec = self._vec()
        if (vec._device[0] == 1) is not on_host:
            where = "the host" if vec._device[0] == 1 else "a GPU"
            raise AttributeError(f"{name}: the memory is {where}'s")
        if vec.capacity == 0 and vec._length:  # `capacity` calls the library, so this raises Forked in a forked child
            raise Suspended(f"{name}: the memory is suspended; resume it first")

    @property
    def __array_interface__(self) -> ArrayInterface:
        """The description of host memory that NumPy reads. Raises AttributeError for GPU memory."""
        vec = self._vec()
        with vec._change("__array_interface__"):
            self._check_shown("__array_interface__", on_host=True)
            # A buffer, which NumPy keeps and which therefore can be counted. The end of a view of a plain address is not reported.
            data = vec._views.make(vec._region, vec._elements.address, vec._length * vec._dtype.itemsize, self._read_only)
            return {"shape": (vec._length,), "typestr": vec._dtype.typestr, "data": data, "version": 3}

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """Returns the elements as a NumPy array of their type, for ``numpy.asarray``: a copy of GPU memory, and a view of host memory.

        ``bfloat16``, which NumPy lacks, is raw elements of two bytes. Raises ValueError for GPU memory with ``copy=False``.
        """
        import numpy

        vec = self._vec()
        if vec._device[0] == 1:
            return numpy.array(numpy.asarray(self), dtype, copy=True) if copy else numpy.asarray(numpy.asarray(self), dtype)
        if copy is not None and not copy:
            raise ValueError("__array__: the memory is a GPU's, and NumPy needs a copy of it")
        made = numpy.empty(len(self), dtype=vec._dtype.typestr)
        self.read_into(made.view("uint8"))
        return made if dtype is None else made.astype(dtype, copy=False)

    @property
    def __cuda_array_interface__(self) -> CudaArrayInterface:
        """The description of CUDA or HIP memory that CuPy, Numba and PyTorch read. Raises AttributeError for host memory."""
        vec = self._vec()
        with vec._change("__cuda_array_interface__"):
            self._check_shown("__cuda_array_interface__", on_host=False)
            vec._seen = True
            # The protocol requires address 0 for zero elements. No stream: the vector's writes are complete.
            data = (vec._elements.address if vec._length else 0, self._read_only)
            return {"shape": (vec._length,), "typestr": vec._dtype.typestr, "data": data, "version": 3, "stream": None}


class ReadOnlyVec(_Shown):
    """A view of a vector that is exported as read-only. Its length is always the vector's current length.

    Any thread may use it, as the vector.
    """

    __slots__ = ("_of",)
    _read_only = True

    def __init__(self, vec: DeviceVec) -> None:
        self._make_once("_of")
        if not isinstance(vec, DeviceVec):
            raise TypeError(f"a ReadOnlyVec is created by DeviceVec.read_only(), not from a {type(vec).__name__}")
        self._of = vec

    def __copy__(self) -> ReadOnlyVec:
        return ReadOnlyVec(self._of)

    def __deepcopy__(self, memo: Dict[int, Any]) -> ReadOnlyVec:
        return ReadOnlyVec(copy.deepcopy(self._of, memo))

    def _vec(self) -> DeviceVec:
        return self._of

    def __repr__(self) -> str:
        return f"<gpu_vmm.ReadOnlyVec of {self._of!r}>"


class DeviceVec(_Shown):
    """A vector of numbers in device memory, whose address stays while it grows.

    On a device without virtual memory management (``Backend.info()`` has the reason) the vector is copied to another address when it
    grows or shrinks. It raises Busy while other libraries may use the memory, see :meth:`suspend`, and cannot be suspended.

    ``dtype``: a name (``"float32"``, ``"bfloat16"``, ``"int64"``, ``"bool"``, ``"complex64"``, …), a letter of ``struct``, a type of
    NumPy or PyTorch, or Python's ``bool``, ``int`` (int64), ``float`` (float64) or ``complex`` (complex128). ``values``: numbers, a
    C-contiguous buffer of that type, or ``bytes`` (raw contents); of one dimension. ``backend``: None is ``gpu_vmm.open()``.
    ``reserve``: the number of elements that the vector can grow to, None for as many as the device has memory for; addresses take no
    memory. ``placement`` and ``address`` are as for ``vmm.Region``: with ``vmm.Placement.RESTORABLE`` and ``reserve``, :meth:`restore` can
    have the address in another process.

    ``len``, iteration and ``vec[key]`` are as for a list: negative indices count from the end, and a slice is a list, a copy.
    ``vec[key] = value`` keeps the length, as in NumPy.

    Other processes cannot map its memory; they can map that of a ``vmm.Region`` with ``Properties(handle_types=HandleTypes.FD)``.

    Any thread may use it; changes by several threads run one at a time. A change inside a change of the same thread raises Busy: in a
    signal's handler, or in a ``__del__`` that the garbage collector calls. ``copy.copy`` and ``copy.deepcopy`` are :meth:`copy`.

    Raises InvalidArgument, OutOfMemory, OutOfAddressSpace, AddressTaken, Unaligned, Unsupported.
    """

    __slots__ = (
        "_backend", "_device", "_dtype", "_elements", "_length", "_lock", "_number", "_placement", "_region", "_reserve", "_seen", "_views",
        "__weakref__",
    )  # fmt: skip

    def __init__(
        self,
        dtype: DTypeLike = "float32",
        values: Optional[Values] = None,
        *,
        backend: Optional[Backend] = None,
        device: SupportsIndex = 0,
        reserve: Optional[SupportsIndex] = None,
        placement: Placement = Placement.ANYWHERE,
        address: SupportsIndex = 0,
    ) -> None:
        self._make_once("_region")
        kind, opened, number = dtype_of(dtype), _opened(backend), unsigned("device", device, 32)
        count = None if reserve is None else unsigned("reserve", reserve)
        if count == 0:
            raise InvalidArgument("reserve: 0 elements; pass None for as many as the device has memory for")
        room = 0 if count is None else unsigned(f"reserve: {count} elements of {kind.name}, in bytes", count * kind.itemsize)
        wanted = options(Properties(device=number), room, placement, address, 0)
        on = _dlpack_device(opened, number)
        region = RegionHandle.made(library().gpu_vmm_region_reserve, opened._handle, ctypes.byref(wanted))
        self._own(opened, number, on, region, kind, 0)
        self._reserve, self._placement = count, member("placement", placement, Placement)
        if values is not None:
            self.extend(values)

    def _own(self, opened: Backend, number: int, on: Tuple[int, int], region: RegionHandle, dtype: DType, length: int) -> None:
        """Sets all attributes."""
        self._backend, self._number, self._device, self._dtype = opened, number, on, dtype
        self._region, self._length, self._lock = region, length, new_lock()
        self._elements = Elements(region, dtype, on[0] == 1)
        self._reserve = None
        self._placement = Placement.ANYWHERE
        # The buffers that other libraries have, and whether __cuda_array_interface__ was read, which does not report the end of a view.
        self._views = Views()
        self._seen = False

    def _vec(self) -> DeviceVec:
        return self

    def _change(self, operation: str) -> threading.RLock:
        """Returns the lock of a change, for ``with``. Raises Busy if this thread is inside one."""
        return unless_inside(self._lock, operation)

    def __repr__(self) -> str:
        where = f"{self._backend.name} device {self._number} at {self._elements.address:#x}"
        return f"<gpu_vmm.DeviceVec of {self._length} {self.dtype} on {where}>"

    def __setitem__(self, key: Union[SupportsIndex, slice], value: Union[Number, Values]) -> None:
        """Overwrites an element, or the elements of a slice: with the same number of values, or with one number for all.

        Does not wait for work on streams. With a step, each element is copied on its own. Raises OutOfRange for an element that does not
        exist, InvalidArgument for another number of values.
        """
        if isinstance(key, slice):
            return self._put_slice(key, value)
        one = pack(self._dtype, [value])
        with self._change("assign"):
            self._elements.put(position(key, self._length), one)

    @property
    def backend(self) -> Backend:
        """The backend whose memory the vector uses."""
        return self._backend

    @property
    def capacity(self) -> int:
        """The number of elements that fit the mapped memory; 0 while it is suspended."""
        return self._elements.capacity()

    def copy(self) -> DeviceVec:
        """Returns a vector with the same elements in its own memory on the same device. Copies through the host."""
        place = self._placement if self._placement == Placement.RESTORABLE else Placement.ANYWHERE
        made = DeviceVec(self._dtype.name, backend=self._backend, device=self._number, reserve=self._reserve, placement=place)
        with self._change("copy"):
            made._take(self._elements, 0, self._length)
        return made

    def _take(self, source: Elements, start: int, count: int) -> None:
        """Gets the elements of other memory, through the host, in the place of its own ones."""
        self._elements.make_room(count)
        for part in source.pieces(0, count):
            self._elements.put(part.start, source.get(start + part.start, len(part)))
        self._length = count

    def __copy__(self) -> DeviceVec:
        return self.copy()

    def __deepcopy__(self, memo: Dict[int, Any]) -> DeviceVec:
        return self.copy()

    def append(self, value: Number) -> None:
        """Appends one element."""
        self.extend([value])

    def extend(self, values: Values) -> None:
        """Appends elements: a buffer of the type, bytes, or numbers. After an error, the elements are unchanged.

        Raises OverflowError for a number that the type cannot hold, InvalidArgument for more than one dimension.
        """
        contents, count = as_bytes(self._dtype, values)
        with self._change("extend"):
            self._grow(self._elements.make_room, self._length + count)
            self._elements.put(self._length, contents)
            self._length += count

    def write(self, start: SupportsIndex, values: Values) -> None:
        """Overwrites elements, starting at ``start``. Does not wait for work on streams. Raises OutOfRange beyond the end."""
        contents, count = as_bytes(self._dtype, values)
        with self._change("write"):
            first, _ = self._within("write", start, count)
            self._elements.put(first, contents)

    def resize(self, n: SupportsIndex, value: Number = 0) -> None:
        """Sets the length to ``n``; new elements are ``value``. Memory is kept until :meth:`shrink_to_fit`."""
        length = unsigned("n", n)
        one = pack(self._dtype, [value])
        with self._change("resize"):
            if length > self._length:
                self._grow(self._elements.make_room, length)
                self._elements.fill(range(self._length, length), one)
            self._length = length

    def reserve(self, n: SupportsIndex) -> None:
        """Maps memory for at least ``n`` elements, so that growth up to them needs no driver call."""
        with self._change("reserve"):
            self._grow(self._elements.grow, unsigned("n", n))

    def shrink_to_fit(self, *, force: bool = False) -> int:
        """Returns memory beyond the last element to the driver, in whole memory handles. Waits for the devices first.

        Returns the number of bytes that went back; 0 if the last handle is in use.

        Raises Busy while others may use the memory (see :meth:`suspend`), unless ``force`` is true.
        """
        went = ctypes.c_uint64()
        with self._change("shrink"):
            self._check_views("shrink", force)
            size = self._length * self._dtype.itemsize
            check(library().gpu_vmm_region_shrink(self._region, size, bool(force), ctypes.byref(went)))
        return went.value

    def suspend(
        self, keep: Optional[str] = "host", directory: Optional[Path] = None, *, force: bool = False
    ) -> int:
        """Returns the memory to the driver and keeps the address. Returns the number of bytes that went back.

        A vector that is suspended already stays as it is, and the result is 0. ``keep`` and ``directory`` are as for ``Pool.suspend``.

        Raises Busy while other libraries may use the memory: while a DLPack tensor or an array by ``__array_interface__`` exists, and
        always after ``__cuda_array_interface__`` was read, which does not report when its arrays are gone. With ``force=True`` it
        suspends nevertheless: nothing may use these views before :meth:`resume`, after which they are valid again.
        """
        went = ctypes.c_uint64()
        where = kept_in(keep, directory)
        with self._change("suspend"):
            self._check_views("suspend", force)
            check(library().gpu_vmm_region_suspend(self._region, where, bool(force), ctypes.byref(went)))
        return went.value

    def _grow(self, grow: Callable[[int], None], count: int) -> None:
        """Grows with ``grow`` to ``count`` elements, unless that would move memory that other libraries may use."""
        if self._elements.moves and count > self.capacity:
            self._check_views("grow", False)
        grow(count)

    def _check_views(self, operation: str, force: bool) -> None:
        """Raises Busy if other libraries may use the memory. The C library itself counts DLPack tensors."""
        # Views of memory that moves are never valid again.
        moves = self._elements.moves
        if force and not moves:
            return
        if self._views:
            raise Busy(
                f"{operation}: views of the memory by __array_interface__ are in use ({len(self._views)}); drop them first"
                + ("" if moves else ", or pass force=True")
            )
        if self._seen:
            raise Busy(
                f"{operation}: the memory was exported by __cuda_array_interface__, which does not report when its arrays are gone; "
                + ("copy the vector, or reserve its elements first" if moves else "pass force=True once nothing uses them")
            )

    def resume(self) -> int:
        """Restores the memory at the same address. Returns the number of bytes mapped; 0 if the vector is not suspended."""
        came = ctypes.c_uint64()
        with self._change("resume"):
            check(library().gpu_vmm_region_resume(self._region, ctypes.byref(came)))
        return came.value

    @property
    def is_suspended(self) -> bool:
        """Whether the vector is suspended."""
        asleep = ctypes.c_bool()
        check(library().gpu_vmm_region_is_suspended(self._region, ctypes.byref(asleep)))
        return asleep.value

    def snapshot(self, path: Path, *, compress: bool = False) -> None:
        """Writes the address, the type and the elements to a file, after waiting for the devices. :meth:`restore` reads it.

        A file of that name is replaced when the new one is complete. Raises FileError, Suspended, and Busy for a capture.
        """
        with self._change("snapshot"):
            tag = text("tag", f"{_TAG} {self._dtype.name} {self._length}")
            check(library().gpu_vmm_region_set_tag(self._region, tag))
            check(library().gpu_vmm_region_snapshot(self._region, path_of("path", path), bool(compress)))

    @classmethod
    def restore(
        cls,
        path: Path,
        *,
        backend: Optional[Backend] = None,
        relocate: bool = False,
        devices: Devices = None,
        by_uuid: bool = False,
    ) -> DeviceVec:
        """Returns the vector that :meth:`snapshot` has written, at its address, or elsewhere if that is taken and ``relocate`` is true.

        ``devices`` and ``by_uuid`` are as for ``vmm.Region.restore``. The file may come from another process, device or vendor. Raises
        what that raises, and FileError for a file that has no vector.
        """
        opened, wanted, file = _opened(backend), restore_options(relocate, devices, by_uuid), path_of("path", path)
        region = RegionHandle.made(library().gpu_vmm_region_restore, opened._handle, file, ctypes.byref(wanted))
        words = text_of(library().gpu_vmm_region_tag, region).split(" ")
        is_vector = len(words) == 3 and words[0] == _TAG and words[1] in get_args(DTypeName)
        if not is_vector or not words[2].isdecimal() or len(words[2]) > 20:
            raise FileError(f"restore: {path!r} has a region and no vector; restore it by vmm.Region.restore")
        number = _device_of(region)
        made = cls.__new__(cls)
        made._own(opened, number, _dlpack_device(opened, number), region, dtype_of(words[1]), int(words[2]))  # type: ignore[arg-type]
        if made._length > made.capacity:
            raise FileError(f"restore: {path!r} has memory for {made.capacity} elements of {words[1]}, and {words[2]} elements")
        return made

    def read_only(self) -> ReadOnlyVec:
        """Returns a view of the vector that is exported as read-only."""
        return ReadOnlyVec(self)

    def _within(self, operation: str, start: SupportsIndex, count: SupportsIndex) -> Tuple[int, int]:
        first, number = unsigned("start", start), unsigned("count", count)
        if first + number > self._length:
            raise OutOfRange(f"{operation}: elements {first} to {first + number} exceed the length of {self._length}")
        return first, number

    def _put_slice(self, key: slice, value: Any) -> None:
        fills = _is_one(value)
        contents, count = as_bytes(self._dtype, [value] if fills else value)
        with self._change("assign"):
            where = positions(key, self._length)
            if not fills and count != len(where):
                raise InvalidArgument(
                    f"assign: {count} values for a slice of {len(where)} elements; use extend or resize to change the length"
                )
            if fills:
                self._elements.fill(where, bytes(contents))
            elif where.step == 1:
                self._elements.put(where.start, contents)
            else:
                self._elements.put_apart(where, contents)


_TAG = "gpu_vmm.DeviceVec"
"""The first word of the name of a vector's region in a file; the type and the length follow."""


def _opened(backend: Optional[Backend]) -> Backend:
    """Returns a backend, the best one for None."""
    if backend is not None and not isinstance(backend, Backend):
        raise TypeError(f"backend: expected a gpu_vmm.Backend, not {type(backend).__name__}; gpu_vmm.open(name) opens one")
    return Backend() if backend is None else backend


def copied(
    source: Elements,
    start: int,
    count: int,
    dtype: DType,
    backend: Backend,
    device: int,
    dl_device: Optional[Tuple[int, int]],
    versioned: bool,
) -> CapsuleType:
    """Returns a capsule with a copy of elements: on their own device, or on the host if ``dl_device`` names it."""
    if dl_device is not None and _dlpack_device(backend, device) != tuple(dl_device):
        backend, device = Backend("host"), 0
    made = DeviceVec(dtype.name, backend=backend, device=device, reserve=max(1, count))
    made._take(source, start, count)
    return capsule(made._region, dtype, count, False, versioned, copied=True)


def _dlpack_device(backend: Backend, number: int) -> Tuple[int, int]:
    """Returns DLPack's type and number of a device."""
    kind, name = ctypes.c_int32(), ctypes.c_int32()
    check(library().gpu_vmm_dlpack_device(backend._handle, number, ctypes.byref(kind), ctypes.byref(name)))
    return kind.value, name.value


def _device_of(region: RegionHandle) -> int:
    """Returns the device of a region's memory. A region without memory gets some, on the device with whose memory it grows."""
    found = MappingStruct()
    try:
        check(library().gpu_vmm_region_mapping(region, 0, ctypes.byref(found)))
    except NotMapped:
        check(library().gpu_vmm_region_grow(region, 1))
        check(library().gpu_vmm_region_mapping(region, 0, ctypes.byref(found)))
    return int(found.device)


def _is_one(value: object) -> bool:
    """Returns whether the value is one element and not a sequence."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return True
    return False
