"""Pools: allocations of all sizes in the order of streams, under tags that can sleep."""

from __future__ import annotations

import builtins
import ctypes
import json
import math
import os
import sys
import threading
import weakref
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, SupportsIndex, Type

from . import _saved_pool
from ._arguments import Path, kept_in, text, unsigned
from ._handles import PhysicalHandle, PoolHandle, text_of
from ._library import BlockFound, check, library
from ._lock import new_lock
from ._owner import Owner
from ._pool_options import options
from ._typing import Buffer
from .errors import Busy, InvalidArgument, NotFound, OutOfRange, Unaligned, Unsupported
from .results import KindInfo, PoolSnapshot, PoolStats
from ._waits import interruptible, linux_function, seconds_of

if TYPE_CHECKING:
    from .backend import Backend
    from .vmm.physical import PhysicalMemory
    from .vmm.properties import Access, Properties


class Blocks:
    """The blocks of a pool that have a :class:`Block` object, for all tags together."""

    __slots__ = ("device", "movable", "owners", "lock", "backend")

    def __init__(self, device: str = "", movable: bool = True, backend: Optional[Backend] = None) -> None:
        self.device: str = device
        """The name of the device that has the memory."""
        self.movable: bool = movable
        """Whether the blocks may move to another device: PyTorch's tensors name theirs."""
        self.backend: Optional[Backend] = backend
        """None for PyTorch's."""
        self.owners: Dict[int, weakref.ref[Block]] = {}
        """By address."""
        # Held during copies, and by calls that take memory away. Block.__del__ does not need it: no copy of the block runs then.
        self.lock: threading.RLock = new_lock()


@dataclass(frozen=True)
class BlockInfo:
    """The live block that contains an address. Sizes and offsets are bytes."""

    base: int
    """Its first address."""
    capacity: int
    """The bytes that it occupies: the requested size, rounded up."""
    offset: int
    """The distance of the queried address from ``base``."""
    device: int
    stream: int
    """The vendor's handle of the stream that it was allocated for."""
    tag: str


class BlockMemory(NamedTuple):
    """The physical memory behind a part of a block."""

    physical: List[PhysicalMemory]
    """In order. Other blocks may lie in it."""
    offset: int
    """The distance of the part from the beginning of the first one, in bytes."""


