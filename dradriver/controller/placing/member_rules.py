"""What the members of a gang require of pods next to them, by role: who selects whom, and what a node has only once.

``gang_roles`` calls this module, and ``gang_rules`` for the rules that are about more than single nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Final, NamedTuple

import msgspec
import numpy as np

from dradriver.api.base.affinity import HOSTNAME
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Ints
from dradriver.cluster.nodes.host_ports import ALL_ADDRESSES, are_in_conflict
from dradriver.cluster.pods.neighbours import least_count
from dradriver.cluster.pods.pod_rules import Chosen, Rules, Spread
from dradriver.queue.pending import Member

MOST_SELECTORS: Final = 32  # of one gang: with more, the scheduler alone judges its members' rules about each other
MOST_NODES: Final = 512  # that are cells of their own: with more of them, a spread by node is never filled up
_FULL: Final = 1 << 20  # more than the pods that a node can have


class RoleRules(NamedTuple):
    """The rules of a gang's roles.

    Attributes:
        rules: For each role its rules; None for none.
        selected: The roles that each selector of these rules selects.
        pods: For each role how many of its pods need a place.
        new: The pods that need a place: none of them is anywhere yet.
        without: Pods of ours that do not count where they are: those, and pods that count as gone.
    """

    rules: tuple[Rules | None, ...]
    selected: Mapping[Chosen, frozenset[int]]
    pods: tuple[int, ...]
    new: frozenset[Key]
    without: frozenset[Key]


class Quota(NamedTuple):
    """Something that each node has so much of for a gang.

    Attributes:
        needs: For each role what a pod takes.
        amounts: What each node has: (rows,), int64.
    """

    needs: tuple[int, ...]
    amounts: Ints


def selectors(members: Collection[Member]) -> tuple[Chosen, ...]:
    """Return the different selectors of the members' rules; none if there are too many.

    Raises:
        WordError: The request of a member cannot be read.
    """
    all_rules = {member.wish.rules: None for member in members}
    chosen: dict[Chosen, None] = {}
    for rules in all_rules:
        if rules is not None:
            chosen.update(dict.fromkeys(rules.chosen))
    return tuple(chosen) if len(chosen) <= MOST_SELECTORS else ()


def selected_by(member: Member, chosen: Collection[Chosen]) -> tuple[bool, ...]:
    """Return for each of some selectors whether it selects a member."""
    return tuple(selector.has(member.key[0], member.pod.metadata.labels) for selector in chosen)


def role_rules(groups: Sequence[Sequence[Member]], kept: Collection[Member], gone: Set[Key]) -> RoleRules | None:
    """Return the rules of a gang's roles; None if no member has rules that are evaluated here.

    Args:
        groups: The members by role. Members of one role have the same rules, and the same selectors select them.
        kept: Those that keep their places.
        gone: Pods that count as gone.
    """
    if all(group[0].wish.rules is None for group in groups):
        return None
    chosen = selectors([member for group in groups for member in group])
    new = [[member for member in group if member not in kept] for group in groups]
    # One member stands for each role: the first that needs a place, because kept ones may have been changed since.
    firsts = [(members or group)[0] for members, group in zip(new, groups, strict=True)]
    by_role = [selected_by(member, chosen) for member in firsts]
    new_keys = frozenset(member.key for member in itertools.chain(*new))
    known = frozenset(chosen)
    return RoleRules(
        rules=tuple(_evaluated(member.wish.rules, known) for member in firsts),
        selected={
            selector: frozenset(role for role, selected in enumerate(by_role) if selected[number])
            for number, selector in enumerate(chosen)
        },
        pods=tuple(map(len, new)),
        new=new_keys,
        without=new_keys | gone,
    )


def _evaluated(rules: Rules | None, known: Collection[Chosen]) -> Rules | None:
    """Return a pod's rules without those of selectors that are not evaluated here."""
    if rules is None or known:
        return rules
    return msgspec.structs.replace(rules, apart=(), together=(), spread=())


def alone(rules: Rules) -> Rules:
    """Return those rules of a gang's pod that do not depend on where the other members will be: anti-affinity."""
    return msgspec.structs.replace(rules, spread=(), together=())


