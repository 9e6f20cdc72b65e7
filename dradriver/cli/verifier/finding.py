"""A finding: what one check of ``gputopo verify`` says."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dradriver.view.terminal_text import plain

_MOST: Final = 5  # names in one sentence


class Status(enum.Enum):
    """How it is."""

    PASS = "PASS"  # noqa: S105 - no password
    WARN = "WARN"
    FAIL = "FAIL"


class Finding(msgspec.Struct, frozen=True):
    """What one check says. All text in it is safe to print.

    Attributes:
        check: The check's name.
        status: How it is.
        said: What was seen.
        cure: What to do about it; empty where all is well.
    """

    check: str
    status: Status
    said: str
    cure: str = ""


def passed(check: str, said: str) -> Finding:
    """Return the finding of a check that passed."""
    return Finding(check, Status.PASS, plain(said))


def warned(check: str, said: str, cure: str) -> Finding:
    """Return the finding of a check that warns: something may matter to some pods."""
    return Finding(check, Status.WARN, plain(said), plain(cure))


def failed(check: str, said: str, cure: str) -> Finding:
    """Return the finding of a check that failed: pods do not get what they should."""
    return Finding(check, Status.FAIL, plain(said), plain(cure))


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst of some findings."""
    found = {one.status for one in findings}
    return next((status for status in (Status.FAIL, Status.WARN) if status in found), Status.PASS)


def first_few(texts: Sequence[str]) -> str:
    """Return the first five of the texts of a finding, and how many more there are."""
    more = f" and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return ", ".join(texts[:_MOST]) + more
