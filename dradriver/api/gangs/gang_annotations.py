"""What a pod says of the gang that it belongs to: read strictly and noted.

It stands in the resolved request. ``gang_of_pod`` says who else belongs to the gang.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from dradriver.allocator.request import Strategy
from dradriver.api.base.errors import WordError
from dradriver.api.vocabulary import annotation_words
from dradriver.api.vocabulary.annotation_words import About, Values
from dradriver.api.vocabulary.values import REPLACE, RESTART, Near

AUTO: Final = "auto"
Size: TypeAlias = tuple[int, int]
"""How few pods a gang may start with, and how many it has."""


class Gang(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the pods of one job want together; a field is None where nothing was said.

    Attributes:
        name: What they have in common; ``auto`` is their owner's.
        pods: How many there are; two numbers where it may start with fewer.
        strategy: Which of equally good nodes: few (``pack``) or many (``spread``).
        max_nodes: Most nodes.
        min_gpus_per_node: Fewest GPUs of the gang on any node that has some.
        min_network_gbps: Least network bandwidth of each node, if there are several.
        near: Which level of the network is to hold them all.
        on_member_loss: What becomes of it when it loses a pod: ``replace``, as where nothing is said, or ``restart``.
    """

    name: str | None = None
    pods: int | tuple[int, int] | None = None
    strategy: Strategy | None = None
    max_nodes: int | None = None
    min_gpus_per_node: int | None = None
    min_network_gbps: float | None = None
    near: Near | None = None
    on_member_loss: str | None = None

    @property
    def written(self) -> str | None:
        """Return the gang's name as its author wrote it; None where the name is that of the pod's owner."""
        return None if self.name == AUTO else self.name

    @property
    def restarts(self) -> bool:
        """Return whether all pods of the gang start again when it loses one, by its annotation."""
        return self.on_member_loss == RESTART

    @property
    def asked(self) -> bool:
        """Return whether annotations say that there is a gang; a gang's limits alone may be of one that is none."""
        return self.name is not None or self.pods is not None

    @property
    def size(self) -> Size | None:
        """Return the gang's size by its annotation, as fewest pods and all pods; None where its author wrote none."""
        return (self.pods, self.pods) if isinstance(self.pods, int) else self.pods


_WORDS: Final = {word.field: word for word in annotation_words.EVERY if word.about is About.GANG}
_RANGES: Final = 4  # the version of notes that first has two numbers of pods
_UNSAID: Final = {"on_member_loss": REPLACE}  # what is so where nothing is said: an older controller reads such a note


def gang(annotations: Values) -> Gang | None:
    """Return what annotations say of a gang; None where they say nothing of one, or only what is so anyway.

    Raises:
        WordError: A bad value.
    """
    fields = {name: annotations.get(word.key) for name, word in _WORDS.items()}
    said = {name: value for name, value in fields.items() if value not in (None, _UNSAID.get(name))}
    return Gang(**said) if said else None


def version(gang: Gang, first: int) -> int:
    """Return the version of a note that has these gang annotations, ``first`` or a later one."""
    said = [word.since for name, word in _WORDS.items() if getattr(gang, name) is not None]
    return max(first, *said, _RANGES if isinstance(gang.pods, tuple) else first)


def said(gang: Gang) -> list[str]:
    """Return the annotations that say something of a gang."""
    return [word.key for name, word in _WORDS.items() if getattr(gang, name) is not None]


def check(gang: Gang) -> None:
    """Raise an error unless a gang that was noted is one that the annotations can make.

    Raises:
        WordError: It is none.
    """
    for name, word in _WORDS.items():
        value = getattr(gang, name)
        if value is not None and not word.holds(value):
            raise WordError(f"it says {word.name} as no word can")
