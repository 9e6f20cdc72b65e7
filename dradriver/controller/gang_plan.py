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
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.gang_request import GangChoice, GangRequest, Role
from dradriver.allocator.request import Choice, NoPlaceError, Whole
from dradriver.api import names, plans, results
from dradriver.api.errors import WordError
from dradriver.api.gangs import Gang
from dradriver.api.ledger import OURS, current_ledger
from dradriver.api.nics import NicAsk
from dradriver.api.pins import claim_key
from dradriver.api.plans import Planned
from dradriver.cluster import neighbours
from dradriver.cluster.kept_places import Kept
from dradriver.cluster.nodes.ask import longest
from dradriver.cluster.nodes.columns import Bools, Ints
from dradriver.cluster.nodes.table import GOING
from dradriver.cluster.picture import Picture
from dradriver.cluster.placement import Placement
from dradriver.cluster.records import ClaimRecord
from dradriver.controller import decide, gang_nics, nic_choice
from dradriver.queue.placement_request import PlacementRequest
from dradriver.queue.units import Member

MOST_KINDS: Final = 32  # of pods in one gang: each is placed by itself, beside the others
MOST_ALTERNATES: Final = 8  # nodes that a gang's pods may go to beside the plan's
MOST_FIRST: Final = 4  # kinds of members with which a gang is tried to begin


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


def plan(
    picture: Picture,
    members: Sequence[Member],
    wants: Gang | None,
    *,
    identity: str,
    least: int | None = None,
    avoid: Collection[str] = (),
    home: Mapping[Member, Kept] | None = None,
    late: Member | None = None,
    rows: Bools | None = None,
    fleet: Fleet | None = None,
) -> dict[Member, Placement]:
    """Return the places of those members of a gang that have no claim, near those that have one.

    Args:
        picture: The cluster; it is told where its nodes stand in the network, if that changed.
        members: All of the gang that are to have places, or have them, in the order of their ranks.
        wants: What its author says of it; None for nothing.
        identity: The gang's.
        least: With how few it may begin where not all have a place; None for none fewer.
        avoid: Nodes that are left out.
        home: Places of lost pods, by the members that are made anew for them: they get them if they are free.
        late: The one that comes to the others; what may have been intended for it before counts no more.
        rows: The nodes that are looked at: (rows,); None for all.
        fleet: What is looked at in the place of the picture's own: as if some claims were not there.

    Raises:
        NoPlaceError: There are no places for all of them; it says why.
        WordError: A member asks for what no gang can have.
    """

    def places(some: Sequence[Member]) -> dict[Member, Placement]:
        without: Collection[str] = avoid
        short: gang_nics.ShortError | None = None
        for _ in range(gang_nics.MOST_LOOKS):
            try:
                return _places(
                    picture, some, wants, identity,
                    least=least, avoid=without, home=home or {}, late=late, rows=rows, fleet=fleet,
                )  # fmt: skip
            except gang_nics.ShortError as error:  # of what NICs have to do with GPUs the allocator knows nothing
                short, without = short or error, (*without, *error.nodes)
            except NoPlaceError:
                if short is not None:
                    raise short from None
                raise
        assert short is not None, "it was looked for"
        raise nic_choice.unfinished(short.ask, "not all plans for the gang were looked at")

    try:
        return places(members)
    except NoPlaceError:
        kinds = _kinds(members)
        fewer = None if least is None or any(_kept(picture, member) for member in members) else least
        if fewer is None or fewer >= len(members) or len(kinds) == 1:
            raise  # the allocator has tried with fewer
        for kind in ((), *kinds[:MOST_FIRST]):  # for one of them there may be no place at all
            first = set(kind)
            order = [*kind, *(member for member in members if member not in first)]
            if (found := _first_of(order, fewer, places)) is not None:
                return found
        raise


def _first_of(
    members: Sequence[Member], least: int, places: Callable[[Sequence[Member]], dict[Member, Placement]]
) -> dict[Member, Placement] | None:
    """Return places for as many of a gang's first pods as have some; None where fewer than that have.

    Pods of different kinds the allocator places all or none. These may be of one kind to their author, and some have
    been lifted for a plan that was given back, and are kept to its nodes.
    """
    best: dict[Member, Placement] | None = None
    low, high = least, len(members) - 1
    while low <= high:  # where so many fit, so do fewer
        middle = (low + high + 1) // 2 if best is not None else low
        try:
            best = places(members[:middle])
        except NoPlaceError:
            high = middle - 1
        else:
            low = middle + 1
    return best


