"""The allocator class for PyTorch: compiling it against the installed PyTorch, and keeping the result in the user's cache."""

from __future__ import annotations

import atexit
import glob
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from typing import Any, List, Sequence, Tuple

from ._library import version
from .errors import Unsupported

_SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_torch_native")
_FILE = "libgpu_vmm_torch.so"
# Beside the class: the functions of PyTorch's allocator that it passes to PyTorch's own, one a line.
_FORWARDED = "forwarded"
_CLASS = "GpuVmmAllocator"
# Enough for a busy machine.
_TIME_LIMIT = 900


def build(torch: Any) -> str:
    """Returns the file of the class for this PyTorch, which the first call on a machine compiles.

    Warns if PyTorch's allocator has functions that the class does not know. Raises Unsupported, which says what is missing, with the last
    lines of a compiler that fails.
    """
    file = _built(torch)
    try:
        with open(os.path.join(os.path.dirname(file), _FORWARDED), encoding="utf-8") as forwarded:
            names = ", ".join(forwarded.read().split())
    except FileNotFoundError:
        return file
    warnings.warn(
        f"gpu_vmm.torch: PyTorch {torch.__version__} is newer than this version of gpu-vmm: its allocator has functions that gpu-vmm's class "
        f"does not know, and PyTorch's own allocator answers them, which does not know gpu-vmm's memory: {names}. Update gpu-vmm.",
        RuntimeWarning, stacklevel=2,
    )  # fmt: skip
    return file


def _built(torch: Any) -> str:
    """Returns the file of the class, which it compiles unless the cache has it."""
    kept = os.path.join(cache(), _key(torch), _FILE)
    if os.path.isfile(kept):
        return kept
    compiler, flags = _command(torch)
    place, is_kept = _temporary(os.path.dirname(os.path.dirname(kept)))
    try:
        file = _compile(compiler, flags, place)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    if not is_kept:
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        return file
    folder = os.path.dirname(kept)
    try:
        try:
            os.rename(place, folder)
        except OSError:
            # What is left of an older build is replaced.
            if os.path.isfile(kept):
                raise
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(place, folder)
    except OSError:
        # Another process has built it meanwhile, or the cache cannot keep it.
        if not os.path.isfile(kept):
            atexit.register(shutil.rmtree, place, ignore_errors=True)
            return file
        shutil.rmtree(place, ignore_errors=True)
    return kept


def cache() -> str:
    """Returns the folder with a folder for each build."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(home):
        # A user without a home: nothing is kept.
        home = "/nonexistent"
    return os.path.join(home, "gpu-vmm", "torch")


def _temporary(cache: str) -> Tuple[str, bool]:
    """Returns a new folder for a build, and whether the cache can keep it."""
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
        return tempfile.mkdtemp(prefix="building-", dir=cache), True
    except OSError:
        return tempfile.mkdtemp(prefix="gpu-vmm-torch-"), False


def _source() -> str:
    """Returns the file that includes the others: PyTorch's headers take most of the time, and are read once."""
    file = os.path.join(_SOURCES, "class.cpp")
    if not os.path.isfile(file):
        raise Unsupported(f"gpu_vmm.torch: the package has no {file}; install it again")
    return file


def _header_folder() -> str:
    # The package has a copy; a checkout has the header in its place.
    for folder in (_SOURCES, os.path.normpath(os.path.join(_SOURCES, "..", "..", "..", "c", "include"))):
        if os.path.isfile(os.path.join(folder, "gpu_vmm.h")):
            return folder
    raise Unsupported(f"gpu_vmm.torch: the package has no gpu_vmm.h in {_SOURCES}; install it again")


