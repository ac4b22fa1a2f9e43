"""Connections to a server that keeps memory when programs end."""

from __future__ import annotations

import ctypes
import json
import math
import os
from typing import Any, List, Literal, Optional, SupportsIndex

from .._arguments import Path, path_of, text, unsigned
from .._handles import ClientHandle, LeaseHandle, text_of
from .._library import check
from .._signatures import CreateOptionsStruct
from ..backend import Backend
from ..backend import open as open_backend
from ..errors import InvalidArgument
from ..results import ClientInfo, RegionInfo, ServerStatus
from ..vmm._closable import Closable
from .._waits import interruptible, linux_function, seconds_of
from ..vmm.device import checked
from ..vmm.properties import DEFAULT, Properties, struct_of
from ._lease import Lease

_MODE = 0o600
_KINDS = {"read": 0, "write": 1}


class Client(Closable):
    """A connection to a server that keeps memory when programs end. :func:`connect` creates it.

    Each lease and each query has a socket of its own. ``close`` leaves the leases alone.

    Any thread may use it, and calls of several threads run at the same time.
    """

    __slots__ = ("_backend", "_path")

    def __init__(self, backend: Backend, path: Path, *, user: Optional[SupportsIndex] = None) -> None:
        opened, name = checked(backend)._handle, path_of("path", path)
        if user is None:
            handle = ClientHandle.made(linux_function("gpu_vmm_connect"), opened, name)
        else:
            handle = ClientHandle.made(linux_function("gpu_vmm_connect_user"), opened, name, unsigned("user", user, 32))
        self._own(handle)
        self._backend, self._path = backend, os.fsdecode(path)

    def __repr__(self) -> str:
        return f"<gpu_vmm.serve.Client of {self._path!r}{', closed' if self.closed else ''}>"

    @property
    def path(self) -> str:
        """The path of the server's socket."""
        return self._path

    @property
    def backend(self) -> Backend:
        """The backend that maps the memory."""
        return self._backend

    def status(self) -> ServerStatus:
        """Returns the server's state, the regions that this user may read, and their clients. Raises what :func:`connect` raises."""
        found: ServerStatus = json.loads(text_of(linux_function("gpu_vmm_client_status"), self._handle))
        return found

    def regions(self) -> List[RegionInfo]:
        """Returns the regions that this user may read, by name."""
        return self.status()["regions"]

    def clients(self) -> List[ClientInfo]:
        """Returns the clients with a lease or that wait for one, and the processes whose connection has ended without notice."""
        return self.status()["clients"]

    def create(
        self,
        name: str,
        size: SupportsIndex,
        memory: Properties = DEFAULT,
        *,
        mode: SupportsIndex = _MODE,
        group: Optional[SupportsIndex] = None,
        address: SupportsIndex = 0,
        handle: SupportsIndex = 0,
    ) -> Lease:
        """Creates a region of at least ``size`` bytes, and returns its write lease, which can write to all of the memory.

        ``memory``: the device and the kind of the memory; its handle types have no effect. ``mode``: the users that may read and replace the
        region, as the permission bits of a file, read 4 and write 2. ``group``: the region's group; None for this process's. ``address``: that
        of the region, which must be free in this process and on the server; 0 for a random one. ``handle``: the size of a memory handle in
        bytes, 0 for at most 256 MiB; :meth:`Lease.renew` replaces whole handles. Other clients see the region after the first
        :meth:`Lease.commit`; a lease that ends before that leaves nothing.

        Raises Busy if the server has a region of the name; OutOfMemory if the server's budget or the device has no room; AddressTaken;
        NoSuchDevice; Unsupported for a device without a UUID; InvalidArgument for a name that is none, and what :func:`connect` raises.
        """
        options = _options(memory, mode, group, address, handle)
        encoded, length = text("name", name), unsigned("size", size)
        return self._leased(name, "gpu_vmm_client_create", encoded, length, ctypes.byref(options))

    def load_safetensors(
        self,
        path: Path,
        name: Optional[str] = None,
        memory: Properties = DEFAULT,
        *,
        mode: SupportsIndex = _MODE,
        group: Optional[SupportsIndex] = None,
        address: SupportsIndex = 0,
        handle: SupportsIndex = 0,
    ) -> Lease:
        """Creates a region with the tensors of a safetensors file, commits it, and returns its write lease.

        Each tensor is a part of its name, aligned to 256 bytes, and the file's metadata are the notes. Several threads read the file and copy
        it to the device. ``name``: None for the name in a file of :meth:`Lease.save_safetensors`, which is loaded at the address that its
        region had, unless ``address`` is another one. The other arguments are those of :meth:`create`. Needs neither PyTorch nor the package
        safetensors.

        Raises FileError for a file that cannot be read, is malformed, has no contents or no name, or has elements of less than 8 bits, and
        what :meth:`create` raises. There is then no region.
        """
        options, file = _options(memory, mode, group, address, handle), path_of("path", path)
        encoded = None if name is None else text("name", name)
        return self._leased(name, "gpu_vmm_client_load", file, encoded, ctypes.byref(options))

    def _leased(self, name: Optional[str], function: str, *arguments: Any) -> Lease:
        """Returns the lease of a call of the library, which may take long."""
        client, call = self._handle, linux_function(function)
        return Lease._leased(self._backend, name, interruptible(lambda: LeaseHandle.made(call, client, *arguments)))

    def open(self, name: str, mode: Literal["read", "write"] = "read", wait: float = 0) -> Lease:
        """Opens a region: maps its last epoch at its address, read-only. Waits up to ``wait`` seconds, a day at most, until the region
        exists and, to write, until no other client has its write lease.

        Raises NotFound, also for a region that this user may not read; AccessDenied for one that this user may not write; TimedOut if
        another client has the write lease; AddressTaken if this process uses the region's addresses, for instance by another lease of it;
        PeerError for a device that this process does not see, and what :func:`connect` raises.
        """
        kind = _KINDS.get(mode)
        if kind is None:
            raise InvalidArgument(f"open: mode is {mode!r}; expected \"read\" or \"write\"")
        milliseconds = math.ceil(1000 * seconds_of(wait, "wait"))
        return self._leased(name, "gpu_vmm_client_open", text("name", name), kind, milliseconds)

    def drop(self, name: str) -> None:
        """Removes a region from the server. Clients keep the memory that they have mapped, and :meth:`Lease.next` reports it to them.

        Raises NotFound, AccessDenied if the region is another user's, and what :func:`connect` raises.
        """
        check(linux_function("gpu_vmm_client_drop")(self._handle, text("name", name)))

