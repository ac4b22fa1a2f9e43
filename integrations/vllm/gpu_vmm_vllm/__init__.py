"""vLLM's sleep mode over gpu-vmm: a replacement for ``CuMemAllocator``, and a backend for ``SleepModeBackendFactory``."""

from .allocator import CuMemAllocator
from .backend import GpuVmmBackend
from .plugin import register

__all__ = ["CuMemAllocator", "GpuVmmBackend", "register"]
