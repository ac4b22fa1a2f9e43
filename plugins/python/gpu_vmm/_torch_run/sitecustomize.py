"""Python imports this in the processes of ``python -m gpu_vmm.torch run``. The environment's own ``sitecustomize`` runs as well."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

importlib.import_module("_gpu_vmm_torch_hook").install()

_here = os.path.dirname(os.path.abspath(__file__))
_others = [place for place in sys.path if os.path.abspath(place) != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
