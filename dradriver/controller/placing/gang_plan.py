"""Where the pods of a gang go: from the picture to one ``Placement`` a member, all made on one state of it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np

from dradriver.allocator import place_gang
from dradriver.allocator.fleet.gang_effort import Effort
from dradriver.allocator.gang_request import GangChoice
from dradriver.allocator.request import Choice, LazyNoPlaceError, NoPlaceError
from dradriver.api.base import names
from dradriver.api.base.affinity import anywhere
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.pods import Pod
from dradriver.api.claims import gang_plan_note as plans
from dradriver.api.claims import result_annotations as results
from dradriver.api.claims.gang_plan_note import Planned
from dradriver.api.claims.pins import claim_key
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.node_table import GOING
from dradriver.cluster.nodes.pod_demands import longest
from dradriver.cluster.pods.kept_places import Kept
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.placing import decide, gang_nics, gang_roles, nic_places, ranking
from dradriver.controller.placing.gang_roles import Asked
from dradriver.queue.pending import Member
from dradriver.reason import Cause

MOST_ALTERNATES: Final = 8  # nodes that a gang's pods may go to beside the plan's
MOST_FIRST: Final = 4  # kinds of members with which a gang is tried to begin


def plan(
    snapshot: Snapshot,
    members: Sequence[Member],
    wants: Gang | None,
    *,
    identity: str,
    least: int | None = None,
    home: Mapping[Member, Kept] | None = None,
    late: Member | None = None,
    effort: Effort | None = None,
) -> dict[Member, Placement]:
    """Return the places of those members of a gang that have no claim, near those that have one.

    ``plan.plan`` asks this; ``plan.GangTerms`` says what the arguments mean. The fleet of the snapshot is told where
    nodes stand in the network, if that changed. Once the effort is spent, the plan is greedy, and for as few pods as
    the gang can begin with.

    Raises:
        NoPlaceError: There are no places for all of them. Why is found out when its message is read.
        WordError: A member asks for what no gang can have.
    """
    picture, effort = snapshot.picture, Effort() if effort is None else effort
    place = partial(_places, wants=wants, identity=identity, least=least, home=home or {}, late=late, effort=effort)

    def places(some: Sequence[Member]) -> dict[Member, Placement]:
        search = gang_nics.Search(snapshot, some, wants)
        while True:
            try:
                return place(search.snapshot, some, sets=search.sets)
            except gang_nics.ShortError as error:
                search.learn(error, is_last=effort.is_spent)
            except NoPlaceError as error:
                if effort.is_spent or not search.deal():
                    raise search.refusal() or error from None

    try:
        return places(members)
    except NoPlaceError:
        kinds = gang_roles.kinds(members)
        fewer = None if least is None or any(_kept(picture, member) for member in members) else least
        if fewer is None or fewer >= len(members) or len(kinds) == 1:
            raise  # the allocator has tried with fewer
        for kind in ((), *kinds[:MOST_FIRST]):  # for one of them there may be no place at all
            if kind and effort.is_spent:
                break
            first = set(kind)
            order = [*kind, *(member for member in members if member not in first)]
            if (found := _first_of(order, fewer, places, effort)) is not None:
                return found
        raise


def _first_of(
    members: Sequence[Member],
    least: int,
    places: Callable[[Sequence[Member]], dict[Member, Placement]],
    effort: Effort,
) -> dict[Member, Placement] | None:
    """Return places for as many of a gang's first pods as have some; None where fewer than that have.

    Pods of different kinds the allocator places all or none. These may be of one kind to their author, and some have
    been lifted for a plan that was given back, and are kept to its nodes.
    """
    best: dict[Member, Placement] | None = None
    low, high = least, len(members) - 1
    while low <= high and not (best is not None and effort.is_spent):  # where so many fit, so do fewer
        middle = (low + high + 1) // 2 if best is not None else low
        try:
            best = places(members[:middle])
        except NoPlaceError:
            high = middle - 1
        else:
            low = middle + 1
    return best


def _places(
    snapshot: Snapshot,
    members: Sequence[Member],
    *,
    wants: Gang | None,
    identity: str,
    least: int | None,
    home: Mapping[Member, Kept],
    late: Member | None,
    sets: Mapping[Member, gang_nics.Dealt],
    effort: Effort,
) -> dict[Member, Placement]:
    picture = snapshot.picture
    kept = {member: own for member in members if member is not late and (own := _kept(picture, member)) is not None}
    namespace = members[0].key[0]
    picture.fleets.locate(picture.nodes.labels(), namespace)
    asked = gang_roles.asked(snapshot, members, wants, kept=kept, least=None if kept else least)
    index = {member: at for at, member in enumerate(asked.members)}
    fixed = {index[member]: choice for member, (choice, _) in kept.items() if isinstance(choice, Choice)}
    if any(choice.node in picture.inventory.aside for choice in fixed.values()):  # where it stands the fleet cannot say
        unknown = f"others of its gang are on nodes that are left out so far: {ranking.UNKNOWN_KIND}"
        raise NoPlaceError(unknown, cause=Cause.NODES)
    place = partial(
        place_gang,
        snapshot.fleet,
        amounts=asked.amounts,
        fixed=fixed,
        home={index[member]: own for member, own in sets.items() if member in index}
        | {index[member]: kept.choice for member, kept in home.items() if member in index},
        effort=effort,
    )
    try:
        found = place(asked.request, eligible_by_role=asked.eligible)
    except NoPlaceError as error:
        raise LazyNoPlaceError(partial(_explained, snapshot, members, asked, error)) from None
    # One that comes to others goes where they are, or where the lost one was.
    rather = None if kept or home else _favoured(picture, members, asked)
    if rather is not None:
        with contextlib.suppress(NoPlaceError):
            there = place(msgspec.structs.replace(asked.request, least_pods=None), eligible_by_role=rather)
            found = there if _as_near(there, found) else found
    placed = dict(zip(asked.members, found.pods, strict=False))  # fewer where it begins with fewer
    hostnames = _hostnames(picture, dict.fromkeys(choice.node for choice in placed.values()), asked)
    return _placements(picture, identity, placed, found, kept, hostnames, home)


def _explained(snapshot: Snapshot, members: Sequence[Member], asked: Asked, error: NoPlaceError) -> NoPlaceError:
    """Return what is said of an error of the allocator: it knows no nodes but those that it was offered."""
    picture = snapshot.picture
    if any(ranking.any_aside(picture, fit) for fit in asked.eligible):  # how much there is, it cannot know
        unknown = f"no place on the nodes that are known; nodes left out: {ranking.UNKNOWN_KIND}"
        return NoPlaceError(unknown, cause=Cause.NODES)
    kept = ranking.bound(picture, members[0].wish)
    cause = Cause.RESERVED if kept and error.cause is not Cause.NEVER else error.cause
    kept += _left_out(snapshot, members) + gang_nics.told(members)
    return NoPlaceError(f"{error}{kept}", stable=f"{error.stable}{kept}", cause=cause)


def _left_out(snapshot: Snapshot, members: Sequence[Member]) -> str:
    """Return why nodes are left out for all of a gang, as a part of a reason.

    They go before all of it would have ended, or their channel of multi-node NVLink is not for it.
    """
    picture, lasts_s = snapshot.picture, longest(member.wish.ask.lasts_s for member in members)
    ask = msgspec.structs.replace(members[0].wish.ask, lasts_s=lasts_s)
    causes = [GOING] if GOING in snapshot.causes(ask, snapshot.rows) else []
    wants = next(((domain, m.key) for m in members if (domain := picture.channels.domain_of(m.key)) is not None), None)
    if wants is not None:
        causes += picture.channels.causes(*wants, snapshot.narrowed(snapshot.open(ask)))
    return f"; nodes left out: {', '.join(causes)}" if causes else ""


def _favoured(picture: Picture, members: Sequence[Member], asked: Asked) -> list[Bools] | None:
    """Return of each role the nodes that a gang had rather be on, all of it; None where it is all one to the gang.

    Without one of its nodes it stands still: that some of its pods avoid spot nodes is of no use to the others.
    """
    said = {member.wish.spot for member in members}
    if said == {""} or len(said) > 1:
        return None
    rather = [ranking.favoured(picture, members[0].wish.spot, fit) for fit in asked.eligible]
    return rather if all(each.any() for each in rather) else None


def _as_near(one: GangChoice, best: GangChoice) -> bool:
    """Return whether a gang's pods are as near to each other as in the best plan, and the GPUs of each, too."""

    def kinds(choice: GangChoice) -> Counter[tuple[object, object]]:
        return Counter((pod.level, pod.fallback) for pod in choice.pods)

    return (
        (one.reach, one.fallback, kinds(one)) == (best.reach, best.fallback, kinds(best))
        and len(one.nodes) <= len(best.nodes)
    )  # fmt: skip


