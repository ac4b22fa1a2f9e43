"""The table of the tensors in a file: how they are nested, and where each one lies. It is a block of the saved pool.

The table begins with `_HEAD`: a mark and the length of a text in JSON. The bytes of tensors in host memory follow the text.
"""

from __future__ import annotations

import ctypes
import json
import struct
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..errors import FileError, InvalidArgument, Unsupported

TAG = "gpu_vmm.torch table"
"""The tag of the block."""

_HEAD = struct.Struct("<8sQ")
_MARK = b"GVMMTT01"

Place = Tuple[int, int, str]
"""The first address of a block, the offset of an address in it, and the tag of the block."""


class Encoded(NamedTuple):
    """A table, and what must be saved with it."""

    contents: bytes
    tags: List[str]
    """The tags of the blocks that the tensors lie in."""


class _Encoder:
    """Collects the tensors of nested containers."""

    def __init__(self, torch: Any, find: Callable[[int], Optional[Place]], device: int) -> None:
        self.torch, self.find, self.device = torch, find, device
        self.tensors: List[Dict[str, Any]] = []
        self.blocks: Dict[int, int] = {}
        """The number of bytes that storages occupy, by the first address of their block."""
        self.tags: Dict[str, None] = {}
        self.host: List[bytes] = []
        self.host_size = 0
        # Kept, so that no other tensor gets the number of one.
        self.seen: Dict[int, Tuple[Any, int]] = {}

    def value(self, value: Any, name: str) -> Any:
        """Returns a value for JSON: scalars as they are, all others as an object with one key that names the type."""
        if isinstance(value, self.torch.Tensor):
            return {"tensor": self.tensor(value, name)}
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, Mapping):
            for key in value:
                if type(key) not in (bool, int, float, str):
                    raise TypeError(f"save: a key of {name} is {_shown(key)}; expected a str or a number")
            return {"dict": [[key, self.value(one, f"{name}[{key!r}]")] for key, one in value.items()]}
        if type(value) in (list, tuple):
            return {type(value).__name__: [self.value(one, f"{name}[{at}]") for at, one in enumerate(value)]}
        raise TypeError(f"save: {name} is {_shown(value)}; expected tensors, str, numbers, None, and dict, list and tuple of them")

    def tensor(self, tensor: Any, name: str) -> int:
        """Returns the number of a tensor."""
        if id(tensor) not in self.seen:
            record = self.record(tensor, name)
            self.seen[id(tensor)] = tensor, len(self.tensors)
            self.tensors.append(record)
        return self.seen[id(tensor)][1]

    def record(self, tensor: Any, name: str) -> Dict[str, Any]:
        torch = self.torch
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise Unsupported(f"save: {name} is {_shown(tensor)}; save plain tensors, such as those of a state_dict()")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            raise Unsupported(f"save: {name} is sparse, quantized, or a lazy conjugate or negative; save a dense tensor without these")
        record = {
            "dtype": str(tensor.dtype).rpartition(".")[2],
            "shape": list(tensor.shape),
            "requires_grad": bool(tensor.requires_grad and tensor.is_leaf),
            "parameter": type(tensor) is torch.nn.Parameter,
        }
        if tensor.device.type == "cpu":
            contents = _bytes_of(tensor.detach().contiguous())
            record["host"] = [self.host_size, len(contents)]
            self.host.append(contents)
            self.host_size += len(contents)
        elif tensor.device.type == "cuda" and tensor.device.index == self.device:
            record.update(self.on_device(tensor, name))
        else:
            raise Unsupported(f"save: {name} is on {tensor.device}; a file has tensors of one GPU, here {self.device}, and of the host")
        return record

    def on_device(self, tensor: Any, name: str) -> Dict[str, Any]:
        """Returns where a tensor lies: the first address of its block, the offset of its first element, and its strides."""
        storage = tensor.untyped_storage()
        if not tensor.numel():
            return {"block": None, "offset": 0, "stride": list(tensor.stride())}
        if not storage.nbytes():
            raise Unsupported(f"save: {name} has no memory, since its storage was resized to 0 bytes")
        found = self.find(storage.data_ptr())
        if found is None:
            raise Unsupported(
                f"save: {name} is not in the memory of gpu-vmm; it belongs to another library or process, or to a torch.cuda.MemPool with "
                f"an allocator of its own: save a clone of it"
            )
        base, offset, tag = found
        first = tensor.data_ptr() - base
        if first % tensor.element_size():
            raise Unsupported(f"save: {name} begins {first} bytes behind the beginning of its block; save a clone of it")
        self.blocks[base] = max(self.blocks.get(base, 0), offset + storage.nbytes())
        self.tags[tag] = None
        return {"block": base, "offset": first // tensor.element_size(), "stride": list(tensor.stride())}


def encode(torch: Any, tensors: Mapping[str, Any], find: Callable[[int], Optional[Place]], device: int) -> Encoded:
    """Returns the table of nested tensors. `find` returns the place of an address in the pool of the device."""
    if not isinstance(tensors, Mapping):
        raise TypeError(f"save: expected a dict of tensors, not {_shown(tensors)}")
    encoder = _Encoder(torch, find, device)
    tree = encoder.value(tensors, "tensors")
    if not encoder.blocks:
        raise InvalidArgument(f"save: there is no tensor in the memory of device {device}; use torch.save for tensors of the host")
    text = json.dumps({"tree": tree, "tensors": encoder.tensors, "blocks": list(encoder.blocks.items())}).encode()
    return Encoded(b"".join([_HEAD.pack(_MARK, len(text)), text, *encoder.host]), list(encoder.tags))


def decode(torch: Any, table: bytes, claim: Callable[[int, int], Any], device: int) -> Dict[Any, Any]:
    """Returns the tensors of a table. `claim` returns a storage for the first address and the size of a block.

    Raises FileError for a table that is not one. The sums of the file say that its bytes are as they were written.
    """
    try:
        mark, length = _HEAD.unpack_from(table)
        if mark != _MARK:
            raise ValueError(f"its mark is {mark!r}, which another version of gpu-vmm wrote; restore it with that version")
        described = json.loads(table[_HEAD.size : _HEAD.size + length])
        blocks = {base: (size, claim(base, size)) for base, size in described["blocks"]}
        host = memoryview(table)[_HEAD.size + length :]
        made = [_made(torch, record, blocks, host, device) for record in described["tensors"]]
        tree: Dict[Any, Any] = _value(described["tree"], made)
        return tree
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise FileError(f"restore: the table of tensors cannot be read: {error}") from error


def _made(
    torch: Any, record: Dict[str, Any], blocks: Mapping[int, Tuple[int, Any]], host: memoryview, device: int
) -> Any:
    dtype, shape = getattr(torch, record["dtype"]), record["shape"]
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{record['dtype']} is no type of elements")
    if "host" in record:
        made = _host_tensor(torch, dtype, shape, record["host"], host)
    else:
        place = torch.device("cuda", device)
        stride, offset = record["stride"], record["offset"]
        if record["block"] is None:
            if 0 not in shape:
                raise ValueError(f"a tensor of {shape} elements has no block")
            made = torch.empty_strided(shape, stride, dtype=dtype, device=place)
        else:
            size, storage = blocks[record["block"]]
            made = torch.empty(0, dtype=dtype, device=place)
            # PyTorch would enlarge the storage.
            last = offset + sum((count - 1) * step for count, step in zip(shape, stride))
            if offset < 0 or min(shape + stride, default=0) < 0 or (last + 1) * made.element_size() > size:
                raise ValueError(f"a tensor of {shape} elements at {offset} exceeds its block of {size} bytes")
            made.set_(storage, offset, shape, stride)
    if record["parameter"]:
        return torch.nn.Parameter(made, requires_grad=record["requires_grad"])
    return made.requires_grad_(record["requires_grad"])


def _host_tensor(torch: Any, dtype: Any, shape: Sequence[int], place: Sequence[int], host: memoryview) -> Any:
    offset, length = place
    made = torch.empty(shape, dtype=dtype, device="cpu")
    if made.numel() * made.element_size() != length or not 0 <= offset <= len(host) - length:
        raise ValueError(f"{length} bytes at {offset} are not a tensor of {shape} elements")
    ctypes.memmove(made.data_ptr(), bytes(host[offset : offset + length]), length)
    return made


def _value(value: Any, tensors: Sequence[Any]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, contents),) = value.items()
    if kind == "tensor":
        return tensors[contents]
    if kind == "dict":
        return {key: _value(one, tensors) for key, one in contents}
    if kind not in ("list", "tuple"):
        raise ValueError(f"{kind!r} is no kind of value")
    values = [_value(one, tensors) for one in contents]
    return values if kind == "list" else tuple(values)


def _bytes_of(tensor: Any) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""


def _shown(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__name__}"
