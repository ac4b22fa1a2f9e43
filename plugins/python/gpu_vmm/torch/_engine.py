"""What the loaders of inference engines share: one engine reads the weights of a model and publishes them, and the next ones attach them.

A region of a server has the weights of one rank. Its name has a digest of everything that they depend on, so that other weights are another
region. While an engine loads weights that it will publish, it has the write lease of a second region, which is never committed: the server
drops that when the engine ends, however it ends, and the next engine that waits takes its turn.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import re
import time
from typing import Any, Callable, Dict, List, Mapping, MutableMapping, NamedTuple, Optional, Sequence, Tuple

from ..errors import Busy, Error, InvalidArgument, NotFound
from ..serve._client import Client, connect
from ..serve._lease import Lease
from ..vmm.properties import Properties
from ._served import _backend_of, _leases
from ._state import STATE_FORMAT, adopt_state, changes, complete_state, publish_state

_SERVER = "GPU_VMM_SERVER"
_LOOK = 1.0
"""The seconds between two looks whether another engine still loads."""

TOGETHER = ("fastsafetensors", "instanttensor", "runai_streamer", "runai_streamer_sharded")
"""The formats whose ranks load together: a rank that attaches would leave the others waiting."""


class Settings(NamedTuple):
    """The settings of a loader."""

    server: str
    load_format: str
    wait: float
    copy: bool


def settings(extra: MutableMapping[str, Any], *, ranks: int, sleeps: bool) -> Settings:
    """Takes the settings of a loader out of its extra configuration.

    ``server``: the path of the socket. ``load_format``: how weights are loaded that the server does not have. ``wait``: the number of seconds
    to wait for another engine that loads the same weights. ``copy``: whether the weights are copied out of the server's memory.
    """
    server = str(extra.pop("server", "") or os.environ.get(_SERVER, "") or _socket())
    load_format, copy = str(extra.pop("load_format", "auto")), extra.pop("copy", sleeps)
    # A rank that waits for another engine's rank could keep its own engine's ranks waiting, which that engine in turn waits for.
    wait = extra.pop("wait", 1800 if ranks == 1 else 0)
    if not isinstance(copy, bool):
        raise InvalidArgument(f"load: copy is {copy!r}; expected true or false")
    if not isinstance(wait, (int, float)) or isinstance(wait, bool) or not 0 <= wait <= 86400:
        raise InvalidArgument(f"load: wait is {wait!r}; expected a number of seconds, a day at most")
    if ranks > 1 and load_format in TOGETHER:
        raise InvalidArgument(f"load: the ranks of an engine load {load_format!r} together; use another load_format, such as \"auto\"")
    return Settings(server, load_format, float(wait), copy)


def _socket() -> str:
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if not folder:
        raise InvalidArgument(f"load: there is no path of a server; set {_SERVER}, or \"server\" in the loader's extra configuration")
    return os.path.join(folder, "gpu-vmm.sock")


def checkpoint(path: str, revision: Optional[str], commit: Optional[str]) -> Dict[str, Any]:
    """Returns what identifies the files of a model: names, sizes and times in a folder, or the name of a model with its revision."""
    if not os.path.isdir(path):
        return {"model": path, "revision": revision, "commit": commit}
    files: List[Any] = []
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if entry.is_file():
            found = entry.stat()
            files.append([entry.name, found.st_size, found.st_mtime_ns])
    return {"folder": os.path.realpath(path), "files": files}


def region_name(engine: str, model: str, facts: Mapping[str, Any]) -> str:
    """Returns the name of the region with the weights that have these facts."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", os.path.basename(os.path.normpath(model)))[-64:].lstrip(".") or "model"
    return f"{engine}/{stem}/{digest({**facts, 'gpu_vmm.state': STATE_FORMAT})}"


