"""The programs in the folder `examples`, in README.md and in the guide: they run, and print the documented output."""

import subprocess
import unittest

from readme import programs
from support import HERE, NAME, PYTHON, Case
from test_vec import numpy


class Examples(Case):
    def test_growing_vector(self):
        code = (HERE.parent / "examples" / "growing_vector.py").read_text(encoding="utf-8")
        said = self.script(code, GPU_VMM_BACKEND=NAME).splitlines()
        self.assertEqual(said[0], f"<gpu_vmm.Pool on {NAME} device 0>")
        self.assertEqual(
            said[2:],
            [
                "resumed: b'kept'",
                "elements: [0.5, 1.0, 20.0, 30.0] every other: [0.5, 20.0, 4.0, 0.0] last: 0.0",
                "grown: 1000002 elements, same address: True sum of the last three: 24.0",
                "resumed: [0.5, 1.0, 20.0, 30.0] same address: True",
            ],
        )
        self.assertRegex(said[1], r"^suspended: \d+ MiB went to the host, \d+ bytes are held$")

    def test_documented_programs(self):
        ran = []
        for program in programs():
            with self.subTest(program=program.name):
                compile(program.code, program.name, "exec")
                libraries = [library for library in ("torch", "cupy") if program.needs(library)]
                if libraries and not has_gpu_for(libraries) or program.needs("numpy") and numpy is None:
                    continue
                # PyTorch and CuPy may print warnings.
                printed = self.script(program.code, flags=() if libraries else ("-W", "error"), GPU_VMM_BACKEND=NAME)
                if program.prints is not None:
                    self.assertEqual(printed, program.prints)
                ran.append(program.name)
        self.assertTrue(any(name.startswith("readme_") for name in ran), ran)
        self.assertTrue(any(name.startswith("python_") for name in ran), ran)


def has_gpu_for(libraries):
    """Returns whether all of these libraries are installed and find a GPU."""
    uses = {"torch": "torch.zeros(1, device='cuda')", "cupy": "cupy.zeros(1)"}
    code = "\n".join(f"import {library}; {uses[library]}" for library in libraries)
    return subprocess.run([*PYTHON, "-c", code], capture_output=True, timeout=120).returncode == 0


if __name__ == "__main__":
    unittest.main()
