"""What the scripts of this folder share: progress, checks with what was expected and seen, tables, and processes of their own."""

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
    """What ends a script, in words."""


def say(*words: object) -> None:
    """A line of progress, at once and not among the results."""
    print(f"[{time.monotonic() - STARTED:5.1f} s]", *words, file=sys.stderr, flush=True)


def gpu_vmm(part: str = "") -> Any:
    """The package or a part of it, from wherever Python finds it, else from the folder above."""
    try:
        importlib.import_module("gpu_vmm")
    except ModuleNotFoundError:
        sys.path.append(str(Path(__file__).resolve().parent.parent))
    return importlib.import_module(f"gpu_vmm.{part}" if part else "gpu_vmm")


def start(main: Callable[[], int]) -> NoReturn:
    """Runs a script, and ends with its status, or with what ended it in words."""
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"failed: {failure}")


def environment(allocator_conf: str | None = None, **more: str) -> dict[str, str]:
    """This process's, with PyTorch's allocator told this and nothing else."""
    kept = {name: value for name, value in os.environ.items() if name not in ALLOC_CONF}
    if allocator_conf is not None:
        kept |= dict.fromkeys(ALLOC_CONF, allocator_conf)
    return kept | {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"} | more


def child(script: str, words: Sequence[object], variables: dict[str, str], timeout: float) -> dict[str, Any]:
    """What the script says in a process of its own as JSON in its last line."""
    command = [sys.executable, "-X", "faulthandler", str(Path(script).resolve()), *map(str, words)]
    named = " ".join([Path(script).name, *map(str, words)])
    try:
        done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"took more than {timeout:.0f} s: {named}") from None
    if done.returncode != 0:
        raise Failed(f"ended with {done.returncode}, as said above: {named}")
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        raise Failed(f"no JSON from {named}: {done.stdout[-500:]!r}") from None


def table(head: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Lines in columns: the first so many to the left, the others to the right."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) if at < left else cell.rjust(width) for at, (cell, width) in enumerate(zip(line, widths))).rstrip()
        for line in lines
    )


class Checks:
    """What was expected and what was seen."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str]] = []

    def check(self, what: str, expected: object, seen: object, ok: bool) -> bool:
        self.rows.append((what, str(expected), str(seen), "ok" if ok else "WRONG"))
        say(f"{'ok' if ok else 'WRONG'}: {what}: expected {expected}, seen {seen}")
        return ok

    def equal(self, what: str, expected: object, seen: object) -> bool:
        return self.check(what, expected, seen, bool(expected == seen))

    def raises(self, what: str, kinds: tuple[type[BaseException], ...], call: Callable[[], object], harmless: object = Failed) -> bool:
        """That the call ends with one of the exceptions, with text; or gives `harmless`, where that is said."""
        expected = " or ".join(kind.__name__ for kind in kinds) + " with text"
        if harmless is not Failed:
            expected += f", or {harmless!r}"
        try:
            given = call()
        except Exception as error:  # whatever it is, it is shown
            text = " ".join(str(error).split())
            return self.check(what, expected, f"{type(error).__name__}: {text[:110]}", isinstance(error, kinds) and bool(text))
        return self.check(what, expected, repr(given)[:110], harmless is not Failed and given == harmless)

    def section(self, what: str, run: Callable[["Checks"], None]) -> None:
        """A part, whose unexpected end is a check that failed and doesn't end the others."""
        say(f"-- {what}")
        try:
            run(self)
        except Exception as error:
            import traceback

            traceback.print_exc()
            self.check(f"{what}: goes to its end", "no exception", f"{type(error).__name__}: {error}"[:160], False)

    def end(self) -> int:
        """Prints all; gives the exit status."""
        short = [[cell if len(cell) <= 72 else cell[:69] + "..." for cell in row] for row in self.rows]
        print(table(("check", "expected", "seen", ""), short, left=4))
        wrong = sum(row[3] != "ok" for row in self.rows)
        print(f"{len(self.rows) - wrong} of {len(self.rows)} checks ok" + (f", {wrong} WRONG" if wrong else ""), flush=True)
        return 1 if wrong or not self.rows else 0
