"""The programs in README.md. `readme.py FOLDER` writes each to a file there, for type checkers."""

import re
import sys
from pathlib import Path


def programs():
    """The text of each block of Python, in order."""
    text = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, program in enumerate(programs()):
        (folder / f"program_{number}.py").write_text(program, encoding="utf-8")