class Block(Owner):
    """Memory of a pool, freed in the order of its stream: by :meth:`free`, at the end of ``with``, or with the last reference to it.

    ``size`` is the requested size in bytes, ``stream`` the vendor's handle of the stream that it was allocated for.

    Any thread may use and free it. Reads and writes that have begun end before the memory is freed or suspended.
    """

    __slots__ = ("_pool", "_place", "_owner", "_lent", "size", "stream", "__weakref__")
    _instead = "allocate another one, and other.write(block.read())"

    def __init__(self, pool: Pool, address: int, size: int, stream: int) -> None:
        self._make_once("_place")
        if not isinstance(pool, Pool):
            raise TypeError(f"a Block is created by Pool.alloc(), not from a {type(pool).__name__}")
        first = unsigned("address", address)
        self.size: int = unsigned("size", size)
        self.stream: int = unsigned("stream", stream)
        self._pool = pool
        # What uses it of another library, if anything does.
        self._lent = ""
        # The reference by which the pool's table finds it. None for a block of the library that is not in the table yet.
        self._owner: Optional[weakref.ref[Block]] = weakref.ref(self)
        # The address, which the library writes here; 0 once the block is freed.
        self._place = ctypes.c_uint64(first)

    def __repr__(self) -> str:
        where = f"at {self._place.value:#x}" if self._place.value else "freed"
        return f"<gpu_vmm.Block of {self.size} bytes {where}>"

    @property
    def address(self) -> int:
        """The first address. Raises NotFound if the block was freed."""
        address = self._place.value
        if not address:
            raise NotFound(f"address: the block of {self.size} bytes was freed already")
        return address

    def _end(self, call: Callable[[PoolHandle, int], int]) -> Optional[int]:
        """Returns the result of a call that ends the block. Makes no call and returns None if the object owns no block, or no longer."""
        key, handle, owners, place = id(self._owner), self._pool._handle, self._pool._blocks.owners, self._place
        try:
            # Python handles signals and switches threads behind calls alone. So one thread takes the address, and it makes the call.
            address, place.value = place.value, 0
            if not address:
                return None
            owner, self._owner = self._owner, None
            if owner is not None:
                # A Block that Pool.alloc() did not create owns nothing, nor does one whose address Pool.free() has got.
                if address not in owners or owners[address] is not owner:
                    return None
                del owners[address]
            return call(handle, address)
        finally:
            handle.settle(key)

    def _free(self) -> Optional[int]:
        return self._end(library().gpu_vmm_free)

    def free(self, *, force: bool = False) -> None:
        """Frees the block. Raises NotFound if it was freed already; Busy if CuPy or RMM uses it, unless ``force`` is true."""
        if not force:
            self._check_lent("free")
        with self._pool._blocks.lock:
            status = self._free()
        if status is None:
            raise NotFound(f"free: the block of {self.size} bytes was freed already")
        check(status)

    def _check_lent(self, operation: str) -> None:
        if self._lent and self._place.value:
            raise Busy(f"{operation}: {self._lent} uses the block of {self.size} bytes; drop it, or pass force=True")

    def release(self) -> int:
        """Returns the address and passes its ownership to the caller, who frees it with :meth:`Pool.free`.

        The caller must also keep a reference to the pool, whose last object frees all of its memory. Raises NotFound if the block was
        freed.
        """
        address = self._end(lambda handle, address: address)
        if address is None:
            raise NotFound(f"release: the block of {self.size} bytes was freed already")
        return address

    def record_use(self, stream: SupportsIndex) -> None:
        """Records that work on another stream uses the block. After it is freed, its memory is not reused before that work is done."""
        handle = unsigned("stream", stream)
        check(library().gpu_vmm_record_use(self._pool._handle, self.address, handle))

    def read(self, offset: SupportsIndex = 0, size: Optional[SupportsIndex] = None) -> bytes:
        """Returns a copy of ``size`` bytes at ``offset``, by default all that follow. Does not wait for work on streams.

        Raises OutOfRange for a range beyond the end, Suspended if the block's tag sleeps.
        """
        first = unsigned("offset", offset)
        number = max(self.size - first, 0) if size is None else unsigned("size", size)
        self._check("read", first, number)
        contents = bytearray(number)
        if number:
            room = (ctypes.c_char * number).from_buffer(contents)
            with self._pool._blocks.lock:  # the library requires that no other thread takes the memory away meanwhile
                check(library().gpu_vmm_read(self._pool._handle, self.address + first, room, number))
        return bytes(contents)

    def write(self, contents: Buffer, offset: SupportsIndex = 0) -> None:
        """Copies bytes of the host to ``offset``. Does not wait for work on streams. Raises the same errors as :meth:`read`."""
        given: Any = contents
        view = memoryview(given)  # bytes(5) would be five zeros
        if not view.c_contiguous:
            raise InvalidArgument("write: the buffer is not C-contiguous; copy it first")
        first, flat = unsigned("offset", offset), bytes(view)
        self._check("write", first, len(flat))
        if flat:
            with self._pool._blocks.lock:
                check(library().gpu_vmm_write(self._pool._handle, self.address + first, flat, len(flat)))

    def _check(self, operation: str, offset: int, size: int) -> None:
        if offset + size > self.size:
            raise OutOfRange(f"{operation}: {size} bytes at offset {offset} exceed the block of {self.size} bytes")

    def __enter__(self) -> Block:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        with self._pool._blocks.lock:
            status = self._free()
        check(status or 0)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # A failure could not be reported, and no driver may be called while the interpreter ends.
        if not ending() and hasattr(self, "_place") and self._place.value:
            self._free()


