"""The entry point ``vllm.general_plugins``, which vLLM calls in each of its processes."""

from __future__ import annotations

import importlib
import os
from typing import Any

NAME = "gpu_vmm"
"""The backend's name, for ``--sleep-mode-backend``."""

BACKENDS = "vllm.device_allocator.sleep_mode_backend"
"""The module of vLLM's backends, which older versions lack: their workers call the allocator themselves."""

REPLACE = "GPU_VMM_VLLM_REPLACE"
"""The environment variable that, set to ``0``, leaves vLLM's ``CuMemAllocator`` in place."""


def register() -> None:
    """Registers the backend, if vLLM has backends, and makes :class:`~gpu_vmm_vllm.CuMemAllocator` vLLM's allocator.

    A second call does nothing.

    vLLM's workers allocate weights and KV cache through their allocator, so the backend can only suspend what the replacement allocated.
    """
    try:
        factory: Any = importlib.import_module(BACKENDS).SleepModeBackendFactory
    except ModuleNotFoundError as error:
        if error.name != BACKENDS:
            raise
    else:
        if NAME not in factory._registry:
            factory.register_backend(NAME, "gpu_vmm_vllm.backend", "GpuVmmBackend")
    if os.environ.get(REPLACE, "1") != "0":
        from .allocator import CuMemAllocator

        # vLLM imports the class by name from this module whenever it needs the allocator.
        cumem: Any = importlib.import_module("vllm.device_allocator.cumem")
        cumem.CuMemAllocator = CuMemAllocator
