"""Which features pods of a gang can use, with the reason if not: the table in docs/tasks/gangs.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.errors import WordError


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A feature that a pod can use.

    Attributes:
        name: The feature's name.
        written: How a pod requests the feature, or where it applies.
        supported: Whether a gang's pods can use it. If not, admission refuses them.
        why: If it is not supported, the reason and what to write instead. If it is supported, how it works in a gang.
    """

    name: str
    written: str
    supported: bool
    why: str


_ONE_BY_ONE: Final = "kube-scheduler would place the pods of a gang one after another, wherever there is room"
_WHOLE: Final = f"a gang can use whole GPUs only. Write the limit {names.GPU_RESOURCE} instead."

STATIC: Final = Row(
    name="static",
    written=f"{names.PLACEMENT}: static",
    supported=False,
    why=f"{_ONE_BY_ONE}. Remove {names.PLACEMENT}.",
)
HAND_OVER: Final = Row(
    name="hand-over",
    written=f"{names.WHEN_FULL}: hand-over",
    supported=False,
    why=f"{_ONE_BY_ONE}. Remove {names.WHEN_FULL}.",
)
SHARED: Final = Row(
    name="shared-claim",
    written=names.SHARED_CLAIM,
    supported=False,
    why=(
        f"pods that share a claim have the same GPUs, and each pod of a gang has its own. Remove the annotation "
        f"{names.GANG} and the other gang annotations."
    ),
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
        why="each pod gets its own claim from the template",
    ),
    SHARE,
    MIG,
    Row(
        name="add-on",
        written="another driver's GPUs",
        supported=True,
        why="without the gang barrier, which needs a device of this driver in each claim",
    ),
    Row(
        name="Kueue",
        written="a queue of Kueue's",
        supported=True,
        why=(
            "Jobs, JobSets and other owners as usual. A group of plain pods works with Kueue 0.17. Kueue 0.19 admits "
            "no plain pod that uses a claim by name, as the driver's pods do"
        ),
    ),
)


def refusal(row: Row, annotation: str, words: Sequence[str]) -> WordError:
    """Return the error for a gang's pod that uses a feature which gangs do not support.

    Args:
        row: The feature, with the reason why gangs do not support it.
        annotation: The pod's text that requests the feature.
        words: The pod's gang annotations.
    """
    gang = ", ".join(word.removeprefix(names.PREFIX) for word in words)
    return WordError(f"{annotation} contradicts {names.PREFIX}{gang}: {row.why}")
