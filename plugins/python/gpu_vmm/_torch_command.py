"""``python -m gpu_vmm.torch``: compiles the allocator class ahead, or runs an unchanged script with it."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from typing import List

_USAGE = """usage: python -m gpu_vmm.torch build
       python -m gpu_vmm.torch run SCRIPT.py [ARGUMENT...]
       python -m gpu_vmm.torch run -m MODULE [ARGUMENT...]

build  compiles the allocator class for the installed PyTorch into the user's cache, and prints its file
run    runs a script or module, such as torch.distributed.run, in which PyTorch allocates from gpu-vmm; so do all Python processes that
       it starts"""


def main(arguments: List[str]) -> int:
    if arguments == ["build"]:
        from . import _torch_build, torch

        print(_torch_build.build(torch._torch()))
        return 0
    if len(arguments) >= 2 and arguments[0] == "run" and (arguments[1] != "-m" or len(arguments) >= 3):
        _run(arguments[1:])
        return 0
    print(_USAGE, file=sys.stderr)
    return 2


def _run(arguments: List[str]) -> None:
    package = os.path.dirname(os.path.abspath(__file__))
    hook = os.path.join(package, "_torch_run")
    # Python imports `sitecustomize` from there in every process that inherits the variable.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([hook, os.path.dirname(package), *([before] if before else [])])
    sys.path.insert(0, hook)
    added = importlib.import_module("_gpu_vmm_torch_hook")
    sys.path.remove(hook)
    added.install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
