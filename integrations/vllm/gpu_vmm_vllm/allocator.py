"""A class with the methods of vLLM's ``CuMemAllocator``. Its memory comes from PyTorch's pool of gpu-vmm."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from typing import Any, Iterable, Iterator, List, Optional, Set, Tuple, Union

import gpu_vmm
from gpu_vmm import torch as vmm

KEEP = "GPU_VMM_VLLM_KEEP"
"""The environment variable that selects where offloaded contents go: ``pinned`` (the default, as in vLLM), ``host`` or ``file``."""

DEFERRABLE = ("weights", "kv_cache")
"""The tags that :meth:`CuMemAllocator.wake_up` leaves asleep when it is called with other tags."""

GRAPHS = "torch graphs"
"""The tag of memory that captured graphs use, after ``gpu_vmm.torch.enable()``."""

Tags = Union[Tuple[str, ...], str]


class CuMemAllocator:
    """Memory of PyTorch under tags that sleep. All objects of the class share the tags of the process; use :meth:`get_instance`."""

    instance: Optional[CuMemAllocator] = None
    default_tag: str = "default"
    _making = threading.Lock()

    @staticmethod
    def get_instance() -> CuMemAllocator:
        """Returns the process's allocator, which the first call creates."""
        with CuMemAllocator._making:
            if CuMemAllocator.instance is None:
                CuMemAllocator.instance = CuMemAllocator()
            return CuMemAllocator.instance

    def __init__(self, keep: Optional[str] = None) -> None:
        self.keep = os.environ.get(KEEP, "pinned") if keep is None else keep
        if self.keep not in ("pinned", "host", "host-kept", "file"):
            raise gpu_vmm.InvalidArgument(f"CuMemAllocator: {KEEP} is {self.keep!r}; use pinned, host, host-kept or file")
        self._tags: Set[str] = set()

    @contextlib.contextmanager
    def use_memory_pool(self, tag: Optional[str] = None) -> Iterator[None]:
        """Gives a tag to the GPU memory that this thread allocates inside ``with``. None is :attr:`default_tag`."""
        name = self.default_tag if tag is None else tag
        with vmm.pool(name):
            self._tags.add(name)
            yield

    @contextlib.contextmanager
    def cudagraph_pool(self) -> Iterator[Tuple[int, int]]:
        """Returns the identifier of a memory pool for graphs that are captured inside ``with``. Their memory sleeps as ``cudagraph``.

        Raises Unsupported without ``gpu_vmm.torch.enable()``.
        """
        if not vmm.enabled():
            raise gpu_vmm.Unsupported("cudagraph_pool: memory of graphs sleeps only after gpu_vmm.torch.enable()")
        torch: Any = importlib.import_module("torch")
        pool: Tuple[int, int] = torch.cuda.graph_pool_handle()
        self._tags.add(GRAPHS)
        yield pool

    def sleep(self, offload_tags: Optional[Tags] = None) -> None:
        """Returns the memory of all tags to the driver. Contents are kept for ``offload_tags`` and discarded for the other tags.

        None offloads :attr:`default_tag`. A tag that sleeps already stays as it is. If a tag fails, the tags that this call has put to
        sleep wake again, as far as there is memory, and no contents of ``offload_tags`` are lost.
        """
        kept = _tuple((self.default_tag,) if offload_tags is None else offload_tags)
        present = self._present()
        offloaded = [tag for tag in present if _vllm_name(tag) in kept]
        # The offloaded tags come first: if the host has too little memory for them, nothing has been discarded yet.
        self._suspend([*((tag, True) for tag in offloaded), *((tag, False) for tag in present if tag not in offloaded)])

    def discard(self, tags: Tags) -> None:
        """Returns the memory of tags to the driver without their contents. A tag that sleeps already stays as it is."""
        wanted = _tuple(tags)
        self._suspend([(tag, False) for tag in self._present() if _vllm_name(tag) in wanted])

    def wake_up(self, tags: Optional[Iterable[str]] = None) -> None:
        """Restores the memory of tags at the same addresses: of all tags for None, else of ``tags`` and of all that are not deferrable.

        Raises gpu_vmm.OutOfMemory if the device has too little memory. What is not back then still sleeps with its contents; the same call
        continues when there is memory.
        """
        wanted = None if tags is None else _tuple(tags)
        for tag in self._present():
            name = _vllm_name(tag)
            if wanted is None or name in wanted or name not in DEFERRABLE:
                vmm.wake(tag)

    def is_asleep(self) -> bool:
        """Returns whether a tag sleeps."""
        pool = vmm.device_pool()
        return any(pool.is_suspended(tag) for tag in self._present())

    def get_current_usage(self) -> int:
        """Returns the number of bytes of the allocator's blocks, asleep or awake."""
        spaces = vmm.device_pool().snapshot()["spaces"]
        live = (block for space in spaces if space["tag"] in self._tags for block in space["blocks"])
        return sum(block["size"] for block in live if block["state"] in ("live", "bins"))

    def release_pools(self) -> None:
        """Does nothing: gpu-vmm's pools stay until the process ends, and no destructor of theirs runs at exit."""

    close = release_pools

    def _present(self) -> List[str]:
        """Returns the allocator's tags that have memory."""
        return [tag for tag in vmm.device_pool().tags() if tag in self._tags]

    def _suspend(self, tags: Iterable[Tuple[str, bool]]) -> None:
        pool = vmm.device_pool()
        slept: List[str] = []
        try:
            for tag, kept in tags:
                was_awake = not pool.is_suspended(tag)
                if was_awake:
                    slept.append(tag)  # before the call, since an interrupt is raised at its end
                if vmm.sleep(tag, self.keep if kept else None) and not was_awake:
                    slept.append(tag)
        except BaseException:  # also of an interrupt: the caller goes on with tags that it takes for awake
            for tag in slept:
                with contextlib.suppress(gpu_vmm.Error):  # the tag stays asleep; the sleep's own error is raised
                    vmm.wake(tag)
            raise


def _tuple(tags: Union[Iterable[str], str]) -> Tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)


def _vllm_name(tag: str) -> str:
    """Returns vLLM's name of a tag."""
    return "cudagraph" if tag == GRAPHS else tag
