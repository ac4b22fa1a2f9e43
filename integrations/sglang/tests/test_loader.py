"""The load format `gpu_vmm` with SGLang's own classes, on a server with host memory: a small Llama from a file, without a GPU.

It needs PyTorch with the packages that SGLang imports, and the unpacked wheel of SGLang in the folder that GPU_VMM_TEST_SGLANG names. Each
engine is a process. A module replaces the kernels of vLLM that SGLang imports for the CPU: nothing is computed.
"""

import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[2] / "plugins/python"
sys.path[:0] = [str(HERE.parent), str(PYTHON / "tests")]

from gpu_vmm_sglang import register  # noqa: E402
from served import COMMAND, WHY_NOT, Served  # noqa: E402
from support import NAME, Case  # noqa: E402

SGLANG = os.environ.get("GPU_VMM_TEST_SGLANG", "")

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "torch_dtype": "float32", "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

ENGINE = r"""
import json, logging, sys, types
kernels = types.ModuleType("vllm._custom_ops")
kernels.rotary_embedding = None
package = types.ModuleType("vllm")
package.__path__ = []
sys.modules.update({"vllm": package, "vllm._custom_ops": kernels})
import torch
import gpu_vmm, gpu_vmm_sglang
from gpu_vmm.torch import _served
from sglang.srt import runtime_context
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
from sglang.srt.distributed.device_communicators import pynccl
from sglang.srt.model_loader import get_model
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import ServerArgs

given = json.loads(sys.argv[1])
gpu_vmm_sglang.register()
HookRegistry.apply_hooks()
pynccl.PyNcclCommunicator = lambda **given: None  # NCCL has no memory of the CPU
ranks, rank = given.get("ranks", 1), given.get("rank", 0)
arguments = ServerArgs(
    model_path=given["model"], device="cpu", skip_tokenizer_init=True, dtype="float32", attention_backend="torch_native",
    sampling_backend="pytorch", grammar_backend="none", tp_size=ranks, load_format="gpu_vmm",
)
runtime_context.publish(arguments, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=rank))
init_distributed_environment(backend="gloo", world_size=ranks, rank=rank, local_rank=rank, distributed_init_method=given["meeting"])
initialize_model_parallel(backend="gloo")
model_config = ModelConfig.from_server_args(arguments)
if given.get("quantization"):
    model_config.quantization = given["quantization"]
extra = {"server": given["server"], **given.get("extra", {})}
config = LoadConfig(load_format=arguments.load_format, model_loader_extra_config=extra)

if given.get("flags"):
    # What a load leaves in some models: tensors that are no parameters, views of weights, and numbers.
    from sglang.srt.models.llama import LlamaForCausalLM as Llama
    load = Llama.load_weights
    def load_weights(self, weights):
        load(self, weights)
        for layer in self.model.layers:
            attention = layer.self_attn
            attention.w_kc, attention.w_scale, attention.is_ready = attention.qkv_proj.weight.data[:4].t(), 0.5, True
            attention.own = torch.arange(3.0)
            attention.qkv_proj.weight.format_ue8m0 = True
    Llama.load_weights = load_weights

log = logging.getLogger("gpu_vmm_sglang")
log.setLevel("INFO")
try:
    model = get_model(model_config=model_config, load_config=config, device_config=DeviceConfig("cpu", 0))
except ValueError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit()

def digest(tensors):
    return {name: [str(one.dtype), list(one.shape), one.double().sum().item()] for name, one in tensors if one.numel()}

lease = _served._leases.get(model)
inside = lambda one: lease is not None and 0 <= one.data_ptr() - lease.address < lease.size
attention = model.model.layers[1].self_attn
print(json.dumps({
    "lease": lease and lease.kind, "name": lease and lease.name, "training": model.training,
    "parameters": digest(model.named_parameters(remove_duplicate=False)), "buffers": digest(model.named_buffers()),
    "inside": sorted({inside(one) for one in model.parameters()}), "buffers_inside": sorted({inside(one) for one in model.buffers()}),
    "tied": model.lm_head.weight is model.model.embed_tokens.weight,
    "flags": [getattr(attention, name, None) for name in ("w_scale", "is_ready")] + [getattr(attention.qkv_proj.weight, "format_ue8m0", None)],
    "plain": [[inside(one), list(one.stride()), one.sum().item()] for one in (attention.w_kc, attention.own)] if given.get("flags") else [],
    "meta": [name for name, one in [*model.named_parameters(), *model.named_buffers()] if one.is_meta],
}))
"""

