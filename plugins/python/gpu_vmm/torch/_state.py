"""The whole state of a module in a region: parameters, buffers and plain tensors, after a load has changed their number and their shapes.

:func:`publish` and :func:`attach` of this folder expect a module with the same parameters on both sides. An inference engine repacks weights
after it has read them, so that a module that has read nothing lacks some of them and has others in the wrong shape.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..errors import InvalidArgument, Unsupported
from ..serve._client import Client
from ..serve._layout import Part, contiguous, extent
from ..serve._lease import Lease
from ..vmm.properties import Properties
from ._served import _ALIGNMENT, _arranged, _bytes_of, _check_plain, _device_of, _slots

_NOTE = "gpu_vmm.state"
"""The note of a layout that says what each part is, in JSON."""

STATE_FORMAT = 1
"""The version of that note and of what it promises. Regions of other versions have other names."""

_SIMPLE = (bool, int, float, str, type(None))
_MARGIN = 256 << 20
"""The bytes of a device that stay free when its weights are there twice."""


Changed = Dict[str, Dict[str, Any]]


class _Slot(NamedTuple):
    """The place of a tensor in a module."""

    kind: str
    """``parameter``, ``buffer``, ``transient`` for a buffer that no state dict has, or ``plain`` for an attribute."""
    owner: Any
    key: str
    tensor: Any


def _places(torch: Any, module: Any) -> Iterator[Tuple[str, _Slot]]:
    """Yields the places of all tensors of a module by their names, each name of a shared one included."""
    for name, owner, key, persistent in _slots(module):
        kind = "parameter" if key in owner._parameters else "buffer" if persistent else "transient"
        yield name, _Slot(kind, owner, key, getattr(owner, key))
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for key, value in vars(owner).items():
            if isinstance(value, torch.Tensor):
                yield f"{prefix}.{key}" if prefix else key, _Slot("plain", owner, key, value)


def _described(torch: Any, places: Mapping[str, _Slot], device: Any) -> Dict[str, Dict[str, Any]]:
    """Returns the facts about each tensor that its elements do not show."""
    for name, slot in places.items():
        _check_plain(torch, name, slot.tensor)
    weights = {one.tensor.untyped_storage().data_ptr() for one in places.values() if one.kind == "parameter" and one.tensor.numel()}
    first: Dict[int, str] = {}
    described: Dict[str, Dict[str, Any]] = {}
    for name, (kind, _, _, tensor) in places.items():
        if kind == "parameter" and tensor.device != device:
            raise Unsupported(f"the parameter {name!r} is on {tensor.device}, and the model on {device}")
        about: Dict[str, Any] = {"kind": kind}
        if id(tensor) in first:
            about["same"] = first[id(tensor)]
        elif tensor.device != device:
            about["device"] = str(tensor.device)
        elif tensor.numel() and tensor.untyped_storage().data_ptr() in weights:
            about["shared"] = True
        first.setdefault(id(tensor), name)
        if isinstance(tensor, torch.nn.Parameter):
            about["class"] = type(tensor).__qualname__
            about["attributes"] = {key: value for key, value in vars(tensor).items() if isinstance(value, _SIMPLE)}
            about["names"] = [key for key in vars(tensor) if key not in about["attributes"]]
            about["grad"] = tensor.requires_grad
        described[name] = about
    return described


def changes(torch: Any, module: Any, unloaded: Any, *, complete: bool) -> Changed:
    """Returns the numbers, texts and flags of a loaded module, by module and name, that another one has not which was only constructed.

    ``complete``: whether nothing else sets up what a load changes. Raises Unsupported then for a new attribute of another type.
    """
    others = dict(unloaded.named_modules(remove_duplicate=False))
    found: Changed = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        before = vars(others[prefix]) if prefix in others else {}
        for key, value in vars(owner).items():
            if isinstance(value, _SIMPLE):
                if key != "training" and (key not in before or type(before[key]) is not type(value) or before[key] != value):
                    found.setdefault(prefix, {})[key] = value
            elif complete and key not in before and not isinstance(value, torch.Tensor):
                raise Unsupported(f"the load has set {key!r} of {prefix!r} to a {type(value).__name__}, which cannot be kept")
    return found


def publish_state(
    torch: Any,
    module: Any,
    name: str,
    client: Client,
    notes: Mapping[str, str],
    *,
    device: Any,
    share: bool,
    changed: Optional[Changed] = None,
    room: Optional[int] = None,
) -> Lease:
    """Creates a region with all tensors of a module, and commits it. Returns its lease.

    The tensors are on ``device``, except for buffers and attributes of the host. ``share``: whether the module's weights are the region's
    memory afterwards, in the same objects, and the lease is a read lease. ``changed``: what :func:`changes` has found. ``room``: the free
    bytes of the device, None to ask it: if they are too few for both copies of weights that will be shared, weights go through host memory.
    Raises what :func:`gpu_vmm.torch.publish` raises; the module is then as before.
    """
    places: Dict[str, _Slot] = {}
    for one, slot in _places(torch, module):
        if one in places:
            raise Unsupported(f"the module has two tensors of the name {one!r}")
        places[one] = slot
    described = _described(torch, places, device)
    tensors = {one: slot.tensor.detach().to(device) for one, slot in places.items() if "same" not in described[one]}
    _device_of(torch, tensors)  # raises an error without a tensor
    layout, groups, size = _arranged(torch, tensors)
    state = {"tensors": described, "empty": list(_empty(module)), "changed": changed or {}}
    layout.notes.update({**notes, _NOTE: json.dumps(state)})
    if room is None and device.type == "cuda":
        torch.cuda.empty_cache()
        room = int(torch.cuda.mem_get_info(device)[0]) - _MARGIN
    hidden = _Hidden(torch)
    if share and room is not None and room < size:
        hidden.take(places, tensors, size - room)
    try:
        lease = client.create(name, max(1, size), Properties(device=0 if device.type == "cpu" else int(device.index)))
        try:
            with torch.no_grad():
                for place in groups:
                    _copy_group(torch, lease, place.offset, place.begin, place.end, hidden.source(place.tensor))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            lease.commit(layout)
            if share:
                lease.downgrade()
                _share(torch, places, described, lease)
        except BaseException:
            lease.close()
            raise
    except BaseException:
        hidden.put_back()
        raise
    return lease


def _share(torch: Any, places: Mapping[str, _Slot], described: Mapping[str, Mapping[str, Any]], lease: Lease) -> None:
    """Makes weights the region's memory, in the same objects, but for views: these would keep the tensors that they were made of, and the
    memory with them.
    """
    memory = _Memory(torch, lease, described, False)
    views: Dict[str, Any] = {}
    with torch.no_grad():
        for name, slot in places.items():
            about = described[name]
            if not about.get("shared") and about.get("same") not in views:
                continue
            if slot.tensor._base is None:
                slot.tensor.data = memory.tensor(name)
            else:
                views[name] = views[about["same"]] if "same" in about else memory.tensor(name)
                setattr(slot.owner, slot.key, views[name])


def _copy_group(torch: Any, lease: Lease, offset: int, begin: int, end: int, storage: Any) -> None:
    """Copies the bytes of tensors that share memory. A function of its own, so that no tensor of the lease stays in a variable."""
    if end > begin:
        source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, begin, (end - begin,), (1,))
        _bytes_of(torch, lease, offset, end - begin).copy_(source)


class _Hidden:
    """Storages whose contents are in host memory, so that their device has room for the region."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.moved: List[Tuple[Any, Any]] = []

    def take(self, places: Mapping[str, _Slot], tensors: Mapping[str, Any], wanted: int) -> None:
        """Moves storages of weights to the host until ``wanted`` bytes are free, but none that another object uses as well."""
        users: Dict[int, Dict[int, Any]] = {}
        known_ones = [*(slot.tensor for slot in places.values()), *tensors.values()]
        # A view keeps the tensor that it was made of.
        for one in (*known_ones, *(one._base for one in known_ones if one._base is not None)):
            if one.numel():
                users.setdefault(one.untyped_storage()._cdata, {})[id(one)] = one
        weights = {slot.tensor.untyped_storage()._cdata for slot in places.values() if slot.kind == "parameter" and slot.tensor.numel()}
        for number, known in users.items():
            storage = next(iter(known.values())).untyped_storage()
            if wanted <= 0:
                break
            # One for each tensor, and one for `storage`.
            if number in weights and storage.resizable() and self.torch._C._storage_Use_Count(number) == len(known) + 1:
                size = storage.nbytes()
                copy = self.torch.UntypedStorage(size)
                copy.copy_(storage, False)
                self.moved.append((storage, copy))
                storage.resize_(0)
                wanted -= size
        if self.moved and self.moved[0][0].device.type == "cuda":
            self.torch.cuda.empty_cache()

    def source(self, tensor: Any) -> Any:
        """Returns the storage that has the contents of a tensor."""
        storage = tensor.untyped_storage()
        return next((copy for moved, copy in self.moved if moved._cdata == storage._cdata), storage)

    def put_back(self) -> None:
        """Moves the contents back."""
        for storage, copy in self.moved:
            storage.resize_(copy.nbytes())
            storage.copy_(copy, False)
        self.moved.clear()


