"""Builds the C library with Cargo and includes it in the package, with the header that PyTorch's allocator class is compiled with.

The environment can choose Cargo's profile (GPU_VMM_CARGO_PROFILE, by default release) and another target with the oldest glibc that
the library must run on (GPU_VMM_WHEEL_TARGET, such as aarch64-unknown-linux-gnu.2.28), which takes cargo-zigbuild.
"""

import atexit
import json
import os
import posixpath
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
PACKAGE = "gpu-vmm-c"
# The Rust sources: of a source distribution, else of the repository.
RUST = HERE / "rust"
WORKSPACE = RUST if RUST.is_dir() else HERE.parent.parent
TARGET = os.environ.get("GPU_VMM_WHEEL_TARGET", "")
PAGES = "https://github.com/gpu-vmm/gpu-vmm/blob/main/"


def scratch():
    """Returns a folder for files of the build, which would otherwise stay in the sources."""
    folder = tempfile.mkdtemp(prefix="gpu-vmm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def readme():
    """Returns README.md with its links into the repository as links to its pages: PyPI shows the file alone."""

    def absolute(link):
        return "](" + PAGES + posixpath.normpath(posixpath.join("plugins/python", link[1])) + ")"

    return re.sub(r"\]\((?!https?://|#)([^)]+)\)", absolute, (HERE / "README.md").read_text(encoding="utf-8"))


def cargo(*arguments):
    return subprocess.run([os.environ.get("CARGO", "cargo"), *arguments], cwd=WORKSPACE, stdout=subprocess.PIPE, check=True, text=True).stdout


def build_library():
    """Builds the C library. Returns its file and the header's."""
    profile = os.environ.get("GPU_VMM_CARGO_PROFILE", "release")
    target = ["zigbuild", "--target", TARGET] if TARGET else ["build"]
    lines = cargo(*target, "--package", PACKAGE, "--profile", profile, "--message-format=json-render-diagnostics").splitlines()
    for built in map(json.loads, filter(None, lines)):
        if built.get("target", {}).get("name") == "gpu_vmm_c" and "cdylib" in built["target"]["crate_types"]:
            (library,) = [Path(file) for file in built["filenames"] if Path(file).suffix in (".so", ".dylib", ".dll")]
            return library, Path(built["manifest_path"]).parent / "include" / "gpu_vmm.h"
    raise SystemExit(f"cargo has built no library of {PACKAGE}")


class Build(build):
    def initialize_options(self):
        super().initialize_options()
        self.build_base = scratch()


class EggInfo(egg_info):
    def initialize_options(self):
        super().initialize_options()
        self.egg_base = scratch()


class BuildPy(build_py):
    def run(self):
        super().run()
        library, header = build_library()
        package = Path(HERE if self.editable_mode else self.build_lib, "gpu_vmm")
        shutil.copy(library, package)
        if not self.editable_mode:
            shutil.copy(header, package / "_torch_native")


class Wheel(bdist_wheel):
    """ctypes loads the library, so one wheel serves every Python 3 of a platform."""

    def get_tag(self):
        triple, _, glibc = TARGET.partition(".")
        platform = f"manylinux_{glibc.replace('.', '_')}_{triple.split('-')[0]}" if glibc else super().get_tag()[2]
        return "py3", "none", platform


class Sdist(sdist):
    """Adds the Rust packages as crates.io would have them, as a workspace of their own."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        if RUST.is_dir():
            shutil.copytree(RUST, Path(base_dir, "rust"), ignore=shutil.ignore_patterns("target"), dirs_exist_ok=True)
            return
        rust = Path(base_dir, "rust")
        rust.mkdir()
        built = scratch()
        packages = needed()
        options = [word for name in packages for word in ("--package", name)]
        cargo("package", "--quiet", "--no-verify", "--allow-dirty", "--target-dir", built, *options)
        manifest = '[workspace]\nresolver = "3"\nmembers = ["*"]\nexclude = ["target"]\n\n[profile.release]\nstrip = "debuginfo"\n\n[patch.crates-io]\n'
        for name, version in packages.items():
            with tarfile.open(Path(built, "package", f"{name}-{version}.crate")) as archive:
                archive.extractall(rust)
            if name != PACKAGE:
                manifest += f'{name} = {{ path = "{name}-{version}" }}\n'
        (rust / "Cargo.toml").write_text(manifest, encoding="utf-8")
        shutil.copy(WORKSPACE / "Cargo.lock", rust)


def needed():
    """Returns the C library's package and the packages of the workspace that it needs, with their versions."""
    packages = {one["name"]: one for one in json.loads(cargo("metadata", "--format-version=1", "--no-deps"))["packages"]}
    found, left = {}, [PACKAGE]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = packages[name]["version"]
            left += [one["name"] for one in packages[name]["dependencies"] if one.get("path") and one["kind"] != "dev"]
    return found


class Platform(Distribution):
    def has_ext_modules(self):
        return True


setup(
    distclass=Platform,
    long_description=readme(),
    long_description_content_type="text/markdown",
    cmdclass={"bdist_wheel": Wheel, "build": Build, "build_py": BuildPy, "egg_info": EggInfo, "sdist": Sdist},
)