SAVE = """
import json, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(1)
LlamaForCausalLM(LlamaConfig(**json.loads(sys.argv[2]))).save_pretrained(sys.argv[1])
"""


class Plugin(Case):
    def test_format_is_registered_once(self):
        hooks, formats = [], []
        choices = types.SimpleNamespace(LOAD_FORMAT_CHOICES=formats, add_load_format_choices=formats.extend)
        registry = types.SimpleNamespace(register=lambda *given: hooks.append(given))
        names = {"arg_groups.choices": choices, "plugins.hook_registry": types.SimpleNamespace(
            HookRegistry=registry, HookType=types.SimpleNamespace(BEFORE="before")
        )}  # fmt: skip
        found = {f"sglang.srt.{name}": module for name, module in names.items()}
        for name in "sglang", "sglang.srt", "sglang.srt.arg_groups", "sglang.srt.plugins":
            found[name] = types.ModuleType(name)
            found[name].__path__ = []
        sys.modules.update(found)
        try:
            register()
            register()
        finally:
            for name in found:
                del sys.modules[name]
        self.assertEqual((formats, [hook[::2] for hook in hooks]), (["gpu_vmm"], [("sglang.srt.configs.load_config.LoadConfig._verify_load_format", "before")]))
        other = types.SimpleNamespace(load_format="auto")
        hooks[0][1](other)
        self.assertEqual(other.load_format, "auto")


@unittest.skipUnless(COMMAND, WHY_NOT)
@unittest.skipUnless(SGLANG and NAME == "host", "GPU_VMM_TEST_SGLANG names no unpacked wheel of SGLang, or the memory is not the host's")
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
        path = os.pathsep.join(map(str, (HERE.parent, PYTHON, SGLANG)))
        meeting = given.pop("meeting", f"file://{tempfile.mktemp(dir=self.folder.name)}")
        command = [sys.executable, "-c", ENGINE, json.dumps({"model": model, "server": self.path, "meeting": meeting, **given})]
        environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
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
            (first, log), (second, other) = self.engine(model, flags=True), self.engine(model, flags=True)
            self.assertIn("gpu-vmm: published", log)
            self.assertIn("gpu-vmm: attached", other)
            for one in first, second:
                self.assertEqual((one["lease"], one["inside"], one["buffers_inside"], one["training"]), ("read", [True], [False], False))
                self.assertEqual((one["meta"], one["tied"], one["flags"]), ([], "tie_word_embeddings" in changed, [0.5, True, True]))
                self.assertEqual((one["plain"][0][:2], one["plain"][1]), ([True, [1, 64]], [False, [1], 3.0]))
            for key in "parameters", "buffers", "name", "plain":
                self.assertEqual(first[key], second[key], key)
        self.assertEqual(len(self.client.regions()), 2)

    def test_each_rank_has_a_region(self):
        model, rounds = self.model(), []
        for number in range(2):
            meeting = f"file://{self.folder.name}/meeting{number}"
            ranks = [self.start(model, ranks=2, rank=rank, meeting=meeting) for rank in range(2)]
            rounds.append([self.ended(one)[0] for one in ranks])
        self.assertEqual(len({one["name"] for one in rounds[0]}), 2)
        for first, second in zip(*rounds):
            self.assertEqual((first["name"], first["parameters"], second["inside"]), (second["name"], second["parameters"], [True]))

    def test_copies_leave_no_lease(self):
        model = self.model()
        self.engine(model)
        found, _ = self.engine(model, extra={"copy": True})
        self.assertEqual((found["lease"], found["inside"]), (None, [False]))
        self.until_clients(0)

    def test_other_quantization_is_refused(self):
        found, log = self.engine(self.model(), quantization="awq")
        self.assertIn("SGLang cannot continue from weights that the quantization 'awq' has repacked", log)
        self.assertIn("error", found)  # SGLang's own: the files have no weights of AWQ
        self.assertEqual(self.client.regions(), [])


if __name__ == "__main__":
    unittest.main()
