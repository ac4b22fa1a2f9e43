"""Dynamo with a device of gpu-vmm."""

from __future__ import annotations

import importlib
from typing import Any, Optional

import gpu_vmm

from .device import GpuVmmDevice


def install(backend: Optional[str] = None) -> GpuVmmDevice:
    """Makes a device the one that Dynamo's ``get_vmm()`` returns in this process. Call it before the first use of the service.

    Raises Busy if the process has another device already.
    """
    module: Any = importlib.import_module("gpu_memory_service.common.vmm")
    abstract: Any = importlib.import_module("gpu_memory_service.common.vmm.device").VMMDevice
    with module._lock:
        if isinstance(module._vmm_instance, GpuVmmDevice):
            return module._vmm_instance
        if module._vmm_instance is not None:
            raise gpu_vmm.Busy(f"install: the process uses {type(module._vmm_instance).__name__} already; call it before the first use")
        abstract.register(GpuVmmDevice)
        made = GpuVmmDevice(backend)
        # The service knows no third kind; it compares the kind only when it is set again.
        module._vmm_instance, module._vmm_device_type = made, module.VMMDeviceType.CUDA
        return made