def has_claim(picture: Picture, member: Member) -> bool:
    """Return whether a member has a claim of its own, also one that is going."""
    claim = picture.claim_of(member.pod)
    return claim is not None and claim.owned_by(member.uid)


def is_placed(picture: Picture, member: Member) -> bool:
    """Return whether a member has a claim of its own, or one is about to be created for it."""
    return has_claim(picture, member) or _intended(picture, member) is not None


def placed(picture: Picture, pod: Pod) -> Member | None:
    """Return a pod of a gang that has its place, or is about to, as one near which others get theirs; None for others.

    Those that have their places were narrowed to all nodes of the gang: to read that of each is quadratic. What such a
    pod has of a template its claim says: the template may be another one by now, or none.
    """
    member = Member(anywhere(pod), picture.templates.of(pod))
    if not is_placed(picture, member):
        return None
    if pod.template is None:
        return member
    kept = _kept(picture, member)
    if kept is None or not isinstance(kept[0], Choice):
        return None  # nobody knows any more where it is
    member.has = [len(each) for each in kept[0].containers]
    return member


def _claim_of(picture: Picture, member: Member) -> ClaimRecord | None:
    """Return the claim of a member that keeps its place."""
    claim = picture.claim_of(member.pod) if has_claim(picture, member) else None
    return claim if claim is not None and not claim.deleting else None