def _cuda_include(torch_folder: str) -> str:
    packages = os.path.join(os.path.dirname(torch_folder), "nvidia")
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [os.path.join(home, "include") for home in homes if home]
    folders += sorted(glob.glob(os.path.join(glob.escape(packages), "cu[0-9]*", "include")))
    folders += [os.path.join(packages, "cuda_runtime", "include"), "/usr/local/cuda/include"]
    for folder in folders:
        if os.path.isfile(os.path.join(folder, "cuda_runtime_api.h")):
            return folder
    raise Unsupported(f"gpu_vmm.torch: there is no cuda_runtime_api.h in any of {', '.join(folders)}; set CUDA_HOME to a CUDA toolkit")


def _standard(torch_folder: str) -> str:
    """Returns the C++ standard that PyTorch's own builder of extensions compiles with, which its headers need."""
    try:
        with open(os.path.join(torch_folder, "utils", "cpp_extension.py"), encoding="utf-8") as source:
            numbers = re.findall(r"-std=c\+\+(\d\d)", source.read())
    except OSError:
        numbers = []
    # Its examples may name another one.
    return f"c++{max(set(numbers), key=numbers.count) if numbers else 17}"


def _compiler() -> List[str]:
    named = os.environ.get("CXX", "")
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise Unsupported(f"gpu_vmm.torch: CXX={named!r} is no command: {error}") from None
    if words:
        return words
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return [found]
    raise Unsupported("gpu_vmm.torch: there is no C++ compiler (c++, g++ or clang++); install one, or set CXX to one")


def _folder(torch: Any) -> str:
    return os.path.dirname(os.path.abspath(getattr(torch, "__file__", None) or ""))


