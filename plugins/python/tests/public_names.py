"""Checks that every public name of the package has a type and a docstring, as pyright sees them."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
MINIMUM = 400
"""The least number of public names, so that a check that has found nothing fails."""


def main() -> None:
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
