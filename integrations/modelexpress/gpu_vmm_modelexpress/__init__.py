"""ModelExpress's arena over gpu-vmm: a class with the methods of its ``VmmBackend``, for CUDA, HIP and host memory."""

from .backend import GpuVmmBackend
from .plugin import install, register

__all__ = ["GpuVmmBackend", "install", "register"]
