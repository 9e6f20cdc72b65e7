"""Writes the files anew: ``python -m tests.golden``; into another folder: ``python -m tests.golden FOLDER --whole``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.golden import texts


def main() -> None:
    whole = "--whole" in sys.argv[1:]
    folder = Path(next((word for word in sys.argv[1:] if not word.startswith("-")), texts.FOLDER))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.everything(whole=whole).items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
