"""The load format ``gpu_vmm``: weights of a server of gpu-vmm, or weights that are loaded as usual and published there."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
from typing import Any, Dict, Iterator, Optional, Tuple

import gpu_vmm
from gpu_vmm.torch import _engine

FORMAT = "gpu_vmm"
"""The name for ``--load-format``."""


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"vllm.{module}"), name)


_LOADER = "model_executor.model_loader"
torch: Any = importlib.import_module("torch")
log: logging.Logger = _of("logger", "init_logger")(f"vllm.{__name__}")


class GpuVmmModelLoader(_of(f"{_LOADER}.base_loader", "BaseModelLoader")):  # type: ignore[misc]
    """Attaches the weights that an earlier engine of the same configuration has published, or loads and publishes them.

    The keys of ``--model-loader-extra-config`` are those of the loader of ``load_format``, and ``server``, ``load_format``, ``wait`` and
    ``copy``: see the README.
    """

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self._extra: Dict[str, Any] = dict(load_config.model_loader_extra_config or {})

    def download_model(self, model_config: Any) -> None:
        """Downloads the model as the loader of the other format does."""
        extra = dict(self._extra)
        self._other(_engine.settings(extra, ranks=1, sleeps=False), extra).download_model(model_config)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Raises Unsupported: the weights may be memory that other engines use."""
        raise gpu_vmm.Unsupported("load_weights: the weights of the load format gpu_vmm are not replaced in a running engine; start another one")

    def get_external_weight_memory(self, vllm_config: Any) -> int:
        """Returns the bytes of the weights that the server has already, so that they do not count against the KV cache twice."""
        device, models = _device(vllm_config, self.load_config), [vllm_config.model_config]
        given = self._settings(vllm_config, dict(self._extra))
        if given.copy or _unsupported(vllm_config) is not None:
            return 0
        draft = getattr(vllm_config.speculative_config, "draft_model_config", None)
        if draft is not None:
            models.append(draft)
        named = (_named(vllm_config, model, device)[0] for model in models)
        return sum(_engine.held(given.server, name, torch, device) for name in named)

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        """Returns the model, attached or loaded."""
        extra = dict(self._extra)
        given, device = self._settings(vllm_config, extra), _device(vllm_config, self.load_config)
        other = self._other(given, extra)

        def load() -> Any:
            return other.load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)

        def build() -> Any:
            with _default_type(model_config), torch.device("meta"):
                initialize = _of(f"{_LOADER}.utils", "initialize_model")
                return initialize(vllm_config=vllm_config, model_config=model_config, prefix=prefix)

        def finish(model: Any) -> None:
            # Methods of quantization set up what is no tensor, and leave the tensors, which are repacked already.
            with _default_type(model_config), device, _of("model_executor.utils", "weights_already_processed")():
                _of(f"{_LOADER}.utils", "process_weights_after_loading")(model, model_config, device)
            model.eval()

        reason = _unsupported(vllm_config)
        if reason is not None:
            log.warning("gpu-vmm: weights are loaded without the server: %s", reason)
            return load()
        name, facts = _named(vllm_config, model_config, device)
        compilation, ropes = vllm_config.compilation_config, _of("model_executor.layers.rotary_embedding", "_ROPE_DICT")
        registries = (compilation.static_forward_context, compilation.static_all_moe_layers, ropes)
        how = _engine.Loading(load=load, build=build, finish=finish, refusal=_refusal, registries=registries, complete=False)
        return _engine.serve(torch, given, name, facts, device, how, log)

    def _settings(self, vllm_config: Any, extra: Dict[str, Any]) -> _engine.Settings:
        parallel = vllm_config.parallel_config
        ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size * parallel.data_parallel_size
        return _engine.settings(extra, ranks=ranks, sleeps=bool(vllm_config.model_config.enable_sleep_mode))

    def _other(self, given: _engine.Settings, extra: Dict[str, Any]) -> Any:
        """Returns the loader of the other format."""
        if given.load_format == FORMAT:
            raise gpu_vmm.InvalidArgument(f"load: load_format is {FORMAT!r} itself; expected the format of the model's files, such as \"auto\"")
        config = dataclasses.replace(self.load_config, load_format=given.load_format, model_loader_extra_config=extra)
        return _of(_LOADER, "get_model_loader")(config)


@contextlib.contextmanager
def _default_type(model_config: Any) -> Iterator[None]:
    with _of("utils.torch_utils", "set_default_torch_dtype")(model_config.dtype):
        yield


def _device(vllm_config: Any, load_config: Any) -> Any:
    """Returns the device of the weights, with its number."""
    device = torch.device(vllm_config.device_config.device if load_config.device is None else load_config.device)
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device


def _unsupported(vllm_config: Any) -> Optional[str]:
    """Returns why no model of a configuration is published or attached; None if models are."""
    offload = vllm_config.offload_config
    if vllm_config.parallel_config.enable_eplb:
        return "experts move between ranks (EPLB), which writes to weights"
    if offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0:
        return "weights are offloaded to host memory"
    return None


def _refusal(model: Any) -> Optional[str]:
    """Returns the first layer whose method of quantization cannot continue from repacked weights, as vLLM says of each method."""
    base = _of("model_executor.layers.quantization.base_config", "QuantizeMethodBase")
    for name, module in model.named_modules():
        method: Any = getattr(module, "quant_method", None)
        if isinstance(method, base) and not method.supports_pre_processed_weights:
            return f"the layer {name!r} has {type(method).__name__}, which vLLM cannot set up from weights that are repacked already"
    return None


def _named(vllm_config: Any, model_config: Any, device: Any) -> Tuple[str, Dict[str, Any]]:
    """Returns the name of the region and what the weights depend on. A later step of the load may change the configuration."""
    distributed: Any = importlib.import_module("vllm.distributed")
    stages, replicas = distributed.get_pp_group(), distributed.get_dp_group()
    parallel, speculative = vllm_config.parallel_config, vllm_config.speculative_config
    key = _of(f"{_LOADER}.weight_cache.protocol", "WeightCacheKey").from_model_config(
        model_config,
        cache_config=vllm_config.cache_config,
        tp_size=distributed.get_tensor_model_parallel_world_size(),
        tp_rank=distributed.get_tensor_model_parallel_rank(),
        pp_size=stages.world_size,
        pp_rank=stages.rank_in_group,
        dp_size=replicas.world_size,
        dp_rank=replicas.rank_in_group,
        is_draft=speculative is not None and model_config is speculative.draft_model_config,
        enable_expert_parallel=parallel.enable_expert_parallel,
        expert_placement_strategy=parallel.expert_placement_strategy,
        kernel_config=vllm_config.kernel_config,
    )
    config = model_config.hf_config
    facts = {
        **dataclasses.asdict(key),
        **_engine.device_facts(torch, device),
        # Headers of files, which vLLM's key has, are the same for other weights of the same shapes.
        "files": _engine.checkpoint(model_config.model, model_config.revision, getattr(config, "_commit_hash", None)),
        "config": _engine.digest(config.to_dict()),
        "variables": _engine.digest(importlib.import_module("vllm.envs").compile_factors()),
        "lora": vllm_config.lora_config is not None,
    }
    return _engine.region_name("vllm", model_config.model, facts), facts
