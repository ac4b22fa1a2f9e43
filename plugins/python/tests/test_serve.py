"""Clients of a server that keeps memory when programs end."""

import gc
import json
import os
import select
import signal
import struct
import subprocess
import unittest

import gpu_vmm
from gpu_vmm import serve, vmm
from served import COMMAND, WHY_NOT, Served
from support import HERE, MIB, NAME, PYTHON

try:
    import numpy
except ImportError:
    numpy = None

Layout, Part = serve.Layout, serve.Part
UNIT = 2 * MIB


@unittest.skipUnless(COMMAND, WHY_NOT)
class Clients(Served):
    def test_contents_survive_a_killed_client(self):
        code = f"""
import gpu_vmm, os, signal
lease = gpu_vmm.connect({self.path!r}, gpu_vmm.open({NAME!r})).create("model/weights", 3 << 20)
lease.region.write(b"kept", 256)
layout = gpu_vmm.serve.Layout({{"a": gpu_vmm.serve.Part(256, "uint8", (2, 2))}}, {{"digest": "07"}})
assert lease.commit(layout) == 1
os.kill(os.getpid(), signal.SIGKILL)
"""
        env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        self.assertEqual(subprocess.run([*PYTHON, "-c", code], env=env, timeout=60).returncode, -signal.SIGKILL)
        with self.client.open("model/weights", wait=20) as lease:
            self.assertEqual((lease.name, lease.kind, lease.epoch), ("model/weights", "read", 1))
            self.assertEqual(lease.region.read(256, 4), b"kept")
            self.assertEqual((lease.parts, lease.notes), (("a",), {"digest": "07"}))
            self.assertEqual(lease.layout.parts["a"], Part(256, "uint8", (2, 2)))
            found = self.client.regions()[0]
            self.assertEqual((found["address"], found["size"]), (lease.address, lease.size))
            self.assertGreaterEqual(lease.size, 3 << 20)
        self.assertTrue(lease.closed)
        self.assertEqual(self.client.clients(), [])
        with self.raises(gpu_vmm.InvalidArgument, "closed"):
            lease.epoch

    @unittest.skipUnless(numpy and NAME == "host", "needs NumPy, and memory that it can read")
    def test_reader_sees_new_epochs_in_place(self):
        lease = self.publish("a", b"\x01" * UNIT, {"all": Part(0, "uint8", (UNIT,))})
        lease.downgrade()
        lease.close()
        code = f"""
import gpu_vmm, numpy
lease = gpu_vmm.connect({self.path!r}, gpu_vmm.open({NAME!r})).open("a", wait=20)
array = numpy.from_dlpack(lease["all"])
print(lease.epoch, array[0], array[-1], flush=True)
for _ in range(2):
    assert lease.next(20) is gpu_vmm.serve.LeaseEvent.NEW_EPOCH
    before = int(array[0])
    epoch = lease.apply()
    assert epoch == lease.epoch
    print(epoch, before, array[0], array[-1], flush=True)
"""
        env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        with subprocess.Popen([*PYTHON, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as reader:
            try:
                self.assertEqual(reader.stdout.readline(), "1 1 1\n")
                with self.client.open("a", "write", wait=20) as lease:
                    for value in 2, 3:
                        lease.renew(copy=False)
                        lease.region.fill(0, UNIT, value)
                        lease.commit()
                        self.assertEqual(reader.stdout.readline(), f"{value} {value - 1} {value} {value}\n")
                self.assertEqual(reader.wait(20), 0)
            finally:
                reader.kill()

    @unittest.skipUnless(numpy and NAME == "host", "needs NumPy, and memory that it can read")
    def test_array_of_a_read_lease_is_read_only(self):
        parts = {"a": Part(0, "float32", (2, 3)), "b": Part(24, "int16", (2, 2), (1, 2)), "c": Part(4, "float64", ())}
        parts["c"] = Part(32, "float64", ())
        contents = numpy.arange(6, dtype="float32").tobytes() + numpy.arange(4, dtype="int16").tobytes() + struct.pack("d", 0.5)
        self.publish("a", contents, parts).close()
        with self.client.open("a") as lease:
            arrays = {name: numpy.from_dlpack(lease[name]) for name in lease.parts}
            self.assertEqual(arrays["a"].tolist(), [[0, 1, 2], [3, 4, 5]])
            self.assertEqual((arrays["b"].tolist(), arrays["b"].strides), ([[0, 2], [1, 3]], (2, 4)))
            self.assertEqual(arrays["c"].tolist(), 0.5)
            self.assertEqual(arrays["a"].ctypes.data, lease.address)
            for array in arrays.values():
                self.assertFalse(array.flags.writeable)
            with self.assertRaises(ValueError):
                arrays["a"][0, 0] = 7
            with self.assertRaises(BufferError):
                lease["a"].__dlpack__()
            with self.assertRaises(BufferError):
                lease["a"].__dlpack__(max_version=(1, 0), copy=True)
            self.assertEqual((lease["b"].dtype, lease["b"].shape, lease["b"].strides), ("int16", (2, 2), (1, 2)))
            self.assertTrue(lease["a"].read_only)

    @unittest.skipUnless(numpy and NAME == "host", "needs NumPy, and memory that it can read")
    def test_writer_fills_new_memory_through_an_array(self):
        lease = self.publish("a", bytes(2 * UNIT), {"all": Part(0, "uint8", (2 * UNIT,))}, handle=UNIT)
        self.assertEqual(lease.renew(UNIT + 1, 1), (UNIT, UNIT))
        self.assertTrue(lease["all"].read_only)
        layout = lease.layout
        layout.parts["second"] = Part(UNIT, "uint8", (UNIT,))
        lease.commit(layout)
        lease.renew(UNIT)
        second = lease["second"]
        self.assertFalse(second.read_only)
        array = numpy.from_dlpack(second)
        array[:] = 7
        self.assertEqual(lease.commit(), 3)
        self.assertTrue(second.read_only)
        self.assertEqual(lease.region.read(UNIT - 1, 2), b"\x00\x07")

    def test_tensor_delays_the_end_of_its_lease(self):
        lease = self.publish("a", b"kept", {"a": Part(0, "uint8", (4,))})
        capsule = lease["a"].__dlpack__(max_version=(1, 0))
        lease.close()
        self.assertEqual([client["lease"] for client in self.client.clients()], ["write"])
        with self.raises(gpu_vmm.AddressTaken):
            self.client.open("a")
        del capsule
        self.until_clients(0)
        self.assertEqual(self.client.open("a").region.read(0, 4), b"kept")

    def test_collected_lease_ends(self):
        lease = self.publish("a", b"x")
        region = lease.region
        del lease
        gc.collect()
        self.assertEqual((len(self.client.clients()), region.read(0, 1)), (1, b"x"))
        del region
        self.until_clients(0)

    def test_errors(self):
        for name in "missing", "also/missing":
            with self.raises(gpu_vmm.NotFound, name):
                self.client.open(name)
            with self.raises(gpu_vmm.NotFound, name):
                self.client.drop(name)
        lease = self.publish("a", b"x", {"a": Part(0, "uint8", (1,))})
        with self.raises(gpu_vmm.Busy, "has a region \"a\" already"):
            self.client.create("a", 1)
        with self.raises(gpu_vmm.OutOfMemory, "budget"):
            self.client.create("b", 65 * MIB)
        with self.raises(gpu_vmm.TimedOut, "write lease"):
            self.client.open("a", "write", wait=0.01)
        with self.raises(gpu_vmm.AddressTaken):
            self.client.open("a")
        with self.raises(gpu_vmm.AccessDenied):
            lease.region.write(b"y")
        with self.raises(gpu_vmm.OutOfRange):
            lease.renew(0, lease.size + 1)
        with self.raises(gpu_vmm.NotFound, "no part 'b'"):
            lease["b"]
        lease.downgrade()
        for call in lease.renew, lease.commit, lease.downgrade:
            with self.raises(gpu_vmm.AccessDenied, "read lease"):
                call()
        with self.raises(gpu_vmm.AccessDenied):
            gpu_vmm.connect(self.path, self.backend, user=os.geteuid() + 1)
        with self.raises(gpu_vmm.NoListener):
            gpu_vmm.connect(self.path + "-", self.backend)
        with self.raises(gpu_vmm.NoSuchDevice):
            self.client.create("b", 1, vmm.Properties(device=99))
        uncommitted = self.client.create("b", 1)
        with self.raises(gpu_vmm.InvalidArgument, "not committed"):
            uncommitted.downgrade()
        for wrong in (
            lambda: self.client.open("a", "append"), lambda: self.client.open("a", wait=-1), lambda: self.client.create("", 1),
            lambda: self.client.create("c", 0), lambda: self.client.create("c", 1, mode=0o700),
            lambda: self.client.create("c", 1, mode=0), lambda: self.client.create("../c", 1),
            lambda: uncommitted.commit(Layout({"a": Part(-1, "uint8", ())})),
            lambda: uncommitted.commit(Layout({"a": Part(0, "uint9", ())})),
            lambda: uncommitted.commit(Layout({"a": Part(0, "uint8", (1,), (1, 1))})),
            lambda: uncommitted.commit(Layout({"a": Part(0, "uint8", (1,) * 33)})),
            lambda: uncommitted.commit(Layout({"a\0": Part(0, "uint8", ())})),
            lambda: uncommitted.commit(Layout({"a": Part(0, "dlpack:1:256:1", ())})),
        ):  # fmt: skip
            with self.raises(gpu_vmm.InvalidArgument):
                wrong()
        for wrong in lambda: uncommitted.commit({}), lambda: self.client.open("a", wait="1"), lambda: self.client.create(1, 1):
            with self.assertRaises(TypeError):
                wrong()
        self.assertEqual(uncommitted.epoch, 0)

    def test_layouts_are_received_as_they_were_written(self):
        parts = {
            "": Part(0, "bool", (0, 3)),
            "b": Part(256, "bfloat16", (4, 8), (16, 2)),
            "ü": Part(512, "float8_e4m3fn", (1,)),
            "z": Part(1024, "dlpack:3:64:2", ()),
        }
        lease = self.client.create("a", UNIT)
        lease.commit(Layout(parts, {"größe": "1\n", "": ""}))
        lease.close()
        with self.client.open("a") as lease:
            self.assertEqual(lease.layout, Layout(parts, {"größe": "1\n", "": ""}))
            # A copy: a change of it changes nothing.
            lease.layout.parts.clear()
            self.assertEqual(lease.parts, ("", "b", "z", "ü"))
            self.assertEqual((lease["z"].dtype, lease["z"].shape), ("dlpack:3:64:2", ()))

    def test_part_beyond_the_region_is_refused(self):
        self.publish("a", b"x", {"far": Part(1 << 40, "uint8", (1,)), "long": Part(0, "uint8", (1 << 62,))}).close()
        with self.client.open("a") as lease:
            for name in lease.parts:
                with self.assertRaises((gpu_vmm.OutOfRange, gpu_vmm.NotMapped)):
                    lease[name].__dlpack__(max_version=(1, 0))

    def test_status_describes_server(self):
        with self.publish("a", bytes(2 * UNIT), handle=UNIT, mode=0o640) as lease:
            status = self.client.status()
            self.assertEqual(status["server"]["process"], self.server.pid)
            self.assertEqual((status["server"]["held"], status["server"]["budget"]), (2 * UNIT, self.budget))
            region, client = status["regions"][0], status["clients"][0]
            self.assertEqual((region["handles"], region["mode"], region["has_writer"]), (2, "640", True))
            self.assertEqual((client["process"], client["region"], client["lease"]), (os.getpid(), "a", "write"))
            self.assertIn("'a', write, epoch 1", repr(lease))
        self.assertIn(self.path, repr(self.client))

    def test_events(self):
        lease = self.publish("a", b"kept")
        self.assertIs(lease.next(), serve.LeaseEvent.NONE)
        self.assertEqual(select.select([lease], [], [], 0)[0], [])
        self.client.drop("a")
        self.assertEqual(select.select([lease], [], [], 20)[0], [lease])
        self.assertIs(lease.next(20), serve.LeaseEvent.DROPPED)
        with self.raises(gpu_vmm.NotFound, "dropped"):
            lease.commit()
        self.end_server()
        self.assertIs(lease.next(20), serve.LeaseEvent.SERVER_GONE)
        self.assertEqual(lease.region.read(0, 4), b"kept")
        lease.close()
        with self.raises(gpu_vmm.StaleSocket):
            self.client.regions()

    def test_signal_ends_a_wait(self):
        said = self.elsewhere(
            """
import time
signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
began = time.monotonic()
lease = client.create("a", 1)
lease.commit()
for wait in lambda: lease.next(50), lambda: client.open("missing", wait=50):
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - began < 20)
os._exit(0)
"""
        )
        self.assertEqual(said, "interrupted True\ninterrupted True\n")

    def test_forked_child_leaves_its_parents_lease(self):
        said = self.elsewhere(
            """
import warnings
warnings.simplefilter("ignore")
lease = client.create("a", 1)
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        lease.epoch
    except gpu_vmm.Forked:
        lease.close()
        os._exit(0)
    os._exit(1)
print(os.waitpid(child, 0)[1], len(client.clients()), lease.commit())
"""
        )
        self.assertEqual(said, "0 1 1\n")


def safetensors(tensors, notes=None, start=0):
    """Returns the bytes of a file with tensors: the type, the shape and the bytes of each."""
    header, contents = {} if notes is None else {"__metadata__": notes}, b""
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start + len(contents), start + len(contents) + len(data)]}
        contents += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + contents


