"""Builds the wheels and the source distribution, and checks them as a user gets them.

``release.py check FILE...`` checks files: their contents, their tags, and what PyPI says of their descriptions.
``release.py build FOLDER`` builds a wheel for each target and the source distribution into FOLDER, checks them, and uses those for
this machine in an environment of their own. It takes a Rust toolchain with the targets, and a network.

GPU_VMM_CARGO_PROFILE=dev builds faster, for a try. Every step that cannot run is an error.
"""

import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import List, Sequence, Union

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tests"))

from readme import programs  # noqa: E402

GLIBC = "2.28"
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
TOOLS = ("auditwheel", "build", "cargo-zigbuild", "twine", "ziglang")
LICENCES = ("LICENSE-APACHE", "LICENSE-MIT")
Argument = Union[str, Path]


def run(*command: Argument, **variables: str) -> str:
    """Runs a command outside of the repository, and returns its output. A command that fails ends the program."""
    shown = " ".join(map(str, command))
    print(f"+ {shown}", flush=True)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tempfile.gettempdir(), env={**os.environ, **variables}
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nerror: {shown}: status {done.returncode}")
    return done.stdout


def environment(folder: Path, *packages: Argument) -> Path:
    """Creates an environment with packages, and returns the folder of its programs."""
    venv.create(folder, with_pip=True, clear=True)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--upgrade", "pip")
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", *packages)
    return folder / "bin"


def require(holds: bool, text: str) -> None:
    if not holds:
        raise SystemExit(f"error: {text}")


def check_wheel(wheel: Path) -> None:
    """Checks the contents and the tag of a wheel."""
    tag = wheel.stem.split("-", 2)[2]
    require(re.fullmatch(r"py3-none-(manylinux_[0-9_]+|linux)_(x86_64|aarch64)", tag) is not None, f"{wheel.name}: unexpected tag {tag}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    libraries = [name for name in names if name.endswith((".so", ".dylib", ".dll"))]
    require(libraries == ["gpu_vmm/libgpu_vmm_c.so"], f"{wheel.name}: the libraries are {libraries}, expected gpu_vmm/libgpu_vmm_c.so")
    expected = ["gpu_vmm/py.typed", "gpu_vmm/_torch_native/gpu_vmm.h", "gpu_vmm/_torch_native/install.cpp"]
    expected += [f"gpu_vmm-{wheel.name.split('-')[1]}.dist-info/licenses/{name}" for name in LICENCES]
    sources = HERE / "gpu_vmm"
    expected += [f"gpu_vmm/{file.relative_to(sources).as_posix()}" for file in sources.rglob("*.py")]
    for name in expected:
        require(name in names, f"{wheel.name} lacks {name}")
    foreign = [name for name in names if not name.startswith(("gpu_vmm/", "gpu_vmm-"))]
    require(not foreign, f"{wheel.name} contains {foreign}")


def check_sdist(sdist: Path) -> None:
    """Checks that a source distribution has what its build takes."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        links = [member.name for member in archive.getmembers() if member.issym() or member.islnk()]
    require(not links, f"{sdist.name} has links: {links}")
    for name in ("setup.py", "pyproject.toml", "README.md", "gpu_vmm/py.typed", "rust/Cargo.toml", "rust/Cargo.lock", *LICENCES):
        require(name in names, f"{sdist.name} lacks {name}")
    packages = {name.split("/")[1] for name in names if re.fullmatch(r"rust/gpu-vmm[^/]*/Cargo\.toml", name)}
    require(any(name.startswith("gpu-vmm-c-") for name in packages), f"{sdist.name} has no package gpu-vmm-c")


def check(files: Sequence[Path], twine: Path) -> None:
    require(bool(files), "there is no file to check")
    for file in files:
        require(file.is_file(), f"{file} is not a file")
        (check_wheel if file.suffix == ".whl" else check_sdist)(file)
    run(twine, "check", "--strict", *files)
    left = [name for name in ("build", "gpu_vmm.egg-info") if (HERE / name).exists()]
    require(not left, f"the build has left {left} in {HERE}")


def check_glibc(wheel: Path, tools: Path) -> None:
    """Checks that the library needs nothing that the oldest system of the wheel's tag lacks."""
    said = run(tools / "auditwheel", "show", wheel)
    allowed = re.findall(r'"(manylinux_(\d+)_(\d+)_\w+)"', said)
    limit = tuple(map(int, GLIBC.split(".")))
    require(any((int(major), int(minor)) <= limit for _, major, minor in allowed[:1]), f"{wheel.name}: not for glibc {GLIBC}:\n{said}")


def use(file: Path, folder: Path) -> None:
    """Installs a file in a new environment, and runs the README's programs whose output it shows, on host memory."""
    python = environment(folder, file) / "python"
    shown = [program for program in programs() if program.name.startswith("readme") and program.prints]
    require(bool(shown), "README.md has no program with its output")
    for program in shown:
        said = run(python, "-c", program.code)
        require(said == program.prints, f"{file.name}: the program printed {said!r}, expected {program.prints!r}")
    version = run(python, "-c", "import gpu_vmm; print(gpu_vmm.__version__)").strip()
    require(f"-{version}" in file.name, f"{file.name}: the library's version is {version}")


def build(folder: Path) -> None:
    tools = environment(folder / "tools", *TOOLS)
    # The build has an environment of its own, in which cargo-zigbuild would look for Zig.
    (zig,) = (folder / "tools").glob("lib/python*/site-packages/ziglang/zig")
    variables = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "CARGO_ZIGBUILD_ZIG_PATH": str(zig)}
    built = folder / "dist"
    wheels: List[Path] = []
    for target in TARGETS:
        run("rustup", "target", "add", target)
        run(tools / "python", "-m", "build", "--wheel", "--outdir", built, HERE, GPU_VMM_WHEEL_TARGET=f"{target}.{GLIBC}", **variables)
        wheels += built.glob(f"*_{target.split('-')[0]}.whl")
    require(len(wheels) == len(TARGETS), f"{len(wheels)} wheels for {len(TARGETS)} targets")
    run(tools / "python", "-m", "build", "--sdist", "--outdir", built, HERE)
    (sdist,) = built.glob("*.tar.gz")
    check([*wheels, sdist], tools / "twine")
    for wheel in wheels:
        check_glibc(wheel, tools)
    use(next(wheel for wheel in wheels if wheel.stem.endswith(platform.machine())), folder / "wheel")
    use(sdist, folder / "sdist")
    print("\n".join(str(file) for file in [*wheels, sdist]))


if __name__ == "__main__":
    command, *arguments = sys.argv[1:] or ["help"]
    if command == "check":
        check([Path(name).resolve() for name in arguments], Path(sys.executable).parent / "twine")
    elif command == "build" and len(arguments) == 1:
        build(Path(arguments[0]).resolve())
    else:
        raise SystemExit(__doc__)
