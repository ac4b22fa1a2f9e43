"""Calls ``gpu_vmm.torch.enable()`` as soon as a program has imported PyTorch."""

import importlib.abc
import importlib.machinery
import sys
import warnings
from typing import Any


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        enable()


def enable() -> None:
    """Enables gpu-vmm. A process that cannot goes on with PyTorch's own allocator; with a warning, unless it has no GPU to use."""
    import gpu_vmm.torch

    try:
        gpu_vmm.torch.enable()
    except gpu_vmm.Unsupported:
        pass
    except gpu_vmm.Error as error:
        warnings.warn(f"gpu-vmm: PyTorch keeps its own allocator: {error}", RuntimeWarning, stacklevel=2)


def install() -> None:
    if "torch" in sys.modules:
        enable()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
