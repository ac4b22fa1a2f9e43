"""Builds the C library with Cargo and includes it in the package, with the header that PyTorch's allocator class is compiled with."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools_rust import Binding, RustExtension, Strip


class AnyPython(bdist_wheel):
    """ctypes loads the library, so one wheel serves every Python 3 of a platform."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class WithHeader(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            shutil.copy("../c/include/gpu_vmm.h", Path(self.build_lib, "gpu_vmm", "_torch_native"))


setup(
    rust_extensions=[
        RustExtension("gpu_vmm.libgpu_vmm_c", path="../c/Cargo.toml", binding=Binding.NoBinding, debug=False, strip=Strip.Debug)
    ],
    cmdclass={"bdist_wheel": AnyPython, "build_py": WithHeader},
)