@unittest.skipUnless(COMMAND, WHY_NOT)
class Safetensors(Served):
    def file(self, contents):
        path = os.path.join(self.folder.name, "file.safetensors")
        with open(path, "wb") as file:
            file.write(contents)
        return path

    def test_file_becomes_a_region(self):
        tensors = {
            "b": ("F32", [2, 3], struct.pack("6f", *range(6))),
            "a": ("U8", [3], b"abc"),
            "none": ("BF16", [0, 4], b""),
            "scalar": ("F64", [], struct.pack("d", 0.5)),
            "eight": ("F8_E4M3", [1000], bytes(range(250)) * 4),
        }
        self.client.load_safetensors(self.file(safetensors(tensors, {"format": "pt"})), "model").close()
        with self.client.open("model") as lease:
            self.assertEqual((lease.notes, sorted(lease.parts)), ({"format": "pt"}, sorted(tensors)))
            for name, (_, shape, data) in tensors.items():
                part = lease[name]
                self.assertEqual((part.shape, part.offset % 256), (tuple(shape), 0))
                self.assertEqual(lease.region.read(part.offset, len(data)), data, name)
            self.assertEqual(lease["eight"].dtype, "float8_e4m3fn")
            if numpy and NAME == "host":
                self.assertEqual(numpy.from_dlpack(lease["b"]).tolist(), [[0, 1, 2], [3, 4, 5]])
                self.assertEqual(numpy.from_dlpack(lease["scalar"]).tolist(), 0.5)

    def test_saved_region_is_loaded_at_its_address(self):
        path = os.path.join(self.folder.name, "saved")
        lease = self.publish("a/b", b"kept", {"part": Part(0, "uint8", (4,))})
        address, size = lease.address, lease.save_safetensors(path)
        self.assertEqual(os.stat(path).st_size, size)
        lease.close()
        self.client.drop("a/b")
        with self.client.load_safetensors(path) as lease:
            self.assertEqual((lease.name, lease.address, lease.region.read(0, 4), lease.parts), ("a/b", address, b"kept", ("part",)))
            with self.raises(gpu_vmm.FileError):
                lease.save_safetensors("/no/such/folder/file")
        other = address + (1 << 36)
        with self.client.load_safetensors(path, "other", address=other) as lease:
            self.assertEqual((lease.name, lease.address), ("other", other))
        with self.client.create("third", 1, address=other + (1 << 30)) as lease:
            self.assertEqual(lease.address, other + (1 << 30))

    def test_malformed_files_are_refused(self):
        good = safetensors({"a": ("U8", [3], b"abc")})
        one = {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}

        def headed(header, contents=b"abc"):
            text = header if isinstance(header, bytes) else json.dumps(header).encode()
            return struct.pack("<Q", len(text)) + text + contents

        for contents in (
            b"", b"1234567", good[:-1], good[:20], good + b"x", struct.pack("<Q", 1 << 63) + good[8:], headed(b"{"), headed(b"[]"),
            headed(b"[" * 100_000), headed(b"\xff"), headed({"a": 1}), headed({"a": {**one, "shape": 3}}), headed({"a": {**one, "shape": [-3]}}),
            headed({"a": {**one, "shape": [1.5]}}), headed({"a": {**one, "shape": [4]}}), headed({"a": {**one, "data_offsets": [3, 0]}}),
            headed({"a": {**one, "data_offsets": [0]}}), headed({"a": one, "b": one}), safetensors({"a": ("U8", [3], b"abc")}, start=1),
            headed({"__metadata__": {"a": 1}}), headed({"a": {**one, "dtype": "F4"}}), safetensors({}),
        ):  # fmt: skip
            with self.raises(gpu_vmm.FileError, "file.safetensors"):
                self.client.load_safetensors(self.file(contents), "a")
        with self.raises(gpu_vmm.FileError, "name"):
            self.client.load_safetensors(self.file(good))
        with self.raises(gpu_vmm.FileError, "/no/such/file"):
            self.client.load_safetensors("/no/such/file", "a")
        self.assertEqual((self.client.regions(), self.client.clients()), ([], []))

    def test_file_larger_than_the_budget(self):
        path = self.file(safetensors({"a": ("U8", [65 * MIB], bytes(65 * MIB))}))
        with self.raises(gpu_vmm.OutOfMemory):
            self.client.load_safetensors(path, "a")


