"""Checks that every public name of the package has a type and a docstring without names of C or Rust, and a row in the guide."""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Iterator, Sequence, Set, Tuple

PACKAGE = Path(__file__).resolve().parent.parent
PAGE = PACKAGE.parent.parent / "docs/guide/names.md"
MINIMUM = 400
"""The least number of public names, so that a check that has found nothing fails."""


FOREIGN = re.compile(r"\bgpu_vmm_\w+|\b\w+::\w+|\bDetail\b")
"""Names of C and of Rust, which a reader of Python cannot look up."""


def public(found: ModuleType) -> Sequence[str]:
    """Returns the public names of a module."""
    own = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == found.__name__ and name[0] != "_"]
    return getattr(found, "__all__", own)


def foreign(module: str) -> Iterator[Tuple[str, str]]:
    """Yields the objects of a module whose docstring has a name of C or Rust, with the name."""
    found = importlib.import_module(f"gpu_vmm{module}")
    objects = {"": found, **{name: getattr(found, name) for name in public(found)}}
    for base in {base for value in objects.values() for base in getattr(value, "__mro__", ()) if base.__module__.startswith("gpu_vmm")}:
        objects.update((f"{base.__name__}.{key}", member) for key, member in vars(base).items())
    for name, value in objects.items():
        text = getattr(value, "__doc__", None)
        for name_of_another in FOREIGN.findall(text if isinstance(text, str) else ""):
            yield f"gpu_vmm{module}.{name}", name_of_another


def missing(module: str, page: Set[str]) -> Iterator[str]:
    """Yields the functions, classes and methods of a module that are not on the page."""
    kinds = (FunctionType, classmethod, property)
    found = importlib.import_module(f"gpu_vmm{module}")
    for name in public(found):
        value = getattr(found, name)
        # Functions of two modules can have one name, and modules are not in the tables.
        full = f"{module[1:]}.{name}".lstrip(".") if name[0].islower() else name
        if not isinstance(value, ModuleType) and full not in page:
            yield full
        for base in getattr(value, "__mro__", ()):
            if base.__module__.startswith("gpu_vmm"):
                members = [key for key, member in vars(base).items() if isinstance(member, kinds) and key[0] != "_"]
                yield from (f"{name}.{key}" for key in members if not {f"{name}.{key}", f".{key}"} & page)


def main() -> None:
    sys.path.insert(0, str(PACKAGE))
    rows = [line.rstrip(" |") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    page = {name for row in rows for name in row.rpartition("|")[2].split("`")[1::2]}
    modules = "", ".cupy", ".numba", ".results", ".rmm", ".serve", ".torch", ".vmm"
    others = [f"{name}: {other}" for module in modules for name, other in foreign(module)]
    if others:
        raise SystemExit("\n".join(["docstrings have names of C or Rust:", *others]))
    unnamed = {name for module in modules for name in missing(module, page)}
    if unnamed:
        raise SystemExit(f"{PAGE} lacks {sorted(unnamed)}")
    command = [sys.executable, "-m", "pyright", "--verifytypes", "gpu_vmm", "--ignoreexternal", "--outputjson"]
    # Outside of the sources: pyright takes the package as an installed one.
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable],
        cwd=tempfile.gettempdir(), env={**os.environ, "PYTHONPATH": str(PACKAGE)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout)["typeCompleteness"]
    wrong = [
        f"{symbol['name']}: {message['message'].splitlines()[0]}"
        for symbol in found["symbols"]
        for message in symbol["diagnostics"]
        if symbol["isExported"]
    ]
    for kind in ("Function", "Class"):
        count = found[f"missing{kind}DocStringCount"]
        if count:
            wrong.append(f"{count} {kind.lower()} without a docstring")
    counts = found["exportedSymbolCounts"]
    if counts["withKnownType"] < MINIMUM:
        wrong.append(f"pyright has found {counts['withKnownType']} names, expected {MINIMUM} or more")
    if wrong or counts["withUnknownType"] or counts["withAmbiguousType"]:
        raise SystemExit("\n".join([*wrong, f"error: {counts}"]))
    print(f"{counts['withKnownType']} public names have types and docstrings")


if __name__ == "__main__":
    main()
