"""The load format `gpu_vmm` with vLLM's own classes, on a server with host memory: a small Llama from a file, without a GPU.

It needs PyTorch with the packages that vLLM imports, and the unpacked wheel of vLLM in the folder that GPU_VMM_TEST_VLLM names. Each engine
is a process. vLLM's compiled parts are not needed: nothing is computed.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[2] / "plugins/python"
sys.path[:0] = [str(PYTHON / "tests")]

from served import COMMAND, WHY_NOT, Served  # noqa: E402
from support import NAME  # noqa: E402

VLLM = os.environ.get("GPU_VMM_TEST_VLLM", "")

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "torch_dtype": "float32", "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

ENGINE = r"""
import json, os, sys
import torch
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms._current_platform = CpuPlatform()
import gpu_vmm, gpu_vmm_vllm
from gpu_vmm.torch import _served
from vllm.config import CacheConfig, DeviceConfig, LoadConfig, ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.model_loader import get_model, get_model_loader
from vllm.model_executor.utils import is_weights_pre_processed

given = json.loads(sys.argv[1])
os.environ["GPU_VMM_VLLM_REPLACE"] = "0"
gpu_vmm_vllm.register()

class Repacking(UnquantizedLinearMethod):
    # Weights of eight bits, in another shape, with scales and an attribute that only the load sets.
    supports_pre_processed_weights = given.get("supports", True)

    def process_weights_after_loading(self, layer):
        self.layer_is_ready = True
        if is_weights_pre_processed():
            return
        weight = layer.weight.data
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        packed = (weight / scale).round().to(torch.int8).t().contiguous()
        layer.weight = torch.nn.Parameter(packed, requires_grad=False)
        layer.weight.packing = "transposed"
        layer.register_parameter("weight_scale", torch.nn.Parameter(scale, requires_grad=False))
        layer.register_buffer("zero", torch.zeros(3), persistent=False)
        layer.bits = 8

@register_quantization_config("repacking")
class RepackingConfig(QuantizationConfig):
    get_name = lambda self: "repacking"
    get_supported_act_dtypes = lambda self: [torch.float32]
    get_min_capability = classmethod(lambda cls: 0)
    get_config_filenames = staticmethod(lambda: [])
    from_config = classmethod(lambda cls, config: cls())

    def get_quant_method(self, layer, prefix):
        from vllm.model_executor.layers.linear import LinearBase
        return Repacking() if isinstance(layer, LinearBase) else None

ranks, rank = given.get("ranks", 1), given.get("rank", 0)
model_config = ModelConfig(
    model=given["model"], tokenizer=given["model"], skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=128,
    quantization=given.get("quantization"), **given.get("options", {}),
)
config = VllmConfig(
    model_config=model_config, device_config=DeviceConfig(device="cpu"), cache_config=CacheConfig(),
    load_config=LoadConfig(load_format="gpu_vmm", model_loader_extra_config={"server": given["server"], **given.get("extra", {})}),
    parallel_config=ParallelConfig(tensor_parallel_size=ranks, distributed_executor_backend="mp" if ranks > 1 else None),
)
with set_current_vllm_config(config):
    init_distributed_environment(ranks, rank, given["meeting"], rank, "gloo")
    ensure_model_parallel_initialized(ranks, 1)
    external = get_model_loader(config.load_config).get_external_weight_memory(config)
    model = get_model(vllm_config=config)

def digest(tensors):
    return {name: [str(one.dtype), list(one.shape), one.double().sum().item()] for name, one in tensors if one.numel()}

