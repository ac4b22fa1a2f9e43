"""Building and installing the allocator class for PyTorch, with a fake PyTorch and a fake compiler.

`native/allocator_test.cpp` tests the class itself.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import HERE, NAME, PYTHON, Case

# The compiler notes each call. It builds a stub whose installation returns $ANSWER. With $ABSTRACT it says, as g++ or clang does, that the
# class lacks two functions, until they are forwarded; with $REJECTS it does not take the forwarded ones either.
COMPILER = """#!{python}
import os, subprocess, sys, time
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
time.sleep(float(os.environ.get("SLOW", "0")))
is_forwarded = any(word.startswith("-DGPU_VMM_FORWARDED=") for word in sys.argv)
if os.environ.get("ABSTRACT") and not is_forwarded:
    print(os.environ["ABSTRACT"])
    sys.exit(1)
if os.environ.get("REJECTS"):
    sys.exit(print("forwarded.h:3:1: error: reference to overloaded function could not be resolved", file=sys.stderr) or 1)
if os.environ.get("FAILS"):
    print("allocator.h:1: note: here\\nallocator.h:2: error: no such type", file=sys.stderr)
    sys.exit(3)
out = sys.argv[sys.argv.index("-o") + 1]
if os.environ.get("FOREIGN"):
    sys.exit(open(out, "w").write("a class of another ABI or machine") and 0)
code = "#include <string.h>\\nint gpu_vmm_torch_install(const char *path, char *reason, unsigned long size) {{ " \\
    'strncpy(reason, "it is used already", size); return %s; }}' % os.environ.get("ANSWER", "0")
