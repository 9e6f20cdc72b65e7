"""The gang annotations of a pod, read strictly.

The webhook reads them at admission and stores them in the *note*, an annotation of the pod with the resolved request,
which the controller reads. ``gang_of_pod`` finds which other pods belong to the gang.
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
    """The gang annotations of a pod; a field is None if its annotation is missing.

    Attributes:
        name: The gang's name; ``auto`` means all pods of the same owner.
        pods: The number of pods; two numbers if the gang may start with fewer pods.
        strategy: Whether the gang uses few nodes (``pack``) or many (``spread``), among equally good ones.
        max_nodes: The largest number of nodes.
        min_gpus_per_node: The smallest number of the gang's GPUs on each node that it uses.
        min_network_gbps: If the gang uses several nodes: the lowest network bandwidth that each node must have, GB/s.
        near: The level of the network that must hold all nodes of the gang.
        on_member_loss: What happens if the gang loses a pod: ``replace``, the default, or ``restart``.
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
        """Return the gang's name if its author chose one; None if it is ``auto`` or missing."""
        return None if self.name == AUTO else self.name

    @property
    def restarts(self) -> bool:
        """Return whether all pods of the gang restart when one pod is lost (``on-member-loss: restart``)."""
        return self.on_member_loss == RESTART

    @property
    def asked(self) -> bool:
        """Return whether the annotations request a gang, because they have a name or a size of the gang.

        False if they only set limits, such as the largest number of nodes.
        """
        return self.name is not None or self.pods is not None

    @property
    def size(self) -> Size | None:
        """Return the gang's smallest and full number of pods by the annotation; None without it.

        The smallest number is the fewest pods with which the gang may start. The full number is the number of all its
        pods.
        """
        return (self.pods, self.pods) if isinstance(self.pods, int) else self.pods


_WORDS: Final = {word.field: word for word in annotation_words.EVERY if word.about is About.GANG}
_RANGES: Final = 4  # the version of notes that first has two numbers of pods
_UNSAID: Final = {"on_member_loss": REPLACE}  # what is so where nothing is said: an older controller reads such a note


def gang(annotations: Values) -> Gang | None:
    """Return the gang annotations of a pod; None if all are missing or have their default.

    Raises:
        WordError: An annotation has a bad value.
    """
    fields = {name: annotations.get(word.key) for name, word in _WORDS.items()}
    said = {name: value for name, value in fields.items() if value not in (None, _UNSAID.get(name))}
    return Gang(**said) if said else None


def version(gang: Gang, first: int) -> int:
    """Return the lowest version of the webhook's note that has all these gang annotations.

    The note is the resolved request on the pod, and contains this version. An older controller refuses a version that
    it does not know.

    Args:
        gang: The gang annotations.
        first: The version that the rest of the note needs. The result is not lower.
    """
    said = [word.since for name, word in _WORDS.items() if getattr(gang, name) is not None]
    return max(first, *said, _RANGES if isinstance(gang.pods, tuple) else first)


def said(gang: Gang) -> list[str]:
    """Return the names of the gang annotations that a pod has, for messages."""
    return [word.key for name, word in _WORDS.items() if getattr(gang, name) is not None]


def check(gang: Gang) -> None:
    """Raise an error if a gang has a value that no annotation can give.

    The gang was read from a note on the pod, and users can change the note.

    Raises:
        WordError: A field has a value that no annotation gives.
    """
    for name, word in _WORDS.items():
        value = getattr(gang, name)
        if value is not None and not word.holds(value):
            raise WordError(f"its value of {word.name} is not valid")
