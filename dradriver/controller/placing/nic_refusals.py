"""Why a pod gets no place although GPUs are free: the NICs for them are missing. Texts, with figures."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dradriver.allocator.request import NEAR_REQUIRED
from dradriver.api.vocabulary.nic_requests import Alike, NicAsk
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nics.nic_distances import of_gpu
from dradriver.controller.placing.nic_choice import demands, gpus_apart, includes_gpus
from dradriver.controller.placing.node_limit import NodeLimitError
from dradriver.reason import Cause

_MOST_NODES_IN_TEXT: Final = 3  # whose numbers of NICs a reason names


class NoNicsError(NodeLimitError):
    """GPUs are free, but not enough matching NICs on their nodes."""

    reason = "NoNICs"


def refusal(picture: Picture, ask: NicAsk) -> NoNicsError:
    """Return the refusal of a pod that finds no NICs although GPUs may be free.

    The message does not change with every event: it has no figures of the moment.
    """
    what, cause = wanted(ask), Cause.GPUS
    if (constraint := _impossible(picture, ask)) is not None:
        cause = Cause.NEVER
        stable = (
            f"{what}: no; no NIC of any node has the {constraint.attribute} of a GPU, so no claim is given devices by "
            "this constraint: remove it; the NICs are those nearest to the GPUs anyway"
        )
    elif picture.nics.counts.has_ended(ask):
        stable = f"{what}: none found beside GPUs that are free; not all were tried that the claim's requests allow"
    elif ask.near == NEAR_REQUIRED:
        stable = f"{what}: no; no eligible node has so many free ones near GPUs that are free"
    else:
        stable = f"{what}: no; no eligible node has so many free ones that fit beside GPUs that are free"
    return NoNicsError(stable, cause=cause)


def unfinished(ask: NicAsk, next_: str) -> NoNicsError:
    """Return the refusal of a pod after an incomplete search for NICs; ``next_`` says what comes next."""
    return NoNicsError(f"{wanted(ask)}: none so far beside GPUs that are free; {next_}", cause=Cause.GPUS)


def wanted(ask: NicAsk) -> str:
    """Return in words which NICs a pod requests, for its refusal."""
    classes = ", ".join(dict.fromkeys(request.device_class for request in ask.requests))
    return f"{ask.count} NIC{'s' if ask.count > 1 else ''} of class {classes}"


def figures(picture: Picture, ask: NicAsk, nodes: Collection[str]) -> str:
    """Return how many NICs these nodes have, and have free, in words; only those with the most free ones."""
    most_free_first = sorted(nodes, key=lambda node: (-len(picture.nics.free(node)), node))
    return "; ".join(_figures(picture, ask, node) for node in most_free_first[:_MOST_NODES_IN_TEXT])


def _figures(picture: Picture, ask: NicAsk, node: str) -> str:
    """Return how many NICs a node has, has free, and has for this request, in words."""
    nics, free_nics = picture.nics.on(node), picture.nics.free(node)
    judge = picture.nics.counts.judge(ask.requests)
    fitting = [nic for nic in free_nics if any(judge.of(nic))]
    tainted = sum(bool(nic.taints) for nic in free_nics)
    taint_text = f" ({tainted} of these tainted)" if tainted else ""
    text = f"{node}: {len(free_nics)} of {len(nics)} NICs free{taint_text}, {len(fitting)} of them as asked for"

    pool = picture.inventory.pool(node)
    if not demands(ask) or pool is None:
        return text
    numbers = [gpu.index for gpu in pool.machine.gpus]
    near = gpus_apart(picture, ask, node, numbers, ask.count, is_last_pod=False)
    return f"{text}, one each for GPU {', '.join(map(str, sorted(near)))}" if near else f"{text}, for no GPU"


def _impossible(picture: Picture, ask: NicAsk) -> Alike | None:
    """Return a constraint on GPUs and NICs that no node can satisfy, even if all were free; None if there is none."""
    for constraint in ask.alike:
        if not includes_gpus(ask, constraint):
            continue
        if not any(_has_pair(picture, node, constraint.attribute) for node in picture.inventory.pools()):
            return constraint
    return None


def _has_pair(picture: Picture, node: str, attribute: str) -> bool:
    """Return whether a GPU and a NIC of a node have the same value of an attribute."""
    pool = picture.inventory.pool(node)
    gpu_values = {of_gpu(gpu, attribute) for gpu in pool.machine.gpus} if pool is not None else set()
    nic_values = (nic.attributes.get(attribute) for nic in picture.nics.on(node))
    return any(value is not None and value in gpu_values for value in nic_values)
