"""Something that may not last."""

from __future__ import annotations

from typing import NamedTuple

from tests.fakes.apistore import Key


class State(NamedTuple):
    """Something of a subject that may not last: for longer than ``limit_s``, besides what excuses the pod."""

    name: str
    subject: object
    limit_s: float
    text: str
    pod: Key | None = None