def _empty(module: Any) -> Iterator[str]:
    """Yields the names of parameters and buffers that are None."""
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for members in owner._parameters, owner._buffers:
            for key, tensor in members.items():
                if tensor is None:
                    yield f"{prefix}.{key}" if prefix else key


class _Memory:
    """The parts of a region as tensors: the memory itself, or copies. Parts that overlap do so in the copies as well."""

    def __init__(self, torch: Any, lease: Lease, described: Mapping[str, Mapping[str, Any]], copy: bool) -> None:
        self.torch = torch
        self.parts = lease.layout.parts
        runs: List[List[Any]] = []
        for name, part in sorted(self.parts.items(), key=lambda item: item[1].offset):
            dtype = self.dtype(part)
            steps = contiguous(part.shape) if part.strides is None else part.strides
            if min(steps, default=0) < 0 or part.offset % dtype.itemsize:
                raise InvalidArgument(f"the part {name!r} of {part.dtype} at offset {part.offset} has the strides {list(steps)}")
            end = part.offset + extent(part.shape, steps) * dtype.itemsize
            shared = bool(described.get(name, {}).get("shared")) and not copy
            if runs and part.offset < runs[-1][1]:
                runs[-1][1], runs[-1][2] = max(runs[-1][1], end), runs[-1][2] or shared
            else:
                runs.append([part.offset // _ALIGNMENT * _ALIGNMENT, end, shared, None])
        self.runs, self.lease = runs, lease

    def dtype(self, part: Part) -> Any:
        found = getattr(self.torch, str(part.dtype), None)
        if not isinstance(found, self.torch.dtype):
            raise Unsupported(f"PyTorch {self.torch.__version__} has no element type {part.dtype!r}")
        return found

    def tensor(self, name: str) -> Any:
        part = self.parts.get(name)
        if part is None:
            raise InvalidArgument(f"the region has no part {name!r}")
        dtype, steps = self.dtype(part), contiguous(part.shape) if part.strides is None else part.strides
        run = next(run for run in reversed(self.runs) if run[0] <= part.offset)
        if run[3] is None:
            found = _bytes_of(self.torch, self.lease, run[0], run[1] - run[0])
            run[3] = found if run[2] else found.clone()
        bytes_ = run[3][part.offset - run[0] :] if 0 not in part.shape else run[3][:0]
        usable = bytes_.numel() // dtype.itemsize * dtype.itemsize
        return bytes_[:usable].view(dtype).as_strided(part.shape, steps)


def adopt_state(torch: Any, module: Any, lease: Lease, *, copy: bool) -> None:
    """Gives a module, which has read no weights, the tensors of a region. Its own are on the meta device.

    Weights are the region's memory, or copies if ``copy`` is true. Everything else is copied, since the memory is read-only and programs write
    to buffers. Raises InvalidArgument if the region is another module's.
    """
    state = _note(lease)
    described = state["tensors"]
    memory = _Memory(torch, lease, described, copy)
    owners = dict(module.named_modules(remove_duplicate=False))
    for prefix, values in state["changed"].items():
        if prefix not in owners:
            raise InvalidArgument(f"the module has no part {prefix!r}")
        owners[prefix].__dict__.update(values)
    made: Dict[str, Any] = {}
    for name, about in described.items():
        prefix, _, key = name.rpartition(".")
        owner = owners.get(prefix)
        if owner is None:
            raise InvalidArgument(f"the region has {name!r}, and the module has no part {prefix!r}")
        if "same" in about:
            found = made[about["same"]]
        else:
            found = memory.tensor(name)
            if "device" in about:
                found = found.to(about["device"])
            if "class" in about:
                found = _parameter(torch, owner._parameters.get(key), found, about)
        made[name] = found
        _put(owner, key, about["kind"], found)


def _parameter(torch: Any, old: Any, tensor: Any, about: Mapping[str, Any]) -> Any:
    """Returns a parameter, of the class and with the attributes that it had when it was published, as far as the module has them."""
    kind = type(old) if type(old).__qualname__ == about["class"] else torch.nn.Parameter
    made = torch.Tensor._make_subclass(kind, tensor, bool(about["grad"]))
    vars(made).update({key: value for key, value in vars(old).items() if key in about["names"]} if old is not None else {})
    vars(made).update(about["attributes"])
    return made


def _put(owner: Any, key: str, kind: str, tensor: Any) -> None:
    """Makes a tensor a parameter, a buffer or an attribute of a module."""
    for members in owner._parameters, owner._buffers, vars(owner):
        members.pop(key, None)
    owner._non_persistent_buffers_set.discard(key)
    if kind == "parameter":
        owner._parameters[key] = tensor
    elif kind == "plain":
        vars(owner)[key] = tensor
    else:
        owner._buffers[key] = tensor
        if kind == "transient":
            owner._non_persistent_buffers_set.add(key)


def complete_state(torch: Any, module: Any, lease: Lease) -> None:
    """Removes the parameters and buffers that the published module no longer had. Raises Unsupported if a tensor without contents is left."""
    empty = set(_note(lease)["empty"])
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for members in owner._parameters, owner._buffers:
            for key, tensor in list(members.items()):
                if tensor is not None and tensor.device.type == "meta":
                    del members[key]
                    if (f"{prefix}.{key}" if prefix else key) in empty:
                        members[key] = None
        for key, value in vars(owner).items():
            if key not in ("_parameters", "_buffers", "_modules") and _is_without_contents(torch, value):
                raise Unsupported(f"{prefix or 'the module'} keeps a tensor in {key!r} that no region has")


def _is_without_contents(torch: Any, value: Any, depth: int = 0) -> bool:
    """Returns whether a value is or contains a tensor on the meta device."""
    if isinstance(value, torch.Tensor):
        return bool(value.device.type == "meta")
    if depth < 3 and isinstance(value, (list, tuple, dict)):
        return any(_is_without_contents(torch, one, depth + 1) for one in (value.values() if isinstance(value, dict) else value))
    return False


def _note(lease: Lease) -> Any:
    try:
        return json.loads(lease.notes[_NOTE])
    except (KeyError, ValueError) as error:
        raise InvalidArgument(f"the region {lease.name!r} has no state of a module") from error
