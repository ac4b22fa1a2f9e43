"""Fetches what the allocator class is compiled against: headers and libraries of PyTorch's wheels, and CUDA's headers.

    fetch.py FOLDER [VERSION...]

Prints `TORCH=INCLUDE` for each version, separated by commas, as run.py and the environment variable GPU_VMM_TEST_TORCH take it. What is in
FOLDER already is not fetched again. A wheel has up to 900 MB, of which 5 MB stay.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The package with the CUDA headers of each version of PyTorch.
RUNTIMES = {
    "2.6.0": "nvidia-cuda-runtime-cu12==12.4.127",
    "2.8.0": "nvidia-cuda-runtime-cu12==12.8.90",
    "2.10.0": "nvidia-cuda-runtime-cu12==12.8.90",
    "2.11.0": "nvidia-cuda-runtime==13.0.96",
}
TESTED = ("2.6.0", "2.11.0")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
PARTS = re.compile(r"torch/(include/(c10|torch/headeronly)/.*|lib/libc10(_cuda)?\.so|version\.py)|nvidia/.*/include/.*")


def unpack(package: str, folder: Path) -> None:
    """Downloads a wheel and unpacks what is needed. Another process sees the folder when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        place = Path(name)
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        words = ["download", "--quiet", "--no-cache-dir", "--no-deps", "--only-binary=:all:", "--python-version", "3.12"]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words, *platforms, "--dest", place, package]
        subprocess.run(command, check=True, stdout=sys.stderr)
        with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
            wheel.extractall(place / "parts", [member for member in wheel.namelist() if PARTS.fullmatch(member)])
        (place / "parts").rename(folder)


def fetched(version: str, folder: Path) -> str:
    torch, runtime = folder / f"torch-{version}", folder / RUNTIMES[version].replace("==", "-")
    for package, place in ((f"torch=={version}", torch), (RUNTIMES[version], runtime)):
        if not place.exists():
            unpack(package, place)
    include = next(runtime.glob("nvidia/*/include/cuda_runtime_api.h")).parent
    return f"{torch / 'torch'}={include}"


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    print(",".join(fetched(version, folder) for version in sys.argv[2:] or TESTED))


if __name__ == "__main__":
    main()
