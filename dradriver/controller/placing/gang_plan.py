"""Plans the places of a gang's pods: one ``Placement`` for each member, all from one state of the cluster cache.

A *role* is all pods of a gang with equal requests. A member *keeps* its place if it has a claim, or if its claim is
about to be created. Places for all other members are planned near these. ``plan`` calls this module.

A *place* is a node and GPUs for one pod. A gang's *plan* lists the places of all its pods. Each claim has a note
(annotation) about the plan. A *snapshot* is a read-only view of the cluster cache, for example without some claims.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator import place_gang
from dradriver.allocator.fleet.domain_capacity import capacity_by_row
from dradriver.allocator.fleet.gang_effort import Effort
from dradriver.allocator.gang_request import GangChoice
from dradriver.allocator.request import Choice, LazyNoPlaceError, NoPlaceError
from dradriver.api.base.affinity import anywhere
from dradriver.api.base.pods import Pod
from dradriver.api.claims import gang_plan_note
from dradriver.api.claims.gang_plan_note import Planned
from dradriver.api.claims.pins import claim_key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.node_table import GOING
from dradriver.cluster.nodes.pod_demands import longest
from dradriver.cluster.pods.neighbours import SAME_KIND
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing import decide, gang_nics, gang_roles, gang_rules, member_rules, ranking, spot_limit
from dradriver.controller.placing.gang_placements import has_seats_of, hostname_labels, placements_of
from dradriver.controller.placing.gang_roles import Asked
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.queue.pending import Member
from dradriver.reason import Cause

MOST_LACKING: Final = 4  # kinds of members of which a reason says why they have too few nodes
MOST_FIRST: Final = 4  # kinds of members that are tried as the first ones of a gang that begins with fewer


def plan(snapshot: Snapshot, members: Sequence[Member], terms: GangTerms) -> dict[Member, Placement]:
    """Return places for the gang members without a claim, near the members with a claim.

    If a gang can begin with fewer pods, and not all find a place, the plan has only pods that do. Once the effort in
    ``terms`` is spent, only the network sections with the most free GPUs are tried, without preferences. As a side
    effect, the network locations of the nodes in ``snapshot`` are read again from their labels.

    Raises:
        NoPlaceError: There are not enough places. The reason is computed when its message is read.
        WordError: The request of a member is not possible for a gang.
    """
    # ``least``: with how few pods the gang can begin; None if it needs all. ``effort``: the work that all searches of
    # this gang may cost together.
    picture, least, effort = snapshot.picture, terms.least, terms.effort

    def places(some_members: Sequence[Member]) -> dict[Member, Placement]:
        """Return places for ``some_members`` of the gang.

        If nodes of a plan lack NICs, another plan is made without these nodes, or without their GPUs that lack NICs.
        """
        search = gang_nics.Search(snapshot, some_members, terms.wants)
        while True:
            try:
                return _places(search.snapshot, some_members, terms, search.sets)
            except gang_nics.ShortError as error:
                # Leaves nodes and GPUs without NICs out of the next snapshot. Raises if no other plan is to be made.
                search.learn(error, is_last=effort.is_spent)
            except NoPlaceError as error:
                # ``deal`` fills ``search.sets``, once. It returns False if another plan would be the same.
                if effort.is_spent or not search.deal():
                    raise search.refusal() or error from None

    try:
        return places(members)
    except NoPlaceError:
        roles = gang_roles.members_by_role(members)
        # A gang can begin with fewer pods only if none of it has begun. With one role the allocator has tried that,
        # unless the pods have rules about each other.
        has_begun = any(_kept(picture, member) for member in members)
        is_tried = len(roles) == 1 and members[0].wish.rules is None
        if least is None or has_begun or least >= len(members) or is_tried:
            raise
        # Try the first members. Then, for each role, try its members before the others: another role may have no place.
        for role in ((), *roles[:MOST_FIRST]):
            if role and effort.is_spent:
                break
            in_role = set(role)
            order = [*role, *(member for member in members if member not in in_role)]
            if (placements := _first_of(order, least, places, effort)) is not None:
                return placements
        raise


def _first_of(
    members: Sequence[Member],
    least: int,
    places: Callable[[Sequence[Member]], dict[Member, Placement]],
    effort: Effort,
) -> dict[Member, Placement] | None:
    """Return places for the longest possible beginning of a list of members.

    For example, for the first 6 of 8 members. None if even the first ``least`` members have no places. If the pods have
    different roles (different requests), the allocator gives places to all of them or to none. So this function asks
    the allocator with different numbers of pods.

    Pods that are equal for their author can have different roles, for example because some were restricted to the nodes
    of an earlier plan.

    Args:
        members: The members, in the order in which they are preferred.
        least: How many must have places.
        places: Returns places for some members, or raises NoPlaceError.
        effort: Ends the search once it is spent.
    """
    best: dict[Member, Placement] | None = None
    # A binary search: fewer pods fit wherever more do. If the least do not fit, the search ends at once.
    low, high = least, len(members) - 1
    while low <= high and not (best is not None and effort.is_spent):
        middle = low if best is None else (low + high + 1) // 2
        try:
            best = places(members[:middle])
        except NoPlaceError:
            high = middle - 1
        else:
            low = middle + 1
    return best


def _places(
    snapshot: Snapshot, members: Sequence[Member], terms: GangTerms, sets: Mapping[Member, gang_nics.Dealt]
) -> dict[Member, Placement]:
    """Return places for the members without one, from one plan of the allocator.

    Args:
        snapshot: The cluster.
        members: All members, those with a place, too. The plan is made near these.
        terms: What the gang requests as a whole.
        sets: Nodes and GPUs that members prefer because of their NICs.

    Raises:
        NoPlaceError: There are not enough places.
        ShortError: The plan's nodes have too few NICs.
    """
    picture, namespace = snapshot.picture, members[0].key[0]

    # 1. The gang in the terms of the allocator. Members with a place are fixed there. Only the place that was intended
    #    for ``terms.late``, which joins a running gang, does not count.
    kept: dict[Member, tuple[object, Planned | None]] = {}
    for member in members:
        if member is not terms.late and (kept_place := _kept(picture, member)) is not None:
            kept[member] = kept_place
    # ``locate`` updates where the nodes are in the network, which the allocator reads from the fleet.
    picture.fleets.locate(picture.nodes.labels(), namespace)
    asked = gang_roles.asked(snapshot, members, terms, kept=kept)
    fixed = {member: choice for member, (choice, _) in kept.items() if isinstance(choice, Choice)}
    # A node set aside, whose kind of machine is not assessed yet, is not in the fleet: nothing can be placed near it.
    if any(choice.node in picture.inventory.aside for choice in fixed.values()):
        unknown = f"Other pods of the gang are on nodes that are left out now: {ranking.UNKNOWN_KIND}"
        raise NoPlaceError(unknown, cause=Cause.NODES)

    # 2. The plan. If the pods prefer some nodes, and do not have to join others or replace lost ones, it is made on
    #    these nodes, unless that puts the pods farther apart.
    #    ``terms.home`` has the places of lost pods, by the members that replace them.
    preferred_places: dict[Member, gang_nics.Dealt | Choice] = dict(sets)
    preferred_places.update((member, lost.choice) for member, lost in terms.home.items())

    def place(some: Asked) -> GangChoice:
        index = {member: number for number, member in enumerate(some.members)}
        return place_gang(
            snapshot.fleet,
            some.request,
            eligible_by_role=some.eligible,
            amounts=some.amounts,
            fixed={index[member]: choice for member, choice in fixed.items()},
            home={index[member]: place for member, place in preferred_places.items() if member in index},
            effort=terms.effort,
        )

    def place_best(some: Asked) -> GangChoice:
        choice = place(some)
        preferred_nodes = None if kept or terms.home else _favoured(picture, members, some)
        if preferred_nodes is not None:
            with contextlib.suppress(NoPlaceError):
                # On the preferred nodes all pods must have places: none is given up for a preference.
                all_pods = msgspec.structs.replace(some.request, least_pods=None)
                preferred = place(msgspec.structs.replace(some, request=all_pods, eligible=preferred_nodes))
                choice = preferred if _as_near(preferred, choice) else choice
        return choice

    # If pods have rules about zones or other parts of the cluster, roles are divided by these parts. So ``planned`` can
    # have more roles than ``asked``, and its members in another order.
    try:
        if labels := gang_rules.labels(picture, asked):
            planned, choice = gang_rules.placed(picture, snapshot.fleet, asked, labels, place_best)
        else:
            planned, choice = asked, place_best(asked)
    except NoPlaceError as error:
        raise LazyNoPlaceError(partial(_explained, snapshot, members, asked, kept, error)) from None

    # Not strict: a gang that begins with fewer pods has fewer choices than members.
    placed = dict(zip(planned.members, choice.pods, strict=False))
    hostnames = hostname_labels(picture, {member: choice.node for member, choice in placed.items()}, asked)
    return placements_of(picture, terms, placed, choice, kept, hostnames)


def _explained(
    snapshot: Snapshot, members: Sequence[Member], asked: Asked, kept: Collection[Member], error: NoPlaceError
) -> NoPlaceError:
    """Return the allocator's error, with why nodes and GPUs were not offered to it.

    The allocator does not know these nodes and GPUs, so its own text cannot name them. ``asked`` is the gang as the
    allocator sees it. Members in ``kept`` keep their places.
    """
    picture = snapshot.picture
    if any(ranking.any_aside(picture, fit) for fit in asked.eligible):
        # The allocator's own figures would be wrong: it does not know what these nodes have.
        unknown = f"The gang has no place on the other nodes. Nodes left out: {ranking.UNKNOWN_KIND}"
        return NoPlaceError(unknown, cause=Cause.NODES)
    fit = np.logical_or.reduce(asked.eligible)
    kept_text = ranking.kept_for_others(snapshot, members[0].wish, fit)
    return error.more(
        ranking.unhealthy_text(picture, fit), kept_text, _left_out(snapshot, members),
        *_lacking(snapshot, asked, kept), gang_nics.told(members),
        cause=Cause.RESERVED if kept_text and error.cause is not Cause.NEVER else None,
    )  # fmt: skip


def _left_out(snapshot: Snapshot, members: Sequence[Member]) -> str:
    """Return a sentence that says why nodes are left out for the whole gang.

    The sentence is empty if no node is left out. There are two causes. The maintenance of a node begins before the last
    member would end. Or another ComputeDomain uses the node's channel of multi-node NVLink.
    """
    picture, lasts_s = snapshot.picture, longest(member.wish.ask.lasts_s for member in members)
    ask = msgspec.structs.replace(members[0].wish.ask, lasts_s=lasts_s)
    causes = [GOING] if GOING in snapshot.causes(ask, snapshot.rows) else []
    for member in members:
        if (domain := picture.channels.domain_of(member.key)) is not None:
            causes += picture.channels.causes(domain, member.key, snapshot.narrowed(snapshot.open(ask)))
            break  # one member stands for all
    return f"Nodes left out: {', '.join(causes)}" if causes else ""


def _lacking(snapshot: Snapshot, asked: Asked, kept: Collection[Member]) -> list[str]:
    """Return sentences with why nodes are left out, for roles without enough nodes.

    A role is all pods with equal requests. There is one sentence for each of the first ``MOST_LACKING`` roles. A
    sentence names the first pod of the role that needs a place. If only GPUs are missing, there is no sentence.
    ``asked`` is the gang as the allocator sees it. Members in ``kept`` keep their places.
    """
    neighbours, texts, end = snapshot.picture.neighbours, list[str](), 0
    lasts_s = longest(member.wish.ask.lasts_s for member in asked.members)
    for role, fit in zip(asked.request.members, asked.eligible, strict=True):
        new = [member for member in asked.members[end : end + role.pods] if member not in kept]
        end += role.pods
        room = capacity_by_row(snapshot.fleet, role, len(fit), eligible=fit, amounts=asked.amounts)
        if int(room.pods.sum()) >= len(new):
            continue
        ask = msgspec.structs.replace(new[0].wish.ask, lasts_s=lasts_s)
        causes = {*snapshot.causes(ask, snapshot.rows)} - {GOING}  # which is said of the gang
        open_nodes, rules = snapshot.narrowed(snapshot.open(ask)), new[0].wish.rules
        if rules is not None:
            own_rules = member_rules.alone(rules)
            causes |= {*neighbours.causes(new[0].key, own_rules, open_nodes, gone=snapshot.gone_pods)}
        if neighbours.excluding(new[0].pod, open_nodes).any():
            causes.add(SAME_KIND)
        if causes:
            texts.append(f"Nodes left out for pod {new[0].key[1]}: {', '.join(sorted(causes))}")
    return texts[:MOST_LACKING]


def _favoured(picture: Picture, members: Sequence[Member], asked: Asked) -> list[Bools] | None:
    """Return for each role a mask of the nodes that the gang prefers: (rows,).

    A role is all pods with equal requests; ``asked`` has them. The preferred nodes are the spot nodes, or all other
    nodes. None if there is no preference, or if a role has no preferred node. A gang stops if it loses one node, so the
    preference counts only if all members have it. There is one row per node.
    """
    preferences = {member.wish.spot for member in members}
    if preferences == {""} or len(preferences) > 1:
        return None
    preferred = [spot_limit.favoured(picture, members[0].wish.spot, fit) for fit in asked.eligible]
    return preferred if all(fit.any() for fit in preferred) else None


def _as_near(choice: GangChoice, best: GangChoice) -> bool:
    """Return whether the plan ``choice`` is as good as ``best``, by links and network.

    Only the links between the GPUs of one pod count. ``choice`` must not use more nodes than ``best``.
    """

    def levels(choice: GangChoice) -> Counter[tuple[object, object]]:
        return Counter((pod.level, pod.fallback) for pod in choice.pods)

    is_as_near = (choice.reach, choice.fallback) == (best.reach, best.fallback)
    return is_as_near and levels(choice) == levels(best) and len(choice.nodes) <= len(best.nodes)


def has_claim(picture: Picture, member: Member) -> bool:
    """Return whether a gang member has its own claim, even one in deletion."""
    claim = picture.claim_of(member.pod)
    return claim is not None and claim.owned_by(member.uid)


def members_to_plan(picture: Picture, members: Sequence[Member], wanting: Collection[Member]) -> list[Member]:
    """Return the gang members that need places (``wanting``) or have claims, in order."""
    return [member for member in members if member in wanting or has_claim(picture, member)]


def is_placed(picture: Picture, member: Member) -> bool:
    """Return whether a gang member has a claim of its own.

    A claim that is about to be created counts, too.
    """
    return has_claim(picture, member) or _intended(picture, member) is not None


def placed(picture: Picture, pod: Pod) -> Member | None:
    """Return a gang's placed pod as a member for ``plan``; None without a place.

    Other members are placed near it. A pod whose claim is about to be created counts, too. The member differs from the
    pod in two points:

    * It has no node affinity. The affinity of a placed pod names all nodes of the gang, and reading it for each member
      takes quadratic time.
    * If it uses a template, its number of GPUs comes from its claim, because the template may have changed or be gone.
      The result is None if this claim is being deleted or cannot be read.
    """
    member = Member(anywhere(pod), picture.templates.of(pod))
    if not is_placed(picture, member):
        return None
    if pod.template is None:
        return member
    kept = _kept(picture, member)
    if kept is None or not isinstance(kept[0], Choice):
        return None  # its claim is being deleted, or its pin cannot be read: the place is not known
    member.has = [len(gpus) for gpus in kept[0].containers]
    return member


def _claim_of(picture: Picture, member: Member) -> ClaimRecord | None:
    """Return the claim of a member that keeps its place; None if it has no claim.

    A claim that is being deleted does not count.
    """
    claim = picture.claim_of(member.pod) if has_claim(picture, member) else None
    return claim if claim is not None and not claim.deleting else None


def _intended(picture: Picture, member: Member) -> Placement | None:
    """Return the placement of a member whose claim is about to be created; else None."""
    claim = claim_key(member.pod)
    return None if claim is None else picture.accounts.intended_for(claim, member.key)


def _kept(picture: Picture, member: Member) -> tuple[object, Planned | None] | None:
    """Return the place that a member keeps, and the gang plan's note on its claim.

    Returns None if it keeps no place. A claim that is about to be created counts, too. In the tuple, the place is None
    if the claim's choice of GPUs cannot be read. The second value is None if the claim has no such note.
    """
    if (claim := _claim_of(picture, member)) is not None:
        return None if claim.pin is None else claim.pin.choice, claim.planned
    intended = _intended(picture, member)
    return None if intended is None else (intended.choice, intended.planned)


def revalidate(
    picture: Picture, members: Sequence[Member], gated: Collection[Member], terms: GangTerms
) -> dict[Member, Placement] | None:
    """Return the placements of gated members by their claims; None if any is not valid.

    Args:
        picture: The cluster cache.
        members: All members of the gang that have claims.
        gated: The members whose gates are to be removed.
        terms: What the pods of the gang request as a whole.

    Raises:
        WordError: The request of a member is not possible for a gang.
    """
    claims = {member: claim for member in members if (claim := _claim_of(picture, member)) is not None}
    # The nodes of the plan, in the order in which the members' claims are numbered.
    by_index = sorted(
        (claim.planned.index, member.key, member, claim.pin.choice.node)
        for member, claim in claims.items()
        if claim.planned and claim.pin
    )
    nodes = {member: node for *_, member, node in by_index}
    try:
        asked = gang_roles.asked(Snapshot(picture, members[0].key[0]), members, terms, kept=claims)
    except NoPlaceError:  # a DeviceClass of the requested NICs is gone
        return None

    # The hostname labels, the gang barrier and the time are those of the whole gang, as when the plan was made.
    hostnames = hostname_labels(picture, nodes, asked)
    has_barrier = has_seats_of(picture, hostnames)
    lasts_s = longest(member.wish.ask.lasts_s for member in members)
    placements: dict[Member, Placement] = {}
    for member in gated:
        claim = claims.get(member)
        if claim is None or claim.planned is None or member not in nodes:
            return None
        ask = msgspec.structs.replace(member.wish.ask, lasts_s=lasts_s)
        placement = decide.revalidate(picture, msgspec.structs.replace(member.wish, ask=ask), claim)
        if placement is None:
            return None
        placements[member] = msgspec.structs.replace(
            placement,
            hostnames={} if member.is_open else hostnames[member],
            texts=placement.texts | gang_plan_note.texts(claim.planned, list(dict.fromkeys(nodes.values()))),
            planned=claim.planned,
            seat=has_barrier,
        )
    return placements
