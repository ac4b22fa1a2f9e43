"""Tests of simulated.py: its files are those of the repository, and PyTorch's own reader accepts its snapshots.

    python3 -m unittest discover benches/pytorch

PyTorch's reader is torch/cuda/_memory_viz.py of an installed PyTorch, or of the folder that GPU_VMM_TEST_MEMORY_VIZ names. It needs no GPU.
"""

import gzip
import importlib.util
import os
import pickle
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import simulated


def reader():
    """Returns PyTorch's module without importing PyTorch, or None if there is none."""
    folder = os.environ.get("GPU_VMM_TEST_MEMORY_VIZ")
    if not folder:
        found = importlib.util.find_spec("torch")
        if found is None or not found.submodule_search_locations:
            return None
        folder = f"{found.submodule_search_locations[0]}/cuda"
    spec = importlib.util.spec_from_file_location("memory_viz", f"{folder}/_memory_viz.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Simulated(unittest.TestCase):
    def test_the_repository_has_these_files(self):
        files = simulated.files()
        self.assertEqual(sorted(files), sorted(path.name for path in simulated.FOLDER.iterdir() if not path.name.startswith("rmm")))
        for name, content in files.items():
            kept = (simulated.FOLDER / name).read_bytes()
            if name.endswith(".gz"):
                # Versions of Python and zlib write other bytes for the same data.
                content, kept = (gzip.decompress(data) for data in (content, kept))
                self.assertEqual(kept[:2], content[:2], "the protocol")
                content, kept = pickle.loads(content), pickle.loads(kept)
            self.assertEqual(content, kept, name)

    def test_segments_add_up(self):
        snapshots, _ = simulated.made()
        for name, snapshot in snapshots.items():
            for segment in snapshot["segments"]:
                self.assertEqual(sum(block["size"] for block in segment["blocks"]), segment["total_size"], name)

    def test_pytorch_reads_them(self):
        module = reader()
        if module is None:
            print("SKIPPED: PyTorch's reader of snapshots is not here", file=sys.stderr)
            self.skipTest("no PyTorch")
        snapshots, facts = simulated.made()
        for name, snapshot in snapshots.items():
            entries = sum(device["entries"] for device in facts[name].values())
            text = module.trace(snapshot)
            self.assertIn(f"{next(iter(facts[name].values()))['entries']} entries\n", text)
            self.assertEqual(text.count("cudaMalloc("), sum(
                entry["action"] == "segment_alloc" for trace in snapshot["device_traces"] for entry in trace
            ))  # fmt: skip
            self.assertGreater(entries, 0)
            # Raises an exception if blocks and segments do not add up.
            self.assertIn("total_reserved", module.segsum(snapshot))
            self.assertIn("MemoryViz.js", module.trace_plot(snapshot))


if __name__ == "__main__":
    unittest.main()
