"""PyTorch's GPU memory from pools of gpu-vmm: for the whole process, or for tensors that are created inside ``with pool(tag):``.

Supports PyTorch's builds for CUDA and for ROCm, on Linux. The first call that needs PyTorch imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import threading
import warnings
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, SupportsIndex, Tuple

from .. import _saved_pool, _torch_build
from .._arguments import KEEP_NOTHING, Path, path_of, text
from .._handles import PoolHandle
from .._library import MempoolId, address_of, check, find, library, version
from .._lock import new_lock
from .._pool_options import options
from ..errors import Busy, Error, NotFound, NotInstalled, Suspended, Unsupported
from ..pool import Blocks, Pool
from ..results import PoolStats
from ..serve._pools import WAIT, set_pool_server
from . import _table
from ._served import attach as attach
from ._served import publish as publish

# The hooks of PyTorch's allocator: each setter, and the library's function for it.
_HOOKS = (
    ("set_record_stream_fn", "gpu_vmm_torch_record_stream"),
    ("set_reset_fn", "gpu_vmm_torch_empty_cache"),
    ("set_begin_allocate_to_pool", "gpu_vmm_torch_begin_allocate_to_pool"),
    ("set_end_allocate_to_pool_fn", "gpu_vmm_torch_end_allocate_to_pool"),
    ("set_release_pool", "gpu_vmm_torch_release_pool"),
)

CLASS = "GPU_VMM_TORCH_CLASS"
"""The environment variable that, set to "off", makes :func:`enable` use PyTorch's hook for foreign allocators."""

_WITHOUT_CLASS = (
    "gpu_vmm.torch.enable: PyTorch is served through its hook for foreign allocators, because the allocator class cannot be compiled. "
    "These do not work: torch.cuda.memory_* and snapshots, `except torch.OutOfMemoryError`, torch.compile(mode=\"reduce-overhead\"), "
    "memory in the profiler, set_per_process_memory_fraction, torch.cuda.MemPool() without an allocator."
)



class _Settings(NamedTuple):
    """The settings of :func:`enable`, for C."""

    budget: int
    keep: int
    page: int
    slack: int
    restorable: bool


_lock = new_lock()
# Held by a save: a file has the tables of all saves that run at the same time.
_saving = new_lock()
_settings: Optional[_Settings] = None
# The devices whose pools are restored ones.
_restored: Set[int] = set()
_allocator: Any = None
_configured = False
_mem_pools: Dict[Tuple[str, int], Any] = {}
# The blocks of each device's pool, shared by all Pool objects for it: a block that one of them frees is freed for the others.
_blocks: Dict[int, Blocks] = {}


class _Own(threading.local):
    """A thread's state: its tag after :func:`enable`, and the memory pools that it uses without."""

    def __init__(self) -> None:
        self.tag: Optional[str] = None
        self.inside: List[_Use] = []


_own = _Own()


def _torch() -> Any:
    try:
        # By name: a type checker could resolve `import torch` to this module.
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise NotInstalled(f"gpu_vmm.torch: PyTorch cannot be imported: {error}") from error
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        raise Unsupported(f"gpu_vmm.torch: this PyTorch ({torch.__version__}) is built for neither CUDA nor ROCm")
    return torch


def _backend(torch: Any) -> bytes:
    return b"hip" if getattr(torch.version, "hip", None) else b"cuda"


def _configure(torch: Any) -> None:
    """Selects PyTorch's vendor as the backend, unless :func:`enable` has done so."""
    global _configured
    with _lock:
        if not _configured:
            with contextlib.suppress(Busy):  # native code of this process has configured the library already
                check(library().gpu_vmm_torch_configure(_backend(torch), None))
            _configured = True


def _has(torch: Any, owner: Any, name: str, needed: str) -> Any:
    found = getattr(owner, name, None)
    if found is None:
        raise Unsupported(f"gpu_vmm.torch: PyTorch {torch.__version__} has no {name}; use PyTorch {needed} or later")
    return found


