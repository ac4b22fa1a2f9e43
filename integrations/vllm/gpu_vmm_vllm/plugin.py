"""The entry point ``vllm.general_plugins``, which vLLM calls in each of its processes."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

NAME = "gpu_vmm"
"""The backend's name, for ``--sleep-mode-backend``."""

BACKENDS = "vllm.device_allocator.sleep_mode_backend"
"""The module of vLLM's backends, which older versions lack: their workers call the allocator themselves."""

STATE = "vllm.model_executor.model_loader.weight_cache.protocol"
"""The module by which vLLM continues from weights that are repacked already, which older versions lack."""

REPLACE = "GPU_VMM_VLLM_REPLACE"
"""The environment variable that, set to ``0``, leaves vLLM's ``CuMemAllocator`` in place."""


def register() -> None:
    """Registers the backend and the load format, if vLLM supports them, and makes :class:`~gpu_vmm_vllm.CuMemAllocator` vLLM's allocator.

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
    _register_loader()
    if os.environ.get(REPLACE, "1") != "0":
        from .allocator import CuMemAllocator

        # vLLM imports the class by name from this module whenever it needs the allocator.
        cumem: Any = importlib.import_module("vllm.device_allocator.cumem")
        cumem.CuMemAllocator = CuMemAllocator


def _register_loader() -> None:
    """Registers the load format ``gpu_vmm``. Without it, the rest of the plug-in works."""
    try:
        importlib.import_module(STATE)
        loaders: Any = importlib.import_module("vllm.model_executor.model_loader")
        from .loader import FORMAT, GpuVmmModelLoader

        if loaders._LOAD_FORMAT_TO_MODEL_LOADER.get(FORMAT) is not GpuVmmModelLoader:
            loaders.register_model_loader(FORMAT)(GpuVmmModelLoader)
    except Exception as error:  # of a version that has other interfaces
        logging.getLogger("vllm").info("gpu-vmm: this vLLM cannot have the load format gpu_vmm: %s", error)
