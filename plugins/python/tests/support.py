"""Helpers of the tests: the backend that they run on, checks of exceptions, and child processes."""

import os
import shlex
import subprocess
import sys
import textwrap
import threading
import time
import unittest
from pathlib import Path

import gpu_vmm

NAME = os.environ.get("GPU_VMM_TEST_BACKEND", "host")
MIB = 1 << 20
HERE = Path(__file__).resolve().parent
# The command that starts Python, if it needs more than its name.
PYTHON = shlex.split(os.environ.get("GPU_VMM_TEST_PYTHON", "")) or [sys.executable]


def backend():
    """Opens the backend. A test that needs it fails if it is missing."""
    return gpu_vmm.open(NAME)


class Case(unittest.TestCase):
    def raises(self, kind, text=""):
        """Checks that the block raises this kind of error, with the status of the kind and a text that contains `text`."""
        return _Raises(self, kind, text)

    def script(self, code, flags=("-W", "error"), folder=None, **environment):
        """Runs code in a child process, which must exit with status 0 and, with the default flags, print nothing to stderr.

        `folder`: its current folder. Returns its output.
        """
        path = os.pathsep.join([str(HERE.parent), str(HERE)])
        env = {**os.environ, "PYTHONPATH": path, **environment}
        done = subprocess.run(
            [*PYTHON, *flags, "-c", textwrap.dedent(code)], env=env, cwd=folder, capture_output=True, text=True, timeout=120
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        if flags:
            self.assertEqual(done.stderr, "")
        return done.stdout


def overwrite(opened, size):
    """Overwrites free memory of the device, so that contents after sleep can only come from the store."""
    other = gpu_vmm.DeviceVec("uint8", backend=opened)
    other.resize(size, 0xEE)


def in_threads(count, work):
    """Runs `work` in `count` threads, each with its number. Returns the exceptions."""
    failures = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


class _Raises:
    def __init__(self, case, kind, text):
        self.case, self.kind, self.text = case, kind, text

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.case.assertIsNotNone(error, f"{self.kind.__name__} was not raised")
        if not isinstance(error, self.kind):
            return False
        if issubclass(self.kind, gpu_vmm.Error) and self.kind is not gpu_vmm.Error:
            self.case.assertEqual(error.status, self.kind.status)
        self.case.assertIn(self.text, str(error))
        self.case.assertTrue(str(error))
        return True


class Counted:
    """Counts the package's calls of a function of the library inside ``with``."""

    def __init__(self, function):
        self.calls, self.function = 0, function
        self.sizes = []
        """The last argument of each call."""
        self.library = gpu_vmm._library.library()
        self.real = getattr(self.library, function)

    def __enter__(self):
        setattr(self.library, self.function, self)
        return self

    def __call__(self, *arguments):
        self.calls += 1
        self.sizes.append(arguments[-1])
        return self.real(*arguments)

    def __exit__(self, *_):
        setattr(self.library, self.function, self.real)


class Interrupted(Counted):
    """Raises KeyboardInterrupt behind a call, as a signal's handler does that runs when the library has returned."""

    def __call__(self, *arguments):
        result = super().__call__(*arguments)
        if self.calls == 1:
            raise KeyboardInterrupt
        return result


def shrink(pool, size, limit):
    """Limits a pool until it holds no more than ``size`` bytes: a limit does not wait for the work of freed blocks."""
    deadline = time.monotonic() + 20
    limit()
    while pool.stats()["held"] > size and time.monotonic() < deadline:
        limit()
