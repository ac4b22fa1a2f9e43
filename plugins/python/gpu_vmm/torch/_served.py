"""Modules whose parameters and buffers lie in a region of a server."""

from __future__ import annotations

import importlib
import weakref
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, SupportsIndex, Tuple, Union

from .._arguments import Path
from ..backend import Backend
from ..backend import open as open_backend
from ..errors import InvalidArgument, NotInstalled, Unsupported
from ..serve._client import Client, connect
from ..serve._layout import Layout, Part, contiguous, element_of, extent, name_of
from ..serve._lease import Lease
from ..serve._part import LeasedPart
from ..vmm.properties import Properties

Server = Union[Client, Path]
"""A client, or the path of a server's socket."""

_ALIGNMENT = 256

_leases: weakref.WeakKeyDictionary[Any, Lease] = weakref.WeakKeyDictionary()
"""The lease of each module."""


def _imported() -> Any:
    """Returns PyTorch, in a build for GPUs or for the CPU alone."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise NotInstalled(f"gpu_vmm.torch: PyTorch cannot be imported: {error}") from error


class _Extent(NamedTuple):
    """The bytes of a tensor in its storage."""

    storage: int
    """The first address of the storage."""
    begin: int
    end: int
    name: str
    tensor: Any


class _Group(NamedTuple):
    """Tensors that share memory, and the place of their bytes in the region."""

    offset: int
    begin: int
    end: int
    tensor: Any
    """One of them."""


def _tensors(torch: Any, source: Any) -> Dict[str, Any]:
    """Returns the tensors of a module or of a dict by their names, each name of a shared one included."""
    if isinstance(source, torch.nn.Module):
        return {name: getattr(owner, key) for name, owner, key, _ in _slots(source)}
    if not isinstance(source, Mapping):
        raise TypeError(f"publish: expected a torch.nn.Module or a dict of tensors, not {type(source).__name__}")
    for name, tensor in source.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise TypeError(f"publish: {name!r} is {type(tensor).__name__}; expected tensors by their names")
    return dict(source)


def _slots(module: Any) -> Iterator[Tuple[str, Any, str, bool]]:
    """Yields the place of each parameter and buffer: its name, its module, its key there, and whether a state dict has it."""
    for prefix, owner in module.named_modules(remove_duplicate=False):
        transient = getattr(owner, "_non_persistent_buffers_set", ())
        for members in owner._parameters, owner._buffers:
            for key, tensor in members.items():
                if tensor is not None:
                    yield f"{prefix}.{key}" if prefix else key, owner, key, members is owner._parameters or key not in transient


def _check_plain(torch: Any, name: str, tensor: Any) -> None:
    """Raises Unsupported for a tensor that is not elements at strides."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise Unsupported(f"publish: {name!r} is {'quantized' if tensor.is_quantized else tensor.layout}; expected a strided tensor")
    if torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
        raise Unsupported(f"publish: {name!r} is a {type(tensor).__name__}, which contains other tensors")
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported(f"publish: {name!r} is a conjugate or negative view; pass a clone of it")
    if tensor.device.type == "meta":
        raise InvalidArgument(f"publish: {name!r} is on the meta device and has no contents")


def _device_of(torch: Any, tensors: Mapping[str, Any]) -> Any:
    """Returns the device of all tensors, whose tensors must be plain."""
    first: Optional[Tuple[str, Any]] = None
    for name, tensor in tensors.items():
        _check_plain(torch, name, tensor)
        if first is None:
            first = name, tensor.device
        elif tensor.device != first[1]:
            raise InvalidArgument(f"publish: {first[0]!r} is on {first[1]}, and {name!r} on {tensor.device}; a region is on one device")
    if first is None:
        raise InvalidArgument("publish: there is no tensor")
    return first[1]


def _backend_of(torch: Any, device: Any) -> Backend:
    """Returns the backend for the memory of a device of PyTorch."""
    if device.type == "cpu":
        return open_backend("host")
    if device.type == "cuda":
        return open_backend("hip" if getattr(torch.version, "hip", None) else "cuda")
    raise Unsupported(f"gpu_vmm.torch: memory of {device} cannot be shared; expected a tensor on cuda or cpu")


def _client_of(torch: Any, server: Server, device: Any) -> Client:
    if isinstance(server, Client):
        return server
    return connect(server, _backend_of(torch, device) if device is not None else None)


