"""What loaders of inference engines share, with modules of PyTorch as models. They need PyTorch itself; memory of the CPU is enough."""

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import weakref

import gpu_vmm
from served import COMMAND, WHY_NOT, Served
from support import HERE, MIB, NAME, Case

try:
    import torch
    from gpu_vmm.torch import _engine, _state
except ImportError:
    torch = None

CPU = "cpu"
NAME_OF_MODEL = "engine/model/0"


def made():
    """Returns a model that was only constructed."""

    class Weight(torch.nn.Parameter):
        pass

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = Weight(torch.empty(8, 8))
            self.weight.weight_loader = lambda: "a function"
            self.consumed = torch.nn.Parameter(torch.empty(3))
            self.register_parameter("bias", torch.nn.Parameter(torch.empty(8)))
            self.register_buffer("steps", torch.zeros(2))
            self.register_buffer("transient", torch.zeros(3), persistent=False)
            self.first = self.weight[0]
            self.scale, self.state = 1.0, "new"

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([Layer(), Layer()])
            self.head = torch.nn.Linear(8, 5, bias=False)
            self.embedding = torch.nn.Embedding(5, 8)
            self.head.weight = self.embedding.weight  # tied

    return Model()


def loaded(seed=1):
    """Returns a model as an engine leaves it: repacked weights, new tensors and flags, and parameters that are gone."""
    torch.manual_seed(seed)
    model = made()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
        for layer in model.layers:
            packed = (layer.weight.data * 16).to(torch.int8).t().contiguous().view(4, 16)
            layer.weight = torch.nn.Parameter(packed, requires_grad=False)
            layer.weight.is_packed, layer.weight.block = True, 16
            layer.weight_scale = torch.nn.Parameter(torch.full((8,), 1 / 16), requires_grad=False)
            del layer.consumed
            layer.bias = None
            layer.steps += 4
            layer.transient += 5
            layer.first, layer.rows = layer.weight.data[1:], torch.arange(3.0)
            layer.scale, layer.state, layer.ready, layer.nothing = 0.5, "packed", True, None
    return model.eval()


def same(one, other):
    """Raises AssertionError unless two models have the same tensors and attributes."""
    places = [dict(_state._places(torch, model)) for model in (one, other)]
    assert places[0].keys() == places[1].keys(), places[0].keys() ^ places[1].keys()
    for name, slot in places[0].items():
        there = places[1][name]
        assert slot.kind == there.kind and torch.equal(slot.tensor, there.tensor), name
        assert (slot.tensor.dtype, slot.tensor.stride(), slot.tensor.requires_grad) == (there.tensor.dtype, there.tensor.stride(), there.tensor.requires_grad), name
    for (name, module), (_, there) in zip(one.named_modules(), other.named_modules()):
        for key, value in vars(module).items():
            if isinstance(value, (bool, int, float, str, type(None))):
                assert vars(there)[key] == value, (name, key)
        assert set(module._parameters) == set(there._parameters), name
    assert other.head.weight is other.embedding.weight


def meta():
    with torch.device("meta"):
        return made()


def how(**changed):
    given = dict(load=loaded, build=meta, finish=lambda model: model.eval(), refusal=lambda model: None, registries=(), complete=True)
    return _engine.Loading(**{**given, **changed})


