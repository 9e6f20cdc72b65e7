"""What a pod says of the gang that it belongs to: read strictly and noted.

Pods are placed one by one so far. What is said of several stands in the resolved request, so that manifests which say
it are admitted as they are and a mistake in them is seen now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from dradriver.allocator.request import Strategy
from dradriver.api import messages, names, values

_MOST: Final = 9999  # pods or nodes


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


class _Field(NamedTuple):
    name: str
    read: Callable[[str], object | None]
    what: str


def _count(text: str) -> int | None:
    count = values.natural(text)
    return count if count is not None and 1 <= count <= _MOST else None


_FIELDS: Final = {
    names.GANG: _Field("name", values.label, messages.GANG),
    names.GANG_SIZE: _Field("pods", _count, messages.MANY),
    names.MULTI_NODE_POLICY: _Field("strategy", values.strategy, f"strategy; write one of {', '.join(Strategy)}"),
    names.MAX_NODES: _Field("max_nodes", _count, messages.MANY),
    names.MIN_GPUS_PER_NODE: _Field("min_gpus_per_node", values.gpu_count, messages.GPUS),
    names.MIN_NETWORK_BANDWIDTH: _Field("min_network_gbps", values.rate_gbps, messages.RATE),
}
_READ: Final = {field.name: (field, key) for key, field in _FIELDS.items()}


def gang(words: Mapping[str, str]) -> Gang | None:
    """Return what the words say of a gang; None where they say nothing of one.

    Raises:
        WordError: A bad value.
    """
    found: dict[str, Any] = {}
    for key, field in _FIELDS.items():
        if key in words:
            found[field.name] = field.read(words[key])
            if found[field.name] is None:
                raise messages.is_no(key, words[key], field.what)
    return Gang(**found) if found else None


def check(gang: Gang) -> None:
    """Return if a gang that was noted is one that ``gang`` makes.

    Raises:
        WordError: It is none.
    """
    for name, value in msgspec.to_builtins(gang).items():
        field, key = _READ[name]
        if field.read(str(value)) is None:
            raise messages.is_no(key, str(value), field.what)
