"""Compares versions of drivers and of CUDA number by number, such as ``580.95.05`` and ``12.4``."""

from __future__ import annotations

import re
from typing import Final

_VERSION: Final = re.compile(r"([0-9]{1,5})(?:\.([0-9]{1,5}))?(?:\.([0-9]{1,5}))?", re.ASCII)

Numbers = tuple[int, ...]
"""Three numbers; those that are left out are 0."""


def numbers(text: str) -> Numbers | None:
    """Return the numbers of a driver's or CUDA's version: (580, 95, 5) for ``580.95.05``.

    The result is None if the text is no version.
    """
    return _numbers(_VERSION.fullmatch(text))


def reaches(text: str, least: str) -> bool:
    """Return whether a version of a driver or CUDA is ``least`` or later.

    The result is True if ``least`` is empty, else False if the version is unknown. Text after the numbers
    (``580.95.05-open``) is ignored.
    """
    if not least:
        return True
    own, wanted = _numbers(_VERSION.match(text)), numbers(least)
    return own is not None and wanted is not None and own >= wanted


def _numbers(found: re.Match[str] | None) -> Numbers | None:
    return None if found is None else tuple(int(part or 0) for part in found.groups())
