"""Pools: many allocations of all sizes in the order of streams, by tags that can sleep."""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import sys
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, SupportsIndex, Type, Union

from ._arguments import Folder, kept_in, text, unsigned
from ._handles import PoolHandle
from ._library import BlockFound, check, library, take_text
from ._lock import Lock
from ._owner import Owner
from ._typing import Buffer
from .errors import Busy, InvalidArgument, NotFound
from .results import PoolSnapshot, PoolStats


class Blocks:
    """The blocks of a pool that are objects, all tags' together."""

    __slots__ = ("owners", "lock")

    def __init__(self) -> None:
        self.owners: Dict[int, weakref.ref[Block]] = {}
        """By address."""
        # Held while bytes are copied, and by who takes memory away. Not by Block.__del__: nothing copies then.
        self.lock: Lock = Lock()


@dataclass(frozen=True)
class BlockInfo:
    """The live block in which an address lies. Sizes and offsets are bytes."""

    base: int
    """Its first address."""
    size: int
    """Its size, as it was rounded."""
    offset: int
    """How far behind its first address the asked one lies."""
    device: int
    stream: int
    """The stream that it was allocated for, by the vendor's handle."""
    tag: str


class Block(Owner):
    """Memory of a pool, which is freed in the order of its stream: by :meth:`free`, at the end of ``with``, or when nobody has it.

    ``size`` is what was asked for, in bytes, ``stream`` the vendor's handle of the stream that it was allocated for.
    """

    __slots__ = ("_pool", "_address", "_lent", "size", "stream", "__weakref__")
    _instead = "allocate another one, and other.write(block.read())"

    def __init__(self, pool: Pool, address: int, size: int, stream: int) -> None:
        self._make_once("_address")
        if not isinstance(pool, Pool):
            raise TypeError(f"a Block is made by Pool.alloc(), not of a {type(pool).__name__}")
        first = unsigned("address", address)
        self.size: int = unsigned("size", size)
        self.stream: int = unsigned("stream", stream)
        self._pool = pool
        # Whether an array of another library has it.
        self._lent = False
        self._address: Optional[int] = first

    def __repr__(self) -> str:
        where = "freed" if self._address is None else f"at {self._address:#x}"
        return f"<gpu_vmm.Block of {self.size} bytes {where}>"

    @property
    def address(self) -> int:
        """The first address. Raises NotFound where it was freed."""
        if self._address is None:
            raise NotFound(f"ask for the address: the block of {self.size} bytes was freed already")
        return self._address

    def _take(self) -> Optional[int]:
        """The address for who frees it: one thread alone is given it."""
        address = self._address
        self._address = None
        if address is None:
            return None
        owners = self._pool._blocks.owners
        owner = owners.get(address)
        # A Block that was made by hand owns nothing. The garbage collector has cleared the reference already.
        if owner is None or owner() not in (self, None):
            return None
        return address if owners.pop(address, None) is not None else None

    def _free(self, address: int) -> int:
        handle = self._pool._handle
        handle.blocks.discard(address)  # before another block can be there
        status: int = library().gpu_vmm_free(handle, address)
        handle.settle()
        return status

    def free(self, *, force: bool = False) -> None:
        """Frees it. Raises NotFound if it was freed already, Busy if a CuPy array has it, unless ``force`` is true."""
        if not force:
            self._check_lent("free")
        with self._pool._blocks.lock:
            address = self._take()
            if address is None:
                raise NotFound(f"free: the block of {self.size} bytes was freed already")
            check(self._free(address))

    def _check_lent(self, operation: str) -> None:
        if self._lent and self._address is not None:
            raise Busy(f"{operation}: a CuPy array has the block of {self.size} bytes; drop the array, or insist by force=True")

    def release(self) -> int:
        """The address, which is the caller's from now on, to be freed by :meth:`Pool.free`. Raises NotFound if it was freed.

        The caller must keep the pool, too: all its memory ends with the last object that has it.
        """
        address = self._take()
        if address is None:
            raise NotFound(f"release: the block of {self.size} bytes was freed already")
        self._pool._handle.blocks.discard(address)
        return address

    def record_use(self, stream: SupportsIndex) -> None:
        """Says that work on another stream uses it: once freed it is nobody else's before that work is done."""
        handle = unsigned("stream", stream)
        check(library().gpu_vmm_record_use(self._pool._handle, self.address, handle))

    def read(self, offset: SupportsIndex = 0, size: Optional[SupportsIndex] = None) -> bytes:
        """Bytes from ``offset`` on, all by default, copied to the host. Work of streams is not waited for.

        Raises InvalidArgument where there are not so many, Suspended where they are elsewhere.
        """
        first = unsigned("offset", offset)
        number = max(self.size - first, 0) if size is None else unsigned("size", size)
        self._check("read", first, number)
        contents = bytearray(number)
        if number:
            room = (ctypes.c_char * number).from_buffer(contents)
            with self._pool._blocks.lock:  # the library asks that nothing takes the memory away meanwhile
                check(library().gpu_vmm_read(self._pool._handle, self.address + first, room, number))
        return bytes(contents)

    def write(self, contents: Buffer, offset: SupportsIndex = 0) -> None:
        """Copies bytes of the host to ``offset``. Work of streams is not waited for. Raises as :meth:`read`."""
        given: Any = contents
        view = memoryview(given)  # bytes() would make five zeros of the number 5
        if not view.c_contiguous:
            raise InvalidArgument("write: the buffer is not C-contiguous")
        first, flat = unsigned("offset", offset), bytes(view)
        self._check("write", first, len(flat))
        if flat:
            with self._pool._blocks.lock:
                check(library().gpu_vmm_write(self._pool._handle, self.address + first, flat, len(flat)))

    def _check(self, operation: str, offset: int, size: int) -> None:
        if offset + size > self.size:
            raise InvalidArgument(f"{operation}: {size} bytes from {offset} on, and the block has {self.size}")

    def __enter__(self) -> Block:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        with self._pool._blocks.lock:
            address = self._take()
            if address is not None:
                check(self._free(address))

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # Nobody could be told of a failure, and at the interpreter's end no driver is called.
        if not ending() and getattr(self, "_address", None) is not None:
            address = self._take()
            if address is not None:
                self._free(address)


