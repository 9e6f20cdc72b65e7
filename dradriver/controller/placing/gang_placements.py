"""Turns a gang's plan into one ``Placement`` for each new member: uuids, NICs, indices, and alternative nodes.

A *new* member gets its place by this plan. A *kept* member has its place, with a claim, from an earlier plan.
``gang_plan`` calls this module.

A gang's *plan* lists the places of all its pods. A *place* is a node and GPUs. A pod's *index* is its number in this
list; a note (annotation) on its claim has it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from dradriver.allocator.gang_request import GangChoice
from dradriver.allocator.request import Choice, NoPlaceError
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.claims import gang_plan_note, result_annotations
from dradriver.api.claims.gang_plan_note import Planned
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.pods.kept_places import Kept
from dradriver.cluster.pods.pod_rules import Spread
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import chosen_gpus, gang_nics
from dradriver.controller.placing.decide import MOST_NODES, unlike
from dradriver.controller.placing.gang_roles import Asked
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.queue.pending import Member

MOST_ALTERNATES: Final = 8  # nodes that a gang's pods may use in addition to the plan's
MOST_RANKED: Final = 32  # nodes from which these are chosen
MOST_DOMAINS: Final = 16  # in which pods of one gang may only use nodes: pods with other nodes are another role

Domain: TypeAlias = tuple[tuple[str, str | None], ...]
"""Labels of nodes, and the value of each that a pod's nodes must have."""


def placements_of(
    picture: Picture,
    terms: GangTerms,
    placed: Mapping[Member, Choice],
    plan_choice: GangChoice,
    kept: Mapping[Member, tuple[object, Planned | None]],
    hostnames: Mapping[Member, dict[str, str]],
) -> dict[Member, Placement]:
    """Return the placements of the members that are new in a plan.

    Args:
        picture: The cluster cache.
        terms: What the pods of the gang request as a whole.
        placed: The GPUs of all members in the plan.
        plan_choice: The plan.
        kept: The members that keep their places. Each has a tuple of two values: its place, which is ignored here, and
            its claim's note about the gang's plan, or None.
        hostnames: For each member, the hostname labels of the nodes that it may use, by node.

    Raises:
        ShortError: The plan's nodes have too few NICs.
    """
    uuids = {
        member: chosen_gpus.uuids(picture, member.wish, choice)
        for member, choice in placed.items()
        if member not in kept
    }

    # New members continue the plan of the kept ones, with its name and size.
    kept_plans = [planned for _, planned in kept.values() if planned is not None]
    # The name is a digest of the gang's identity and of all its places.
    if kept_plans:
        digest, size = kept_plans[0].plan, kept_plans[0].size
    else:
        places = [
            (member.uid, placed[member].node, [uuid for group in by_request.values() for uuid in group])
            for member, by_request in uuids.items()
        ]
        digest, size = gang_plan_note.digest(terms.identity, places), len(placed)

    # Members that replace lost pods get the indices of these: ``terms.home`` has the places of lost pods. The bound
    # leaves an index for each new member, whichever indices the kept members have.
    index_of = _indices(list(uuids), size + len(placed), kept_plans, terms.home)

    # The gang barrier: the scheduler binds no pod of the gang before all pods have their places. A claim calls its
    # device of the barrier a seat.
    has_barrier = has_seats_of(picture, hostnames)
    gpus_of = {member: (placed[member].node, by_request) for member, by_request in uuids.items()}
    nics_of = gang_nics.chosen(picture, gpus_of)
    placements: dict[Member, Placement] = {}
    for member, by_request in uuids.items():
        choice = placed[member]
        # A member that joins later can have an index beyond the plan's size. Its claim then says a larger size than the
        # other claims do, so that each index is below the size next to it.
        planned = Planned(
            gang=terms.identity,
            plan=digest,
            size=max(size, index_of[member] + 1),
            index=index_of[member],
            reach=plan_choice.reach,
            busbw_gbps=plan_choice.busbw_gbps,
        )
        # Preferences of the author that this member's GPUs or the whole plan do not meet, each once. If there are none,
        # the annotation is removed (None).
        missed = dict.fromkeys((*(word.value for word in choice.fallback), *plan_choice.fallback))
        placements[member] = Placement(
            choice=choice,
            hostnames={} if member.is_open else hostnames[member],  # a pod that is not confined to nodes has none
            uuids=by_request,
            addresses=picture.inventory.addresses(choice.node),
            texts=result_annotations.written(choice, picture.inventory.uuids(choice.node))
            | gang_plan_note.texts(planned, plan_choice.nodes)
            | {names.FALLBACK: ",".join(missed) or None},
            planned=planned,
            seat=has_barrier,
            nics=nics_of.get(member, {}),
        )
    return placements


def _indices(
    members: Sequence[Member], most: int, kept_plans: Collection[Planned], home: Mapping[Member, Kept]
) -> dict[Member, int]:
    """Return for each new member its index: its number in the gang's plan.

    No new member gets the index of a kept member. A member that replaces a lost pod gets that pod's index if it is
    free. All other members get the lowest free indices.

    Args:
        members: The new members.
        most: All indices are below this number. It must leave a free index for each new member.
        kept_plans: The notes about the gang's plan on the claims of the kept members. They have these members' indices.
        home: The places of lost pods, by the new members that replace these pods.
    """
    free = dict.fromkeys(range(most))
    for planned in kept_plans:
        free.pop(planned.index, None)
    inherited: dict[Member, int] = {}
    for member, lost in home.items():
        if lost.index in free:
            del free[lost.index]
            inherited[member] = lost.index
    lowest = iter(free)
    return {member: inherited[member] if member in inherited else next(lowest) for member in members}