def _intended(picture: Picture, member: Member) -> Placement | None:
    claim = claim_key(member.pod)
    return None if claim is None else picture.accounts.intended_for(claim, member.key)


def _kept(picture: Picture, member: Member) -> tuple[object, Planned | None] | None:
    """Return where a member is and stays, and what its claim says of the plan, also of one that is being created."""
    if (claim := _claim_of(picture, member)) is not None:
        return None if claim.pin is None else claim.pin.choice, claim.planned
    intended = _intended(picture, member)
    return None if intended is None else (intended.choice, intended.planned)


def _placements(
    picture: Picture,
    identity: str,
    placed: Mapping[Member, Choice],
    found: GangChoice,
    having: Mapping[Member, tuple[object, Planned | None]],
    hostnames: dict[str, str],
    home: Mapping[Member, Kept],
) -> dict[Member, Placement]:
    uuids = {m: nic_places.uuids(picture, m.wish, choice) for m, choice in placed.items() if m not in having}
    kept = [planned for _, planned in having.values() if planned is not None]
    places = [(m.uid, placed[m].node, [uuid for each in own.values() for uuid in each]) for m, own in uuids.items()]
    digest = kept[0].plan if kept else plans.digest(identity, places)
    size = kept[0].size if kept else len(placed)
    left = dict.fromkeys(range(size + len(placed)))
    for planned in kept:
        left.pop(planned.index, None)
    indices = {member: one.index for member, one in home.items() if left.pop(one.index, ...) is None}
    free = iter(left)
    seat = _seats(picture, hostnames)
    nics = gang_nics.chosen(picture, {member: (placed[member].node, own) for member, own in uuids.items()})
    out: dict[Member, Placement] = {}
    for member, own in uuids.items():
        choice, index = placed[member], indices[member] if member in indices else next(free)
        planned = Planned(
            gang=identity,
            plan=digest,
            size=max(size, index + 1),
            index=index,
            reach=found.reach,
            busbw_gbps=found.busbw_gbps,
        )
        missed = dict.fromkeys((*(word.value for word in choice.fallback), *found.fallback))
        out[member] = Placement(
            choice=choice,
            hostnames=hostnames,
            uuids=own,
            addresses=picture.inventory.addresses(choice.node),
            texts=results.written(choice, picture.inventory.uuids(choice.node))
            | plans.texts(planned, found.nodes)
            | {names.FALLBACK: ",".join(missed) or None},
            planned=planned,
            seat=seat,
            nics=nics.get(member, {}),
        )
    return out