def _arranged(torch: Any, tensors: Mapping[str, Any]) -> Tuple[Layout, List[_Group], int]:
    """Returns a layout of the tensors, the memory to copy, and the size of the region. Memory that tensors share is there once."""
    extents = []
    for name, tensor in tensors.items():
        begin = tensor.storage_offset() * tensor.element_size()
        end = begin + extent(tuple(tensor.shape), tuple(tensor.stride())) * tensor.element_size()
        extents.append(_Extent(tensor.untyped_storage().data_ptr(), begin, end, name, tensor))
    layout, free = Layout(), 0
    groups: List[_Group] = []
    # Tensors without an element share nothing.
    runs = [[one] for one in extents if one.begin == one.end]
    last: List[_Extent] = []
    reached = 0
    for one in sorted((one for one in extents if one.begin < one.end), key=lambda one: one[:4]):
        if last and one.storage == last[0].storage and one.begin < reached:
            last.append(one)
            reached = max(reached, one.end)
        else:
            last, reached = [one], one.end
            runs.append(last)
    for run in runs:
        begin, end = run[0].begin, max(one.end for one in run)
        offset = -(-free // _ALIGNMENT) * _ALIGNMENT
        # Tensors of a run keep their distances. They are aligned as in their storage where the first one's place does not suit all.
        if any((one.begin - begin) % one.tensor.element_size() for one in run):
            offset += begin % _ALIGNMENT
        groups.append(_Group(offset, begin, end, run[0].tensor))
        for one in run:
            shape, strides = tuple(one.tensor.shape), tuple(one.tensor.stride())
            dtype = name_of(element_of(one.tensor.dtype))
            place = offset + one.begin - begin
            layout.parts[one.name] = Part(place, dtype, shape, None if strides == contiguous(shape) else strides)
        free = offset + end - begin
    return layout, groups, free


def _bytes_of(torch: Any, lease: Lease, offset: int, size: int) -> Any:
    """Returns bytes of a lease as a tensor, without a copy."""
    part = LeasedPart(lease._backend, lease.region._handle, "", Part(offset, "uint8", (size,)))
    try:
        return torch.from_dlpack(part)
    except BufferError as error:
        raise Unsupported(
            f"gpu_vmm.torch: PyTorch {torch.__version__} cannot take read-only memory; it needs a version with DLPack 1.0"
        ) from error


def publish(
    source: Any,
    name: str,
    server: Server,
    *,
    notes: Optional[Mapping[str, str]] = None,
    mode: SupportsIndex = 0o600,
    group: Optional[SupportsIndex] = None,
) -> Lease:
    """Creates a region of a server with all parameters and buffers of a module, or with the tensors of a state dict, and commits it.

    ``server``: a ``gpu_vmm.serve.Client``, or the path of the server's socket. ``mode`` and ``group``: the users that may read and replace
    the region, as for ``Client.create``. Each tensor is a part of its name, with its strides, aligned to 256 bytes. Tensors that share
    memory share it there; views of one tensor keep their distance. The device copies, after the work of the current stream. Returns the
    write lease: close it, ``downgrade`` it, or renew and commit other contents.

    Raises InvalidArgument without a tensor, for tensors of several devices or on the meta device; Unsupported for tensors that are not
    strided, on other devices than cuda and cpu, or of other element types; NotInstalled without PyTorch; TypeError for other values; and
    what ``connect``, ``Client.create`` and ``Lease.commit`` raise: Busy if the server has a region of the name, OutOfMemory.
    """
    torch = _imported()
    tensors = _tensors(torch, source)
    device = _device_of(torch, tensors)
    layout, groups, size = _arranged(torch, tensors)
    layout.notes.update(notes or {})
    client = _client_of(torch, server, device)
    number = 0 if device.type == "cpu" else torch.cuda.current_device() if device.index is None else device.index
    lease = client.create(name, max(1, size), Properties(device=int(number)), mode=mode, group=group)
    try:
        with torch.no_grad():
            for place in groups:
                if place.end > place.begin:
                    _copy(torch, lease, place)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        lease.commit(layout)
    except BaseException:
        lease.close()
        raise
    return lease


def _copy(torch: Any, lease: Lease, place: _Group) -> None:
    """Copies the bytes of tensors that share memory. A function of its own, so that no tensor of the lease stays in a variable."""
    size, storage = place.end - place.begin, place.tensor.untyped_storage()
    source = torch.empty(0, dtype=torch.uint8, device=place.tensor.device).set_(storage, place.begin, (size,), (1,))
    _bytes_of(torch, lease, place.offset, size).copy_(source)


def attach(module: Any, name: str, server: Server, *, wait: float = 0) -> Lease:
    """Makes the parameters and buffers of a module those of a region that :func:`publish` has created, without a copy.

    ``server``: a ``gpu_vmm.serve.Client``, or the path of the server's socket. ``wait``: the number of seconds to wait until the region exists.
    Replaces the data of each parameter and buffer by the server's memory, and a parameter or buffer on the meta device by another object:
    create the module inside ``with torch.device("meta"):`` to allocate nothing. Tensors that shared memory when they were published do so
    afterwards. Buffers that a state dict does not have stay if the region does not have them.

    The memory is read-only, so writing to a parameter ends the process: use the module for inference. Returns the read lease, which the
    module keeps. ``next`` and ``apply`` of the lease bring new contents into the same tensors.

    Raises InvalidArgument with the first difference if names, shapes, element types or devices differ, with the module unchanged;
    NotInstalled without PyTorch, Unsupported for a PyTorch that cannot take read-only memory by DLPack; TypeError for another object; and what
    ``connect`` and ``Client.open`` raise: NotFound, AddressTaken.
    """
    torch = _imported()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"attach: expected a torch.nn.Module, not {type(module).__name__}")
    slots = list(_slots(module))
    devices = [tensor.device for _, owner, key, _ in slots for tensor in [getattr(owner, key)] if tensor.device.type != "meta"]
    lease = _client_of(torch, server, devices[0] if devices else None).open(name, wait=wait)
    try:
        tensors = _attached(torch, lease, slots)
    except BaseException:
        lease.close()
        raise
    _replace(torch, slots, tensors)
    _leases[module] = lease
    return lease