class Pool(Owner):
    """A pool of a device's memory that allocates one kind of memory under one tag. :meth:`Backend.pool` creates it.

    Any thread may use it. Allocations, statistics and snapshots go on during :meth:`suspend` and :meth:`resume`; ``free``, ``read`` and
    ``write`` of its blocks wait for a suspension.
    """

    __slots__ = ("_handle", "_blocks", "_tag", "_memory")
    _instead = "any thread and any object may use the same one; Backend.pool() creates another one"

    def __init__(
        self,
        handle: PoolHandle,
        device: str = "",
        blocks: Optional[Blocks] = None,
        tag: str = "",
        memory: Optional[Properties] = None,
        backend: Optional[Backend] = None,
    ) -> None:
        self._make_once("_handle")
        if not isinstance(handle, PoolHandle):
            raise TypeError(f"a Pool is created by Backend.pool(), not from a {type(handle).__name__}")
        self._handle = handle
        self._blocks = Blocks(device, backend=backend) if blocks is None else blocks
        self._tag = tag
        # The properties of the memory without its device; None for the pool's own.
        self._memory = memory

    def __repr__(self) -> str:
        return f"<gpu_vmm.Pool on {self._blocks.device}{f', tag {self._tag!r}' if self._tag else ''}>"

    def alloc(
        self,
        size: SupportsIndex,
        alignment: SupportsIndex = 256,
        stream: SupportsIndex = 0,
        *,
        address: Optional[SupportsIndex] = None,
    ) -> Block:
        """Allocates ``size`` bytes at a multiple of ``alignment`` bytes, a power of two. ``stream`` is the vendor's handle of a stream.

        ``address``: the first address, a multiple of 512; None for any. If the tag has addresses there, they must be free; otherwise the
        pool reserves them.

        Raises InvalidArgument for a size of zero or a bad alignment, OutOfMemory with the pool's statistics, OutOfAddressSpace, and
        Suspended if the tag sleeps; for an ``address`` also AddressTaken, which names what is there, and Unaligned.
        """
        bytes_, handle, unit = unsigned("size", size), unsigned("stream", stream), unsigned("alignment", alignment)
        if address is not None:
            at = unsigned("address", address)
            if at % max(unit, 1):
                raise Unaligned(f"alloc: the address {at:#x} is not a multiple of the alignment {unit}")
            # The object cannot own the address before: until the call has succeeded, it can be another block's.
            check(library().gpu_vmm_alloc_at(self._handle, at, bytes_, handle))
            return self._own(Block(self, at, bytes_, handle))
        block = Block(self, 0, bytes_, handle)
        # From here on the object frees what the library writes to its place, also if a signal's exception comes next.
        block._owner = None
        check(library().gpu_vmm_alloc(self._handle, bytes_, unit, handle, ctypes.byref(block._place)))
        return self._own(block)

    def _own(self, block: Block) -> Block:
        """Enters a block of the library in the pool's table."""
        owner = weakref.ref(block, self._free_lost)
        # No signal comes between these two.
        self._blocks.owners[block._place.value] = owner
        block._owner = owner
        self._handle.blocks[id(owner)] = block._place.value
        return block

    def _free_lost(self, owner: weakref.ref[Block], ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Frees the block of an object that has ended without: a signal's exception came at the beginning of its ``__del__``."""
        address = self._handle.blocks.get(id(owner))
        owners = self._blocks.owners
        if address in owners and owners[address] is owner and not ending():
            del owners[address]
            library().gpu_vmm_free(self._handle, address)
            self._handle.settle(id(owner))

    def save(self, path: Path, tags: Optional[Sequence[str]] = None, *, compress: bool = False) -> None:
        """Writes the live blocks to a file, after waiting for the devices: their addresses, tags, sizes and bytes.

        An existing file of that name is replaced when the new one is complete. ``tags``: the tags to save, ``""`` for blocks without one;
        None for all of this object's kind of memory. Create the pool with ``restorable=True``: otherwise its addresses may be in use in
        another process. Nothing may write to the blocks meanwhile; other threads allocate and free.

        Raises NotFound for a tag that does not exist, Suspended, FileError, and Unsupported on a device without virtual memory management.
        """
        _saved_pool.save(self._handle, path, tags, compress)

    @staticmethod
    def restore(
        backend: Backend,
        path: Path,
        *,
        device: SupportsIndex = 0,
        budget: Optional[SupportsIndex] = None,
        keep: Optional[SupportsIndex] = None,
        scrub: bool = False,
        debug: bool = False,
        slack: Optional[SupportsIndex] = None,
    ) -> RestoredPool:
        """Creates the pool that :meth:`save` has written: its blocks have the same addresses, tags and bytes, in any process.

        Returns the pool and its blocks, which own their memory: it is free when a block object ends. The other arguments are those of
        :meth:`Backend.pool`. The page size is that of the file, and the pool is restorable if the saved one was. Restore before the
        process reserves much else.

        Raises AddressTaken, which names what uses the addresses; FileError for a file that cannot be read, is damaged or has no pool;
        OutOfMemory, also for a device or a budget that is smaller than the memory; Unsupported for pages that are smaller than the device's
        granularity, and for a file of another version; NoSuchDevice. Nothing is restored then.
        """
        from .vmm.device import checked  # the package imports this module

        wanted = options(device, budget, keep, None, slack, scrub, debug)
        handle, found = _saved_pool.restore(checked(backend)._handle, path, wanted)
        pool = Pool(handle, f"{backend.name} device {wanted.device}", backend=backend)
        # Objects of each tag, since a suspension of a tag looks for its blocks.
        tagged = {"": pool}
        blocks = []
        for one in found:
            tag = _saved_pool.whole_tag(one.tag, one.address)
            of_tag = tagged.setdefault(tag, Pool(handle, blocks=pool._blocks, tag=tag))
            blocks.append(of_tag._own(Block(of_tag, one.address, one.size, one.stream or 0)))
        return RestoredPool(pool, blocks)

    def tagged(self, tag: str) -> Pool:
        """Returns the same pool, allocating under a tag. Blocks with one tag sleep together.

        A tag belongs to a kind of memory: the same name in two kinds is two tags.
        """
        handle = PoolHandle.made(library().gpu_vmm_pool_tagged, self._handle, text("tag", tag))
        return Pool(handle, blocks=self._blocks, tag=tag, memory=self._memory)

    def with_memory(self, properties: Properties) -> Pool:
        """Returns the same pool, allocating another kind of memory under the same tag name: host memory, or memory that can be exported.

        All kinds share the budget; each has tags and statistics of its own. Free memory of one kind gives way to a request of another.
        ``properties`` is a :class:`gpu_vmm.vmm.Properties` of the pool's device.

        Raises Unsupported if the driver has no such memory, or for another device than the pool's.
        """
        from .vmm.properties import struct_of  # the package imports this module

        handle = PoolHandle.made(library().gpu_vmm_pool_with_memory, self._handle, ctypes.byref(struct_of(properties)))
        # Plain memory of the device is the pool's own kind.
        kind = replace(properties, device=0)
        memory = None if kind == type(kind)() else kind
        return Pool(handle, blocks=self._blocks, tag=self._tag, memory=memory)

    def allow_access(self, device: SupportsIndex, access: Optional[Access] = None) -> None:
        """Gives a device access to all memory of this object's kind, present and future: by default to read and write it.

        ``device`` is another device, or ``gpu_vmm.vmm.HOST`` for the CPU, which reads and writes. A device that has this access or more
        keeps what it has. Raises NoSuchDevice, PeerUnreachable, or Unsupported: for a device that has less access already, for read-only
        access where the driver has none, and for the CPU if it cannot access such memory.
        """
        level = 3 if access is None else unsigned("access", access, 32)
        check(library().gpu_vmm_pool_allow_access(self._handle, unsigned("device", device, 32), level))

    def move_to_device(self, device: SupportsIndex, *, force: bool = False) -> None:
        """Moves the pool to another device: all blocks of all kinds and tags keep their addresses and their bytes.

        They have memory of that device, from which the pool allocates from then on. The old device loses its access; :meth:`allow_access`
        gives it access as a peer. The call waits for the devices, and no work may use a block until it returns. Requests of other threads
        wait meanwhile. Raises NoSuchDevice, PeerUnreachable, OutOfMemory, Suspended while a tag is suspended, and Busy while CuPy or RMM uses
        blocks, unless ``force`` is true, for memory that is exported or held elsewhere, or for a capture; Unsupported for a pool of
        PyTorch, whose tensors stay tensors of their device.
        """
        number = unsigned("device", device, 32)
        if not self._blocks.movable:
            raise Unsupported("move: the tensors of PyTorch name the device of their memory; move them with Tensor.to()")
        with self._blocks.lock:
            for owner in [] if force else list(self._blocks.owners.values()):
                block = owner()
                if block is not None:
                    block._check_lent("move")
            check(library().gpu_vmm_pool_move_to_device(self._handle, number))
            self._blocks.device = f"{self._blocks.device.rpartition(' ')[0]} {number}"

    def kinds(self) -> List[KindInfo]:
        """Returns the statistics of each kind of memory of the pool, its own first. :meth:`stats` has those of this object's kind alone."""
        found: List[KindInfo] = json.loads(self._json("gpu_vmm_pool_kinds"))
        return found

    def forget_tag(self, tag: str) -> None:
        """Forgets a tag: its name is free for another tag at once.

        Pools and blocks of the tag stay valid; its addresses are free when the last of both has ended. A tag that is not forgotten
        ends in the same way. Raises NotFound if no tag has the name; Suspended while the tag sleeps, which :meth:`resume` finds by its name.
        """
        check(library().gpu_vmm_pool_forget_tag(self._handle, text("tag", tag)))

    def free(self, address: SupportsIndex, *, force: bool = False) -> None:
        """Frees the block that begins at an address, in the order of its stream. A :class:`Block` object of it counts as freed.

        Raises NotFound if no block begins there, or if it was freed already; Busy if CuPy or RMM uses it, unless ``force`` is true.
        """
        at = unsigned("address", address)
        with self._blocks.lock:
            owner = self._blocks.owners.get(at)
            block = owner() if owner is not None else None
            if block is not None and not force:
                block._check_lent("free")
            status = None if block is None else block._free()
            if status is None:
                self._blocks.owners.pop(at, None)
                status = library().gpu_vmm_free(self._handle, at)
            check(status)

    def find(self, address: SupportsIndex) -> BlockInfo:
        """Returns the live block that contains an address. Raises NotFound if no block of this pool contains it."""
        found = BlockFound()
        check(library().gpu_vmm_find(self._handle, unsigned("address", address), ctypes.byref(found)))
        tag = _saved_pool.whole_tag(found.tag, found.base)
        return BlockInfo(found.base, found.capacity, found.offset, found.device, found.stream or 0, tag)

    def memory_at(self, address: SupportsIndex, size: SupportsIndex = 1) -> BlockMemory:
        """Returns the physical memory behind a part of a block of any kind: to export it, or to map it elsewhere as well.

        The memory outlives the block, and other blocks may lie in it. It can be exported if its kind has a type of handle:
        ``pool.with_memory(gpu_vmm.vmm.Properties(handle_types=gpu_vmm.vmm.HandleTypes.FD))``.

        Raises NotFound if memory of the pool is not mapped in the whole part, InvalidArgument for a size of 0, and Unsupported on a device
        without virtual memory management.
        """
        from .backend import Backend  # the package imports this module
        from .vmm.physical import PhysicalMemory

        first, length = unsigned("address", address), unsigned("size", size)
        if length == 0:
            raise InvalidArgument("memory_at: the size is 0")
        backend = self._blocks.backend or Backend()
        physical: List[PhysicalMemory] = []
        within, begin, end = 0, first, first + length
        while begin < end:
            handle, offset = PhysicalHandle(), ctypes.c_uint64()
            check(library().gpu_vmm_pool_memory_at(self._handle, begin, handle.place(), ctypes.byref(offset)))
            piece = PhysicalMemory._from(backend, handle)
            if not physical:
                within = offset.value
            physical.append(piece)
            begin += piece.size - offset.value
        return BlockMemory(physical, within)

    def suspend(
        self, tag: str, keep: Optional[str] = "host", directory: Optional[Path] = None, *, force: bool = False
    ) -> int:
        """Returns the memory of all blocks with a tag to the driver and keeps their addresses. Waits for the devices first.

        Returns the number of bytes that went back; 0 if the tag sleeps already.

        ``keep``: where contents go: ``"host"`` is ordinary memory, which :meth:`resume` frees; ``"host-kept"`` is ordinary memory that
        stays for the next suspension, which is then faster; ``"pinned"`` is page-locked memory, which stays as well; ``"file"`` is a
        file in ``directory`` or in the directory for temporary files. None discards them: the contents are undefined after
        :meth:`resume`. The environment variable ``GPU_VMM_COPY_THREADS`` sets the number of threads that copy.

        Raises NotFound; OutOfMemory if the host has too little memory, after which nothing has changed; InvalidArgument for another
        ``keep``; Busy while CuPy or RMM uses blocks with the tag, unless ``force`` is
        true. With ``force``, nothing may use these arrays before :meth:`resume`.
        """
        went = ctypes.c_uint64()
        name, where = text("tag", tag), kept_in(keep, directory)
        with self._blocks.lock:
            if not force:
                for owner in list(self._blocks.owners.values()):
                    block = owner()
                    if block is not None and block._pool._tag == tag and block._pool._memory == self._memory:
                        block._check_lent("suspend")
            check(library().gpu_vmm_suspend(self._handle, name, where, ctypes.byref(went)))
        return went.value

    def is_suspended(self, tag: str) -> bool:
        """Returns whether a tag sleeps; False if no block has the tag."""
        asleep = ctypes.c_bool()
        try:
            check(library().gpu_vmm_is_suspended(self._handle, text("tag", tag), ctypes.byref(asleep)))
        except NotFound:
            return False
        return asleep.value

    def resume(self, tag: str) -> int:
        """Restores the memory of a tag at the same addresses. Returns the number of bytes mapped; 0 if the tag does not sleep.

        Raises NotFound; OutOfMemory, after which memory that is not back yet still sleeps with its contents.
        """
        came = ctypes.c_uint64()
        check(library().gpu_vmm_resume(self._handle, text("tag", tag), ctypes.byref(came)))
        return came.value

    def granted(self) -> Optional[int]:
        """Returns the budget that a server has granted, in bytes; None for a pool without a server (:func:`gpu_vmm.set_pool_server`)."""
        granted = ctypes.c_uint64()
        try:
            check(linux_function("gpu_vmm_pool_granted")(self._handle, ctypes.byref(granted), None))
        except Unsupported:
            return None
        return granted.value

    def reserve(self, bytes_: SupportsIndex, wait: float = 10.0) -> None:
        """Reserves a part of the server's budget before it is used: waits up to ``wait`` seconds until the server has granted this many bytes
        in all, and gives no part of that back until another call reserves less.

        Raises OutOfMemory if there is too little; PeerError if the server is gone; Unsupported for a pool without a server.
        """
        size, milliseconds = unsigned("bytes_", bytes_), math.ceil(1000 * seconds_of(wait, "wait"))
        pool, call = self._handle, linux_function("gpu_vmm_pool_reserve")
        interruptible(lambda: check(call(pool, size, milliseconds)))

    def let_sleep(self, tag: str) -> None:
        """Lets the server suspend a tag when other programs need its memory. Until :meth:`wake`, nothing may use the tag's blocks: no code of
        this program and no work on a device.

        Raises NotFound if there is no such tag; Unsupported for a pool without a server.
        """
        check(linux_function("gpu_vmm_pool_let_sleep")(self._handle, text("tag", tag)))

    def wake(self, tag: str) -> int:
        """Makes a tag usable again after :meth:`let_sleep`: its memory stays, and comes back with its contents if it was suspended. Waits for
        memory that other programs have. Returns the number of bytes that came back.

        Raises what :meth:`resume` raises; Unsupported for a pool without a server.
        """
        pool, name, call, came = self._handle, text("tag", tag), linux_function("gpu_vmm_pool_wake"), ctypes.c_uint64()
        interruptible(lambda: check(call(pool, name, ctypes.byref(came))))
        return came.value

    def trim(self, keep: SupportsIndex = 0) -> int:
        """Returns free memory to the driver until the pool keeps at most ``keep`` bytes. Returns the number of bytes returned."""
        went = ctypes.c_uint64()
        check(library().gpu_vmm_trim(self._handle, unsigned("keep", keep), ctypes.byref(went)))
        return went.value

    def set_budget(self, budget: Optional[SupportsIndex]) -> None:
        """Sets the largest number of bytes of memory that the pool may hold, None for no limit. Any thread may call it at any time.

        A pool that holds more returns free memory to the driver at once, without waiting for work that still uses it, and the memory
        of blocks as they are freed. Until it holds less, requests that need new memory raise OutOfMemory.
        """
        most = 2**64 - 1 if budget is None else unsigned("budget", budget)
        check(library().gpu_vmm_set_budget(self._handle, most))

    def host_memory(self) -> int:
        """Returns the host memory taken for :meth:`suspend`, in bytes: contents, what stays for the next suspension, copy buffers."""
        took = ctypes.c_uint64()
        check(library().gpu_vmm_host_memory(self._handle, ctypes.byref(took)))
        return took.value

    def trim_host(self) -> int:
        """Frees the host memory that stays for the next suspension; contents stay. Returns the number of bytes freed."""
        freed = ctypes.c_uint64()
        check(library().gpu_vmm_trim_host(self._handle, ctypes.byref(freed)))
        return freed.value

    def forget_stream(self, stream: SupportsIndex) -> None:
        """Forgets a stream that the caller is about to destroy, without waiting. Raises Busy while the stream captures a graph.

        The pool of :mod:`gpu_vmm.cupy` also drops CuPy's object of the stream.
        """
        number = unsigned("stream", stream)
        check(library().gpu_vmm_forget_stream(self._handle, number))
        self._handle.drop_stream(number)

    def stats(self) -> PoolStats:
        """Returns the pool's statistics, in bytes: live, kept, pending, mapped, reserved, held, peak_live, peak_held, and more."""
        found: PoolStats = json.loads(self._json("gpu_vmm_pool_stats"))
        return found

    def snapshot(self) -> PoolSnapshot:
        """Returns the pool's state: address ranges, blocks, pages, statistics and their timeline."""
        found: PoolSnapshot = json.loads(self._json("gpu_vmm_pool_snapshot"))
        return found

    def tags(self) -> List[str]:
        """Returns the tags that have had memory so far."""
        return sorted({space["tag"] for space in self.snapshot()["spaces"]})

    def report(self, path: Path) -> None:
        """Writes the snapshot as JSON, which ``gpu-vmm report FILE.json --html OUT`` draws.

        Raises InvalidArgument for a path that ends with ``.html``: that command writes the page.
        """
        name = os.fsdecode(path)
        if name.lower().endswith((".html", ".htm")):
            raise InvalidArgument(
                f"report: {name}: this writes JSON; write FILE.json, and draw it with `gpu-vmm report FILE.json --html OUT`"
            )
        snapshot = self._json("gpu_vmm_pool_snapshot")
        with builtins.open(name, "w", encoding="utf-8") as file:
            file.write(snapshot)

    def _json(self, function: str) -> str:
        return text_of(getattr(library(), function), self._handle)


class RestoredPool(NamedTuple):
    """``Pool.restore()``: a pool and its blocks."""

    pool: Pool
    blocks: List[Block]
    """All blocks of the file, in the order of their addresses. They belong to the default stream."""
