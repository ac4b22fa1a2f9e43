"""Draws speeds against sizes: one panel for each kind of operation, one line for each allocator, as SVG without other packages."""

import math
from collections.abc import Mapping, Sequence
from html import escape

# The colours that people with any colour vision tell apart (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
WIDE, HIGH, LEFT, TOP, GAP = 250, 230, 50, 46, 40

# A line: sizes in GiB and speeds in GiB/s.
Line = Sequence[tuple[float, float]]


def picture(title: str, panels: Mapping[str, Mapping[str, Line]]) -> str:
    """Returns the picture. ``panels``: for each panel's name, the lines by their names."""
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    points = [point for lines in panels.values() for line in lines.values() for point in line]
    sizes = sorted({size for size, _ in points})
    most = 10 * math.ceil(max(speed for _, speed in points) / 10)
    wide, high = LEFT + len(panels) * (WIDE + GAP), TOP + HIGH + 44 + 18 * len(names)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">']
    out.append(f'<rect width="{wide}" height="{high}" fill="white"/><text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>')
    first, last = math.log2(sizes[0]), max(math.log2(sizes[-1]), math.log2(sizes[0]) + 1)
    for number, (what, lines) in enumerate(panels.items()):
        left = LEFT + number * (WIDE + GAP)

        def at(size: float, speed: float, left: int = left) -> tuple[float, float]:
            return left + WIDE * (math.log2(size) - first) / (last - first), TOP + HIGH * (1 - speed / most)

        out.append(f'<text x="{left}" y="{TOP - 8}">{escape(what)}, GiB/s</text>')
        for speed in range(0, most + 1, 10):
            y = at(sizes[0], speed)[1]
            out.append(f'<path d="M{left} {y:.1f}h{WIDE}" stroke="#ddd"/><text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{speed}</text>')
        for size in sizes:
            x = at(size, 0)[0]
            out.append(f'<text x="{x:.1f}" y="{TOP + HIGH + 16}" text-anchor="middle">{size:g}</text>')
        out.append(f'<text x="{left + WIDE}" y="{TOP + HIGH + 32}" text-anchor="end">GiB</text>')
        for name, line in lines.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            places = [at(*point) for point in line]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    for number, name in enumerate(names):
        y = TOP + HIGH + 44 + 18 * number
        out.append(f'<path d="M{LEFT} {y}h24" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="3"/>')
        out.append(f'<text x="{LEFT + 32}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])
