"""The Python programs in README.md and in the guide. `readme.py FOLDER` writes each to a file there, for type checkers."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

PLUGIN = Path(__file__).resolve().parent.parent
GUIDE = PLUGIN.parent.parent / "docs" / "guide"
# The pages that must have programs. Other pages of the guide may have some.
REQUIRED = (PLUGIN / "README.md", GUIDE / "python.md")
# A block of Python, and the block of text that directly follows it, if any: the program's output.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Program:
    name: str
    """The page and the number of the block in it, as a module's name."""
    code: str
    prints: Optional[str]
    """The expected output; None if the page does not show it."""

    def needs(self, module: str) -> bool:
        """Returns whether the program imports a module."""
        return re.search(rf"^(?:import|from) .*\b{module}\b", self.code, re.MULTILINE) is not None


def programs() -> List[Program]:
    """Returns every block of Python in README.md and in the guide, in order. Fails if a page that must have one has none."""
    pages = [REQUIRED[0], *sorted(GUIDE.glob("*.md"))]
    found: List[Program] = []
    for page in pages:
        blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
        if page in REQUIRED and not blocks:
            raise SystemExit(f"{page}: there is no block of Python")
        stem = page.stem.lower().replace("-", "_")
        found += [Program(f"{stem}_{number}", code, prints or None) for number, (code, prints) in enumerate(blocks)]
    missing = [str(page) for page in REQUIRED if page not in pages]
    if missing:
        raise SystemExit(f"missing pages: {', '.join(missing)}")
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs():
        (folder / f"{program.name}.py").write_text(program.code, encoding="utf-8")
