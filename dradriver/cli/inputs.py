"""The input of commands: files that a user names (``-`` is standard input), with a size limit, and numbers."""

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
    """A click type for a number in a range, without ``nan``, which click's own type accepts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the user's number as a float.

        A text that is no number, or a number outside the range, is a usage error.
        """
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def content(name: str) -> bytes:
    """Return the bytes of an input file that a user names.

    Raises:
        click.UsageError: The file cannot be read, or is larger than any valid input.
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
    """Return how messages name an input file: its name, or ``standard input`` for ``-``."""
    return "standard input" if name == STDIN else name


def policies_of(name: str | None) -> Policies:
    """Return the policies of an input file, or the defaults without one.

    Commands without a cluster call it.

    Raises:
        click.UsageError: The file cannot be read, or is not valid.
    """
    return given_policies(name) or DEFAULTS


def given_policies(name: str | None) -> Policies | None:
    """Return the policies of an input file, or None if the user names no file.

    Raises:
        click.UsageError: The file cannot be read, or is not valid.
    """
    if name is None:
        return None
    from dradriver.api.policies.policies_reader import PoliciesError, read  # here, for it brings yaml

    try:
        return read(content(name), source=called(name))
    except PoliciesError as error:
        raise click.UsageError(f"--policies: {error}") from error
