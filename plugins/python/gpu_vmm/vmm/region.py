"""Regions: a contiguous range of device addresses and the memory that is mapped there."""

from __future__ import annotations

import ctypes
from typing import Optional, SupportsIndex

from .._arguments import Path, kept_in, path_of, text, unsigned
from .._callbacks import changing
from .._handles import RegionHandle, text_of
from .._library import check, library
from .._restoring import Devices, restore_options
from ..backend import Backend
from ._bytes import source
from ._closable import handle_of
from ._contents import Contents
from ._mappings import Mappings
from ._options import options
from ._sharing import Sharing
from .device import checked
from .observer import After, Before, observe
from .offer import Offer, offer_by
from .pages import PageList, list_of
from .properties import DEFAULT, OfferBy, Placement, Properties


class Region(Mappings, Contents, Sharing):
    """A contiguous range of device addresses, without memory at first. CUDA: cuMemAddressReserve; HIP: hipMemAddressReserve.

    ``size``: the number of bytes of addresses; 0 for the size of the device's memory. ``memory``: the memory with which the region grows.
    ``address``: only with ``Placement.PREFER`` or ``Placement.EXACT``. ``alignment``: that of the address, beyond the granularity.
    ``extend_by``: the number of bytes of addresses that growth first tries to add behind a full reservation; 0 for as many as the region
    has. If they are too few or taken, growth adds just what it needs. ``guard``: the number of bytes of addresses to keep free on either
    side. ``portable``: whether every driver can restore the region at its address. ``recommended_granularity``: whether its unit is that of
    :func:`recommended_granularity`.

    Any thread may use it; calls of several threads run one at a time. Raises AddressTaken, Unaligned, OutOfAddressSpace, NoSuchDevice, or
    Unsupported for memory that the driver lacks.
    """

    __slots__ = ()

    def __init__(
        self,
        backend: Backend,
        size: SupportsIndex = 0,
        memory: Properties = DEFAULT,
        *,
        placement: Placement = Placement.ANYWHERE,
        address: SupportsIndex = 0,
        alignment: SupportsIndex = 0,
        extend_by: SupportsIndex = 0,
        guard: SupportsIndex = 0,
        portable: bool = False,
        recommended_granularity: bool = False,
    ) -> None:
        wanted = options(memory, size, placement, address, alignment, extend_by, guard, portable, recommended_granularity)
        self._own(RegionHandle.made(library().gpu_vmm_region_reserve, checked(backend)._handle, ctypes.byref(wanted)))
        self._backend = backend

    @classmethod
    def _from(cls, backend: Backend, handle: RegionHandle) -> Region:
        made = cls._of(handle)
        made._backend = backend
        return made

    def __repr__(self) -> str:
        where = "closed" if self.closed else f"on {self._backend.name} at {self.address:#x}"
        return f"<gpu_vmm.vmm.Region {where}>"

    @property
    def backend(self) -> Backend:
        """The backend that owns the addresses."""
        return self._backend

    @property
    def address(self) -> int:
        """The first address. Only :meth:`grow_or_move` changes it."""
        address = ctypes.c_uint64()
        check(library().gpu_vmm_region_address(self._handle, ctypes.byref(address)))
        return address.value

    @property
    def size(self) -> int:
        """The end of the mapped memory; 0 while the region is suspended."""
        size = ctypes.c_uint64()
        check(library().gpu_vmm_region_size(self._handle, ctypes.byref(size)))
        return size.value

    @property
    def tag(self) -> str:
        """A name for the program's own use, at first empty. Files of regions have it: it can say what the contents are."""
        return text_of(library().gpu_vmm_region_tag, self._handle)

    @tag.setter
    def tag(self, tag: str) -> None:
        check(library().gpu_vmm_region_set_tag(self._handle, text("tag", tag)))

    def grow(self, size: SupportsIndex, pages: Optional[PageList] = None) -> None:
        """Grows in place to at least ``size`` bytes. No byte is copied. Raises OutOfMemory, OutOfAddressSpace, Suspended.

        With ``pages``, the new memory is pages of that list, with the bytes of their last owners. It raises OutOfMemory if the budget of
        the list is exhausted, and Unaligned for a page that is no multiple of :attr:`granularity`.

        On a device without virtual memory management the region is copied to another address: read :attr:`address` again. It raises
        Busy there while a tensor of the region exists, and if an observer refuses.
        """
        end, list_ = unsigned("size", size), list_of(pages)
        if list_ is None:
            changing(library().gpu_vmm_region_grow, self._handle, end)
        else:
            changing(library().gpu_vmm_region_grow_with, self._handle, end, list_)

    def grow_or_move(self, size: SupportsIndex) -> int:
        """Grows to at least ``size`` bytes, at another address if the addresses behind the region are taken, and returns the address.

        The same memory is mapped at the new address. Raises OutOfMemory, OutOfAddressSpace, Suspended, and Busy for a tensor or a buffer of
        the region or if an observer refuses.
        """
        address = ctypes.c_uint64()
        changing(library().gpu_vmm_region_grow_or_move, self._handle, unsigned("size", size), ctypes.byref(address))
        return address.value

    def shrink(self, size: SupportsIndex = 0, *, force: bool = False) -> int:
        """Shrinks from the end to ``size`` bytes, in whole mappings, after waiting for the devices. Returns the number of bytes removed.

        A mapping that contains ``size`` stays, so :attr:`size` may be larger then.

        Raises Busy for a tensor or a buffer of the region, unless ``force`` is true, and if an observer refuses.
        """
        went, end = ctypes.c_uint64(), unsigned("size", size)
        changing(library().gpu_vmm_region_shrink, self._handle, end, bool(force), ctypes.byref(went))
        return went.value

    def suspend(
        self,
        keep: Optional[str] = "host",
        directory: Optional[Path] = None,
        *,
        force: bool = False,
        shared: bool = False,
    ) -> int:
        """Returns the memory to the driver and keeps the addresses. Returns the number of bytes that went back.

        A region that is suspended already stays as it is, and the result is 0. ``keep`` and ``directory`` are as for ``Pool.suspend``.
        Pages of a :class:`PageList` return to their list. Raises Busy as :meth:`shrink` does, and for memory that another region, an object
        or another process holds, unless ``shared`` is true.

        With ``shared``, such memory stays, and the resume maps it again. It is saved once for all, and goes, when suspended regions alone
        hold it: when the last of them is suspended with ``shared``, or with another call for a suspended region after the others have let
        go of it. ``keep=None`` saves no shared memory. If shared memory alone cannot be saved, for instance because there is too little
        memory for it, that error is raised with the region suspended and its own memory gone: another call, with another ``keep``, saves
        the rest.
        """
        went, where = ctypes.c_uint64(), kept_in(keep, directory)
        if shared:
            changing(library().gpu_vmm_region_suspend_shared, self._handle, where, bool(force), ctypes.byref(went), None)
        else:
            changing(library().gpu_vmm_region_suspend, self._handle, where, bool(force), ctypes.byref(went))
        return went.value

    def resume(self, pages: Optional[PageList] = None) -> int:
        """Maps memory at the same addresses and restores the contents. Returns the number of bytes mapped; 0 if it is not suspended.

        With ``pages``, the memory is pages of that list; without, and for memory of another size, it is created anew, outside of every
        list's budget. Raises OutOfMemory.
        """
        came, list_ = ctypes.c_uint64(), list_of(pages)
        if list_ is None:
            changing(library().gpu_vmm_region_resume, self._handle, ctypes.byref(came))
        else:
            changing(library().gpu_vmm_region_resume_with, self._handle, list_, ctypes.byref(came))
        return came.value

    @property
    def is_suspended(self) -> bool:
        """Whether the region is suspended."""
        asleep = ctypes.c_bool()
        check(library().gpu_vmm_region_is_suspended(self._handle, ctypes.byref(asleep)))
        return asleep.value

    def swap(
        self,
        offset: SupportsIndex,
        other: Region,
        other_offset: SupportsIndex,
        length: SupportsIndex,
        *,
        force: bool = False,
    ) -> None:
        """Exchanges the memory of a range with that of a range of another region, after waiting for the devices.

        The addresses stay the same, and no byte is copied. Both ranges must consist of whole mappings. With ``force``, tensors may
        exist; they then have the other contents.

        Raises Unaligned, OutOfRange, NotMapped, PeerUnreachable, Suspended, InvalidArgument for the same region twice or for a part of a
        mapping, and Busy for a tensor, a buffer, a capture, or if an observer refuses.
        """
        first, second, bytes_ = unsigned("offset", offset), unsigned("other_offset", other_offset), unsigned("length", length)
        changing(library().gpu_vmm_region_swap, self._handle, first, handle_of("other", other, Region), second, bytes_, bool(force))

    def swap_all(self, other: Region, *, force: bool = False) -> None:
        """Exchanges all memory of two regions, which must be mapped at the same offsets. Raises what :meth:`swap` raises."""
        changing(library().gpu_vmm_region_swap_all, self._handle, handle_of("other", other, Region), bool(force))

    def move_to_device(self, device: SupportsIndex) -> None:
        """Moves the contents to memory of another device, at the same addresses. The region then grows with memory of that device.

        Raises NoSuchDevice, PeerUnreachable, OutOfMemory, Suspended, and Busy for a tensor or a buffer, for memory that is exported,
        imported or held elsewhere, for a capture, or if an observer refuses.
        """
        changing(library().gpu_vmm_region_move_to_device, self._handle, unsigned("device", device, 32))

    def snapshot(self, path: Path, *, compress: bool = False) -> None:
        """Writes the address, the mappings, the access and the contents to a file, after waiting for the devices.

        A file of that name is replaced when the new one is complete. Raises FileError, Suspended, and Busy for a capture.
        """
        check(library().gpu_vmm_region_snapshot(self._handle, path_of("path", path), bool(compress)))

    @classmethod
    def restore(
        cls, backend: Backend, path: Path, *, relocate: bool = False, devices: Devices = None, by_uuid: bool = False
    ) -> Region:
        """Recreates a region from a file with exactly one, at its address, or elsewhere if that is taken and ``relocate`` is true.

        Its memory is on the devices with the numbers that they have in the file. ``devices``: the number of the device for all memory, or a
        dict from the file's numbers to others. ``by_uuid``: each device that is not in ``devices`` is the one with its UUID, whatever the
        number; one that has no UUID in the file is taken by its number. ``Backend.info()`` has the UUIDs of the devices here.

        The file may come from another process, device or vendor. Raises AddressTaken, FileError, OutOfMemory, NoSuchDevice,
        PeerUnreachable, Unsupported, and InvalidArgument for a file with several regions or none.
        """
        file, wanted = path_of("path", path), restore_options(relocate, devices, by_uuid)
        opened, call = checked(backend)._handle, library().gpu_vmm_region_restore
        return cls._from(backend, RegionHandle.made(call, opened, file, ctypes.byref(wanted)))

    def offer(self, by: OfferBy = OfferBy.PROCESS) -> Offer:
        """Offers the region as it is now to other processes. From then on its memory cannot be suspended or moved.

        Raises Unsupported for memory that was not created for it, Suspended.
        """
        return offer_by("gpu_vmm_region_offer", by, self._handle)

    @classmethod
    def import_offer(cls, backend: Backend, offer: bytes) -> Region:
        """Imports a region that another process offers: the devices that own its memory read and write it.

        Import offers only from senders that you trust. Raises what :meth:`PhysicalMemory.import_offer` raises.
        """
        given, size = source(offer)
        return cls._from(backend, RegionHandle.made(library().gpu_vmm_region_import, checked(backend)._handle, given, size))

    def on_backing_change(self, before: Optional[Before] = None, after: Optional[After] = None) -> int:
        """Adds callbacks before and after each change of the memory behind the addresses. Returns a number for :meth:`remove_observer`.

        ``before(change)`` is called before anything changes and before the operation waits for the devices. An exception refuses the
        change: the operation raises Busy, whose cause is that exception, and nothing has changed. The end of a region cannot be
        refused. ``after(change, outcome)`` is called once for each ``before`` that did not refuse, on every path. Its exceptions, and
        those at the end of a region, are reported to ``sys.unraisablehook``; KeyboardInterrupt and SystemExit leave the operation. Growing
        and mapping call no callback, except growth that copies the region to another address.

        Callbacks run on the thread of the operation; calls of the region in them raise Busy and do not wait. Handlers of signals that
        come while the library works run when ``before`` begins, where their exceptions refuse, or behind the operation: while there are
        observers, each operation of the main thread sets Python's handlers by ``signal.signal`` and sets them back, which undoes
        ``signal.siginterrupt``, and a native handler that was installed behind Python's. A thread other than the main one that begins an operation while the interpreter ends, ends there.

        The region has the callbacks: an object that observes its own region can be garbage-collected, unless a tensor that it has keeps the
        region's memory.

        Raises Busy in a callback of the same region.
        """
        return observe(self._handle, before, after)

    def remove_observer(self, number: SupportsIndex) -> None:
        """Removes an observer. Raises NotFound if the region has no such observer, and Busy in a callback of the same region."""
        changing(library().gpu_vmm_region_remove_observer, self._handle, unsigned("number", number))
