"""The programs of the folder `examples` and of README.md: what they print."""

import re
import unittest

from readme import programs
from support import HERE, NAME, Case
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

    @unittest.skipIf(numpy is None, "there is no NumPy")
    def test_readme(self):
        alone = [program for program in programs() if not re.search(r"^import .*\b(torch|cupy)\b", program, re.MULTILINE)]
        self.assertEqual(len(alone), 1)
        self.assertEqual(self.script(alone[0]), "[10.0, 2.0, 3.0, 4.0] [0.0, 0.0, 4.0, 3.0, 2.0, 10.0] 6 19.0\n(2, 3)\n")


if __name__ == "__main__":
    unittest.main()