def _defining_flags(torch: Any) -> List[str]:
    """Returns the flags that decide what the class is. They are the same on each machine with this PyTorch."""
    if getattr(torch.version, "hip", None):
        raise Unsupported("gpu_vmm.torch: the allocator class is not available for PyTorch's ROCm builds")
    if not sys.platform.startswith("linux"):
        raise Unsupported(f"gpu_vmm.torch: the allocator class is not available on {sys.platform}")
    number = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if number is None or (int(number[1]), int(number[2])) < (2, 6):
        raise Unsupported(f"gpu_vmm.torch: the allocator class needs PyTorch 2.6 or later; this is {torch.__version__}")
    folder = _folder(torch)
    for file in (os.path.join(folder, "include", "c10", "cuda", "CUDACachingAllocator.h"), os.path.join(folder, "lib", "libc10_cuda.so")):
        if not os.path.isfile(file):
            raise Unsupported(f"gpu_vmm.torch: this PyTorch lacks {file}")
    abi = int(bool(torch.compiled_with_cxx11_abi()))
    version_number = int(number[1]) * 100 + int(number[2])
    return [f"-std={_standard(folder)}", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-DGPU_VMM_TORCH={version_number}"]


def _command(torch: Any) -> Tuple[List[str], List[str]]:
    """Returns the compiler, and the flags for this PyTorch."""
    defining = _defining_flags(torch)
    folder = _folder(torch)
    flags = [
        *defining, "-O2", "-fPIC", "-fvisibility=hidden",
        "-I" + os.path.join(_SOURCES, "shim", "runtime"), "-I" + _header_folder(),
        "-isystem", os.path.join(folder, "include"), "-isystem", _cuda_include(folder),
        "-isystem", os.path.join(_SOURCES, "shim", "crt_if_missing"),
        "-L" + os.path.join(folder, "lib"), "-Wl,-rpath," + os.path.join(folder, "lib"),
    ]  # fmt: skip
    return _compiler(), flags


def _key(torch: Any) -> str:
    """Returns the name of a build: what it depends on, and a digest of its sources and flags.

    No folder of this machine is part of it, and it takes no compiler: a machine without one can use another's build.
    """
    digest = hashlib.sha256("\0".join([platform.machine(), *_defining_flags(torch)]).encode())
    sources = glob.glob(os.path.join(glob.escape(_SOURCES), "**", "*.[ch]*"), recursive=True)
    # Two builds of one version of PyTorch may differ in the functions of its allocator.
    include = os.path.join(_folder(torch), "include", "c10")
    headers = [os.path.join(include, *name) for name in (("cuda", "CUDACachingAllocator.h"), ("core", "CachingDeviceAllocator.h"))]
    own = os.path.join(_header_folder(), "gpu_vmm.h")
    for file in [*sorted(sources), own, *filter(os.path.isfile, headers)]:
        with open(file, "rb") as source:
            digest.update(source.read())
    name = f"torch-{torch.__version__}-cuda-{torch.version.cuda}-gpu-vmm-{version()}-{digest.hexdigest()[:16]}"
    return re.sub(r"[^\w.+-]", "_", name)


class _Failed(Unsupported):
    """A compiler that has reported errors."""

    def __init__(self, compiler: str, status: int, said: str) -> None:
        lines = said.strip().splitlines()
        errors = [line for line in lines if "error" in line] or lines
        super().__init__(f"gpu_vmm.torch: {compiler} failed with {status}: " + " | ".join(errors[-3:]))
        self.said = said


def _compile(compiler: List[str], flags: List[str], place: str) -> str:
    """Compiles and links the class in `place`. Adds the functions that PyTorch's allocator has and the class does not know."""
    file = os.path.join(place, _FILE)
    forwarded: List[str] = []
    while True:
        forwarding = _forwarding(forwarded, place)
        try:
            _run([*compiler, *flags, *forwarding, "-shared", _source(), *_cxx_library(), "-lc10", "-lc10_cuda", "-o", file])
        except _Failed as error:
            unknown = [name for name in _pure_functions(error.said) if name not in forwarded]
            if not unknown:
                raise
            forwarded += unknown
            continue
        if forwarded:
            with open(os.path.join(place, _FORWARDED), "w", encoding="utf-8") as names:
                names.write("".join(f"{name}\n" for name in forwarded))
        return file


def _pure_functions(said: str) -> List[str]:
    """Returns the names of the pure virtual functions that a compiler says the class lacks."""
    names = re.findall(rf"unimplemented pure virtual method '(\w+)' in '{_CLASS}'", said)  # clang
    listed = False
    for line in said.splitlines():  # g++: a heading, and a signature a line
        if "virtual functions are pure within" in line:
            listed = f"{_CLASS}'" in line
        signature = re.search(r": note: +'virtual (.*)'$", line)
        if signature is None:
            continue
        # The last parentheses are the function's: those of a type within come before they close.
        depth, start = 0, signature[1].rfind(")")
        for start in range(start, -1, -1):
            depth += {")": 1, "(": -1}.get(signature[1][start], 0)
            if depth == 0:
                break
        name = re.search(r"(\w+)$", signature[1][:start])
        if listed and name is not None:
            names.append(name[1])
    return list(dict.fromkeys(names))


def _forwarding(names: Sequence[str], place: str) -> List[str]:
    """Returns the flags for a class that passes functions to PyTorch's own allocator."""
    if not names:
        return []
    header = os.path.join(place, "forwarded.h")
    with open(header, "w", encoding="utf-8") as out:
        out.write("namespace gpu_vmm {\nusing Base0 = torch_allocator::CUDAAllocator;\n")
        out.writelines(f"GPU_VMM_FORWARD({name}, Base{number}, Base{number + 1})\n" for number, name in enumerate(names))
        out.write(f"using Base = Base{len(names)};\n}} // namespace gpu_vmm\n")
    return [f'-DGPU_VMM_FORWARDED="{header}"']


def _cxx_library() -> List[str]:
    """Returns the C++ library of this process, which PyTorch uses, for the linker to take before the compiler's own.

    Some compilers link their own statically. A class with a second C++ library crashes when it formats a number: the facets of
    the process's locale have other numbers there.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        files = [line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "libstdc++.so" in line]
    return files[:1]


def _run(command: List[str]) -> None:
    try:
        # The texts of compilers are read in English.
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_TIME_LIMIT, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported(f"gpu_vmm.torch: the compiler {command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise _Failed(command[0], done.returncode, done.stdout.decode("utf-8", "replace"))
