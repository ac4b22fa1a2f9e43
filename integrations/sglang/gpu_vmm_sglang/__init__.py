"""SGLang with weights that outlive the engine: the load format ``gpu_vmm``."""

from .plugin import register

__all__ = ["register"]