lease = _served._leases.get(model)
inside = lambda one: lease is not None and 0 <= one.data_ptr() - lease.address < lease.size
linear = model.model.layers[0].mlp.down_proj
print(json.dumps({
    "external": external, "lease": lease and lease.kind, "name": lease and lease.name, "training": model.training,
    "parameters": digest(model.named_parameters(remove_duplicate=False)), "buffers": digest(model.named_buffers()),
    "inside": sorted({inside(one) for one in model.parameters()}), "buffers_inside": sorted({inside(one) for one in model.buffers()}),
    "tied": model.lm_head.weight is model.model.embed_tokens.weight, "layers": sorted(config.compilation_config.static_forward_context),
    "class": type(linear.weight).__name__, "packing": getattr(linear.weight, "packing", None), "bits": getattr(linear, "bits", None),
    "ready": getattr(linear.quant_method, "layer_is_ready", None), "loader": hasattr(linear.weight, "weight_loader"),
    "meta": [name for name, one in [*model.named_parameters(), *model.named_buffers()] if one.is_meta],
}))
"""

SAVE = """
import json, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(1)
LlamaForCausalLM(LlamaConfig(**json.loads(sys.argv[2]))).save_pretrained(sys.argv[1])
"""


@unittest.skipUnless(COMMAND, WHY_NOT)
@unittest.skipUnless(VLLM and NAME == "host", "GPU_VMM_TEST_VLLM names no unpacked wheel of vLLM, or the memory is not the host's")
class Loader(Served):
    @classmethod
    def setUpClass(cls):
        cls.models = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.models.cleanup)

    def model(self, name="model", **changed):
        """Writes a model to a file. Returns its folder."""
        folder = os.path.join(self.models.name, name)
        if not os.path.isdir(folder):
            subprocess.run([sys.executable, "-c", SAVE, folder, json.dumps({**CONFIG, **changed})], check=True, capture_output=True)
        return folder

    def start(self, model, **given):
        path = os.pathsep.join(map(str, (HERE.parent, PYTHON, VLLM)))
        meeting = given.pop("meeting", f"file://{tempfile.mktemp(dir=self.folder.name)}")
        command = [sys.executable, "-c", ENGINE, json.dumps({"model": model, "server": self.path, "meeting": meeting, **given})]
        environment = {**os.environ, "PYTHONPATH": path, "VLLM_CONFIGURE_LOGGING": "0", "HF_HUB_OFFLINE": "1"}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ended(self, process):
        said, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, said + errors)
        return json.loads(said.splitlines()[-1]), errors

    def engine(self, model, **given):
        """Runs an engine. Returns what it has found, and its log."""
        return self.ended(self.start(model, **given))

    def test_second_engine_attaches(self):
        for changed in {"name": "model"}, {"name": "tied", "tie_word_embeddings": True}:
            model = self.model(**changed)
            (first, _), (second, _) = self.engine(model), self.engine(model)
            self.assertEqual((first["external"], second["external"] > 0), (0, True))
            for one in first, second:
                self.assertEqual((one["lease"], one["inside"], one["buffers_inside"], one["training"]), ("read", [True], [False], False))
                self.assertEqual((one["meta"], one["tied"], one["loader"]), ([], "tie_word_embeddings" in changed, True))
            for key in "parameters", "buffers", "name", "class", "layers":
                self.assertEqual(first[key], second[key], key)
        self.assertEqual(len(self.client.regions()), 2)

    def test_repacked_weights_are_attached(self):
        model = self.model()
        (first, _), (second, _) = (self.engine(model, quantization="repacking") for _ in range(2))
        for one in first, second:
            self.assertEqual((one["inside"], one["class"], one["packing"], one["bits"], one["ready"]), ([True], "Parameter", "transposed", 8, True))
        self.assertEqual(first["parameters"]["model.layers.0.mlp.down_proj.weight"][:2], ["torch.int8", [128, 64]])
        self.assertEqual((first["parameters"], first["buffers"]), (second["parameters"], second["buffers"]))
        plain, _ = self.engine(model)
        self.assertNotEqual(plain["name"], first["name"])

    def test_method_without_support_is_refused(self):
        for _ in range(2):
            found, log = self.engine(self.model(), quantization="repacking", supports=False)
            self.assertEqual((found["lease"], found["packing"]), (None, "transposed"))
            self.assertIn("is not published, and the next start loads it again: the layer 'model.layers.0", log)
            self.assertIn("Repacking, which vLLM cannot set up from weights that are repacked already", log)
        self.assertEqual(self.client.regions(), [])

    def test_each_rank_has_a_region(self):
        model = self.model()
        rounds = []
        for number in range(2):
            meeting = f"file://{self.folder.name}/meeting{number}"
            ranks = [self.start(model, ranks=2, rank=rank, meeting=meeting) for rank in range(2)]
            rounds.append([self.ended(one)[0] for one in ranks])
        self.assertEqual(len({one["name"] for one in rounds[0]}), 2)
        for first, second in zip(*rounds):
            self.assertEqual((first["name"], first["parameters"]), (second["name"], second["parameters"]))
            self.assertEqual((second["inside"], second["external"] > 0), ([True], True))

    def test_sleep_mode_copies(self):
        model = self.model()
        self.engine(model)
        found, _ = self.engine(model, extra={"copy": True})
        self.assertEqual((found["lease"], found["inside"], found["external"]), (None, [False], 0))
        self.until_clients(0)

    def test_damaged_region_is_not_used(self):
        model = self.model()
        first, _ = self.engine(model)
        with self.client.open(first["name"], "write") as lease:
            layout = lease.layout
            del layout.parts["model.norm.weight"]
            lease.renew()
            lease.commit(layout)
        found, log = self.engine(model)
        self.assertIn("do not fit, and are loaded without the server: the region has no part 'model.norm.weight'", log)
        self.assertEqual((found["lease"], found["parameters"], found["layers"]), (None, first["parameters"], first["layers"]))

    def test_other_files_are_loaded(self):
        model = self.model("changed")
        first, _ = self.engine(model)
        file = next(Path(model).glob("*.safetensors"))
        os.utime(file, ns=(1, 1))
        second, _ = self.engine(model)
        self.assertNotEqual(first["name"], second["name"])


if __name__ == "__main__":
    unittest.main()