def _places(
    picture: Picture,
    members: Sequence[Member],
    wants: Gang | None,
    identity: str,
    *,
    least: int | None,
    avoid: Collection[str],
    home: Mapping[Member, Kept],
    late: Member | None,
    rows: Bools | None,
    fleet: Fleet | None,
) -> dict[Member, Placement]:
    kept = {member: own for member in members if member is not late and (own := _kept(picture, member)) is not None}
    namespace = members[0].key[0]
    picture.fleets.locate(picture.nodes.labels(), namespace)
    asked = _asked(picture, members, wants, kept=kept, least=None if kept else least, avoid=avoid, rows=rows)
    index = {member: at for at, member in enumerate(asked.members)}
    fixed = {index[member]: choice for member, (choice, _) in kept.items() if isinstance(choice, Choice)}
    if any(choice.node in picture.inventory.aside for choice in fixed.values()):  # where it stands the fleet cannot say
        raise NoPlaceError(f"others of its gang are on nodes that are left out so far: {decide.UNKNOWN_KIND}")
    place = partial(
        place_gang,
        picture.fleets.of(namespace) if fleet is None else fleet,
        amounts=asked.amounts,
        fixed=fixed,
        home={index[member]: kept.choice for member, kept in home.items() if member in index},
    )
    try:
        found = place(asked.request, eligible_by_role=asked.eligible)
    except NoPlaceError as error:
        if any(decide.any_aside(picture, fit) for fit in asked.eligible):  # how much there is, it cannot know
            raise NoPlaceError(f"no place on the nodes that are known; nodes left out: {decide.UNKNOWN_KIND}") from None
        kept_from = decide.bound(picture, members[0].wish) + _left_out(picture, members, rows) + gang_nics.told(members)
        raise NoPlaceError(f"{error}{kept_from}", stable=f"{error.stable}{kept_from}") from None
    # One that comes to others goes where they are, or where the lost one was.
    rather = None if kept or home else _favoured(picture, members, asked)
    if rather is not None:
        with contextlib.suppress(NoPlaceError):
            there = place(msgspec.structs.replace(asked.request, least_pods=None), eligible_by_role=rather)
            found = there if _as_near(there, found) else found
    placed = dict(zip(asked.members, found.pods, strict=False))  # fewer where it begins with fewer
    hostnames = _hostnames(picture, dict.fromkeys(choice.node for choice in placed.values()), asked)
    return _placements(picture, identity, placed, found, kept, hostnames, home)


def _left_out(picture: Picture, members: Sequence[Member], rows: Bools | None) -> str:
    """Return why nodes are left out for all of a gang, as a part of a reason.

    They go before all of it would have ended, or their channel of multi-node NVLink is not for it.
    """
    ask = msgspec.structs.replace(members[0].wish.ask, lasts_s=longest(member.wish.ask.lasts_s for member in members))
    causes = [GOING] if GOING in picture.nodes.causes(ask, only=rows) else []
    wants = next(((domain, m.key) for m in members if (domain := picture.channels.domain_of(m.key)) is not None), None)
    if wants is not None:
        open_ = picture.nodes.open(ask)
        causes += picture.channels.causes(*wants, open_ if rows is None else open_ & rows)
    return f"; nodes left out: {', '.join(causes)}" if causes else ""


def _favoured(picture: Picture, members: Sequence[Member], asked: Asked) -> list[Bools] | None:
    """Return of each role the nodes that a gang had rather be on, all of it; None where it is all one to the gang.

    Without one of its nodes it stands still: that some of its pods avoid spot nodes is of no use to the others.
    """
    said = {member.wish.spot for member in members}
    if said == {""} or len(said) > 1:
        return None
    rather = [decide.favoured(picture, members[0].wish.spot, fit) for fit in asked.eligible]
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


def _asked(
    picture: Picture,
    members: Sequence[Member],
    wants: Gang | None,
    *,
    kept: Collection[Member],
    least: int | None,
    avoid: Collection[str],
    rows: Bools | None = None,
) -> Asked:
    """Return what the allocator is asked: members that want the same are one role."""
    wants = wants or Gang()
    groups = _kinds(members, kept)
    wishes = [next((member for member in group if member not in kept), group[0]).wish for group in groups]
    resources = sorted({resource for wish in wishes for resource, _ in wish.ask.amounts})
    nics = gang_nics.asked(picture, wishes)
    roles = [
        _role(picture, wish, len(group), wants, resources, nics) for wish, group in zip(wishes, groups, strict=True)
    ]
    first, *others = roles
    lasts_s = longest(member.wish.ask.lasts_s for member in members)  # without one of them the others are of no use
    eligible = [_eligible(picture, wish, lasts_s, avoid, rows) for wish in wishes]
    amounts = picture.nodes.left(resources)
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


def _kinds(members: Sequence[Member], kept: Collection[Member] = ()) -> list[list[Member]]:
    """Return the members by what they want, those that want the same together.

    Those that keep their places may have been narrowed to their nodes since, and are nowhere else to go.
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


def _eligible(
    picture: Picture, wish: PlacementRequest, lasts_s: int, avoid: Collection[str], rows: Bools | None
) -> Bools:
    fit = picture.nodes.open(msgspec.structs.replace(wish.ask, lasts_s=lasts_s))
    if rows is not None:
        fit &= rows
    if wish.rules is not None:
        fit &= picture.neighbours.allowed(wish.pod, wish.rules, fit.copy())
    if (domain := picture.channels.domain_of(wish.pod)) is not None:
        fit &= picture.channels.free(domain, wish.pod)
    if avoid:
        fit &= ~picture.nodes.named(avoid)
    return fit


def _placements(
    picture: Picture,
    identity: str,
    placed: Mapping[Member, Choice],
    found: GangChoice,
    having: Mapping[Member, tuple[object, Planned | None]],
    hostnames: dict[str, str],
    home: Mapping[Member, Kept],
) -> dict[Member, Placement]:
    uuids = {member: _uuids(picture, member.wish, choice) for member, choice in placed.items() if member not in having}
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


def _uuids(picture: Picture, wish: PlacementRequest, choice: Choice) -> dict[str, tuple[str, ...]]:
    known = picture.inventory.uuids(choice.node)
    return {
        name: tuple(known[number] for number in each)
        for name, each in zip(wish.requests, choice.containers, strict=True)
    }


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
    hostnames = _hostnames(picture, nodes, _asked(picture, members, wants, kept=claims, least=None, avoid=()))
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