def _attached(torch: Any, lease: Lease, slots: List[Tuple[str, Any, str, bool]]) -> Dict[str, Any]:
    """Returns the tensors of a lease for a module, after a comparison."""
    parts = lease.layout.parts
    names = {slot[0] for slot in slots}

    def differ(why: str) -> InvalidArgument:
        return InvalidArgument(f"attach: {why}; the region {lease.name!r} is of another module")

    for name in parts:
        if name not in names:
            raise differ(f"the region has {name!r}, and the module has not")
    made: Dict[Tuple[int, str, Tuple[int, ...], Optional[Tuple[int, ...]]], Any] = {}
    tensors: Dict[str, Any] = {}
    for name, owner, key, persistent in slots:
        part, tensor = parts.get(name), getattr(owner, key)
        if part is None:
            if persistent:
                raise differ(f"the module has {name!r}, and the region has not")
            continue
        if part.shape != tuple(tensor.shape):
            raise differ(f"{name!r} has the shape {list(tensor.shape)} in the module and {list(part.shape)} in the region")
        dtype = name_of(element_of(tensor.dtype))
        if part.dtype != dtype:
            raise differ(f"{name!r} has elements of {dtype} in the module and of {part.dtype} in the region")
        place = part.offset, dtype, part.shape, part.strides
        if place not in made:
            made[place] = _tensor(torch, lease, part, tensor.dtype)
        found = tensors[name] = made[place]
        if tensor.device.type != "meta" and tensor.device != found.device:
            raise InvalidArgument(f"attach: {name!r} is on {tensor.device} in the module and on {found.device} in the region; move the module")
    return tensors


def _tensor(torch: Any, lease: Lease, part: Part, dtype: Any) -> Any:
    """Returns a part of a lease as a tensor. Another process has written the layout."""
    strides = contiguous(part.shape) if part.strides is None else part.strides
    if min(strides, default=0) < 0 or part.offset % dtype.itemsize:
        raise InvalidArgument(f"attach: a part of {part.dtype} at offset {part.offset} has the strides {list(strides)}")
    size = extent(part.shape, strides) * dtype.itemsize
    return _bytes_of(torch, lease, part.offset, size).view(dtype).as_strided(part.shape, strides)


def _replace(torch: Any, slots: List[Tuple[str, Any, str, bool]], tensors: Dict[str, Any]) -> None:
    """Replaces the data of parameters and buffers. A parameter that several modules share stays one object."""
    new: Dict[int, Any] = {}
    kept: List[Any] = []
    with torch.no_grad():
        for name, owner, key, _ in slots:
            if name not in tensors:
                continue
            old = getattr(owner, key)
            kept.append(old)  # so that no other object gets its number
            if id(old) not in new:
                new[id(old)] = _replaced(torch, old, tensors[name])
            members = owner._parameters if key in owner._parameters else owner._buffers
            members[key] = new[id(old)]


def _replaced(torch: Any, old: Any, tensor: Any) -> Any:
    if old.device.type != "meta":
        old.data = tensor
        return old
    if isinstance(old, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad=old.requires_grad)
    return tensor
