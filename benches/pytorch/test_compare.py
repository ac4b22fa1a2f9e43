"""Tests of compare.py that need no GPU: reading traces, the table, refused arguments, and the error if PyTorch is missing.

    python3 -m unittest discover benches/pytorch
"""

import contextlib
import gzip
import importlib.util
import io
import os
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import compare


class Folder(unittest.TestCase):
    """Tests with their own folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def trace(self, text, name="one.trace.gz"):
        path = self.folder / name
        with gzip.open(path, "wt", encoding="ascii") as file:
            file.write(text)
        return path


class Reading(Folder):
    def test_pytorch_frees_at_r_and_what_is_asked_for_ends_at_f(self):
        path = self.trace("# words\na 1 100 0\na 2 50 3\nf 1\na 3 60 0\nr 1\nf 2\nr 2\nf 3\n")
        events, blocks, streams, peak = compare.read_trace(path)
        expected = [(0, 1, 100), (3, 2, 50), (0, 3, 60), (-1, 1, 0), (-1, 2, 0)]
        self.assertEqual(list(zip(*[iter(events)] * 3)), expected)
        self.assertEqual((blocks, streams, peak), (4, 4, 150))

    def test_a_line_that_cannot_follow_is_named(self):
        for line in ["x 1", "a 1 2", "a 1 2 0\na 1 2 0", "f 1", "a 1 2 0\nr 1", "a 1 2 0\nf 1\nf 1", "a 1 -2 0", "a 1 b 0"]:
            number = line.count("\n") + 1
            with self.subTest(line), self.assertRaisesRegex(compare.Failed, f"line {number}: "):
                compare.read_trace(self.trace(line))

    def test_a_trace_without_a_free_is_no_trace(self):
        for text in ["", "a 1 2 0\n"]:
            with self.subTest(text), self.assertRaises(compare.Failed):
                compare.read_trace(self.trace(text))


class Refusing(Folder):
    def refused(self, *words):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            compare.arguments([str(word) for word in words])
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue()

    def test_what_is_asked_for_wrongly(self):
        self.assertIn("is not a folder", self.refused(self.folder / "nowhere"))
        self.assertIn("has no *.trace.gz", self.refused(self.folder))
        self.trace("")
        self.assertIn("is not a program", self.refused(self.folder, "--gpu-vmm", self.folder))
        self.assertIn("not one of native", self.refused(self.folder, "--allocators", "native,mine"))
        self.assertIn("at least 1", self.refused(self.folder, "--rounds", 0))

    def test_what_is_right_is_taken(self):
        path = self.trace("")
        words = [str(self.folder), "--gpu-vmm", sys.executable, "--allocators", "expandable", "--pages", "4MiB,16MiB"]
        given = compare.arguments(words)
        self.assertEqual((given.files, given.allocators), ([path], ["expandable"]))
        self.assertEqual(given.pages, ["4MiB", "16MiB"])

    def test_the_traces_of_the_repository_are_the_default(self):
        given = compare.arguments(["--gpu-vmm", sys.executable])
        self.assertEqual([path.name for path in given.files], ["graph_network.trace.gz", "streams.trace.gz"])
        self.assertEqual(given.pages, [])
        for path in given.files:
            self.assertGreater(compare.read_trace(path)[3], 1 << 30)


class Failing(Folder):
    def test_programs_that_fail(self):
        for command, words in [
            ([sys.executable, "-c", "raise SystemExit(3)"], "ended with 3"),
            ([sys.executable, "-c", "print('words')"], "printed no JSON"),
            ([str(self.folder / "nothing")], "cannot be run"),
        ]:
            with self.subTest(words), self.assertRaisesRegex(compare.Failed, words):
                compare.run(command)

    @unittest.skipIf(importlib.util.find_spec("torch"), "PyTorch is installed")
    def test_without_pytorch(self):
        with self.assertRaisesRegex(compare.Failed, "PyTorch is needed"):
            compare.build(self.folder)

    @unittest.skipUnless(os.name == "posix", "the program is a script")
    def test_a_pool_that_says_too_little(self):
        program = self.folder / "program"
        program.write_text("#!/bin/sh\necho '{\"peak_held\": 1}'\n")
        program.chmod(0o755)
        with self.assertRaisesRegex(compare.Failed, "reports no 'cold'"):
            compare.play_pool(program, "a trace")


class Comparing(Folder):
    @unittest.skipUnless(os.name == "posix", "the program is a script")
    def test_pools_with_pages_of_other_sizes(self):
        program = self.folder / "program"
        answer = (
            '{"cold": {"total_ns": 4}, "warm": {"total_ns": 2}, "alloc_ns": {"median": 1, "p999": 1}, "free_ns": {"median": 1}, '
            '"peak_held": 200, "peak_asked": 100, "driver_calls": 1}'
        )
        program.write_text(f"#!/bin/sh\necho \"$@\" >>{self.folder}/words\necho '{answer}'\n")
        program.chmod(0o755)
        path = self.trace("a 1 100 0\nf 1\nr 1\n")
        rows, results = compare.compare(path, program, None, [], 1, ["16MiB"])
        self.assertEqual([row[1] for row in rows], ["pool", "pool, 16MiB"])
        self.assertEqual([row[8] for row in rows], ["", "1.000"])
        pages = [words.partition("--page ")[2] for words in (self.folder / "words").read_text().splitlines()]
        self.assertEqual(pages, ["", "16MiB"])
        self.assertEqual(list(results), ["pool", "pool, 16MiB"])


class Table(unittest.TestCase):
    def test_columns_are_as_wide_as_what_is_in_them(self):
        row = ("a_long_name", "native", "1.0", "2.0", "20", "5.0", "3", "1.0000", "0.500", "0.900")
        head, line = compare.table([row])
        self.assertEqual(len(head), len(line))
        self.assertTrue(line.startswith("a_long_name  native "))
        self.assertTrue(line.endswith("  0.900"))


if __name__ == "__main__":
    unittest.main()