class Log(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@unittest.skipUnless(COMMAND, WHY_NOT)
@unittest.skipUnless(torch and NAME == "host", "needs PyTorch, and memory of the CPU")
class Engines(Served):
    def setUp(self):
        super().setUp()
        self.log, self.lines = logging.Logger("engine"), Log()
        self.log.addHandler(self.lines)

    def serve(self, given=None, name=NAME_OF_MODEL, **changed):
        settings = _engine.Settings(self.path, "auto", 20, False)._replace(**(given or {}))
        return _engine.serve(torch, settings, name, {"a fact": 1}, torch.device(CPU), how(**changed), self.log)

    def unloaded(self):
        raise AssertionError("the model is loaded again")

    def inside(self, tensor):
        region = self.client.regions()[0]
        return 0 <= tensor.data_ptr() - region["address"] < region["size"]

    def test_next_engine_attaches_what_the_first_one_has_loaded(self):
        first = self.serve()
        same(loaded(), first)
        self.assertIn("published", self.lines.lines[-1])
        self.assertTrue(all(self.inside(one) for one in first.parameters()))
        self.assertEqual([region["name"] for region in self.client.regions()], [NAME_OF_MODEL])
        code = """
import logging, torch
from test_torch_engine import *
from gpu_vmm.torch import _engine
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
def load():
    raise AssertionError("the model is loaded again")
given = _engine.Settings(client.path, "auto", 20, COPY)
model = _engine.serve(torch, given, NAME_OF_MODEL, {}, torch.device("cpu"), how(load=load), logging.getLogger("engine"))
same(loaded(), model)
region = client.regions()[0]
inside = lambda tensor: 0 <= tensor.data_ptr() - region["address"] < region["size"]
layer = model.layers[0]
print([inside(tensor) for tensor in (layer.weight, layer.weight_scale, layer.first, model.head.weight)])
print([inside(tensor) for tensor in (layer.steps, layer.transient, layer.rows)])
layer.steps += 1  # a copy, which can be written
print(type(layer.weight).__name__, layer.weight.is_packed, layer.weight.block, layer.bias, hasattr(layer, "consumed"))
print(layer.first.data_ptr() - layer.weight.data_ptr(), sorted(layer.state_dict()), model.training)
print([one["lease"] for one in client.clients()])
"""
        tail = "\nParameter True 16 None False\n16 ['steps', 'weight', 'weight_scale'] False\n"
        said = self.elsewhere(code.replace("COPY", "False"), flags=())
        self.assertIn(f"[True, True, True, True]\n[False, False, False]{tail}['read', 'read']\n", said)
        self.assertIn(f"attached {2 * MIB} bytes of {NAME_OF_MODEL!r}", said)
        said = self.elsewhere(code.replace("COPY", "True"), flags=())
        self.assertIn(f"[False, False, False, False]\n[False, False, False]{tail}['read']\n", said)
        same(loaded(), first)

    def test_views_keep_no_memory_of_the_loaded_weights(self):
        model = torch.nn.Linear(8, 4)
        base = model.weight.data
        model.first, known = base[0], weakref.ref(base)
        model.again = model.first
        del base
        with torch.no_grad():
            _state.publish_state(torch, model, "views", self.client, {}, device=torch.device(CPU), share=True)
        self.assertIsNone(known())
        self.assertTrue(self.inside(model.weight) and model.first.data_ptr() == model.weight.data_ptr())
        self.assertIs(model.again, model.first)

    def test_class_and_attributes_of_parameters_are_kept(self):
        class Weight(torch.nn.Parameter):
            pass

        def build():
            module = torch.nn.Module()
            module.weight = Weight(torch.empty(4))
            module.weight.loader, module.weight.tp = print, 1
            return module

        def load():
            module = build()
            module.weight.data.fill_(3)
            module.weight.tp, module.weight.more = 2, 0.25
            return module

        first = self.serve(load=load, build=build, name="classes")
        lease = gpu_vmm.torch._served._leases.pop(first)
        del first
        lease.close()
        with torch.device("meta"):
            module = build()
        with self.client.open("classes") as lease:
            _state.adopt_state(torch, module, lease, copy=True)
        found = module.weight
        self.assertEqual((type(found), found.loader, found.tp, found.more, found.tolist()), (Weight, print, 2, 0.25, [3] * 4))

    def test_copies_leave_the_model_its_memory(self):
        model = self.serve({"copy": True})
        self.assertFalse(any(self.inside(one) for one in model.parameters()))
        model.layers[0].weight.data.zero_()
        self.until_clients(0)
        same(loaded(), self.serve({"copy": True}, load=self.unloaded))

    def test_without_a_server_the_model_is_loaded(self):
        self.end_server()
        same(loaded(), self.serve())
        self.assertIn("loaded without a server", self.lines.lines[0])

    def test_refused_model_is_loaded_each_time(self):
        for _ in range(2):
            same(loaded(), self.serve(refusal=lambda model: "the layer 'x' has AwqMethod"))
            self.assertIn("is not published, and the next start loads it again: the layer 'x' has AwqMethod", self.lines.lines[-1])
        self.assertEqual(self.client.regions(), [])

    def test_model_that_cannot_be_published_is_as_before(self):
        def sparse():
            model = loaded()
            model.layers[0].register_buffer("sparse", torch.eye(3).to_sparse())
            return model

        def hidden():
            model = loaded()
            model.layers[0].kernel = object()
            return model

        def fails():
            raise RuntimeError("no meta device")

        big = torch.nn.Module()
        big.weight = torch.nn.Parameter(torch.full((self.budget,), 7.0))
        for changed, text in (
            ({"load": sparse}, "sparse"),
            ({"load": hidden}, "the load has set 'kernel' of 'layers.0' to a object"),
            ({"build": fails}, "no meta device"),
            ({"load": lambda: big, "build": lambda: big}, "budget"),
        ):
            model = self.serve(**changed)
            self.assertIn(text, self.lines.lines[-1])
            if model is not big:
                self.assertTrue(torch.equal(model.layers[1].weight, loaded().layers[1].weight))
        self.assertEqual(big.weight[-1].item(), 7)
        self.assertEqual((self.client.regions(), self.client.clients()), ([], []))

    def test_model_that_does_not_fit_is_loaded(self):
        self.serve()  # the model ends at once, and its lease with it

        def other():
            model = meta()
            del model.layers[1]
            return model

        def tensors():
            model = meta()
            model.kept = [torch.zeros(3, device="meta")]
            return model

        for build, text in ((other, "no part 'layers.1'"), (tensors, "keeps a tensor in 'kept' that no region has")):
            names = {"the first": 1}

            def registering(build=build, names=names):
                names["the second"] = 2
                return build()

            gc.collect()  # so that this process can map the region again
            same(loaded(), self.serve(build=registering, registries=(names,)))
            self.assertIn(text, self.lines.lines[-1])
            self.assertEqual(names, {"the first": 1})

    def test_one_of_two_engines_loads(self):
        done = self.engines(2, "time.sleep(1)")
        self.assertEqual(sorted(said.split()[0] for said in done), ["attached", "published"])
        self.assertEqual(len(self.client.regions()), 1)

    def test_engine_that_waits_loads_after_a_kill(self):
        first = self.engine("print('loads', flush=True); time.sleep(60)")
        self.assertEqual(first.stdout.readline(), "loads\n")
        second = self.engine("")
        time.sleep(0.5)
        self.assertIsNone(second.poll())
        self.assertEqual([region["name"] for region in self.client.regions()], [f"{NAME_OF_MODEL}.loading"])
        first.send_signal(signal.SIGKILL)
        self.assertIn("published", self.ended(second))
        first.wait()
        first.stdout.close()
        self.until_clients(0)
        self.assertEqual([region["name"] for region in self.client.regions()], [NAME_OF_MODEL])

    def test_engine_that_does_not_wait_loads_for_itself(self):
        first = self.engine("print('loads', flush=True); time.sleep(3)")
        self.assertEqual(first.stdout.readline(), "loads\n")
        same(loaded(), self.serve({"wait": 0}))
        self.assertIn("it is loaded here as well, and not published", self.lines.lines[-1])
        self.assertIn("published", self.ended(first))

    def test_engine_that_is_killed_while_it_publishes_leaves_nothing(self):
        script = "from gpu_vmm.serve import Lease; Lease.commit = lambda self, layout: os.kill(os.getpid(), signal.SIGKILL)"
        self.assertEqual(self.ended(self.engine(script), -signal.SIGKILL), "")
        self.until_clients(0)
        self.assertEqual(self.client.regions(), [])
        self.assertIn("published", self.ended(self.engine("")))

    def engine(self, loading):
        """Starts an engine in another process, which runs a line when it loads."""
        code = f"""
import logging, os, signal, sys, time
from test_torch_engine import *
from gpu_vmm.torch import _engine
def load():
    {loading or "pass"}
    return loaded()
given = _engine.Settings({self.path!r}, "auto", 30, False)
log = logging.getLogger("engine")
log.info = lambda text, *given: print((text % given).split()[1], flush=True) if "bytes" in text else None
model = _engine.serve(torch, given, NAME_OF_MODEL, {{}}, torch.device("cpu"), how(load=load), log)
same(loaded(), model)
"""
        path = os.pathsep.join([str(HERE.parent), str(HERE)])
        environment = {**os.environ, "PYTHONPATH": path}
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        return process

    def ended(self, process, status=0):
        said, _ = process.communicate(timeout=100)
        self.assertEqual(process.returncode, status)
        return said

    def engines(self, count, loading):
        return [self.ended(one) for one in [self.engine(loading) for _ in range(count)]]

    def test_weights_go_through_the_host_without_room(self):
        for room in 0, 200:
            model, expected = loaded(), loaded()
            other = model.head.weight.detach()  # another user of that memory
            _state.publish_state(torch, model, f"room{room}", self.client, {}, device=torch.device(CPU), share=True, room=room)
            same(expected, model)
            self.assertTrue(torch.equal(other, expected.head.weight))

    def test_failed_publication_moves_weights_back(self):
        model, expected = loaded(), loaded()
        moved = []
        real = _state._Hidden.take

        def take(hidden, *given):
            real(hidden, *given)
            moved.append(len(hidden.moved))

        _state._Hidden.take = take
        try:
            with self.raises(gpu_vmm.InvalidArgument):
                _state.publish_state(torch, model, "/no name/", self.client, {}, device=torch.device(CPU), share=True, room=0)
        finally:
            _state._Hidden.take = real
        self.assertGreater(moved[0], 3)
        same(expected, model)

    def test_region_without_a_state_is_refused(self):
        self.publish("other", b"bytes", {"a": gpu_vmm.serve.Part(0, "uint8", (5,))}).close()
        same(loaded(), self.serve(name="other"))
        self.assertIn("has no state of a module", self.lines.lines[-1])


@unittest.skipUnless(torch, "needs PyTorch")
class Names(Case):
    def test_settings(self):
        extra = {"server": "/a", "wait": 3, "num_threads": 4, "load_format": "safetensors"}
        given = _engine.settings(extra, ranks=2, sleeps=True)
        self.assertEqual((given, extra), (_engine.Settings("/a", "safetensors", 3.0, True), {"num_threads": 4}))
        self.assertEqual(_engine.settings({"server": "/a"}, ranks=1, sleeps=False).wait, 1800)
        self.assertEqual(_engine.settings({"server": "/a"}, ranks=2, sleeps=False).wait, 0)
        for extra, text in (
            ({"server": "/a", "copy": 1}, "copy is 1"),
            ({"server": "/a", "wait": -1}, "wait is -1"),
            ({"server": "/a", "wait": "long"}, "wait is 'long'"),
            ({"server": "/a", "load_format": "fastsafetensors"}, "load 'fastsafetensors' together"),
        ):
            with self.raises(gpu_vmm.InvalidArgument, text):
                _engine.settings(extra, ranks=2, sleeps=False)
        said = self.script(
            "from gpu_vmm.torch import _engine\n"
            "import gpu_vmm\n"
            "try:\n    print(_engine.settings({}, ranks=1, sleeps=False).server)\n"
            "except gpu_vmm.InvalidArgument as error:\n    print(error)",
            XDG_RUNTIME_DIR="", GPU_VMM_SERVER="",
        )
        self.assertIn("there is no path of a server; set GPU_VMM_SERVER", said)

    def test_other_files_are_another_region(self):
        with tempfile.TemporaryDirectory() as folder:
            names = []
            for contents in b"one", b"two more":
                with open(os.path.join(folder, "model.safetensors"), "wb") as file:
                    file.write(contents)
                facts = {"files": _engine.checkpoint(folder, None, None)}
                names.append(_engine.region_name("vllm", folder, facts))
                self.assertEqual(names[-1], _engine.region_name("vllm", folder, json.loads(json.dumps(facts))))
            self.assertEqual(len(set(names)), 2)
        name = _engine.region_name("vllm", "meta-llama/Llama 3", _engine.checkpoint("meta-llama/Llama 3", "main", "0abc"))
        self.assertRegex(name, r"^vllm/Llama_3/[0-9a-f]{32}$")


if __name__ == "__main__":
    unittest.main()