def quotas(picture: Picture, roles: RoleRules) -> list[Quota]:
    """Return what each node has for a gang by the rules about single nodes."""
    rows = picture.nodes.rows
    node_needs = dict.fromkeys((*_apart_on_nodes(roles), *_ports(roles)))
    made = [Quota(needs, np.full(rows, max(needs), np.int64)) for needs in node_needs]
    seen: set[tuple[Spread, tuple[Spread, ...]]] = set()
    for rules in roles.rules:
        for spread in () if rules is None else rules.spread:
            if rules is None or spread.place != HOSTNAME or (spread, rules.spread) in seen:
                continue
            seen.add((spread, rules.spread))
            if (amounts := _spread_on_nodes(picture, roles, rules, spread)) is not None:
                pods = roles.selected[spread.pods]
                made.append(Quota(tuple(int(other in pods) for other in range(len(roles.rules))), amounts))
    return made


def _apart_on_nodes(roles: RoleRules) -> list[tuple[int, ...]]:
    """Return for each selector of anti-affinity by node what a pod of each role takes of a node.

    A role that excludes its own pods takes all of the node, and a role that only those exclude takes one of many. If
    two roles exclude each other and not themselves, the one with fewer pods gets one pod on a node.
    """
    holders: dict[Chosen, set[int]] = {}
    for role, rules in enumerate(roles.rules):
        for term in () if rules is None else rules.apart:
            if term.place == HOSTNAME:
                holders.setdefault(term.pods, set()).add(role)
    needs: list[tuple[int, ...]] = []
    for chosen, who in holders.items():
        pods = roles.selected[chosen]
        whole, only_holders, only_pods = who & pods, who - pods, pods - who
        if only_holders and only_pods:
            whole |= min(only_holders, only_pods, key=lambda some: sum(roles.pods[role] for role in some))
        if whole:
            needs.append(tuple(_FULL if role in whole else int(role in who | pods) for role in range(len(roles.rules))))
    return needs


def _ports(roles: RoleRules) -> list[tuple[int, ...]]:
    """Return for each host port and address what a pod of each role takes of a node: all of it, or nothing."""
    used = [() if rules is None else rules.ports for rules in roles.rules]
    ports = dict.fromkeys(itertools.chain(*used))
    # A port of all addresses is taken with each single address of the same port, if some pod uses one.
    single = {port[:2] for port in ports if port[2] != ALL_ADDRESSES}
    ports = dict.fromkeys(port for port in ports if port[2] != ALL_ADDRESSES or port[:2] not in single)
    return [tuple(int(any(are_in_conflict(port, other) for other in some)) for some in used) for port in ports]


def _spread_on_nodes(picture: Picture, roles: RoleRules, rules: Rules, spread: Spread) -> Ints | None:
    """Return how many pods each node can have by a spread over nodes: (rows,); None if the gang can fill them all up.

    While some node keeps the fewest pods, no node may have more than these and the skew.
    """
    counts = picture.neighbours.spread_counts(rules, spread, roles.without)
    if not counts or not is_by_node(roles, spread, counts):
        return None
    least = least_count(spread, counts)
    amounts = np.full(picture.nodes.rows, _FULL, np.int64)
    for number in set(counts.values()):
        nodes = picture.nodes.labelled(HOSTNAME, [name for name, count in counts.items() if count == number])
        amounts[nodes] = max(0, least + spread.skew - number)
    return amounts


def is_by_node(roles: RoleRules, spread: Spread, counts: Mapping[str, int]) -> bool:
    """Return whether a spread over nodes is kept as a quota of each node, and not by sharing the pods over cells."""
    holders = frozenset(role for role, rules in enumerate(roles.rules) if rules is not None and spread in rules.spread)
    pods, least = roles.selected[spread.pods], least_count(spread, counts)
    if holders != pods:
        return False
    is_never_full = len(counts) < spread.least_places
    is_never_full |= sum(roles.pods[role] for role in pods) < sum(count == least for count in counts.values())
    return is_never_full or len(counts) > MOST_NODES
