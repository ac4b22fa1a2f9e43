"""Parts of ModelExpress, without its package's ``__init__``, which needs gRPC, and without PyTorch, which they only name."""

import importlib
import os
import sys
import types

PROJECT = os.environ.get("GPU_VMM_TEST_MODELEXPRESS")

if PROJECT and "modelexpress" not in sys.modules:
    package = types.ModuleType("modelexpress")
    package.__path__ = [os.path.join(PROJECT, "modelexpress")]
    sys.modules["modelexpress"] = package


def transfers():
    """Returns the module of NixlTransferManager."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError:
        sys.modules["torch"] = types.ModuleType("torch")
    return importlib.import_module("modelexpress.nixl_transfer")
