"""Builds the C library with Cargo and includes it in the package."""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools_rust import Binding, RustExtension, Strip


class AnyPython(bdist_wheel):
    """ctypes loads the library, so one wheel serves every Python 3 of a platform."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    rust_extensions=[
        RustExtension("gpu_vmm.libgpu_vmm_c", path="../c/Cargo.toml", binding=Binding.NoBinding, debug=False, strip=Strip.Debug)
    ],
    cmdclass={"bdist_wheel": AnyPython},
)