def enable(
    *,
    budget: Optional[SupportsIndex] = None,
    keep: Optional[SupportsIndex] = None,
    page: Optional[SupportsIndex] = None,
    slack: Optional[SupportsIndex] = None,
    restorable: bool = False,
    server: Optional[Path] = None,
    priority: SupportsIndex = 0,
    wait: float = WAIT,
) -> None:
    """Serves all GPU memory of PyTorch from pools of gpu-vmm, one for each device. Call it before PyTorch's first use of a GPU.

    ``budget``: the largest number of bytes that a device's pool may hold, None for no limit. ``keep``: the largest number of free bytes
    that it keeps, None for all. ``page`` and ``slack`` are as for ``Backend.pool``, but None means pages of 16 MiB: a first
    step then waits less for the driver than with smaller ones. ``restorable``: whether the pools reserve addresses that other processes can
    reserve as well, for :func:`save`. ``server``: the path of the socket of a ``gpu-vmm serve`` that divides the memory between programs, with
    ``priority`` and ``wait`` as for :func:`gpu_vmm.set_pool_server`; None for what that function or the environment has chosen. A second call with the same settings does nothing.

    The first call on a machine compiles an allocator class against the installed PyTorch and keeps it in ``~/.cache/gpu-vmm``; it takes
    a C++ compiler and about a minute. ``python -m gpu_vmm.torch build`` does so ahead. Without a compiler, PyTorch's hook for foreign
    allocators serves the memory, and a warning lists what does not work then and how to get the class. If PyTorch's allocator has functions
    that the class does not know, a warning names them, and PyTorch's own allocator answers them.

    Raises NotInstalled without PyTorch; Unsupported without a driver or if PyTorch is too old; Error if PyTorch has used a GPU
    already, or if it is already served with other settings.
    """
    global _allocator, _configured, _settings
    torch = _torch()
    if server is not None:
        set_pool_server(server, priority=priority, wait=wait)
    wanted = options(0, budget, keep, page, slack, restorable=restorable)
    # NVIDIA's driver takes no longer for memory that torch.multiprocessing can send to other processes.
    wanted.shareable = _backend(torch) != b"hip"
    settings = _Settings(wanted.budget, wanted.keep, wanted.page, wanted.slack, wanted.restorable)
    with _lock:
        if _settings is not None:
            if _settings != settings:
                raise Error(f"enable: PyTorch is already served, with {_said(_settings)}, which cannot be changed to {_said(settings)}")
            return
        try:
            check(library().gpu_vmm_torch_configure(_backend(torch), ctypes.byref(wanted)))
        except Busy as error:
            raise Error(f"enable: call it before the first use of the GPU, and before gpu_vmm.torch.pool(): {error}", Busy.status) from error
        try:
            made = _install(torch)
        except BaseException:
            library().gpu_vmm_torch_configure(_backend(torch), None)  # restores the defaults
            raise
        _allocator, _settings, _configured = made, settings, True


def _install(torch: Any) -> Any:
    """Makes PyTorch allocate from gpu-vmm: by the allocator class, or without it by PyTorch's hook for foreign allocators."""
    if os.environ.get(CLASS, "on") != "off":
        try:
            return _install_class(_torch_build.build(torch))
        except (Unsupported, OSError) as error:
            warnings.warn(f"{_WITHOUT_CLASS} {_elsewhere(torch)} The reason: {error}", RuntimeWarning, stacklevel=4)
    return _install_hook(torch)


def _elsewhere(torch: Any) -> str:
    """Says how to get the allocator class on a machine without a compiler."""
    return (
        f"A machine with a C++ compiler, PyTorch {torch.__version__} and gpu-vmm {version()} compiles it by `python -m gpu_vmm.torch build`; "
        f"copy the folder of the file that this prints to {_torch_build.cache()} here."
    )


def _install_class(file: str) -> Any:
    try:
        built = ctypes.CDLL(file)
    except OSError as error:
        raise Unsupported(f"gpu_vmm.torch: {file} cannot be loaded; remove it to have it compiled again: {error}") from error
    reason = ctypes.create_string_buffer(512)
    install = built.gpu_vmm_torch_install
    install.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    if install(os.fsencode(find()), reason, len(reason)):
        said = reason.value.decode("utf-8", "replace")
        raise Error(f"enable: call it before the first use of the GPU; {said}", Busy.status)
    return built


def _install_hook(torch: Any) -> Any:
    memory = torch.cuda.memory
    make = _has(torch, memory, "CUDAPluggableAllocator", "2.3")
    change = _has(torch, memory, "change_current_allocator", "2.3")
    try:
        made = make(find(), "gpu_vmm_torch_alloc", "gpu_vmm_torch_free")
        setters = [_has(torch, made.allocator(), setter, "2.3") for setter, _ in _HOOKS]
        for setter, (_, function) in zip(setters, _HOOKS):
            setter(address_of(function))
        change(made)
    except RuntimeError as error:
        if isinstance(error, Error):
            raise
        raise Error(f"enable: call it before the first use of the GPU; PyTorch's error: {error}", Busy.status) from error
    return made


