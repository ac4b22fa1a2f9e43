"""Makes torch_memory_saver's Python package use gpu-vmm's library, and raise its errors.

    import gpu_vmm_tms
    gpu_vmm_tms.use("/path/to/libtorch_memory_saver.so")   # before the first use of torch_memory_saver
"""

from __future__ import annotations

import ctypes
import importlib
import os
from typing import Any, Union


class Failed(RuntimeError):
    """A pause or a resume failed. Memory that is not back is paused and keeps its contents; standard error has the reason."""


def use(library: Union[str, "os.PathLike[str]"]) -> None:
    """Puts a library in the place of the package's two, and makes its ``pause`` and ``resume`` raise :class:`Failed`.

    The name of the file must contain ``torch_memory_saver``, by which the package finds it in ``LD_PRELOAD``.
    """
    path = os.path.abspath(os.fspath(library))
    if not os.path.isfile(path):
        raise FileNotFoundError(f"gpu_vmm_tms.use: {path} is not a file")
    if "torch_memory_saver" not in os.path.basename(path):
        raise ValueError(f"gpu_vmm_tms.use: the name of {path} must contain torch_memory_saver, by which the package finds it in LD_PRELOAD")
    for name in ("utils", "hooks.mode_preload", "hooks.mode_torch"):
        module: Any = importlib.import_module(f"torch_memory_saver.{name}")
        module.get_binary_path_from_package = lambda stem: path
    wrapper: Any = importlib.import_module("torch_memory_saver.binary_wrapper")
    set_up = wrapper._setup_function_signatures

    def with_errors(library: Any) -> None:
        set_up(library)
        library.gpu_vmm_tms_return_errors.argtypes = [ctypes.c_bool]
        library.gpu_vmm_tms_return_errors(True)
        for function in (library.tms_pause, library.tms_resume):
            function.errcheck = _check

    wrapper._setup_function_signatures = with_errors


def _check(status: int, function: Any, arguments: object) -> int:
    if status:
        raise Failed(f"{function.__name__} failed; standard error has the reason")
    return status
