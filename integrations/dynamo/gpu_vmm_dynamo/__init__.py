"""NVIDIA Dynamo's GPU Memory Service over gpu-vmm: a class with the methods of its ``VMMDevice``, for CUDA, HIP and host memory."""

from .device import GpuVmmDevice
from .plugin import install
from .streams import Stream

__all__ = ["GpuVmmDevice", "Stream", "install"]
