"""A time range as a user writes it: dates, times, or how long ago. All times are UTC, in whole hours."""

from __future__ import annotations

import datetime
import re
from typing import Final, NamedTuple

import click

from dradriver.api.claims.usage_config_maps import HOUR_S

_AGO: Final = re.compile(r"(\d{1,6})([hdw])", re.ASCII)
_UNITS: Final = {"h": 1, "d": 24, "w": 168}
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_WRITE: Final = "Write a date (2026-03-01), a moment (2026-03-01T08:00:00Z) or how long ago (36h, 7d, 4w)"


class Period(NamedTuple):
    """A range of whole hours, counted from the epoch.

    Attributes:
        first: The first hour.
        end: The hour after the last one.
    """

    first: int
    end: int

    def as_texts(self) -> tuple[str, str]:
        """Return begin and end of the period, as Kubernetes writes times."""
        return _moment(self.first), _moment(self.end)


def period(begin: str, end: str, *, now: float) -> Period:
    """Return the period from ``--from`` to ``--to``, rounded outwards to whole hours.

    Args:
        begin: A date (from its beginning), a time of RFC 3339, or how long ago.
        end: The same; empty for now. A date counts until its end.
        now: Seconds since the epoch.

    Raises:
        click.UsageError: A value cannot be read, or ``end`` is not after ``begin``.
    """
    since = _seconds("--from", begin, now)
    until = now if not end else _seconds("--to", end, now, whole_day=True)
    found = Period(int(since // HOUR_S), -int(-until // HOUR_S))
    if found.first >= found.end:
        first, last = (_moment(seconds / HOUR_S) for seconds in (since, until))
        raise click.UsageError(f"--from is {first} and --to is {last}, which is not later. Write an earlier --from.")
    return found


def _seconds(option: str, text: str, now: float, *, whole_day: bool = False) -> float:
    if ago := _AGO.fullmatch(text):
        return now - int(ago[1]) * _UNITS[ago[2]] * HOUR_S
    try:
        if _DATE.fullmatch(text):
            day = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
            return (day + datetime.timedelta(days=whole_day)).timestamp()
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            if "T" not in text:
                raise ValueError("a date in another form")
            raise click.UsageError(f"{option} {text!r} has no time zone. Write {text}Z for UTC, or {text}+01:00.")
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise click.UsageError(f"{option}: {text!r} is no time. {_WRITE}.") from None


def _moment(hour: float) -> str:
    try:
        found = datetime.datetime.fromtimestamp(hour * HOUR_S, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return "before all calendars"
    return found.strftime("%Y-%m-%dT%H:%M:%SZ")
