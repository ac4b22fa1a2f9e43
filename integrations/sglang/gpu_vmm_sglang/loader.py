"""The load format ``gpu_vmm``: weights of a server of gpu-vmm, or weights that are loaded as usual and published there."""

from __future__ import annotations

import dataclasses
import importlib
import logging
from typing import Any, Dict, Optional, Tuple

import gpu_vmm
from gpu_vmm.torch import _engine

from .plugin import FORMAT


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"sglang.srt.{module}"), name)


_LOADER = "model_loader.loader"
torch: Any = importlib.import_module("torch")
log = logging.getLogger(__name__)


class GpuVmmModelLoader(_of(_LOADER, "BaseModelLoader")):  # type: ignore[misc]
    """Attaches the weights that an earlier engine of the same configuration has published, or loads and publishes them.

    The keys of ``--model-loader-extra-config`` are those of the loader of ``load_format``, and ``server``, ``load_format``, ``wait`` and
    ``copy``: see the README.
    """

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config or {})
        parallel, features = _of("runtime_context", "get_parallel")(), _of("runtime_context", "get_exec")().features
        ranks = parallel.tp_size * parallel.pp_size * parallel.dp_size
        self._given = _engine.settings(extra, ranks=ranks, sleeps=bool(features.enable_memory_saver))
        if self._given.load_format == FORMAT:
            raise gpu_vmm.InvalidArgument(f"load: load_format is {FORMAT!r} itself; expected the format of the model's files, such as \"auto\"")
        self._other = dataclasses.replace(load_config, load_format=self._given.load_format, model_loader_extra_config=extra)

    def download_model(self, model_config: Any) -> None:
        """Downloads the model as the loader of the other format does."""
        _of(_LOADER, "get_model_loader")(self._other, model_config).download_model(model_config)

    def load_model(self, *, model_config: Any, device_config: Any) -> Any:
        """Returns the model, attached or loaded."""
        device = torch.device(device_config.device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())

        def load() -> Any:
            other = _of(_LOADER, "get_model_loader")(self._other, model_config)
            return other.load_model(model_config=model_config, device_config=device_config)

        def build() -> Any:
            quantization = _of(_LOADER, "_get_quantization_config")(model_config, self._other)
            with _of("model_loader.utils", "set_default_torch_dtype")(model_config.dtype), torch.device("meta"):
                return _of(_LOADER, "_initialize_model")(model_config, self._other, quantization)

        reason = _unsupported(model_config)
        if reason is not None:
            log.warning("gpu-vmm: weights are loaded without the server: %s", reason)
            return load()
        name, facts = _named(model_config, self._other, device)
        ropes = _of("layers.rotary_embedding.factory", "_ROPE_DICT")
        how = _engine.Loading(load, build, lambda model: model.eval(), lambda model: None, registries=(ropes,), complete=True)
        return _engine.serve(torch, self._given, name, facts, device, how, log)


def _quantization(model_config: Any) -> Tuple[str, Any]:
    """Returns the name and the configuration of the method of quantization, as SGLang's own weight cache finds them."""
    name_of = _of("weight_cache.protocol", "get_quant_method_name")
    config = getattr(model_config.hf_config, "quantization_config", None)
    return name_of(model_config.quantization) or name_of(config), config


def _unsupported(model_config: Any) -> Optional[str]:
    """Returns why a model is not published or attached; None if it is."""
    name, config = _quantization(model_config)
    if not _of("weight_cache.protocol", "is_ipc_quant_supported")(name, config):
        return f"SGLang cannot continue from weights that the quantization {name!r} has repacked; its list for its own weight cache lacks that"
    execution = _of("runtime_context", "get_exec")()
    if execution.moe.enable_eplb:
        return "experts move between ranks (EPLB), which writes to weights"
    if execution.offload.cpu_offload_gb > 0 or execution.offload.offload_group_size > 0:
        return "weights are offloaded to host memory"
    return None


_WIDTHS = (
    "tp_size", "tp_rank", "pp_size", "pp_rank", "dp_size", "moe_ep_size", "moe_ep_rank", "moe_dp_size", "moe_dp_rank", "attn_dp_size",
    "attn_cp_size", "enable_dp_lm_head", "moe_dense_tp_size",
)  # fmt: skip
"""What SGLang's own weight cache compares of the place of a process among the ranks."""


def _named(model_config: Any, load_config: Any, device: Any) -> Tuple[str, Dict[str, Any]]:
    """Returns the name of the region and what the weights depend on."""
    parallel, execution, config = _of("runtime_context", "get_parallel")(), _of("runtime_context", "get_exec")(), model_config.hf_config
    name, quantization = _quantization(model_config)
    environment = importlib.import_module("os").environ
    variables = {key: value for key, value in environment.items() if key.startswith(("SGLANG_", "SGL_"))}
    facts: Dict[str, Any] = {
        **{key: getattr(parallel, key) for key in _WIDTHS},
        **_engine.device_facts(torch, device),
        "sglang": importlib.import_module("sglang").__version__,
        "dtype": str(model_config.dtype),
        "quantization": name,
        "quantization_config": _of("weight_cache.protocol", "hash_quant_config")(quantization),
        "files": _engine.checkpoint(model_config.model_path, model_config.revision, getattr(config, "_commit_hash", None)),
        "config": _engine.digest(config.to_dict()),
        "draft": [bool(model_config.is_draft_model), load_config.draft_model_idx],
        "moe": [str(execution.moe.moe_a2a_backend), str(execution.moe.moe_runner_backend), execution.moe.ep_num_redundant_experts],
        "fp32_lm_head": execution.features.enable_fp32_lm_head,
        "variables": _engine.digest(variables),
    }
    return _engine.region_name("sglang", model_config.model_path, facts), facts