class Pool(Owner):
    """A pool of a device's memory, allocating under one tag. Made by :meth:`Backend.pool`. Any thread may use it."""

    __slots__ = ("_handle", "_blocks", "_tag", "_device")
    _instead = "any thread and any object may use the same one; Backend.pool() makes another one"

    def __init__(self, handle: PoolHandle, device: str = "", blocks: Optional[Blocks] = None, tag: str = "") -> None:
        self._make_once("_handle")
        if not isinstance(handle, PoolHandle):
            raise TypeError(f"a Pool is made by Backend.pool(), not of a {type(handle).__name__}")
        self._handle = handle
        self._blocks = Blocks() if blocks is None else blocks
        self._tag = tag
        self._device = device

    def __repr__(self) -> str:
        return f"<gpu_vmm.Pool on {self._device}{f', tag {self._tag!r}' if self._tag else ''}>"

    def alloc(self, size: SupportsIndex, alignment: SupportsIndex = 256, stream: SupportsIndex = 0) -> Block:
        """Memory of ``size`` bytes at a multiple of ``alignment`` bytes, a power of two, for a stream by the vendor's handle.

        Raises InvalidArgument (a size of zero, a bad alignment), OutOfMemory with the pool's statistics, OutOfAddresses, Suspended
        where the tag sleeps.
        """
        bytes_, handle = unsigned("size", size), unsigned("stream", stream)
        address = ctypes.c_uint64()
        check(
            library().gpu_vmm_alloc(self._handle, bytes_, unsigned("alignment", alignment), handle, ctypes.byref(address))
        )
        block = Block(self, address.value, bytes_, handle)
        self._handle.blocks.add(address.value)
        self._blocks.owners[address.value] = weakref.ref(block)
        return block

    def tagged(self, tag: str) -> Pool:
        """The same pool, allocating under a tag: blocks that belong together, and sleep together."""
        pointer = ctypes.c_void_p()
        check(library().gpu_vmm_pool_tagged(self._handle, text("tag", tag), ctypes.byref(pointer)))
        return Pool(PoolHandle(pointer), self._device, self._blocks, tag)

    def free(self, address: SupportsIndex, *, force: bool = False) -> None:
        """Frees the block at an address, in the order of its stream. A :class:`Block` of it is freed then.

        Raises NotFound if no block begins there, or if it was freed already; Busy if a CuPy array has it, unless ``force`` is true.
        """
        at = unsigned("address", address)
        with self._blocks.lock:
            owner = self._blocks.owners.get(at)
            block = owner() if owner is not None else None
            if block is not None:
                if not force:
                    block._check_lent("free")
                block._address = None
                block._pool._handle.blocks.discard(at)
            self._blocks.owners.pop(at, None)
            check(library().gpu_vmm_free(self._handle, at))

    def find(self, address: SupportsIndex) -> BlockInfo:
        """The live block in which an address lies. Raises NotFound where it lies in none of this pool."""
        found = BlockFound()
        check(library().gpu_vmm_find(self._handle, unsigned("address", address), ctypes.byref(found)))
        tag = found.tag.decode("utf-8", "replace")
        return BlockInfo(found.base, found.size, found.offset, found.device, found.stream or 0, tag)

    def suspend(
        self, tag: str, keep: Optional[str] = "host", directory: Optional[Folder] = None, *, force: bool = False
    ) -> int:
        """Gives the memory of all blocks with a tag back to the driver, and keeps their addresses. Gives how many bytes went; 0 where
        it sleeps already. Waits for the devices.

        ``keep``: where contents go: ``"host"``, ordinary memory; ``"pinned"``, page-locked memory; ``"file"``, a file in
        ``directory`` or the folder for temporary files; None, nowhere: what is in the blocks is not defined when they are back.

        Raises NotFound, InvalidArgument for another ``keep``; Busy while CuPy arrays have blocks with the tag, unless ``force`` is
        true: then nothing may use them before :meth:`resume`.
        """
        went = ctypes.c_uint64()
        name, where = text("tag", tag), kept_in(keep, directory)
        with self._blocks.lock:
            if not force:
                for owner in list(self._blocks.owners.values()):
                    block = owner()
                    if block is not None and block._pool._tag == tag:
                        block._check_lent("suspend")
            check(library().gpu_vmm_suspend(self._handle, name, where, ctypes.byref(went)))
        return went.value

    def is_suspended(self, tag: str) -> bool:
        """Whether a tag sleeps; False where nothing has it."""
        asleep = ctypes.c_bool()
        try:
            check(library().gpu_vmm_is_suspended(self._handle, text("tag", tag), ctypes.byref(asleep)))
        except NotFound:
            return False
        return asleep.value

    def resume(self, tag: str) -> int:
        """Brings the memory of a tag back, at the same addresses. Gives how many bytes came; 0 where it does not sleep.

        Raises NotFound, and OutOfMemory: what is not back yet sleeps on, and its contents are safe.
        """
        came = ctypes.c_uint64()
        check(library().gpu_vmm_resume(self._handle, text("tag", tag), ctypes.byref(came)))
        return came.value

    def trim(self, keep: SupportsIndex = 0) -> int:
        """Gives free memory back to the driver until no more than ``keep`` bytes of it are left. Gives how many bytes went."""
        went = ctypes.c_uint64()
        check(library().gpu_vmm_trim(self._handle, unsigned("keep", keep), ctypes.byref(went)))
        return went.value

    def forget_stream(self, stream: SupportsIndex) -> None:
        """Forgets a stream that is to be destroyed, without waiting. Raises Busy while the stream captures."""
        check(library().gpu_vmm_forget_stream(self._handle, unsigned("stream", stream)))

    def stats(self) -> PoolStats:
        """Where the memory is, in bytes: live, kept, pending, mapped, reserved, held, peak_live, peak_held, and more."""
        found: PoolStats = json.loads(self._json("gpu_vmm_pool_stats"))
        return found

    def snapshot(self) -> PoolSnapshot:
        """The whole picture: ranges, blocks, pages, the statistics and how they came about."""
        found: PoolSnapshot = json.loads(self._json("gpu_vmm_pool_snapshot"))
        return found

    def tags(self) -> List[str]:
        """The tags that have had memory so far."""
        return sorted({space["tag"] for space in self.snapshot()["spaces"]})

    def report(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the snapshot as JSON, which ``gpu-vmm report FILE.json --html OUT`` draws.

        Raises InvalidArgument where the path's end is ``.html``: pages are drawn by that command.
        """
        name = os.fspath(path)
        if name.lower().endswith((".html", ".htm")):
            raise InvalidArgument(
                f"report: {name}: JSON is written here; write FILE.json, and `gpu-vmm report FILE.json --html OUT` draws it"
            )
        picture = self._json("gpu_vmm_pool_snapshot")
        with builtins.open(name, "w", encoding="utf-8") as file:
            file.write(picture)

    def _json(self, function: str) -> str:
        pointer = ctypes.c_void_p()
        check(getattr(library(), function)(self._handle, ctypes.byref(pointer)))
        return take_text(pointer)
