"""Fetches RMM's newest headers and library, with CUDA's headers and runtime, for the programs over gpu_vmm_mr.hpp.

    fetch.py FOLDER

It prints the folder, as the environment variable GPU_VMM_TEST_RMM takes it, and fetches nothing again. The wheels have 8 MB.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGES = ("librmm-cu13", "rapids-logger", "nvidia-cuda-runtime", "nvidia-cuda-crt")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def main() -> None:
    place = Path(sys.argv[1]).resolve()
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as name:
            words = ["--only-binary=:all:", "--python-version", "3.12", *(word for tag in PLATFORMS for word in ("--platform", tag))]
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps", *words]
            # Standard output has the folder alone.
            subprocess.run([*command, "--dest", name, *PACKAGES], check=True, stdout=sys.stderr)
            site = Path(name) / "site"
            for wheel in Path(name).glob("*.whl"):
                with zipfile.ZipFile(wheel) as members:
                    members.extractall(site)
            # Another process sees the folder when it is complete.
            site.rename(place)
    print(place)


if __name__ == "__main__":
    main()
