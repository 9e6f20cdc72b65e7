"""A gang as the allocator is asked for it: its pods by what they want, where each may go, and what is left there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator.gang_request import GangRequest, Role
from dradriver.allocator.request import Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.vocabulary.nic_requests import NicAsk
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.nodes.columns import Bools, Ints
from dradriver.cluster.nodes.pod_demands import longest
from dradriver.cluster.pods import anti_affinity as neighbours
from dradriver.controller.placing import gang_nics
from dradriver.queue.pending import Member
from dradriver.queue.placement_request import PlacementRequest

MOST_KINDS: Final = 32  # of pods in one gang: each is placed by itself, beside the others


class Asked(msgspec.Struct, frozen=True):
    """A gang as the allocator is asked for it.

    Attributes:
        request: What it wants.
        members: Its members by their index in the request, role after role.
        eligible: Of each role the nodes that it may go to, whatever is free there: (rows,).
        amounts: What is left beside GPUs: (rows, resources), by the request's ``needs``.
    """

    request: GangRequest
    members: tuple[Member, ...]
    eligible: list[Bools]
    amounts: Ints


def asked(
    snapshot: Snapshot,
    members: Sequence[Member],
    wants: Gang | None,
    *,
    kept: Collection[Member],
    least: int | None,
) -> Asked:
    """Return what the allocator is asked: members that want the same are one role.

    Args:
        snapshot: The cluster.
        members: The gang's pods that are to have places, or have them.
        wants: What its author says of it; None for nothing.
        kept: Those of them that keep their places.
        least: With how few it may begin where not all have a place; None for none fewer.

    Raises:
        NoPlaceError: What there is of NICs is not known yet.
        WordError: A member asks for what no gang can have.
    """
    picture, wants = snapshot.picture, wants or Gang()
    groups = kinds(members, kept)
    wishes = [next((member for member in group if member not in kept), group[0]).wish for group in groups]
    resources = sorted({resource for wish in wishes for resource, _ in wish.ask.amounts})
    nics = gang_nics.asked(picture, wishes)
    roles = [
        _role(picture, wish, len(group), wants, resources, nics) for wish, group in zip(wishes, groups, strict=True)
    ]
    first, *others = roles
    lasts_s = longest(member.wish.ask.lasts_s for member in members)  # without one of them the others are of no use
    eligible = [_eligible(snapshot, wish, lasts_s) for wish in wishes]
    amounts = snapshot.left(resources)
    if nics is not None:
        amounts = np.append(amounts, gang_nics.column(picture, nics, np.logical_or.reduce(eligible)), axis=1)
    if (more := max(len(role.needs) for role in roles) - amounts.shape[1]) > 0:
        amounts = np.append(amounts, np.ones((len(amounts), more), np.int64), axis=1)
    request = GangRequest(
        pod=first.pod,
        pods=first.pods,
        needs=first.needs,
        roles=tuple(others),
        least_pods=least if least is not None and not others and least < first.pods else None,
        max_nodes=wants.max_nodes,
        min_gpus_per_node=wants.min_gpus_per_node or 0,
        min_network_gbps=wants.min_network_gbps or 0.0,
        near="" if wants.near is None else wants.near.level,
        near_required=wants.near is not None and not wants.near.preferred,
        one_fabric=any(picture.channels.domain_of(member.key) is not None for member in members),
    )
    return Asked(request, tuple(member for group in groups for member in group), eligible, amounts)


def kinds(members: Sequence[Member], kept: Collection[Member] = ()) -> list[list[Member]]:
    """Return the members by what they want, those that want the same together.

    Those that keep their places may have been narrowed to their nodes since, and are nowhere else to go.

    Raises:
        WordError: What a member asks for cannot be read, or they ask for too many different things.
    """
    by_kind: dict[object, list[Member]] = {}
    for member in sorted(members, key=lambda member: member in kept):
        wish = member.wish
        rules = None if wish.rules is None else (wish.rules.apart, wish.rules.spread)  # each has labels of its own
        alike = (group for group in by_kind.values() if member in kept and _takes_the_same(group[0].wish, wish))
        group = next(alike, None)
        if group is None:
            group = by_kind.setdefault((wish.request, wish.ask.amounts, wish.ask.key, rules, wish.nics), [])
        group.append(member)
    if len(by_kind) > MOST_KINDS:
        raise WordError(
            f"the pods of the gang ask for {len(by_kind)} different things: give them the same requests, selectors, "
            f"affinity and tolerations, or write gangs of at most {MOST_KINDS} kinds of pods"
        )
    in_order = {member: at for at, member in enumerate(members)}
    return [sorted(group, key=in_order.__getitem__) for group in by_kind.values()]


def _takes_the_same(one: PlacementRequest, other: PlacementRequest) -> bool:
    return (one.request, one.ask.amounts, one.nics) == (other.request, other.ask.amounts, other.nics)


def _role(
    picture: Picture, wish: PlacementRequest, pods: int, wants: Gang, resources: Sequence[str], nics: NicAsk | None
) -> Role:
    if not isinstance(wish.request, Whole):
        raise WordError(f"gangs are of whole GPUs; write a limit {names.GPU_RESOURCE} for all pods of this one")
    pod = msgspec.structs.replace(wish.request, weights=picture.weights)
    if wants.strategy is not None:
        pod = msgspec.structs.replace(pod, strategy=wants.strategy)
    own = dict(wish.ask.amounts)
    needs = tuple(own.get(resource, 0) for resource in resources)
    if nics is not None:
        needs = (*needs, 0 if wish.nics is None else nics.count)
    # Of what its pods say of each other, and of channels of multi-node NVLink: columns that each node has one of.
    apart, channel = neighbours.one_a_node(wish.rules), picture.channels.domain_of(wish.pod) is not None
    own_ones = (int(apart), 1) if channel else (1,) if apart else ()
    return Role(pod=pod, pods=pods, needs=(*needs, *own_ones))


def _eligible(snapshot: Snapshot, wish: PlacementRequest, lasts_s: int) -> Bools:
    picture = snapshot.picture
    fit = snapshot.narrowed(snapshot.open(msgspec.structs.replace(wish.ask, lasts_s=lasts_s)))
    if wish.rules is not None:
        fit &= picture.neighbours.allowed(wish.pod, wish.rules, fit.copy())
    if (domain := picture.channels.domain_of(wish.pod)) is not None:
        fit &= picture.channels.free(domain, wish.pod)
    return fit