def _seats(picture: Picture, nodes: Collection[str]) -> bool:
    """Return whether a seat keeps the pods from being bound on all of these nodes until they are told to go."""
    return bool(picture.barrier) and current_ledger() is OURS and all(map(picture.inventory.knows_seats, nodes))


def _hostnames(picture: Picture, nodes: Collection[str], asked: Asked) -> dict[str, str]:
    """Return the labels of the nodes that the gang's pods may go to: the plan's, and as many others, for another plan.

    Each pod may go to all of them: a plan that failed is made anew within these, and no pod need be evicted for that.
    They stand in one order for all pods, which ask for the same again then.
    """
    fit = np.logical_and.reduce(asked.eligible)
    for role in asked.request.members:
        fit &= (asked.amounts[:, : len(role.needs)] >= np.array(role.needs, np.int64)).all(axis=1)
    most = min(len(nodes), MOST_ALTERNATES)
    others: list[str] = []
    with contextlib.suppress(NoPlaceError):
        limit = len(nodes) + most
        ranked = picture.fleets.of(asked.members[0].key[0]).rank(
            asked.request.pod, eligible=fit, limit=limit, explain=False
        )
        others = [choice.node for choice in ranked if choice.node not in nodes]
    if _seats(picture, nodes):
        others = [node for node in others if picture.inventory.knows_seats(node)]
    return {node: picture.nodes.hostname(node) for node in (*nodes, *others[:most])}


def revalidate(
    picture: Picture, members: Sequence[Member], gated: Collection[Member], wants: Gang | None
) -> dict[Member, Placement] | None:
    """Return the placements that the claims of gated members were made for; None where one of them is not valid.

    Args:
        picture: The cluster.
        members: All of the gang that have claims.
        gated: Those of them that are to be lifted.
        wants: What its author says of it; None for nothing.

    Raises:
        WordError: A member asks for what no gang can have.
    """
    claims = {member: claim for member in members if (claim := _claim_of(picture, member)) is not None}
    planned = sorted((c.planned.index, c.pin.choice.node) for c in claims.values() if c.planned and c.pin)
    nodes = list(dict.fromkeys(node for _, node in planned))
    try:
        asked = gang_roles.asked(Snapshot(picture, members[0].key[0]), members, wants, kept=claims, least=None)
    except NoPlaceError:  # of NICs: a DeviceClass of theirs is gone
        return None
    hostnames = _hostnames(picture, nodes, asked)
    out: dict[Member, Placement] = {}
    lasts_s = longest(member.wish.ask.lasts_s for member in members)
    for member in gated:
        claim, ask = claims.get(member), msgspec.structs.replace(member.wish.ask, lasts_s=lasts_s)
        wish = msgspec.structs.replace(member.wish, ask=ask)
        if claim is None or claim.planned is None or (own := decide.revalidate(picture, wish, claim)) is None:
            return None
        texts = own.texts | plans.texts(claim.planned, nodes)
        out[member] = msgspec.structs.replace(
            own,
            hostnames=hostnames,
            texts=texts,
            planned=claim.planned,
            seat=_seats(picture, hostnames),
        )
    return out