def connect(path: Path, backend: Optional[Backend] = None, *, user: Optional[SupportsIndex] = None) -> Client:
    """Connects to the server that listens at ``path``, such as the command ``gpu-vmm serve``.

    ``backend``: None for ``gpu_vmm.open()``; it must be of the vendor of the server's memory. ``user``: the number of the effective user that
    the server must have; None for this process's.

    Raises NoListener if no server listens at the path, or not yet; StaleSocket if the server that listened there is gone; AccessDenied if it
    is of another user; PeerError if its memory is another vendor's or it sends invalid data; Unsupported if no version of the protocol is
    known to both sides, or without Linux; and TimedOut if it does not answer.
    """
    return Client(open_backend() if backend is None else backend, path, user=user)


def _options(
    memory: Properties, mode: SupportsIndex, group: Optional[SupportsIndex], address: SupportsIndex, handle: SupportsIndex
) -> CreateOptionsStruct:
    """Returns ``gpu_vmm_create_options``."""
    bits = unsigned("mode", mode, 32)
    if not bits:
        raise InvalidArgument("mode: 0 permits nothing, also to the owner; pass read and write bits, such as 0o640")
    return CreateOptionsStruct(
        memory=struct_of(memory),
        mode=bits,
        group=0 if group is None else unsigned("group", group, 32),
        has_group=group is not None,
        address=unsigned("address", address),
        handle=unsigned("handle", handle),
    )