@unittest.skipUnless(COMMAND, WHY_NOT)
class Programs(Served):
    """Pools of several programs share the server's budget of 64 MiB."""

    def holder(self, body):
        """Starts another program with a pool, which runs code and then waits for a line of its input."""
        code = f"""
import gpu_vmm, sys
gpu_vmm.set_pool_server({self.path!r}, name="other", wait=20)
pool = gpu_vmm.open({NAME!r}).pool(page=2 << 20)
{body}
print("ready", flush=True)
sys.stdin.readline()
"""
        env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        other = subprocess.Popen([*PYTHON, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(other.stdin.close)
        self.addCleanup(other.stdout.close)
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        self.assertEqual(other.stdout.readline(), "ready\n")
        return other

    def pool(self, wait=20.0):
        gpu_vmm.set_pool_server(self.path, name="this", wait=wait)
        self.addCleanup(gpu_vmm.set_pool_server, None)
        return self.backend.pool(page=2 * MIB)

    def test_memory_goes_where_it_is_needed(self):
        self.holder("del_me = pool.alloc(40 << 20); del del_me")
        pool = self.pool()
        with pool.alloc(60 * MIB):
            self.assertGreaterEqual(pool.granted(), 60 * MIB)
            programs = {one["name"]: one for one in self.client.status()["programs"]}
            self.assertEqual(set(programs), {"this", "other"})
            (device,) = [one for one in self.client.status()["devices"] if one["device"] == programs["this"]["device"]]
            self.assertEqual((device["budget"], device["held"]), (64 * MIB, device["granted"]))
            self.assertEqual(programs["this"]["live"], 60 * MIB)
            with self.raises(gpu_vmm.OutOfMemory, "budget of 64 MiB for the device"):
                pool.reserve(80 * MIB, wait=0)
        pool.reserve(32 * MIB)
        self.assertGreaterEqual(pool.granted(), 32 * MIB)

    def test_tags_sleep_for_others(self):
        body = 'kept = pool.tagged("kv").alloc(40 << 20); kept.write(b"kept")\npool.let_sleep("kv")'
        other = self.holder(body + '\nprint("ready", flush=True); sys.stdin.readline(); assert pool.wake("kv") == 40 << 20; assert kept.read(0, 4) == b"kept"')
        pool = self.pool()
        with pool.alloc(50 * MIB):
            (seen,) = [one for one in self.client.status()["programs"] if one["name"] == "other"]
            self.assertEqual((seen["asleep"], seen["held"]), (40 * MIB, 0))
        other.stdin.write("go on\n")
        other.stdin.flush()
        self.assertEqual(other.stdout.readline(), "ready\n")
        self.assertEqual(pool.wake(""), 0)

    def test_the_environment_connects_unchanged_programs(self):
        code = f"""
import gpu_vmm
pool = gpu_vmm.open({NAME!r}).pool()
with pool.alloc(4 << 20):
    assert pool.granted() >= 4 << 20
pool = gpu_vmm.open({NAME!r})
gpu_vmm.set_pool_server(None)
pool = pool.pool()
assert pool.granted() is None
for call in (lambda: pool.reserve(1), lambda: pool.let_sleep(""), lambda: pool.wake("")):
    try:
        call()
    except gpu_vmm.Unsupported as error:
        assert "GPU_VMM_POOL_SERVER" in str(error)
    else:
        raise AssertionError
"""
        env = {**os.environ, "PYTHONPATH": str(HERE.parent), "GPU_VMM_POOL_SERVER": self.path}
        subprocess.run([*PYTHON, "-c", code], env=env, timeout=60, check=True)
        env["GPU_VMM_POOL_SERVER"] = self.path + ".none"
        failed = subprocess.run([*PYTHON, "-c", code], env=env, timeout=60, capture_output=True, text=True)
        self.assertIn("NoListener", failed.stderr)

    def test_wrong_arguments_are_refused(self):
        for wrong in ({"priority": 128}, {"priority": -129}, {"user": -1}, {"wait": -1}, {"name": "a\0"}):
            with self.raises(gpu_vmm.InvalidArgument, next(iter(wrong))):
                gpu_vmm.set_pool_server(self.path, **wrong)
        with self.raises(TypeError, "priority"):
            gpu_vmm.set_pool_server(self.path, priority="high")


if __name__ == "__main__":
    unittest.main()
