"""The allocator class for PyTorch: compiling it against the installed PyTorch, and keeping the result in the user's cache."""

from __future__ import annotations

import atexit
import concurrent.futures
import glob
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Any, List, Tuple

from ._library import version
from .errors import Unavailable

_SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_torch_native")
_FILE = "libgpu_vmm_torch.so"
# PyTorch's headers take most of the time of a compilation.
_TIME_LIMIT = 900


def build(torch: Any) -> str:
    """Returns the file of the class for this PyTorch, which the first call on a machine compiles.

    Raises Unavailable, which says what is missing, with the last lines of a compiler that fails.
    """
    compiler, flags = _command(torch)
    key = _key(torch, flags)
    kept = os.path.join(_cache(), key, _FILE)
    if os.path.isfile(kept):
        return kept
    place, is_kept = _temporary(os.path.dirname(os.path.dirname(kept)))
    try:
        file = _compile(compiler, flags, place)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    if not is_kept:
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        return file
    try:
        os.rename(place, os.path.dirname(kept))
    except OSError:
        # Another process has built it meanwhile.
        if not os.path.isfile(kept):
            raise
        shutil.rmtree(place, ignore_errors=True)
    return kept


def _cache() -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "gpu-vmm", "torch")


def _temporary(cache: str) -> Tuple[str, bool]:
    """Returns a new folder for a build, and whether the cache can keep it."""
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
        return tempfile.mkdtemp(prefix="building-", dir=cache), True
    except OSError:
        return tempfile.mkdtemp(prefix="gpu-vmm-torch-"), False


def _sources() -> List[str]:
    found = sorted(glob.glob(os.path.join(glob.escape(_SOURCES), "*.cpp")))
    if not found:
        raise Unavailable(f"gpu_vmm.torch: the package has no sources of the allocator class in {_SOURCES}; install it again")
    return found


def _header_folder() -> str:
    # The package has a copy; a checkout has the header in its place.
    for folder in (_SOURCES, os.path.normpath(os.path.join(_SOURCES, "..", "..", "..", "c", "include"))):
        if os.path.isfile(os.path.join(folder, "gpu_vmm.h")):
            return folder
    raise Unavailable(f"gpu_vmm.torch: the package has no gpu_vmm.h in {_SOURCES}; install it again")


def _cuda_include(torch_folder: str) -> str:
    packages = os.path.join(os.path.dirname(torch_folder), "nvidia")
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [os.path.join(home, "include") for home in homes if home]
    folders += sorted(glob.glob(os.path.join(glob.escape(packages), "cu[0-9]*", "include")))
    folders += [os.path.join(packages, "cuda_runtime", "include"), "/usr/local/cuda/include"]
    for folder in folders:
        if os.path.isfile(os.path.join(folder, "cuda_runtime_api.h")):
            return folder
    raise Unavailable(f"gpu_vmm.torch: there is no cuda_runtime_api.h in any of {', '.join(folders)}; set CUDA_HOME to a CUDA toolkit")


def _compiler() -> List[str]:
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return [found]
    raise Unavailable("gpu_vmm.torch: there is no C++ compiler (c++, g++ or clang++); install one, or set CXX to one")


def _command(torch: Any) -> Tuple[List[str], List[str]]:
    """Returns the compiler, and the flags for this PyTorch."""
    if getattr(torch.version, "hip", None):
        raise Unavailable("gpu_vmm.torch: the allocator class is not available for PyTorch's ROCm builds")
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"gpu_vmm.torch: the allocator class is not available on {sys.platform}")
    number = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if number is None or (int(number[1]), int(number[2])) < (2, 6):
        raise Unavailable(f"gpu_vmm.torch: the allocator class needs PyTorch 2.6 or later; this is {torch.__version__}")
    folder = os.path.dirname(os.path.abspath(getattr(torch, "__file__", None) or ""))
    include, lib = os.path.join(folder, "include"), os.path.join(folder, "lib")
    for file in (os.path.join(include, "c10", "cuda", "CUDACachingAllocator.h"), os.path.join(lib, "libc10_cuda.so")):
        if not os.path.isfile(file):
            raise Unavailable(f"gpu_vmm.torch: this PyTorch lacks {file}")
    abi = int(bool(torch.compiled_with_cxx11_abi()))
    flags = [
        "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-DGPU_VMM_TORCH={int(number[1]) * 100 + int(number[2])}",
        "-I" + os.path.join(_SOURCES, "shim", "runtime"), "-I" + _header_folder(),
        "-isystem", include, "-isystem", _cuda_include(folder), "-isystem", os.path.join(_SOURCES, "shim", "crt_if_missing"),
        "-L" + lib, "-Wl,-rpath," + lib,
    ]  # fmt: skip
    return _compiler(), flags


def _key(torch: Any, flags: List[str]) -> str:
    """Returns the name of a build: what it depends on, and a digest of its sources and flags."""
    digest = hashlib.sha256("\0".join(flags).encode())
    headers = glob.glob(os.path.join(glob.escape(_SOURCES), "**", "*.h"), recursive=True)
    for file in [*_sources(), *sorted(headers), os.path.join(_header_folder(), "gpu_vmm.h")]:
        with open(file, "rb") as source:
            digest.update(source.read())
    name = f"torch-{torch.__version__}-cuda-{torch.version.cuda}-gpu-vmm-{version()}-{digest.hexdigest()[:16]}"
    return re.sub(r"[^\w.+-]", "_", name)


def _compile(compiler: List[str], flags: List[str], place: str) -> str:
    """Compiles the sources side by side, and links them in `place`."""
    objects = [os.path.join(place, os.path.basename(source) + ".o") for source in _sources()]
    jobs = [[*compiler, *flags, "-c", source, "-o", made] for source, made in zip(_sources(), objects)]
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as threads:
        for done in [threads.submit(_run, job) for job in jobs]:
            done.result()
    file = os.path.join(place, _FILE)
    _run([*compiler, *flags, "-shared", *objects, *_cxx_library(), "-lc10", "-lc10_cuda", "-o", file])
    for made in objects:
        os.remove(made)
    return file


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
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_TIME_LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"gpu_vmm.torch: the compiler {command[0]} cannot be run: {error}") from error
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()
        errors = [line for line in said if "error" in line] or said
        raise Unavailable(f"gpu_vmm.torch: {command[0]} failed with {done.returncode}: " + " | ".join(errors[-3:]))
