"""Describes a gang for the allocator: roles of pods with the same request, their nodes, and free amounts.

A *role* is all pods of a gang with equal requests. A *quota* is an amount of each node that the gang's pods use up,
such as a host port. A member *keeps* its place if it has a claim already. ``gang_plan`` calls this module.

A *snapshot* is a read-only view of the cluster cache, for example without some claims. A node's *channel* is the device
that a pod needs to use NVLink between nodes.
"""

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
from dradriver.controller.placing import gang_nics, member_rules
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.controller.placing.member_rules import Quota, RoleRules
from dradriver.queue.pending import Member
from dradriver.queue.placement_request import PlacementRequest

MOST_KINDS: Final = 32  # different requests in one gang: each is placed separately, which takes time


class Asked(msgspec.Struct, frozen=True):
    """A gang as the allocator sees it: by roles.

    A role is all pods with equal requests.

    Attributes:
        request: The request to the allocator.
        members: The members in the order of the request: role after role.
        eligible: For each role, a mask of the nodes that it may use, even if nothing is free there: (rows,), one row
            per node.
        amounts: Free amounts of resources other than GPUs on each node: (rows, resources), in the order of
            ``Role.needs``.
        rules: The members' rules about neighbouring pods; None for no rules.
    """

    request: GangRequest
    members: tuple[Member, ...]
    eligible: list[Bools]
    amounts: Ints
    rules: RoleRules | None = None


def asked(snapshot: Snapshot, members: Sequence[Member], terms: GangTerms, *, kept: Collection[Member]) -> Asked:
    """Return a gang as the allocator sees it.

    Members with the same requests become one role.

    Args:
        snapshot: The cluster.
        members: The gang's pods that need places or have them.
        terms: What the pods of the gang request as a whole.
        kept: The members that keep their places. If there are any, the gang needs places for all other members.

    Raises:
        NoPlaceError: The NICs of the cluster are not read yet, or the driver cannot choose all NICs that must be near
            GPUs.
        WordError: The request of a member is not possible for a gang.
    """
    picture, wants = snapshot.picture, terms.wants or Gang()  # the author's annotations; ``Gang()`` asks for nothing
    groups = members_by_role(members, kept)
    # The request of a member that needs a place stands for its group: kept members may be narrowed to their nodes.
    wishes = [next((member for member in group if member not in kept), group[0]).wish for group in groups]
    resources = sorted({resource for wish in wishes for resource, _ in wish.ask.amounts})
    nics = gang_nics.asked(picture, wishes)

    # A gang needs all its members until the last one ends, so nodes are needed for the longest time of any member.
    lasts_s = longest(member.wish.ask.lasts_s for member in members)
    open_nodes = [snapshot.open(msgspec.structs.replace(wish.ask, lasts_s=lasts_s)) for wish in wishes]
    eligible = [_eligible(snapshot, wish, fit) for wish, fit in zip(wishes, open_nodes, strict=True)]
    rules = member_rules.role_rules(groups, kept, snapshot.gone_pods)

    # A quota is something that each node has only so much of for the gang, such as a host port. For a pod on each node,
    # every node has 1 and every pod needs 1.
    quotas = [] if rules is None else member_rules.quotas(picture, rules)
    if terms.one_a_node:
        quotas.append(Quota((1,) * len(groups), np.ones(picture.nodes.rows, np.int64)))
    roles = [
        _role(picture, wish, len(group), wants, resources, nics, [quota.needs[number] for quota in quotas])
        for number, (wish, group) in enumerate(zip(wishes, groups, strict=True))
    ]
    first_role, *other_roles = roles

    # A member with a ComputeDomain needs the node's channel of multi-node NVLink. All pods must be in one NVLink
    # fabric.
    has_channels = any(picture.channels.domain_of(member.key) is not None for member in members)
    least = terms.least
    # The allocator places pods of several roles all or none (``plan`` tries fewer of them).
    can_begin_with_fewer = least is not None and not kept and not other_roles and least < first_role.pods
    request = GangRequest(
        pod=first_role.pod,
        pods=first_role.pods,
        needs=first_role.needs,
        roles=tuple(other_roles),
        least_pods=least if can_begin_with_fewer else None,
        max_nodes=wants.max_nodes,
        min_gpus_per_node=wants.min_gpus_per_node or 0,
        min_network_gbps=wants.min_network_gbps or 0.0,
        near="" if wants.near is None else wants.near.level,
        near_required=wants.near is not None and not wants.near.preferred,
        one_fabric=has_channels,
    )
    return Asked(
        request,
        members=tuple(member for group in groups for member in group),
        eligible=eligible,
        amounts=_amounts(snapshot, resources, nics, quotas, eligible, has_channels=has_channels),
        rules=rules,
    )