def has_seats_of(picture: Picture, hostnames: Mapping[Member, Mapping[str, str]]) -> bool:
    """Return whether the gang barrier works on all nodes that these members may use.

    The gang barrier delays the binding of pods until the gang is complete. ``hostnames`` has the nodes of each member.
    """
    different = {id(nodes): nodes for nodes in hostnames.values()}  # many members have the same
    return has_seats(picture, {node for nodes in different.values() for node in nodes})


def has_seats(picture: Picture, nodes: Collection[str]) -> bool:
    """Return whether the gang barrier works on all of these nodes.

    The gang barrier delays the binding of pods until the gang is complete.
    """
    return bool(picture.barrier) and current_ledger() is OURS and all(map(picture.inventory.knows_seats, nodes))


def hostname_labels(picture: Picture, nodes: Mapping[Member, str], asked: Asked) -> dict[Member, dict[str, str]]:
    """Return for each member the hostname labels of its usable nodes, by node.

    These are the nodes of the plan, and alternative nodes. If a topology spread keeps a member in a domain such as a
    zone, it gets only nodes of this domain. With the alternatives, a failed plan can be replaced by another one without
    evicting pods. All pods get the same order of nodes, so that pods with equal requests still have equal requests in
    the next plan.

    Args:
        picture: The cluster cache.
        nodes: The node of each member that has a place.
        asked: The request to the allocator for the whole gang, before its roles are divided by zone or another label.
    """
    plan_nodes = list(dict.fromkeys(nodes.values()))
    alternates = [node for node in _ranked(picture, asked, len(plan_nodes)) if node not in plan_nodes]
    if has_seats(picture, plan_nodes):
        alternates = [node for node in alternates if picture.inventory.knows_seats(node)]
    # As many nodes as a single pod may use, or twice those of the plan: the scheduler binds 126 pods a second that may
    # use 8 nodes each, 100 with 16 nodes, and 58 with 64.
    most_alternates = min(max(len(plan_nodes), MOST_NODES - len(plan_nodes)), MOST_ALTERNATES)
    usable = [*plan_nodes, *unlike(picture, alternates, most_alternates)]
    domains = _domains(picture, nodes)
    if len(set(domains.values())) > MOST_DOMAINS:
        domains = dict.fromkeys(nodes, ())
    labels = {
        domain: {node: picture.nodes.hostname(node) for node in usable if _is_in(picture, node, domain)}
        for domain in set(domains.values())
    }
    return {member: labels[domain] for member, domain in domains.items()}


def _ranked(picture: Picture, asked: Asked, planned: int) -> list[str]:
    """Return nodes with room for a pod of the gang, best first.

    A role is all pods with equal requests. The result has the nodes on which pods of all roles fit. If there are none,
    it has the best node of each role, then the second-best node of each role, and so on.

    Args:
        picture: The cluster cache.
        asked: The gang as the allocator sees it.
        planned: The number of nodes in the plan.
    """
    fits = []
    for role, fit in zip(asked.request.members, asked.eligible, strict=True):
        needs = np.array(role.needs, np.int64)
        fits.append(fit & (asked.amounts[:, : len(role.needs)] >= needs).all(axis=1))
    common: Bools = np.logical_and.reduce(fits)
    requests = [(asked.request.pod, common)]
    if not common.any():
        requests = [(role.pod, fit) for role, fit in zip(asked.request.members, fits, strict=True)]
    fleet, limit = picture.fleets.of(asked.members[0].key[0]), planned + MOST_RANKED // len(requests)
    ranked: list[list[str]] = []
    for request, fit in requests:
        with contextlib.suppress(NoPlaceError):
            ranked.append([choice.node for choice in fleet.rank(request, eligible=fit, limit=limit, explain=False)])
    in_turn = itertools.chain(*itertools.zip_longest(*ranked))
    return [node for node in dict.fromkeys(in_turn) if node is not None]


def _domains(picture: Picture, nodes: Mapping[Member, str]) -> dict[Member, Domain]:
    """Return for each member the domains in which it must stay, as labels with values.

    This keeps the scheduler from refusing pods that come early. For a topology spread, the scheduler counts only the
    pods that are placed already. It compares the domains of all nodes that a pod may use. While one of these domains is
    still empty, the scheduler could refuse a pod, although the complete plan keeps the spread. A pod that may use only
    nodes of its own domain is not refused: there is no other domain to compare with.
    """
    labels: dict[tuple[Spread, ...], list[str]] = {(): []}
    domains: dict[Member, Domain] = {}
    for member, node in nodes.items():
        spreads = () if member.wish.rules is None else member.wish.rules.spread
        if spreads not in labels:
            labels[spreads] = [spread.place for spread in spreads if _has_order(picture, spread, nodes)]
        domains[member] = tuple((label, picture.nodes.label(node, label)) for label in labels[spreads])
    return domains


def _is_in(picture: Picture, node: str, domain: Domain) -> bool:
    return all(picture.nodes.label(node, label) == value for label, value in domain)


def _has_order(picture: Picture, spread: Spread, nodes: Mapping[Member, str]) -> bool:
    """Return whether a spread constraint could refuse a pod that comes early.

    That can happen while other pods of the gang are not placed yet. ``nodes`` has the node of each member.
    """
    keys = {member.key for member in nodes}
    counts = picture.neighbours.places(spread.place, (spread.pods,), keys, staying=True)
    for member, node in nodes.items():
        domain = picture.nodes.label(node, spread.place)
        if domain is not None and spread.pods.has(member.key[0], member.pod.metadata.labels):
            counts[domain] += 1
    domains = {picture.nodes.label(node, spread.place) for node in nodes.values()}
    return any(domain is not None and counts[domain] > spread.skew for domain in domains)
