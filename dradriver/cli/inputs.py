"""Files that a user names, ``-`` for standard input, within bounds; and numbers."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, Final

import click

from dradriver.api.policies.policy_sections import DEFAULTS, Policies

STDIN: Final = "-"
MOST_BYTES: Final = 16 << 20


class Number(click.FloatRange):
    """A number of a range; ``nan``, which click takes for one of any range, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return a user's input of a number as a float; a usage error if it is no number or outside the range."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def content(name: str) -> bytes:
    """Return the bytes of an input file that a user names.

    Raises:
        click.UsageError: It cannot be read, or is too large for anything that is read here.
    """
    try:
        if name == STDIN:
            text = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(name).open("rb") as opened:
                text = opened.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(text) > MOST_BYTES:
        raise click.UsageError(f"{name}: more than {MOST_BYTES >> 20} MiB")
    return text


def called(name: str) -> str:
    """Return how messages name an input file of a command."""
    return "standard input" if name == STDIN else name


def policies_of(name: str | None) -> Policies:
    """Return the policies of an input file, or the defaults without one: for commands that look at no cluster.

    Raises:
        click.UsageError: It cannot be read, or is bad.
    """
    return given_policies(name) or DEFAULTS


def given_policies(name: str | None) -> Policies | None:
    """Return the policies of an input file, or None if the user names no file.

    Raises:
        click.UsageError: The file cannot be read, or is bad.
    """
    if name is None:
        return None
    from dradriver.api.policies.policies_reader import PoliciesError, read  # here, for it brings yaml

    try:
        return read(content(name), source=called(name))
    except PoliciesError as error:
        raise click.UsageError(f"--policies: {error}") from error
