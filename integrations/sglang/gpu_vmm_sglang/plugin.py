"""The entry point ``sglang.srt.plugins``, which SGLang calls in each of its processes."""

from __future__ import annotations

import importlib
from typing import Any

FORMAT = "gpu_vmm"
"""The name for ``--load-format``."""


def register() -> None:
    """Registers the load format, by SGLang's choices for plug-ins and by a hook. A second call does nothing."""
    choices: Any = importlib.import_module("sglang.srt.arg_groups.choices")
    if FORMAT in choices.LOAD_FORMAT_CHOICES:
        return
    choices.add_load_format_choices([FORMAT])
    hooks: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    target = "sglang.srt.configs.load_config.LoadConfig._verify_load_format"
    hooks.HookRegistry.register(target, choose, hooks.HookType.BEFORE)


def choose(config: Any) -> None:
    """Replaces the name of the format by the class of the loader, which SGLang takes as a format."""
    if isinstance(config.load_format, str) and config.load_format.lower() == FORMAT:
        from .loader import GpuVmmModelLoader

        config.load_format = GpuVmmModelLoader
