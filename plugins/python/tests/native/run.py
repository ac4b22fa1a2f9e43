"""Compiles the allocator class against a PyTorch and runs its test over a fake libcudart. No GPU is needed, nor an installed PyTorch.

    run.py LIBRARY TORCH INCLUDE [time|future]

LIBRARY is libgpu_vmm_c, TORCH the folder `torch` of an unpacked wheel, INCLUDE a folder with cuda_runtime_api.h. With `time`, it measures
a pair of an allocation and a free instead. With `future`, PyTorch's allocator has two more functions, which the class does not know.

It fails if PyTorch's allocator has virtual functions with a default that defaults.txt does not have.
"""

import os
import re
import subprocess
import sys
import tempfile
import types
import warnings
from pathlib import Path

from defaults import minor, undecided

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

HEADER = "c10/cuda/CUDACachingAllocator.h"
# At the end of the class: PyTorch's own libraries find the other functions in their places.
FUTURE = """
  virtual void futureCall(
      c10::DeviceIndex device, std::unique_ptr<int> value, const std::function<void(int)>& call) = 0;
  // A default argument, and types with commas.
  virtual std::pair<size_t, std::string> futureValue(
      const void* address,
      size_t size = 1) const = 0;
"""


def compile_future(torch, folder, place):
    """Compiles the class against a PyTorch with two more pure virtual functions, and returns its file."""
    from gpu_vmm import _torch_build

    header = place / "future" / HEADER
    header.parent.mkdir(parents=True)
    source = (folder / "include" / HEADER).read_text()
    changed = re.sub(r"(\nclass CUDAAllocator : .*?)(\n\};)", lambda found: found[1] + FUTURE + found[2], source, count=1, flags=re.DOTALL)
    assert FUTURE in changed, f"{HEADER} has no class CUDAAllocator"
    header.write_text(changed)
    os.environ["CXX"] = f"{os.environ.get('CXX', 'c++')} -isystem {place / 'future'}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = _torch_build.build(torch), _torch_build.build(torch)
    assert first == second and len(caught) == 2, caught
    assert str(caught[0].message) == str(caught[1].message) and "futureCall, futureValue. Update" in str(caught[0].message), caught[0].message
    return first


def torch_of(folder):
    """Returns what the build needs to know of a PyTorch that is not imported."""
    source = (folder / "version.py").read_text()
    # Wheels before 2.7 have strings of the older ABI.
    has_old_strings = b"_ZN3c105ErrorC1ENS_14SourceLocationESs" in (folder / "lib/libc10.so").read_bytes()
    found = dict(re.findall(r"^(\w+)(?::[^=]*)? = '([^']*)'", source, re.MULTILINE))
    return types.SimpleNamespace(
        __version__=found["__version__"], __file__=str(folder / "__init__.py"), version=types.SimpleNamespace(cuda=found["cuda"], hip=None),
        compiled_with_cxx11_abi=lambda: not has_old_strings,
    )  # fmt: skip


def absent(folder, place):
    """Writes functions that report an error (cudaErrorNotSupported) for what PyTorch's library needs of the CUDA runtime."""
    command = ["nm", "--dynamic", "--undefined-only", folder / "lib/libc10_cuda.so"]
    needed = re.findall(r"\bU (cuda\w+)", subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert needed, "libc10_cuda.so needs nothing of the CUDA runtime"
    # The ones of fake_cudart.c have precedence.
    lines = [f"__attribute__((weak)) int {name}(void) {{ return 801; }}\n" for name in needed]
    (place / "absent.c").write_text("".join(lines))
    return place / "absent.c"


def main():
    library, folder, include = (Path(word).resolve() for word in sys.argv[1:4])
    os.environ["GPU_VMM_C_LIBRARY"] = str(library)
    # The build looks for CUDA's headers below this folder.
    os.environ["CUDA_HOME"] = str(include.parent)
    from gpu_vmm import _torch_build

    torch = torch_of(folder)
    wrong = undecided(torch.__version__, folder / "include")
    if wrong:
        sys.exit("\n".join(wrong))
    future = sys.argv[4:] == ["future"]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["XDG_CACHE_HOME"] = name
        built = compile_future(torch, folder, place) if future else _torch_build.build(torch)
        compiler, flags = _torch_build._command(torch)
        major = torch.version.cuda.split(".")[0]
        runtime = place / f"libcudart.so.{major}"
        # PyTorch's library wants symbols with this version.
        (place / "map").write_text(f"{runtime.name} {{ global: cuda*; local: *; }};")
        words = ["-shared", "-fPIC", "-Wl,-soname," + runtime.name, f"-Wl,--version-script,{place}/map"]
        subprocess.run(["cc", *words, HERE / "fake_cudart.c", absent(folder, place), "-o", runtime], check=True)
        driver = place / "libcuda.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname," + driver.name, HERE / "fake_libcuda.c", runtime, "-o", driver], check=True)
        program, source = place / "test", HERE / ("future_test.cpp" if future else "allocator_test.cpp")
        words = [source, "-o", program, "-lc10", "-lc10_cuda", runtime, driver, "-ldl", "-pthread", f"-Wl,-rpath,{place}"]
        # The test is compiled without optimization, which takes half of the time.
        subprocess.run([*compiler, *flags, "-O0", *words], check=True)
        environment = {**os.environ, "LD_LIBRARY_PATH": name}
        if minor(torch.__version__) >= (2, 10):
            environment["PYTORCH_CUDA_ALLOC_CONF"] = "per_process_memory_fraction:0.5"
        runs = [sys.argv[4:]]
        if future:
            runs = [[]]
        elif not runs[0] and minor(torch.__version__) >= (2, 12):
            runs.append(["rejections"])
        codes = [subprocess.run([program, library, built, *words], env=environment, check=False).returncode for words in runs]
        return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main())