def _amounts(
    snapshot: Snapshot, resources: Sequence[str], nics: NicAsk | None, quotas: Sequence[Quota],
    eligible: Sequence[Bools], *, has_channels: bool,
) -> Ints:  # fmt: skip
    """Return the free amounts of resources other than GPUs on each node: (rows, resources).

    ``eligible`` has for each role (pods with equal requests) a mask of the nodes that it may use. The columns have the
    order of ``Role.needs``:

    1. the resources;
    2. NICs, if the gang requests some (``nics``);
    3. the quotas from the members' rules about each other;
    4. if ``has_channels``, the channel of multi-node NVLink: each node has one.

    There is one row per node.
    """
    amounts = snapshot.left(resources)
    columns = [quota.amounts for quota in quotas]
    if has_channels:
        columns.append(np.ones(len(amounts), np.int64))
    if nics is not None:
        nic_column = gang_nics.column(snapshot.picture, nics, np.logical_or.reduce(eligible))
        amounts = np.append(amounts, nic_column, axis=1)
    return np.column_stack((amounts, *columns)) if columns else amounts


def members_by_role(members: Sequence[Member], kept: Collection[Member] = ()) -> list[list[Member]]:
    """Return the members of a gang by role: members of one role have equal requests.

    Members in ``kept`` keep their places and are not placed again. A kept member joins a role with the same resources
    even if its nodes differ: it may have been restricted to the gang's nodes.

    Raises:
        WordError: The request of a member cannot be read, or there are too many roles.
    """
    groups: dict[object, list[Member]] = {}
    selectors = member_rules.selectors(members)
    for member in sorted(members, key=lambda member: member in kept):  # kept ones last
        wish = member.wish
        group = None
        if member in kept:
            group = next((group for group in groups.values() if _takes_the_same(group[0].wish, wish)), None)
        if group is None:
            # Not the whole rules: the pod's own labels are part of these, and can differ for each pod.
            rules = None if wish.rules is None else msgspec.structs.replace(wish.rules, labels=())
            selected = member_rules.selected_by(member, selectors)
            group = groups.setdefault((wish.request, wish.ask.amounts, wish.ask.key, rules, selected, wish.nics), [])
        group.append(member)
    if len(groups) > MOST_KINDS:
        raise WordError(
            f"the pods of the gang ask for {len(groups)} different things: give them the same requests, selectors, "
            f"affinity and tolerations, or write gangs of at most {MOST_KINDS} kinds of pods"
        )
    position = {member: index for index, member in enumerate(members)}
    return [sorted(group, key=position.__getitem__) for group in groups.values()]


def _takes_the_same(wish: PlacementRequest, other: PlacementRequest) -> bool:
    """Return whether two pods need the same GPUs, NICs and other resources of their node."""
    return (wish.request, wish.ask.amounts, wish.nics) == (other.request, other.ask.amounts, other.nics)


def _role(
    picture: Picture, wish: PlacementRequest, pods: int, wants: Gang, resources: Sequence[str], nics: NicAsk | None,
    quotas: Sequence[int],
) -> Role:  # fmt: skip
    """Return the role of some pods of a gang, for the allocator.

    A role is all pods of a gang with equal requests.

    Args:
        picture: The cluster cache.
        wish: The request of each pod.
        pods: The number of pods.
        wants: The gang's annotations.
        resources: The resources other than GPUs. The role's ``needs`` begin with how much of each a pod uses.
        nics: The NICs that pods of the gang request; None for none. The next entry of ``needs`` is their number.
        quotas: How much of each quota a pod uses: the next entries of ``needs``. A last entry follows if the pods need
            a channel of multi-node NVLink.

    Raises:
        WordError: The pods request fractions of GPUs.
    """
    if not isinstance(wish.request, Whole):
        raise WordError(f"Gangs use whole GPUs. Write a limit {names.GPU_RESOURCE} for all pods of this gang.")
    pod = msgspec.structs.replace(wish.request, weights=picture.weights)
    if wants.strategy is not None:
        pod = msgspec.structs.replace(pod, strategy=wants.strategy)

    pod_amounts = dict(wish.ask.amounts)
    needs = tuple(pod_amounts.get(resource, 0) for resource in resources)
    if nics is not None:
        needs = (*needs, 0 if wish.nics is None else nics.count)
    needs = (*needs, *quotas)
    if picture.channels.domain_of(wish.pod) is not None:
        needs = (*needs, 1)
    return Role(pod=pod, pods=pods, needs=needs)


def _eligible(snapshot: Snapshot, wish: PlacementRequest, open_nodes: Bools) -> Bools:
    """Return a mask of the nodes that pods with this request may use: (rows,).

    Only nodes of ``open_nodes`` are included. On these nodes the pods' rules about placed pods hold, and no placed pod
    excludes them. Their claims of other drivers, and their channel of multi-node NVLink, are usable there. There is one
    row per node.
    """
    picture, fit = snapshot.picture, snapshot.narrowed(open_nodes.copy())
    if wish.rules is not None:
        fit &= picture.neighbours.allowed(wish.pod, member_rules.alone(wish.rules), open_nodes, gone=snapshot.gone_pods)
    if wish.pod in picture.pods:
        fit &= ~picture.neighbours.excluding(picture.pods[wish.pod], fit)
    if wish.other_claims:
        fit &= picture.other_claims.allowed(wish.pod)
    if (domain := picture.channels.domain_of(wish.pod)) is not None:
        fit &= picture.channels.free(domain, wish.pod)
    return fit
