"""A sleep backend for vLLM's ``SleepModeBackendFactory``."""

from __future__ import annotations

import os
from typing import Any, Iterable, Literal, Mapping, Optional, Tuple, Union

import gpu_vmm

from . import _saved
from .allocator import CuMemAllocator

State = Literal["RUNNING", "SUSPENDED", "RESUMING"]

ALWAYS_KEPT = ("runtime", "cudagraph")
"""The tags whose contents are kept at every level."""


class GpuVmmBackend:
    """A backend that suspends and resumes the tags of :class:`CuMemAllocator`.

    It has the methods of vLLM's ``SleepModeBackend`` and does not derive from it, so that this package imports without vLLM.
    """

    def __init__(self) -> None:
        self._state: State = "RUNNING"

    def suspend(self, level: int = 1) -> None:
        """Frees the memory of all tags. Level 1 keeps the contents of the weights; level 2 discards them.

        If it fails, the state is as before.
        """
        if level not in (1, 2):
            raise gpu_vmm.InvalidArgument(f"suspend: there is no level {level}; use 1 or 2")
        kept = ("weights", *ALWAYS_KEPT) if level == 1 else ALWAYS_KEPT
        CuMemAllocator.get_instance().sleep(offload_tags=kept)
        self._state = "SUSPENDED"

    def resume(self, tags: Optional[Iterable[str]] = None) -> None:
        """Restores the memory of tags; of all for None. The state remains ``SUSPENDED`` while a tag sleeps, also for lack of memory."""
        allocator = CuMemAllocator.get_instance()
        before, self._state = self._state, "RESUMING"
        try:
            allocator.wake_up(tags)
            self._state = "SUSPENDED" if allocator.is_asleep() else "RUNNING"
        except BaseException:
            self._state = before
            raise

    def discard(self, tags: Tuple[str, ...]) -> None:
        """Frees the memory of tags without keeping their contents."""
        CuMemAllocator.get_instance().discard(tags)
        self._state = "SUSPENDED"

    def state(self) -> State:
        """Returns the state."""
        return self._state

    def save(self, path: Union[str, "os.PathLike[str]"], tensors: Mapping[str, Any]) -> int:
        """Writes tensors to a snapshot file with checksums, such as ``dict(model.named_parameters())``. Returns the number of bytes.

        The tensors must be awake, contiguous, and in memory of gpu-vmm.
        """
        return _saved.save(path, tensors)

    def restore(self, path: Union[str, "os.PathLike[str]"], tensors: Mapping[str, Any]) -> int:
        """Reads the contents of tensors from a file of :meth:`save`, also in another process. Returns the number of bytes.

        Names and sizes must be those of the file. They and the checksums are checked before the first tensor is written.
        """
        return _saved.restore(path, tensors)

    @classmethod
    def is_supported(cls) -> bool:
        """Returns whether gpu-vmm's library and a GPU's driver are there."""
        try:
            return gpu_vmm.open().name != "host"
        except gpu_vmm.Error:
            return False

    @classmethod
    def preserves_communicators(cls) -> bool:
        """Returns True: memory of communicators has no tag and does not sleep."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """Returns True: the process and all addresses stay."""
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """Returns True: the communicators and all addresses stay."""
        return True

    @classmethod
    def supports_durable_storage(cls) -> bool:
        """Returns True: :meth:`save` and :meth:`restore`."""
        return True
