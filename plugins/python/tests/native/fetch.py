"""Fetches what the allocator class is compiled against: headers and libraries of PyTorch's wheels, and CUDA's headers.

    fetch.py FOLDER               the oldest supported minor release of PyTorch, and the newest one that pip finds
    fetch.py FOLDER all           every minor release from the oldest supported one on
    fetch.py FOLDER VERSION...    these versions

Of a minor release it takes the newest version. It prints `TORCH=INCLUDE` for each version, oldest first, separated by commas, as run.py
and the environment variable GPU_VMM_TEST_TORCH take it. It does not fetch again what FOLDER has. A wheel has up to 900 MB, of which
7 MB stay.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Dict, List, Tuple

# The oldest minor release that the class supports.
OLDEST = (2, 6)
# The wheels of the newest Python that every supported PyTorch has wheels for.
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
TARGET = ["--only-binary=:all:", "--python-version", PYTHON, *(word for name in PLATFORMS for word in ("--platform", name))]
MEMBERS = re.compile(
    r"torch/(include/(c10|torch/headeronly)/.*|lib/libc10(_cuda)?\.so|version\.py|utils/cpp_extension\.py|cuda/_memory_viz\.py)|nvidia/.*/include/.*"
    r"|[^/]*\.dist-info/METADATA"
)


def pip(*words: str) -> str:
    """Runs pip with its own settings, and returns what it prints."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def releases() -> List[str]:
    """Returns the newest version of each minor release that pip finds, oldest first."""
    found = re.search(r"^Available versions: (.*)$", pip("index", "versions", "torch", *TARGET), re.MULTILINE)
    if found is None:
        raise SystemExit("error: `pip index versions torch` printed no line of available versions")
    newest: Dict[Tuple[int, ...], str] = {}
    for version in sorted(re.findall(r"[\d.]*\d", found[1]), key=numbers):
        newest[numbers(version)[:2]] = version
    supported = [version for minor, version in newest.items() if minor >= OLDEST]
    if not supported:
        raise SystemExit(f"error: pip finds no PyTorch of version {OLDEST} or later: {found[1]}")
    return supported


def unpacked(package: str, place: Path) -> Path:
    """Returns a folder with the members of a wheel that are needed. Another process sees the folder when it is complete."""
    folder = place / re.sub(r"[^\w.]+", "_", package)
    if folder.exists():
        return folder
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as name:
        pip("download", "--quiet", "--no-cache-dir", "--no-deps", *TARGET, "--dest", name, package)
        parts = Path(name) / "parts"
        with zipfile.ZipFile(next(Path(name).glob("*.whl"))) as wheel:
            wheel.extractall(parts, [member for member in wheel.namelist() if MEMBERS.fullmatch(member)])
        parts.rename(folder)
    return folder


def requirement(folder: Path, name: str, extra: str = "") -> str:
    """Returns what a wheel requires of a package, or an empty text: `nvidia-cuda-runtime==13.0.96`."""
    metadata = HeaderParser().parsestr(next(folder.glob("*.dist-info/METADATA")).read_text(encoding="utf-8"))
    for line in metadata.get_all("Requires-Dist") or []:
        wanted, _, marker = line.partition(";")
        found = re.match(rf"({name})(?:\[[^\]]*\])?\s*\(?(==[^\s)]+)", wanted)
        if found and (not extra or re.search(rf"extra == ['\"]{extra}['\"]", marker)):
            return found[1] + found[2]
    return ""


def runtime_of(torch: Path, place: Path) -> str:
    """Returns the package with the headers of the CUDA runtime that a PyTorch requires, itself or by NVIDIA's package of packages."""
    found = requirement(torch, r"nvidia-cuda-runtime(?:-cu\d+)?")
    toolkit = "" if found else requirement(torch, "cuda-toolkit")
    if toolkit:
        found = requirement(unpacked(toolkit, place), "nvidia-cuda-runtime", extra="cudart")
    if not found:
        raise SystemExit(f"error: the metadata of {torch.name} names no package of the CUDA runtime")
    return found


def fetched(version: str, place: Path) -> str:
    torch = unpacked(f"torch=={version}", place)
    runtime = unpacked(runtime_of(torch, place), place)
    include = next(runtime.glob("nvidia/*/include/cuda_runtime_api.h")).parent
    return f"{torch / 'torch'}={include}"


def main() -> None:
    place, wanted = Path(sys.argv[1]).resolve(), sys.argv[2:]
    if wanted in ([], ["all"]):
        found = releases()
        wanted = found if wanted else [found[0], found[-1]]
    print(",".join(fetched(version, place) for version in wanted))


if __name__ == "__main__":
    main()
