"""What a gang's pods can have beside being one, and what not so far, with the reason: the table of docs/gangs.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.errors import WordError


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a pod can have or say.

    Attributes:
        name: What it is called.
        written: How a pod says it, or where it holds.
        supported: Whether a gang's pods can have it; else admission refuses them.
        why: Of what is refused the reason, and what to write instead; of what is supported what is so of it.
    """

    name: str
    written: str
    supported: bool
    why: str


_ONE_BY_ONE: Final = "kube-scheduler would place the pods of a gang one by one, each where there is room just then"
_WHOLE: Final = f"gangs are of whole GPUs so far; write a limit {names.GPU_RESOURCE} instead of it"

STATIC: Final = Row(
    name="static", written=f"{names.PLACEMENT}: static", supported=False, why=f"{_ONE_BY_ONE}; remove {names.PLACEMENT}"
)
HAND_OVER: Final = Row(
    name="hand-over",
    written=f"{names.WHEN_FULL}: hand-over",
    supported=False,
    why=f"{_ONE_BY_ONE}; remove {names.WHEN_FULL}",
)
SHARED: Final = Row(
    name="shared-claim",
    written=names.SHARED_CLAIM,
    supported=False,
    why=f"its pods have the same GPUs, those of a gang each their own; remove {names.GANG} and what belongs to it",
)
SHARE: Final = Row(name="share", written=names.SHARE, supported=False, why=_WHOLE)
MIG: Final = Row(name="MIG", written=names.MIG_PROFILE, supported=False, why=_WHOLE)
TABLE: Final = (
    STATIC,
    HAND_OVER,
    SHARED,
    Row(
        name="template",
        written="a ResourceClaimTemplate",
        supported=True,
        why="each pod has a claim of its own by the template, with its pin",
    ),
    SHARE,
    MIG,
    Row(
        name="add-on",
        written="another driver's GPUs",
        supported=True,
        why="without the barrier, for which the agent has to prepare a device of ours in each claim",
    ),
    Row(
        name="Kueue",
        written="a queue of Kueue's",
        supported=True,
        why="a Job, JobSet or other owner as any other; a group of plain pods as a whole, which Kueue 0.17 admits; "
        "0.19 admits no plain pod with a named claim, as the driver's are",
    ),
)


def refusal(row: Row, said: str, words: Sequence[str]) -> WordError:
    """Return the refusal of a gang's pod that uses a feature which gangs do not support.

    Args:
        row: The row.
        said: What the pod says of it.
        words: Its words about a gang.
    """
    gang = ", ".join(word.removeprefix(names.PREFIX) for word in words)
    return WordError(f"{said} contradicts {names.PREFIX}{gang}: {row.why}")
