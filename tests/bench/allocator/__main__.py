"""``python -m tests.bench.allocator [part …] [--output FILE]``: figures of the allocator, as a table and as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

from tests.bench.allocator import growth

PARTS = ("quality", "speed", "scale", "growth")


def main() -> None:
    """Measure the parts asked for, print them, write them."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.allocator", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without any")
    parser.add_argument("--output", type=Path, help="file for the JSON")
    parser.add_argument("--plot", type=Path, help="file for the picture of growth (SVG)")
    asked = parser.parse_args()
    if strangers := set(asked.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(strangers))}; there are {', '.join(PARTS)}")
    figures: dict[str, Any] = {}
    for part in asked.parts or PARTS:
        figures[part] = importlib.import_module(f"tests.bench.allocator.{part}").measure()
        print(part)
        show(figures[part], indent=2)
    if asked.plot is not None and "growth" in figures:
        asked.plot.write_text(growth.picture(figures["growth"]))
    if asked.output is not None:
        asked.output.write_text(json.dumps(figures, indent=2) + "\n")


def show(value: Any, *, indent: int) -> None:
    """Print nested figures, one leaf's row a line."""
    for key, inner in value.items():
        if not isinstance(inner, dict):
            print(" " * indent + f"{key}: {figure(inner)}")
        elif any(isinstance(leaf, dict) for leaf in inner.values()):
            print(" " * indent + key)
            show(inner, indent=indent + 2)
        else:
            print(" " * indent + f"{key}: " + "  ".join(f"{name} {figure(leaf)}" for name, leaf in inner.items()))


def figure(value: Any) -> str:
    """Five digits of a number, else the value as it is."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