def _said(settings: _Settings) -> str:
    budget, keep, page, slack, restorable = settings
    kept = 0 if keep == KEEP_NOTHING else keep or None
    return f"budget={budget or None}, keep={kept}, page={page or None}, slack={slack or None}, restorable={restorable}"


def enabled() -> bool:
    """Returns whether :func:`enable` has been called."""
    return _settings is not None


@contextlib.contextmanager
def pool(tag: str) -> Iterator[None]:
    """``with pool("weights"):`` gives this tag to the GPU memory that this thread allocates inside. Tags sleep and wake separately.

    Without :func:`enable`, PyTorch's own allocator serves these allocations from a ``torch.cuda.MemPool`` with memory of gpu-vmm, one for
    each tag on the current device; at most 64 tags. If pools are nested, the innermost one applies. Other threads, such as
    autograd's in ``backward()``, have tags of their own.

    Raises NotInstalled; Unsupported if PyTorch has no MemPool (before 2.5); without :func:`enable`, Suspended if the tag sleeps.
    """
    name = text("tag", tag)
    if enabled():
        before = _own.tag
        check(library().gpu_vmm_torch_set_tag(name))
        _own.tag = tag
        try:
            yield
        finally:
            _own.tag = before
            check(library().gpu_vmm_torch_set_tag(None if before is None else text("tag", before)))
        return
    torch = _torch()
    device = int(torch.cuda.current_device())
    use = _Use(torch, _mem_pool(torch, tag, device), device)
    if _pool_of(device).is_suspended(tag):
        # PyTorch would hand out free parts of memory that is not mapped.
        raise Suspended(f"pool: the memory tagged \"{tag}\" is suspended; wake it first")
    # PyTorch would use the outermost pool of the device, so an outer one is left while this one is in use.
    outer = next((one for one in reversed(_own.inside) if one.device == use.device), None)
    if outer is not None:
        outer.leave()
    try:
        use.enter()
        _own.inside.append(use)
        try:
            yield
        finally:
            _own.inside.remove(use)
            use.leave()
    finally:
        if outer is not None:
            outer.enter()


def mem_pool(tag: str, **options_: Any) -> Any:
    """Returns a ``torch.cuda.MemPool`` of the current device whose memory gets this tag, for ``torch.cuda.use_mem_pool``.

    Further arguments go to ``torch.cuda.MemPool``. Raises NotInstalled; Unsupported without :func:`enable` or without the allocator class.
    """
    torch = _torch()
    name = text("tag", tag)
    if not isinstance(_allocator, ctypes.CDLL):
        raise Unsupported("mem_pool: needs enable() with the allocator class; use `with pool(tag):` without it")
    made = _has(torch, torch.cuda, "MemPool", "2.6")(**options_)
    check(library().gpu_vmm_torch_pool_tag(int(torch.cuda.current_device()), MempoolId(*made.id), name))
    return made


class _Use:
    """A memory pool that a thread uses on a device."""

    def __init__(self, torch: Any, mem_pool: Any, device: int) -> None:
        self.torch, self.mem_pool, self.device = torch, mem_pool, device
        self.within: Any = None

    def enter(self) -> None:
        within = self.torch.cuda.use_mem_pool(self.mem_pool, device=self.device)
        within.__enter__()
        self.within = within

    def leave(self) -> None:
        self.within.__exit__(None, None, None)


def _mem_pool(torch: Any, tag: str, device: int) -> Any:
    """Returns PyTorch's memory pool for a tag on the current device. It stays until the process ends; its destructor never runs."""
    with _lock:
        found = _mem_pools.get((tag, device))
        if found is None:
            make = _has(torch, torch.cuda, "MemPool", "2.5")
            _has(torch, torch.cuda, "use_mem_pool", "2.5")
            custom = _has(torch, torch._C, "_cuda_customAllocator", "2.5")
            _configure(torch)
            alloc, free = ctypes.c_void_p(), ctypes.c_void_p()
            check(library().gpu_vmm_torch_functions(text("tag", tag), ctypes.byref(alloc), ctypes.byref(free)))
            allocator = custom(alloc.value, free.value)
            found = make(allocator)
            for stays in (allocator, found):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(stays))
            _mem_pools[tag, device] = found
        return found


