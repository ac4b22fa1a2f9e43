"""Helpers of the scripts in this folder: progress, checks with expected and actual values, tables, and child processes."""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

MIB = 1 << 20
GIB = 1 << 30
STARTED = time.monotonic()
ALLOC_CONF = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the second is the name before PyTorch 2.9


class Failed(Exception):
    """The reason why a script ends."""


def say(*words: object) -> None:
    """Prints a line of progress to stderr at once."""
    print(f"[{time.monotonic() - STARTED:5.1f} s]", *words, file=sys.stderr, flush=True)


def gpu_vmm(part: str = "") -> Any:
    """Imports the package or a module of it, from Python's path or else from the folder above."""
    try:
        importlib.import_module("gpu_vmm")
    except ModuleNotFoundError:
        sys.path.append(str(Path(__file__).resolve().parent.parent))
    return importlib.import_module(f"gpu_vmm.{part}" if part else "gpu_vmm")


def start(main: Callable[[], int]) -> NoReturn:
    """Runs a script and exits with its status, or with the text of its failure."""
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"failed: {failure}")


def environment(allocator_conf: str | None = None, **more: str) -> dict[str, str]:
    """Returns this process's environment with only this configuration of PyTorch's allocator."""
    kept = {name: value for name, value in os.environ.items() if name not in ALLOC_CONF}
    if allocator_conf is not None:
        kept |= dict.fromkeys(ALLOC_CONF, allocator_conf)
    return kept | {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"} | more


def child(script: str, words: Sequence[object], variables: dict[str, str], timeout: float) -> dict[str, Any]:
    """Runs the script in a child process and returns the JSON in the last line of its output."""
    command = [sys.executable, "-X", "faulthandler", str(Path(script).resolve()), *map(str, words)]
    named = " ".join([Path(script).name, *map(str, words)])
    try:
        done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"took more than {timeout:.0f} s: {named}") from None
    if done.returncode != 0:
        raise Failed(f"exit status {done.returncode}, see above: {named}")
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        raise Failed(f"no JSON from {named}: {done.stdout[-500:]!r}") from None


def table(head: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Returns lines in columns: the first `left` columns aligned to the left, the others to the right."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) if at < left else cell.rjust(width) for at, (cell, width) in enumerate(zip(line, widths))).rstrip()
        for line in lines
    )


class Checks:
    """Checks with expected and actual values."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str]] = []

    def check(self, what: str, expected: object, seen: object, ok: bool) -> bool:
        self.rows.append((what, str(expected), str(seen), "ok" if ok else "WRONG"))
        say(f"{'ok' if ok else 'WRONG'}: {what}: expected {expected}, got {seen}")
        return ok

    def equal(self, what: str, expected: object, seen: object) -> bool:
        return self.check(what, expected, seen, bool(expected == seen))

    def raises(self, what: str, kinds: tuple[type[BaseException], ...], call: Callable[[], object], harmless: object = Failed) -> bool:
        """Checks that the call raises one of the exceptions with a text, or returns `harmless`, if that is given."""
        expected = " or ".join(kind.__name__ for kind in kinds) + " with text"
        if harmless is not Failed:
            expected += f", or {harmless!r}"
        try:
            given = call()
        except Exception as error:  # any kind: the table shows it
            text = " ".join(str(error).split())
            return self.check(what, expected, f"{type(error).__name__}: {text[:110]}", isinstance(error, kinds) and bool(text))
        return self.check(what, expected, repr(given)[:110], harmless is not Failed and given == harmless)

    def section(self, what: str, run: Callable[["Checks"], None]) -> None:
        """Runs a part. An unexpected exception is a failed check and does not stop the other parts."""
        say(f"-- {what}")
        try:
            run(self)
        except Exception as error:
            import traceback

            traceback.print_exc()
            self.check(f"{what}: completes", "no exception", f"{type(error).__name__}: {error}"[:160], False)

    def end(self) -> int:
        """Prints all checks and returns the exit status."""
        short = [[cell if len(cell) <= 72 else cell[:69] + "..." for cell in row] for row in self.rows]
        print(table(("check", "expected", "actual", ""), short, left=4))
        wrong = sum(row[3] != "ok" for row in self.rows)
        print(f"{len(self.rows) - wrong} of {len(self.rows)} checks ok" + (f", {wrong} WRONG" if wrong else ""), flush=True)
        return 1 if wrong or not self.rows else 0