sys.exit(subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", out], input=code.encode()).returncode)
"""

# What g++ 12 and clang 14 print.
GXX = """install.cpp: In function 'gpu_vmm::GpuVmmAllocator& gpu_vmm::allocator()':
install.cpp:18:61: error: invalid new-expression of abstract class type 'gpu_vmm::GpuVmmAllocator'
allocator.h:29:7: note:   because the following virtual functions are pure within 'gpu_vmm::GpuVmmAllocator':
CUDACachingAllocator.h:317:16: note:     'virtual void c10::cuda::CUDACachingAllocator::CUDAAllocator::setBudget(double, const std::function<void(int)>&)'
CUDACachingAllocator.h:321:31: note:     'virtual std::function<void(int)> c10::DeviceAllocator::limitOf(void (*)(int)) const'
other.h:4:7: note:   because the following virtual functions are pure within 'Other':
other.h:5:16: note:     'virtual void Other::nothing()'"""
CLANG = """install.cpp:18:41: error: allocating an object of abstract class type 'gpu_vmm::GpuVmmAllocator'
CUDACachingAllocator.h:317:16: note: unimplemented pure virtual method 'setBudget' in 'GpuVmmAllocator'
  virtual void setBudget(double value, const std::function<void(int)>& done) = 0;
CUDACachingAllocator.h:321:31: note: unimplemented pure virtual method 'limitOf' in 'GpuVmmAllocator'
1 error generated."""

PRELUDE = """
import ctypes, gpu_vmm, fake_torch, os, warnings
from gpu_vmm import _torch_build
torch, calls = fake_torch.install(native=os.environ["NATIVE"])
"""

# Prints the one warning of enable().
CAUGHT = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    gpu_vmm.torch.enable()
assert [one.category for one in caught] == [RuntimeWarning], caught
assert calls == [], calls
print(caught[0].message)
"""


class TorchClass(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for file in "torch/include/c10/cuda/CUDACachingAllocator.h", "torch/lib/libc10_cuda.so", "cuda/include/cuda_runtime_api.h":
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / file).write_text("")
        self.log = self.folder / "log"
        compiler = self.folder / "compiler"
        compiler.write_text(COMPILER.format(python=sys.executable, log=str(self.log)))
        compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
        self.environment = {
            "NATIVE": str(self.folder), "CXX": str(compiler), "CUDA_HOME": str(self.folder / "cuda"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }  # fmt: skip

    def run_script(self, code, flags=("-W", "error"), **environment):
        return self.script(PRELUDE + code, flags, **{**self.environment, **environment})

    def runs(self):
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def kept(self):
        return sorted(path.name for path in (self.folder / "cache/gpu-vmm/torch").glob("*"))

    def test_it_is_built_once(self):
        said = self.run_script("gpu_vmm.torch.enable()\nassert gpu_vmm.torch.enabled() and calls == [], calls\nprint(_torch_build.build(torch))")
        file = Path(said.strip())
        self.assertTrue(file.is_file())
        self.assertEqual(file.parent.parent, self.folder / "cache/gpu-vmm/torch")
        self.assertEqual(self.runs(), 1)
        self.run_script("gpu_vmm.torch.enable()")
        self.assertEqual(self.runs(), 1)
        self.assertEqual(len(self.kept()), 1)

    def test_a_mem_pool_with_a_tag(self):
        self.run_script(
            """
def why(kind):
    try:
        gpu_vmm.torch.mem_pool("weights")
    except kind as error:
        return str(error)
assert "needs enable() with the allocator class" in why(gpu_vmm.Unsupported)
gpu_vmm.torch.enable()
library, identifier = gpu_vmm._library.library(), gpu_vmm._library.MempoolId(0, 1)
# PyTorch's MemPool does so.
assert "there is none with the identifier" in why(gpu_vmm.NotFound)
acquire = library.gpu_vmm_torch_pool_acquire
acquire.argtypes = [ctypes.c_int, gpu_vmm._library.MempoolId]
assert acquire(0, identifier) == 0
assert isinstance(gpu_vmm.torch.mem_pool("weights"), torch.cuda.MemPool)
allocate, block = library.gpu_vmm_torch_allocate, ctypes.create_string_buffer(256)
allocate.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
assert allocate(0, 1 << 20, None, ctypes.byref(identifier), block) == 0
assert "weights" in gpu_vmm.torch.device_pool().tags()
"""
        )

    def test_another_pytorch_is_another_build(self):
        self.run_script(
            """
one = _torch_build.build(torch)
torch.compiled_with_cxx11_abi = lambda: False
other = _torch_build.build(torch)
torch.__version__ = "2.7.1+cu126"
third = _torch_build.build(torch)
assert len({one, other, third}) == 3 and "torch-2.7.1+cu126-cuda-13.0" in third, third
"""
        )
        flags = self.log.read_text()
        for flag in "-DGPU_VMM_TORCH=211", "-DGPU_VMM_TORCH=207", "-D_GLIBCXX_USE_CXX11_ABI=0", "-D_GLIBCXX_USE_CXX11_ABI=1":
            self.assertIn(flag, flags)

    def test_process_cxx_library_comes_first(self):
        self.run_script("import ctypes\nctypes.CDLL('libstdc++.so.6')\n_torch_build.build(torch)")
        link = next(call for call in self.log.read_text().splitlines() if " -shared " in call)
        self.assertRegex(link, r"\.cpp \S*libstdc\+\+\.so\S* -lc10 ")

    def test_a_compiler_that_fails(self):
        said = self.run_script(
            """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    gpu_vmm.torch.enable()
    gpu_vmm.torch.enable()
assert [one.category for one in caught] == [RuntimeWarning], caught
print(caught[0].message)
assert calls[0][0] == "allocator" and calls[-1] == ("change",), calls
address = gpu_vmm._library.library().gpu_vmm_torch_alloc(1 << 20, 0, None)
assert gpu_vmm.torch.stats()["live"] == 1 << 20
""",
            FAILS="1",
        )
        self.assertIn("torch.OutOfMemoryError", said)
        self.assertIn("failed with 3: allocator.h:2: error: no such type", said)
        self.assertRegex(said, r"PyTorch 2\.11\.0 and gpu-vmm \S+ compiles it by `python -m gpu_vmm\.torch build`; copy the folder")
        self.assertIn(f"to {self.folder}/cache/gpu-vmm/torch here", said)
        self.assertEqual(self.kept(), [])

    def test_every_source_is_compiled(self):
        sources = HERE.parent / "gpu_vmm/_torch_native"
        included = re.findall(r'#include "(\w+\.cpp)"', (sources / "class.cpp").read_text())
        self.assertEqual(sorted([*included, "class.cpp"]), sorted(path.name for path in sources.glob("*.cpp")))

    def test_a_build_serves_a_machine_without_compiler(self):
        self.run_script("gpu_vmm.torch.enable()")
        moved = self.folder / "moved"
        moved.mkdir()
        (self.folder / "torch").rename(moved / "torch")
        self.environment.update(NATIVE=str(moved), CUDA_HOME="/nothing", CXX="", PATH="/nothing")
        self.run_script("gpu_vmm.torch.enable()\nassert calls == []")

    def test_the_standard_of_pytorch(self):
        builder = self.folder / "torch/utils/cpp_extension.py"
        builder.parent.mkdir()
        for number, (said, flag) in enumerate([("", "-std=c++17"), ("flags += ['-std=c++23']\nflags += ['-std=c++23']\n# -std=c++26", "-std=c++23")]):
            builder.write_text(said)
            self.run_script("_torch_build.build(torch)")
            self.assertIn(f"{flag} ", self.log.read_text().splitlines()[number])

    def test_functions_of_a_newer_pytorch(self):
        for number, said in enumerate((GXX, CLANG)):
            shown = self.run_script(CAUGHT, ABSTRACT=said)
            self.assertIn("its allocator has functions that gpu-vmm's class does not know", shown)
            self.assertIn("setBudget, limitOf. Update gpu-vmm.", shown)
            (header,) = (self.folder / "cache").rglob("forwarded.h")
            expected = "GPU_VMM_FORWARD(setBudget, Base0, Base1)\nGPU_VMM_FORWARD(limitOf, Base1, Base2)\nusing Base = Base2;"
            self.assertIn(expected, header.read_text())
            self.assertEqual(self.runs(), 2 * number + 2)
            # The next process warns as well, and compiles nothing.
            self.assertIn("setBudget, limitOf", self.run_script(CAUGHT, ABSTRACT=said))
            self.assertEqual(self.runs(), 2 * number + 2)
            shutil.rmtree(self.folder / "cache")

    def test_functions_that_cannot_be_forwarded(self):
        code = CAUGHT + "assert gpu_vmm.torch.enabled() and calls[-1] == ('change',), calls"
        said = self.run_script(code.replace("assert calls == [], calls\n", ""), ABSTRACT=CLANG, REJECTS="1")
        self.assertIn("through its hook", said)
        self.assertIn("failed with 1: forwarded.h:3:1: error: reference to overloaded function", said)
        self.assertEqual((self.runs(), self.kept()), (2, []))

    def test_a_class_that_cannot_be_loaded(self):
        code = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    gpu_vmm.torch.enable()
assert [one.category for one in caught] == [RuntimeWarning], caught
print(caught[0].message)
assert gpu_vmm.torch.enabled() and calls[-1] == ("change",), calls
"""
        said = self.run_script(code, FOREIGN="1")
        file = said.split("The reason: gpu_vmm.torch: ")[1].split(" cannot be loaded; remove it to have it compiled again: ")[0]
        os.remove(file)
        self.run_script("gpu_vmm.torch.enable()\nassert calls == []")

    def test_no_compiler_and_no_headers(self):
        said = self.run_script(
            """
def why():
    try:
        _torch_build.build(torch)
    except gpu_vmm.Unsupported as error:
        return str(error)
print(why())
os.environ["CUDA_HOME"] = "/nothing"
print(why())
torch.__file__ = "/nothing/torch/__init__.py"
print(why())
torch.__version__ = "2.5.1"
print(why())
torch.version.hip = "6.4"
print(why())
""",
            CXX="/nothing/c++",
        )
        lines = said.splitlines()
        self.assertIn("the compiler /nothing/c++ cannot be run", lines[0])
        self.assertIn("set CUDA_HOME to a CUDA toolkit", lines[1])
        self.assertIn("this PyTorch lacks /nothing/torch/include", lines[2])
        self.assertIn("needs PyTorch 2.6 or later; this is 2.5.1", lines[3])
        self.assertIn("not available for PyTorch's ROCm builds", lines[4])

    def test_a_cache_that_cannot_be_written(self):
        # A file where the folder would be: also the superuser cannot write there.
        (self.folder / "cache").write_text("")
        said = self.run_script("gpu_vmm.torch.enable()\nassert calls == []\nprint(_torch_build.build(torch))")
        self.assertFalse(Path(said.strip()).exists(), "it is removed when the process ends")
        self.assertNotIn(str(self.folder / "cache"), said)

    def test_two_processes_build_at_once(self):
        path = os.pathsep.join([str(HERE.parent), str(HERE)])
        environment = {**os.environ, **self.environment, "PYTHONPATH": path, "SLOW": "0.3"}
        code = PRELUDE + "gpu_vmm.torch.enable()\nassert calls == []\nprint(_torch_build.build(torch))"
        both = [
            subprocess.Popen([*PYTHON, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for _ in range(2)
        ]
        said = [one.communicate(timeout=120)[0] for one in both]
        self.assertEqual([one.returncode for one in both], [0, 0], said)
        self.assertEqual(said[0], said[1])
        self.assertEqual(len(self.kept()), 1)

    def test_enable_too_late(self):
        said = self.run_script(
            """
try:
    gpu_vmm.torch.enable()
except gpu_vmm.Error as error:
    print(error.status, error)
assert not gpu_vmm.torch.enabled() and calls == []
os.environ[gpu_vmm.torch.CLASS] = "off"
gpu_vmm.torch.enable(budget=64 << 20)
""",
            ANSWER="1",
        )
        self.assertEqual(said.strip(), "9 enable: call it before the first use of the GPU; it is used already")

    @unittest.skipIf(NAME == "hip", "processes that a program starts do not run on AMD's runtime over the simulator")
    def test_the_command(self):
        package = self.folder / "torch/__init__.py"
        package.write_text(
            "import fake_torch, os, sys\n"
            "made, calls = fake_torch.install(native=os.environ['NATIVE'])\n"
            "sys.modules['torch'] = sys.modules[__name__]\n"
            "globals().update({name: value for name, value in vars(made).items() if not name.startswith('__')})\n"
            "__version__ = made.__version__\n"
        )
        script = self.folder / "script.py"
        script.write_text(
            "import subprocess, sys, torch, gpu_vmm.torch\n"
            "print(__name__, sys.argv[1:], gpu_vmm.torch.enabled(), flush=True)\n"
            "if sys.argv[1:] == ['parent']:\n"
            "    sys.exit(subprocess.run([sys.executable, sys.argv[0], 'child']).returncode)\n"
        )
        (self.folder / "other").mkdir()
        (self.folder / "other/sitecustomize.py").write_text("import os\nos.environ['CHAINED'] = '1'\n")
        path = [str(HERE.parent), str(HERE), str(self.folder), str(self.folder / "other")]
        environment = {**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join(path)}

        def command(*arguments):
            return subprocess.run(
                [*PYTHON, "-m", "gpu_vmm.torch", *arguments], env=environment, capture_output=True, text=True, timeout=120
            )

        built = command("build")
        self.assertEqual((built.returncode, built.stderr), (0, ""))
        self.assertTrue(Path(built.stdout.strip()).is_file(), built.stdout)
        runs = self.runs()
        done = command("run", str(script), "parent")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.splitlines(), ["__main__ ['parent'] True", "__main__ ['child'] True"])
        self.assertEqual(self.runs(), runs, "the build is used")
        script.write_text("import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import os; print(os.environ[\"CHAINED\"])'])\n")
        self.assertEqual(command("run", str(script)).stdout, "1\n")
        wrong = command("walk")
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))
        self.assertIn("usage: python -m gpu_vmm.torch build", wrong.stderr)


if __name__ == "__main__":
    unittest.main()