def _number(torch: Any, device: Any) -> int:
    if device is None:
        return int(torch.cuda.current_device())
    try:
        return int(device.__index__())
    except AttributeError:
        index = torch.device(device).index
        return int(torch.cuda.current_device() if index is None else index)


def device_pool(device: Any = None) -> Pool:
    """Returns PyTorch's pool of a device: a number, a ``torch.device`` or its name; None is the current one."""
    torch = _torch()
    _configure(torch)
    return _pool_of(_number(torch, device))


def _pool_of(number: int) -> Pool:
    handle = PoolHandle.made(library().gpu_vmm_torch_pool, number)
    blocks = _blocks.setdefault(number, Blocks(f"PyTorch's device {number}", movable=False))
    return Pool(handle, blocks=blocks, tag="torch")


def sleep(
    tag: Optional[str] = None, keep: Optional[str] = "host", device: Any = None, *, directory: Optional[Path] = None
) -> int:
    """Returns the memory of a tag to the driver. Its tensors keep their addresses and must not be used before :func:`wake`.

    Returns the number of bytes that went back; 0 if the tag sleeps already. Waits for the device and empties PyTorch's cache first.

    ``tag``: None for all tags. ``keep``: where contents go, as for ``Pool.suspend``: ``"host"``, ``"host-kept"``, ``"pinned"``,
    ``"file"`` (in ``directory``) or None, which discards them. ``device``: None for the current one. Unlike ``DeviceVec.suspend``, this
    needs no ``force``: live tensors of the tag are expected.

    Raises NotFound; OutOfMemory if the host has too little memory for a tag, which then does not sleep; Error inside ``with pool(tag)`` without :func:`enable`. If one of all tags fails, the tags before it sleep with their
    contents, and :func:`wake` restores them.
    """
    torch = _torch()
    if _own.inside:
        raise Error("sleep: cannot run inside `with gpu_vmm.torch.pool(tag):`; PyTorch cannot empty its cache there")
    pool_ = device_pool(device)
    torch.cuda.synchronize(_number(torch, device))
    gc.collect()
    torch.cuda.empty_cache()
    return sum(pool_.suspend(one, keep, directory) for one in (pool_.tags() if tag is None else [tag]))


def wake(tag: Optional[str] = None, device: Any = None) -> int:
    """Restores the memory of a tag at the same addresses. Returns the number of bytes mapped; 0 if the tag does not sleep.

    ``tag``: None for all tags. With a server, the tag no longer :func:`sleeps for others <let_sleep>`, and the call waits for memory that other
    programs have. Raises NotFound; OutOfMemory, after which memory that is not back yet still sleeps with its contents.
    """
    pool_ = device_pool(device)
    wake_one = pool_.resume if pool_.granted() is None else pool_.wake
    return sum(wake_one(one) for one in (pool_.tags() if tag is None else [tag]))


def let_sleep(tag: Optional[str] = None, device: Any = None) -> None:
    """Lets the server of :func:`enable` suspend a tag when other programs need its memory, as a program does while it rests. Until
    :func:`wake`, its tensors must not be used. ``tag``: None for all tags. ``device``: None for the current one.

    Raises NotFound; Unsupported without a server.
    """
    pool_ = device_pool(device)
    for one in pool_.tags() if tag is None else [tag]:
        pool_.let_sleep(one)


