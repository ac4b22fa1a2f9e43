"""Compiles the allocator class against a PyTorch and runs its test over a fake libcudart. No GPU is needed, nor an installed PyTorch.

    run.py LIBRARY TORCH INCLUDE [time]

LIBRARY is libgpu_vmm_c, TORCH the folder `torch` of an unpacked wheel, INCLUDE a folder with cuda_runtime_api.h. With `time`, it measures
a pair of an allocation and a free instead.
"""

import os
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))


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


def main():
    library, folder, include = (Path(word).resolve() for word in sys.argv[1:4])
    os.environ["GPU_VMM_C_LIBRARY"] = str(library)
    # The build looks for CUDA's headers below this folder.
    os.environ["CUDA_HOME"] = str(include.parent)
    from gpu_vmm import _torch_build

    torch = torch_of(folder)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["XDG_CACHE_HOME"] = name
        built = _torch_build.build(torch)
        compiler, flags = _torch_build._command(torch)
        major = torch.version.cuda.split(".")[0]
        runtime = place / f"libcudart.so.{major}"
        # PyTorch's library wants symbols with this version.
        (place / "map").write_text(f"{runtime.name} {{ global: cuda*; local: *; }};")
        words = ["-shared", "-fPIC", "-Wl,-soname," + runtime.name, f"-Wl,--version-script,{place}/map"]
        subprocess.run(["cc", *words, HERE / "fake_cudart.c", "-o", runtime], check=True)
        driver = place / "libcuda.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname," + driver.name, HERE / "fake_libcuda.c", runtime, "-o", driver], check=True)
        program = place / "test"
        words = [HERE / "allocator_test.cpp", "-o", program, "-lc10", "-lc10_cuda", runtime, driver, "-ldl", "-pthread", f"-Wl,-rpath,{place}"]
        subprocess.run([*compiler, *flags, *words], check=True)
        environment = {**os.environ, "LD_LIBRARY_PATH": name}
        return subprocess.run([program, library, built, *sys.argv[4:]], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
