"""What a pod says of the gang that it belongs to: read strictly and noted.

Pods are placed one by one so far. What is said of several stands in the resolved request, so that manifests which say
it are admitted as they are and a mistake in them is seen now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.allocator.request import Strategy
from dradriver.api import annotation_words
from dradriver.api.annotation_words import About


class Gang(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the pods of one job want together; a field is None where nothing was said.

    Attributes:
        name: What they have in common; ``auto`` is their owner's.
        pods: How many there are.
        strategy: Which of equally good nodes: few (``pack``) or many (``spread``).
        max_nodes: Most nodes.
        min_gpus_per_node: Fewest GPUs of the gang on any node that has some.
        min_network_gbps: Least network bandwidth of each node, if there are several.
    """

    name: str | None = None
    pods: int | None = None
    strategy: Strategy | None = None
    max_nodes: int | None = None
    min_gpus_per_node: int | None = None
    min_network_gbps: float | None = None


_WORDS: Final = {word.field: word for word in annotation_words.EVERY if word.about is About.GANG}


def gang(annotations: Mapping[str, str]) -> Gang | None:
    """Return what annotations say of a gang; None where they say nothing of one.

    Raises:
        WordError: A bad value.
    """
    fields = {
        name: word.read(word.key, annotations[word.key]) for name, word in _WORDS.items() if word.key in annotations
    }
    return Gang(**fields) if fields else None


def check(gang: Gang) -> None:
    """Raise unless a gang that was noted is one that ``gang`` makes.

    Raises:
        WordError: It is none.
    """
    for name, value in msgspec.to_builtins(gang).items():
        _WORDS[name].read(_WORDS[name].key, str(value))