def save(path: Path, tensors: Mapping[str, Any], device: Any = None, *, compress: bool = False) -> None:
    """Writes tensors to a file from which :func:`restore` returns them in another process, at the same addresses.

    ``tensors``: a dict of tensors, or of dicts, lists and tuples of them, with str, numbers and None beside them: such as
    ``{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 50}``. The tensors lie in GPU memory of ``device``, None
    for the current one, or in host memory. Views and tensors that share memory do so after the restore, those of the host excepted.
    Gradients, graphs and random states are saved only if their tensors are named.

    The file has all blocks with the tags of the tensors: to leave others out, allocate what is saved inside ``with pool(tag)``. The call
    waits for the device. Nothing may write to the tensors meanwhile. An existing file is replaced when the new one is complete. Saves of
    several threads take turns.

    Raises Unsupported without ``enable(restorable=True)``, and for tensors that are not plain, or not in memory of gpu-vmm; TypeError for
    other values; Suspended; FileError; OutOfMemory if the device has no memory for the table of the tensors; Busy during a capture.
    """
    torch = _torch()
    number = _number(torch, device)
    if _settings is None or not (_settings.restorable or number in _restored):
        raise Unsupported("save: needs enable(restorable=True), which chooses addresses that another process can have")
    pool_ = device_pool(number)

    def find(address: int) -> Optional[_table.Place]:
        try:
            block = pool_.find(address)
        except NotFound:
            return None
        return block.base, block.offset, block.tag

    torch.cuda.synchronize(number)
    table = _table.encode(torch, tensors, find, number)
    with _saving:
        of_tables = pool_.tagged(_table.TAG)
        # A sleep of all tags has suspended that of the table too, although the tensors may be awake.
        of_tables.resume(_table.TAG)
        with of_tables.alloc(len(table.contents)) as block:
            block.write(table.contents)
            pool_.save(path, [*table.tags, _table.TAG], compress=compress)


def restore(path: Path, device: Any = None) -> Dict[str, Any]:
    """Restores the tensors that :func:`save` has written, at their addresses. Returns the dict that was saved.

    Call it after :func:`enable` and before PyTorch allocates memory of ``device``, None for the current one: the pool that serves the device
    is the restored one from then on. Its page size is that of the file, and it is restorable; all other settings are those of
    :func:`enable`. The tensors own their memory like tensors that PyTorch has allocated on the default stream. To keep the addresses, assign
    them: ``model.load_state_dict(found["model"], assign=True)`` with a model on the ``meta`` device.

    Raises AddressTaken, which names what uses the addresses; FileError for a file that cannot be read, is damaged or has no tensors;
    OutOfMemory for a device or a budget that is too small; Unsupported without :func:`enable`, or for a file of another version;
    Error if PyTorch has memory of the device already, or inside ``torch.cuda.use_mem_pool``.
    """
    torch = _torch()
    if not enabled():
        raise Unsupported("restore: needs enable() first")
    number = _number(torch, device)
    with _lock:
        found = _saved_pool.places(path)
        try:
            check(
                library().gpu_vmm_torch_restore_pool(
                    number, path_of("path", path), text("tag", _table.TAG), found, len(found)
                )
            )
        except Busy as error:
            raise Error(f"restore: call it before PyTorch allocates memory of the device: {error}", Busy.status) from error
        _restored.add(number)

        def claim(address: int, size: int) -> Any:
            check(library().gpu_vmm_torch_claim(number, address))
            storage = torch.UntypedStorage(size, device=torch.device("cuda", number))
            if storage.data_ptr() != address:
                raise Error(f"restore: PyTorch has allocated elsewhere than at {address:#x}; call it outside of torch.cuda.use_mem_pool")
            return storage

        try:
            place = next(block for block in found if block.tag == text("tag", _table.TAG))
            table = (ctypes.c_char * place.size)()
            check(library().gpu_vmm_read(device_pool(number)._handle, place.address, table, place.size))
            with torch.no_grad():
                return _table.decode(torch, table.raw, claim, number)
        finally:
            # Blocks without a tensor are freed.
            check(library().gpu_vmm_torch_end_restore(number))


def stats(device: Any = None) -> PoolStats:
    """Returns the statistics of a device's pool, in bytes: ``Pool.stats``."""
    return device_pool(device).stats()


def report(path: Path, device: Any = None) -> None:
    """Writes a device's snapshot as JSON, which ``gpu-vmm report FILE.json --html OUT`` draws: ``Pool.report``."""
    device_pool(device).report(path)


def trim(keep: SupportsIndex = 0, device: Any = None) -> int:
    """Returns free memory of a device's pool to the driver until it keeps at most ``keep`` bytes. Returns the number of bytes returned."""
    return device_pool(device).trim(keep)


def host_memory(device: Any = None) -> int:
    """Returns the host memory taken for :func:`sleep`, in bytes: contents, what stays for the next sleep, copy buffers."""
    return device_pool(device).host_memory()


def trim_host(device: Any = None) -> int:
    """Frees the host memory that stays for the next sleep (``keep="host-kept"`` or ``"pinned"``). Returns the number of bytes freed."""
    return device_pool(device).trim_host()
