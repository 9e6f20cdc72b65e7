"""Write the table of faults and repairs in docs/internals/gpu-faults.md, as the code that tells of them has it.

Usage: python -m docs.faults [--print]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dradriver.node.faults import KINDS
from dradriver.node.repairs import Repair

TARGET: Final = Path(__file__).resolve().parent / "internals" / "gpu-faults.md"
_BEGIN: Final = "<!-- Written by make reference. -->\n\n"
_END: Final = "\n<!-- Until here. -->\n"


def page() -> str:
    """Return docs/internals/gpu-faults.md with the table as it is now."""
    before, _, rest = TARGET.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{_table()}{_END}{after}"


def _table() -> str:
    """Return the table, with the values of one kind that have the same words and repair in one row."""
    rows = ["| fault | effect | what it is | what to do |", "|---|---|---|---|"]
    for kind, about in KINDS.items():
        effect = about.effect if about.is_taint else "no taint"
        rows.append(_row(f"`{kind}`", effect, Repair(about.words, about.advice)))
        if kind == "xid-warning":
            continue  # its values are those of xid
        rows += [_row(f"`{kind}={values}`", "", repair) for values, repair in _alike(dict(about.values))]
    return "\n".join(rows) + "\n"


def _alike(values: dict[str, Repair]) -> Iterator[tuple[str, Repair]]:
    for repair in dict.fromkeys(values.values()):
        yield ", ".join(value for value, other in values.items() if other == repair), repair


def _row(fault: str, effect: str, repair: Repair) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", r"\<") for cell in (fault, effect, *repair)) + " |"


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        TARGET.write_text(page(), encoding="utf-8")
