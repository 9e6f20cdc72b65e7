"""Explains that a pod with NICs gets no place because NICs are missing. Returns texts with figures.

``nic_places`` and ``gang_nics`` call this module.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dradriver.allocator.request import NEAR_REQUIRED
from dradriver.api.vocabulary.nic_requests import Alike, NicAsk
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nics.nic_distances import of_gpu
from dradriver.controller.placing.nic_choice import demands, gpus_apart, includes_gpus
from dradriver.controller.placing.node_limit import NodeLimitError
from dradriver.reason import Cause, sentences

_MOST_NODES_IN_TEXT: Final = 3  # whose numbers of NICs a reason names


class NoNicsError(NodeLimitError):
    """Nodes have too few free NICs that match the request, and no other node has the GPUs."""

    reason = "NoNICs"


def refusal(picture: Picture, ask: NicAsk) -> NoNicsError:
    """Return the error for a pod that finds no NICs although GPUs may be free.

    ``ask`` has the requested NICs. The message has no numbers that change with every event.
    """
    what, cause = wanted(ask), Cause.GPUS
    if (constraint := _impossible(picture, ask)) is not None:
        cause = Cause.NEVER
        why = (
            f"no NIC of any node has the same {constraint.attribute} as a GPU. Remove this constraint from the "
            "template. The driver chooses the NICs nearest to the GPUs anyway"
        )
    elif picture.nics.counts.has_ended(ask):
        why = "no node with free GPUs was found that has them. Not all combinations that the claim allows were tried"
    elif ask.near == NEAR_REQUIRED:
        why = "no eligible node has enough free NICs near its free GPUs"
    else:
        why = "no eligible node has enough free NICs for its free GPUs"
    return NoNicsError(why, request=what, cause=cause)


def unfinished(ask: NicAsk, next_: str) -> NoNicsError:
    """Return the error for a pod after a search for NICs that was not complete.

    ``ask`` has the requested NICs; ``next_`` is a sentence about what happens next.
    """
    why = "no node with free GPUs was found yet that has them"
    return NoNicsError(sentences(why, next_), request=wanted(ask), cause=Cause.GPUS)


def wanted(ask: NicAsk) -> str:
    """Return the NICs that ``ask`` requests as text: ``2 NICs of class NAME``."""
    classes = ", ".join(dict.fromkeys(request.device_class for request in ask.requests))
    return f"{ask.count} NIC{'s' if ask.count > 1 else ''} of class {classes}"


def figures(picture: Picture, ask: NicAsk, nodes: Collection[str]) -> str:
    """Return as text the numbers of NICs on these nodes: all, the free ones, and the free ones that match.

    A NIC matches if ``ask``, the request for NICs, accepts it. Only the three nodes with the most free NICs are named.
    """
    most_free_first = sorted(nodes, key=lambda node: (-len(picture.nics.free(node)), node))
    return " ".join(_figures(picture, ask, node) for node in most_free_first[:_MOST_NODES_IN_TEXT])


def _figures(picture: Picture, ask: NicAsk, node: str) -> str:
    """Return as text the numbers of NICs on a node: all, the free ones, and the free ones that match.

    A NIC matches if ``ask``, the request for NICs, accepts it. If the NICs must be near GPUs or have
    equal attributes, the text also lists GPUs that can have a NIC each.
    """
    nics, free_nics = picture.nics.on(node), picture.nics.free(node)
    judge = picture.nics.counts.judge(ask.requests)
    fitting = [nic for nic in free_nics if any(judge.of(nic))]
    tainted = sum(bool(nic.taints) for nic in free_nics)
    taint_text = f" ({tainted} of these tainted)" if tainted else ""
    text = f"{node}: {len(free_nics)} of {len(nics)} NICs free{taint_text}, {len(fitting)} of them match the request"

    pool = picture.inventory.pool(node)
    if not demands(ask) or pool is None:
        return f"{text}."
    numbers = [gpu.index for gpu in pool.machine.gpus]
    near = gpus_apart(picture, ask, node, numbers, ask.count, is_last_pod=False)
    gpus_text = f"one each for GPU {', '.join(map(str, sorted(near)))}" if near else "for no GPU"
    return f"{text}, {gpus_text}."


def _impossible(picture: Picture, ask: NicAsk) -> Alike | None:
    """Return a constraint on GPUs and NICs that no node can satisfy; None if there is none.

    The constraints of ``ask``, the request for NICs, are checked. The returned one cannot be satisfied even if all GPUs
    and NICs are free.
    """
    for constraint in ask.alike:
        if not includes_gpus(ask, constraint):
            continue
        if not any(_has_pair(picture, node, constraint.attribute) for node in picture.inventory.pools()):
            return constraint
    return None


def _has_pair(picture: Picture, node: str, attribute: str) -> bool:
    """Return whether a GPU and a NIC of a node have the same attribute value."""
    pool = picture.inventory.pool(node)
    gpu_values = {of_gpu(gpu, attribute) for gpu in pool.machine.gpus} if pool is not None else set()
    nic_values = (nic.attributes.get(attribute) for nic in picture.nics.on(node))
    return any(value is not None and value in gpu_values for value in nic_values)
