"""A finding: the result of one check of ``gputopo verify``."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dradriver.counted import first_of
from dradriver.view.terminal_text import plain

_MOST: Final = 5  # names in one sentence


class Status(enum.Enum):
    """The status of a finding."""

    PASS = "PASS"  # noqa: S105 - no password
    WARN = "WARN"
    FAIL = "FAIL"


class Finding(msgspec.Struct, frozen=True, rename={"said": "message"}):
    """The result of one check. All text in it is safe to print.

    Attributes:
        check: The check's name.
        status: The status.
        said: What the check found.
        cure: The repair; empty if nothing is wrong.
    """

    check: str
    status: Status
    said: str
    cure: str = ""


def passed(check: str, said: str) -> Finding:
    """Return a finding with status PASS.

    ``check`` is the name of the check, ``said`` the message.
    """
    return Finding(check, Status.PASS, plain(said))


def warned(check: str, said: str, cure: str) -> Finding:
    """Return a finding with status WARN: some pods may be affected.

    ``check`` is the name of the check, ``said`` the message, ``cure`` the repair.
    """
    return Finding(check, Status.WARN, plain(said), plain(cure))


def failed(check: str, said: str, cure: str) -> Finding:
    """Return a finding with status FAIL: pods do not get the GPUs or settings they should.

    ``check`` is the name of the check, ``said`` the message, ``cure`` the repair.
    """
    return Finding(check, Status.FAIL, plain(said), plain(cure))


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst status of some findings."""
    found = {one.status for one in findings}
    return next((status for status in (Status.FAIL, Status.WARN) if status in found), Status.PASS)


def first_few(texts: Sequence[str]) -> str:
    """Return the first five of the texts of a finding, and how many more there are."""
    return first_of(texts, _MOST)
