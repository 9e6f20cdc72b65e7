"""Writes a gang's plan as one ``Placement`` for each new member: uuids, NICs, indices, and the next-best nodes.

``gang_plan`` calls this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from dradriver.allocator.gang_request import GangChoice
from dradriver.allocator.request import Choice, NoPlaceError
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.claims import gang_plan_note, result_annotations
from dradriver.api.claims.gang_plan_note import Planned
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.pods.kept_places import Kept
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import chosen_gpus, gang_nics
from dradriver.controller.placing.gang_roles import Asked
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.queue.pending import Member

MOST_ALTERNATES: Final = 8  # nodes that a gang's pods may use in addition to the plan's


def placements_of(
    picture: Picture,
    terms: GangTerms,
    placed: Mapping[Member, Choice],
    plan_choice: GangChoice,
    kept: Mapping[Member, tuple[object, Planned | None]],
    hostnames: dict[str, str],
) -> dict[Member, Placement]:
    """Return the placements of the members that are new in a plan.

    Args:
        picture: The cluster cache.
        terms: What the pods of the gang ask for as a whole.
        placed: The GPUs of all members in the plan.
        plan_choice: The plan.
        kept: The members that keep their places: for each its place, which is not used here, and what its claim says of
            the gang's plan; None if the claim does not say it.
        hostnames: The nodes that the pods may use, and their hostname labels.

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
    index = _indices(list(uuids), size + len(placed), kept_plans, terms.home)

    # A seat is a gang barrier device: the scheduler binds no pod of the gang before all have their places.
    has_seat = has_seats(picture, hostnames)
    gpus = {member: (placed[member].node, by_request) for member, by_request in uuids.items()}
    nics = gang_nics.chosen(picture, gpus)
    placements: dict[Member, Placement] = {}
    for member, by_request in uuids.items():
        choice = placed[member]
        # A member that joins later can have an index beyond the plan's size. Its claim then says a larger size than the
        # other claims do, so that each index is below the size next to it.
        planned = Planned(
            gang=terms.identity,
            plan=digest,
            size=max(size, index[member] + 1),
            index=index[member],
            reach=plan_choice.reach,
            busbw_gbps=plan_choice.busbw_gbps,
        )
        missed = dict.fromkeys((*(word.value for word in choice.fallback), *plan_choice.fallback))
        placements[member] = Placement(
            choice=choice,
            hostnames=hostnames,
            uuids=by_request,
            addresses=picture.inventory.addresses(choice.node),
            texts=result_annotations.written(choice, picture.inventory.uuids(choice.node))
            | gang_plan_note.texts(planned, plan_choice.nodes)
            | {names.FALLBACK: ",".join(missed) or None},
            planned=planned,
            seat=has_seat,
            nics=nics.get(member, {}),
        )
    return placements


def _indices(
    members: Sequence[Member], most: int, kept_plans: Collection[Planned], home: Mapping[Member, Kept]
) -> dict[Member, int]:
    """Return an index in the plan for each new member, different from those of the kept members.

    A member that replaces a lost pod gets the index of that pod if it is free; all others get the lowest free ones.

    Args:
        members: The new members.
        most: All indices are below this number. It must leave a free index for each new member.
        kept_plans: What the claims of the kept members say of the plan, with their indices.
        home: The places of lost pods, by the new members that replace them.
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


def has_seats(picture: Picture, nodes: Collection[str]) -> bool:
    """Return whether a gang barrier can delay the binding of pods on all of these nodes until the gang is complete."""
    return bool(picture.barrier) and current_ledger() is OURS and all(map(picture.inventory.knows_seats, nodes))


def hostname_labels(picture: Picture, nodes: Collection[str], asked: Asked) -> dict[str, str]:
    """Return the hostname labels of the nodes that all pods of a gang may use: the plan's, and as many alternates.

    With alternates, a plan that failed can be replaced by another one without evicting pods. The order is the same for
    all pods, so the next plan sees pods with the same requests.
    """
    fit = np.logical_and.reduce(asked.eligible)
    for role in asked.request.members:
        fit &= (asked.amounts[:, : len(role.needs)] >= np.array(role.needs, np.int64)).all(axis=1)
    most_alternates = min(len(nodes), MOST_ALTERNATES)
    alternates: list[str] = []
    fleet = picture.fleets.of(asked.members[0].key[0])
    with contextlib.suppress(NoPlaceError):
        limit = len(nodes) + most_alternates
        ranked = fleet.rank(asked.request.pod, eligible=fit, limit=limit, explain=False)
        alternates = [choice.node for choice in ranked if choice.node not in nodes]
    if has_seats(picture, nodes):
        alternates = [node for node in alternates if picture.inventory.knows_seats(node)]
    return {node: picture.nodes.hostname(node) for node in (*nodes, *alternates[:most_alternates])}