def digest(facts: Mapping[str, Any]) -> str:
    """Returns a digest of what weights depend on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def device_facts(torch: Any, device: Any) -> Dict[str, Any]:
    """Returns what weights depend on in a device and in PyTorch. A region lies on one device."""
    facts: Dict[str, Any] = {"torch": str(torch.__version__), "device": device.type}
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        facts.update(name=found.name, uuid=str(getattr(found, "uuid", device.index)), capability=[found.major, found.minor])
    return facts


def held(server: str, name: str, torch: Any, device: Any) -> int:
    """Returns the size of the region of a name; 0 without one, and without a server."""
    try:
        client = connect(server, _backend_of(torch, device))
        return next((one["size"] for one in client.regions() if one["name"] == name), 0)
    except Error:
        return 0


class Loading(NamedTuple):
    """How an engine loads a model."""

    load: Callable[[], Any]
    """Returns the model, loaded without the server."""
    build: Callable[[], Any]
    """Returns the model on the meta device."""
    finish: Callable[[Any], None]
    """Sets up what is no tensor in a model whose tensors are those of a loaded one."""
    refusal: Callable[[Any], Optional[str]]
    """Returns why a model cannot be published or attached; None if it can."""
    registries: Sequence[Any]
    """The dicts and lists that the construction of a model changes."""
    complete: bool
    """Whether ``finish`` sets up nothing that a load has set up."""


def serve(torch: Any, given: Settings, name: str, facts: Mapping[str, Any], device: Any, how: Loading, log: logging.Logger) -> Any:
    """Returns a model with the weights of a server, or loads and publishes it. Without a server it is loaded and not published."""
    try:
        client = connect(given.server, _backend_of(torch, device))
    except Error as error:
        log.warning("gpu-vmm: weights are loaded without a server: %s", error)
        return how.load()
    turn, lease = _turn(client, given, name, device, log)
    if lease is not None:
        model = _attached(torch, given, lease, how, log)
        return how.load() if model is None else model
    if turn is None:
        return how.load()
    try:
        model = how.load()
        _publish(torch, given, client, name, facts, device, model, how, log)
        return model
    finally:
        turn.close()


def _turn(client: Client, given: Settings, name: str, device: Any, log: logging.Logger) -> Tuple[Optional[Lease], Optional[Lease]]:
    """Returns the turn to load and publish and None, or None and a lease of the weights, or None twice."""
    number, deadline = 0 if device.type == "cpu" else int(device.index), time.monotonic() + given.wait
    turn: Optional[Lease] = None
    said = False
    while True:
        left = deadline - time.monotonic()
        try:
            # The other engine may have published between the two looks.
            lease = client.open(name, wait=0 if turn is not None or not said else max(0.0, min(_LOOK, left)))
        except NotFound:
            pass
        except Error as error:
            log.warning("gpu-vmm: %r cannot be opened, and the weights are loaded without the server: %s", name, error)
            _close(turn)
            return None, None
        else:
            _close(turn)
            return None, lease
        if turn is not None:
            return turn, None
        try:
            turn = client.create(f"{name}.loading", 1, Properties(device=number))
        except Busy:
            if left <= 0:
                log.warning("gpu-vmm: another engine loads %r; it is loaded here as well, and not published", name)
                return None, None
            if not said:
                log.info("gpu-vmm: another engine loads %r: waiting up to %.0f s for it", name, left)
            said = True
        except Error as error:
            log.warning("gpu-vmm: %r is loaded and not published: %s", name, error)
            return None, None


def _close(turn: Optional[Lease]) -> None:
    if turn is not None:
        turn.close()


class _Registries:
    """What the registries of an engine contain, so that a model can be constructed once more."""

    def __init__(self, registries: Sequence[Any]) -> None:
        self._before = [(one, one.copy()) for one in registries]

    def clear(self) -> None:
        for now, _ in self._before:
            now.clear()

    def restore(self) -> None:
        for now, before in self._before:
            now.clear()
            (now.update if isinstance(now, dict) else now.extend)(before)


def _attached(torch: Any, given: Settings, lease: Lease, how: Loading, log: logging.Logger) -> Any:
    """Returns a model with the weights of a lease; None if it cannot be made."""
    began, registries = time.perf_counter(), _Registries(how.registries)
    try:
        with torch.no_grad():
            model = how.build()
            reason = how.refusal(model)
            if reason is not None:
                raise InvalidArgument(reason)
            adopt_state(torch, model, lease, copy=given.copy)
            how.finish(model)
            complete_state(torch, model, lease)
    except Exception as error:  # of the engine, too: it can load the weights itself
        log.warning("gpu-vmm: the weights of %r do not fit, and are loaded without the server: %s", lease.name, error, exc_info=True)
        registries.restore()
        lease.close()
        return None
    size, name = lease.size, lease.name
    if given.copy:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        lease.close()
    else:
        _leases[model] = lease
    log.info("gpu-vmm: %s %d bytes of %r in %.3f s", "copied" if given.copy else "attached", size, name, time.perf_counter() - began)
    return model


def _publish(
    torch: Any, given: Settings, client: Client, name: str, facts: Mapping[str, Any], device: Any, model: Any, how: Loading, log: logging.Logger
) -> None:
    """Publishes a loaded model, if that is possible."""
    began, registries = time.perf_counter(), _Registries(how.registries)
    lease: Optional[Lease] = None
    try:
        reason = how.refusal(model)
        if reason is None:
            registries.clear()
            try:
                changed = changes(torch, model, how.build(), complete=how.complete)
            finally:
                registries.restore()
            gc.collect()
            notes = {"gpu_vmm.weights": json.dumps(facts, sort_keys=True, default=str)}
            lease = publish_state(torch, model, name, client, notes, device=device, share=not given.copy, changed=changed)
    except Exception as error:  # of the engine and of PyTorch, too: the model is as before, and the engine goes on with it
        reason = f"{type(error).__name__}: {error}"
    if lease is None:
        log.warning("gpu-vmm: %r is not published, and the next start loads it again: %s", name, reason)
        return
    log.info("gpu-vmm: published %d bytes as %r in %.3f s", lease.size, name, time.perf_counter() - began)
    if given.copy:
        lease.close()
    else:
        _leases[model] = lease
    if device.type == "cuda":
        torch.cuda.empty_cache()
