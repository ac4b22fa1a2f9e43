"""Tests of record.py that need no GPU: the lines of a trace.

    python3 -m unittest discover benches/pytorch
"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import record


def entry(action, address=0, size=0, stream=0):
    return {"action": action, "addr": address, "size": size, "stream": stream}


class Lines(unittest.TestCase):
    def test_streams_and_blocks_are_numbered_in_order(self):
        entries = [entry("alloc", 512, 8, 0), entry("alloc", 1024, 16, 777), entry("alloc", 2048, 32, 555), entry("alloc", 4096, 1, 777)]
        self.assertEqual(list(record.lines(entries)), ["a 1 8 0", "a 2 16 1", "a 3 32 2", "a 4 1 1"])

    def test_an_address_that_is_used_again_is_another_block(self):
        entries = [
            entry("alloc", 512, 8),
            entry("free_requested", 512),
            entry("free_completed", 512),
            entry("alloc", 512, 9),
            entry("free_requested", 512),
        ]
        self.assertEqual(list(record.lines(entries)), ["a 1 8 0", "f 1", "r 1", "a 2 9 0", "f 2"])

    def test_what_is_no_block_of_the_trace_is_left_out(self):
        entries = [entry("segment_alloc", 512, 8), entry("free_requested", 512), entry("free_completed", 512), {"action": "snapshot"}]
        self.assertEqual(list(record.lines(entries)), [])


if __name__ == "__main__":
    unittest.main()
