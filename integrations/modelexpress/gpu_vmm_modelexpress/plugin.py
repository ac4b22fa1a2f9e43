"""ModelExpress with a backend of gpu-vmm."""

from __future__ import annotations

import importlib
import os
from typing import Any, Optional

import gpu_vmm

from .backend import GpuVmmBackend

WHOLE = "GPU_VMM_MODELEXPRESS_WHOLE_MIB"
"""The environment variable with the size of ``whole`` in MiB, if ``install`` gets none."""


def register() -> None:
    """Installs the backend if ``MX_VMM_ARENA`` is ``1``: the entry point ``vllm.general_plugins``, which vLLM calls in each of its processes."""
    if os.environ.get("MX_VMM_ARENA") == "1":
        install()


def install(backend: Optional[str] = None, whole: Optional[int] = None) -> None:
    """Makes every arena that ModelExpress creates from now on use :class:`GpuVmmBackend`. ``MX_VMM_ARENA=1`` turns arenas on.

    ``backend`` and ``whole`` are as for :class:`GpuVmmBackend`. A second call replaces the choice of the first.
    """
    size = _whole() if whole is None else whole

    class CudaVmmBackend(GpuVmmBackend):
        """The class that ModelExpress looks up by this name."""

        def __init__(self, device: int = 0) -> None:
            super().__init__(device, backend, size)

    # ModelExpress imports the class by name from this module whenever it creates an arena.
    module: Any = importlib.import_module("modelexpress.vmm.backend")
    package: Any = importlib.import_module("modelexpress.vmm")
    module.CudaVmmBackend = package.CudaVmmBackend = CudaVmmBackend


def _whole() -> int:
    text = os.environ.get(WHOLE, "0")
    if not text.isdecimal():
        raise gpu_vmm.InvalidArgument(f"{WHOLE} is {text!r}; expected a number of MiB")
    return int(text) << 20
