"""Modules of PyTorch whose parameters lie in a region of a server. They need PyTorch itself; memory of the CPU is enough."""

import copy
import gc
import unittest

import gpu_vmm
from gpu_vmm import serve
from served import COMMAND, WHY_NOT, Served
from support import MIB, NAME

try:
    import torch
except ImportError:
    torch = None


def model():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(7, 4)
            self.norm = torch.nn.BatchNorm1d(4)
            self.output = torch.nn.Linear(4, 7)
            self.output.weight = self.embedding.weight  # tied
            self.transposed = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
            self.register_buffer("transient", torch.arange(3.0), persistent=False)
            self.register_buffer("empty", torch.zeros(0, 3))
            self.register_buffer("scalar", torch.tensor(7))
            self.register_buffer("bfloat", torch.arange(4).to(torch.bfloat16))
            self.register_buffer("eight", torch.arange(4.0).to(torch.float8_e4m3fn))
            self.register_buffer("flags", torch.tensor([True, False]))

        def forward(self, numbers):
            return self.output(self.norm(self.embedding(numbers)))

    return Model().eval()


@unittest.skipUnless(COMMAND, WHY_NOT)
@unittest.skipUnless(torch and NAME == "host", "needs PyTorch, and memory of the CPU")
class Modules(Served):
    def attached(self, code):
        """Runs code in another process, which can build the model."""
        return self.elsewhere("import torch\nfrom test_torch_served import model\n" + code, flags=())

    def test_module_is_attached_without_a_copy(self):
        torch.manual_seed(1)
        made = model()
        expected = made(torch.arange(7)).sum().item()
        lease = gpu_vmm.torch.publish(made, "model", self.path, notes={"step": "1"})
        self.assertEqual((lease.epoch, lease.notes), (1, {"step": "1"}))
        parts = lease.layout.parts
        self.assertEqual(set(parts), {*made.state_dict(), "transient"})
        self.assertEqual(parts["output.weight"], parts["embedding.weight"])
        self.assertEqual(parts["transposed"].strides, (1, 3))
        self.assertTrue(all(part.offset % 256 == 0 for part in parts.values()))
        lease.close()
        said = self.attached(
            """
for meta in False, True:
    with torch.device("meta" if meta else "cpu"):
        module = model()
    before = module.norm.weight
    lease = gpu_vmm.torch.attach(module, "model", client, wait=20)
    inside = range(lease.address, lease.address + lease.size)
    tensors = [*module.named_parameters(), *module.named_buffers()]
    assert all(tensor.data_ptr() in inside for name, tensor in tensors if tensor.numel()), tensors
    assert module.output.weight is module.embedding.weight
    assert (module.norm.weight is before) is not meta
    assert module.transposed.stride() == (1, 3) and module.transposed.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert module.eight.float().tolist() == [0, 1, 2, 3] and module.bfloat.tolist() == [0, 1, 2, 3]
    assert module.flags.tolist() == [True, False] and module.scalar.item() == 7 and module.empty.shape == (0, 3)
    print(f"{module(torch.arange(7)).sum().item():.6f}", lease.kind, lease.notes)
    # The memory stays as long as a tensor of it.
    weight = module.norm.weight
    del module, tensors, before
    lease.close()
    assert weight.sum().item() == 4
    del weight
"""
        )
        self.assertEqual(said, f"{expected:.6f} read {{'step': '1'}}\n" * 2)

    def test_module_keeps_its_lease(self):
        gpu_vmm.torch.publish({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, "linear", self.path).close()
        module = torch.nn.Linear(3, 2)
        gpu_vmm.torch.attach(module, "linear", self.client)
        gc.collect()
        self.assertEqual([client["lease"] for client in self.client.clients()], ["read"])
        other = copy.deepcopy(module)
        with torch.no_grad():
            other.weight += 1  # memory of its own
        self.assertEqual((module.weight.sum().item(), other.weight.sum().item()), (6, 12))
        del module
        gc.collect()
        self.until_clients(0)

    def test_new_epochs_come_into_the_same_tensors(self):
        lease = gpu_vmm.torch.publish({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, "linear", self.path)
        lease.downgrade()
        lease.close()
        said = self.attached(
            """
import subprocess
module = torch.nn.Linear(3, 2)
lease = gpu_vmm.torch.attach(module, "linear", client)
weight = module.weight.data
code = '''
import gpu_vmm, sys, torch
lease = gpu_vmm.connect(sys.argv[1], gpu_vmm.open("host")).open("linear", "write", wait=20)
lease.renew()
torch.from_dlpack(lease["weight"]).fill_(5)
lease.commit()
'''
subprocess.run([sys.executable, "-c", code, client.path], check=True)
assert lease.next(20) is gpu_vmm.serve.LeaseEvent.NEW_EPOCH
print(weight.sum().item(), lease.apply(), weight.sum().item(), module.weight.sum().item())
"""
        )
        self.assertEqual(said, "6.0 2 30.0 30.0\n")

    def test_shared_memory_is_published_once(self):
        flat = torch.arange(1024.0)
        tensors = {
            "a": flat[:512], "b": flat[512:], "row": flat[100:200], "step": flat[:512:2], "none": flat[100:100], "again": flat[:512],
            "bytes": flat[100:101].view(torch.uint8), "expanded": torch.tensor([3.0]).expand(5, 4),
        }  # fmt: skip
        lease = gpu_vmm.torch.publish(tensors, "views", self.path)
        parts = lease.layout.parts
        self.assertEqual(parts["a"], parts["again"])
        self.assertEqual(parts["row"].offset, parts["a"].offset + 400)
        self.assertEqual((parts["b"].offset % 256, parts["expanded"].strides), (0, (0, 0)))
        for name, tensor in tensors.items():
            found = torch.from_dlpack(lease[name])
            self.assertTrue(torch.equal(found, tensor), name)
            del found
        self.assertLess(self.client.regions()[0]["size"], 4 * MIB)

    def test_views_of_unlike_types_stay_aligned(self):
        base = torch.zeros(64, dtype=torch.uint8)
        base[:] = torch.arange(64)
        tensors = {"bytes": base[2:40], "floats": base[4:12].view(torch.float32)}
        lease = gpu_vmm.torch.publish(tensors, "mixed", self.path)
        for name, tensor in tensors.items():
            self.assertEqual(torch.from_dlpack(lease[name]).view(torch.uint8).tolist(), tensor.view(torch.uint8).tolist())

    def test_first_difference_is_named(self):
        gpu_vmm.torch.publish({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, "linear", self.path).close()
        for module, text in (
            (torch.nn.Linear(3, 2, bias=False), "the region has 'bias', and the module has not"),
            (torch.nn.BatchNorm1d(2), "'weight' has the shape [2] in the module and [2, 3] in the region"),
            (torch.nn.Linear(3, 2).half(), "'weight' has elements of float16 in the module and of float32 in the region"),
            (torch.nn.Linear(4, 2), "'weight' has the shape [2, 4] in the module and [2, 3] in the region"),
        ):
            before = [tensor.data_ptr() for tensor in module.parameters()]
            with self.raises(gpu_vmm.InvalidArgument, text):
                gpu_vmm.torch.attach(module, "linear", self.client)
            self.assertEqual([tensor.data_ptr() for tensor in module.parameters()], before)
        with self.raises(gpu_vmm.InvalidArgument, "the module has 'extra', and the region has not"):
            module = torch.nn.Linear(3, 2)
            module.register_buffer("extra", torch.zeros(1))
            gpu_vmm.torch.attach(module, "linear", self.client)
        self.assertEqual(self.client.clients(), [])
        with self.raises(gpu_vmm.NotFound):
            gpu_vmm.torch.attach(torch.nn.Linear(3, 2), "missing", self.client)

    def test_wrong_sources_are_refused(self):
        publish = gpu_vmm.torch.publish
        strange = {"weight": torch.ones(2, dtype=torch.complex64).conj()}
        for source, kind, text in (
            ({}, gpu_vmm.InvalidArgument, "no tensor"), (torch.nn.ReLU(), gpu_vmm.InvalidArgument, "no tensor"),
            ({"a": torch.ones(2), "b": torch.ones(2, device="meta")}, gpu_vmm.InvalidArgument, "'b' is on the meta device"),
            ({"a": torch.ones(2).to_sparse()}, gpu_vmm.Unsupported, "'a' is torch.sparse_coo"), (strange, gpu_vmm.Unsupported, "conjugate"),
            ({"a": 1}, TypeError, "'a' is int"), ([torch.ones(2)], TypeError, "not list"), ({1: torch.ones(2)}, TypeError, "expected tensors"),
        ):  # fmt: skip
            with self.assertRaisesRegex(kind, text):
                publish(source, "a", self.client)
        with self.assertRaisesRegex(TypeError, "expected a torch.nn.Module"):
            gpu_vmm.torch.attach({}, "a", self.client)
        self.assertEqual(self.client.regions(), [])
        publish({"a": torch.ones(2)}, "a", self.client).close()
        with self.raises(gpu_vmm.Busy):
            publish({"a": torch.ones(2)}, "a", self.client)
        with self.raises(gpu_vmm.OutOfMemory):
            publish({"a": torch.empty(65 * MIB, dtype=torch.uint8)}, "b", self.client)

    def test_malformed_layouts_are_refused(self):
        Layout, Part = serve.Layout, serve.Part
        for number, part in enumerate((
            Part(1 << 40, "float32", (2,)), Part(0, "float32", (2,), (-1,)), Part(0, "float32", (2,), (1 << 61,)), Part(2, "float32", (2,)),
        )):  # fmt: skip
            lease = self.client.create(f"wrong/{number}", 1)
            lease.commit(Layout({"weight": part}))
            lease.close()
            module = torch.nn.Module()
            module.weight = torch.nn.Parameter(torch.ones(2))
            with self.assertRaises((gpu_vmm.InvalidArgument, gpu_vmm.OutOfRange, gpu_vmm.NotMapped)):
                gpu_vmm.torch.attach(module, f"wrong/{number}", self.client)
            self.assertEqual(module.weight.sum().item(), 2)
        self.assertEqual(self.client.clients(), [])


if __name__ == "__main__":
    unittest.main()
