"""The rules of a gang's members about neighbouring pods, by role.

A role is all pods with equal requests. The rules are affinity, anti-affinity, topology spread and host ports. Rules
about single nodes become *quotas*: amounts that each node has, and that the pods on it use up. The allocator then
places no more pods on a node than its quotas allow.

``gang_roles`` calls this module. ``gang_rules`` calls it for the rules that concern more than single nodes.
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
    """The rules of a gang's roles: affinity, anti-affinity, topology spread and host ports.

    A role is all pods of the gang with equal requests.

    Attributes:
        rules: For each role its rules; None for no rules.
        selected: For each selector in these rules, the roles that it selects.
        pods: For each role, how many of its pods need a place.
        new: The pods that need a place. They are on no node yet.
        without: Pods that do not count where they are now: the new pods, and pods that are treated as deleted.
    """

    rules: tuple[Rules | None, ...]
    selected: Mapping[Chosen, frozenset[int]]
    pods: tuple[int, ...]
    new: frozenset[Key]
    without: frozenset[Key]


class Quota(NamedTuple):
    """An amount of each node that a gang's pods use up, such as a port.

    A role is all pods of the gang with equal requests.

    Attributes:
        needs: For each role, how much a pod uses.
        amounts: How much each node has: (rows,), one row per node, int64.
    """

    needs: tuple[int, ...]
    amounts: Ints


def selectors(members: Collection[Member]) -> tuple[Chosen, ...]:
    """Return the different pod selectors in the members' rules.

    Empty if there are more than ``MOST_SELECTORS``. Then only the scheduler evaluates the rules.

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
    """Return for each selector in ``chosen`` whether it selects a member's pod."""
    return tuple(selector.has(member.key[0], member.pod.metadata.labels) for selector in chosen)


def role_rules(groups: Sequence[Sequence[Member]], kept: Collection[Member], gone: Set[Key]) -> RoleRules | None:
    """Return the rules of a gang's roles; None if no member has any rules.

    A role is all pods of the gang with equal requests.

    Args:
        groups: The members by role. Members of one role have the same rules, and the same selectors select them.
        kept: The members that keep their places.
        gone: Pods that are treated as deleted.
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
    """Return those rules of a pod that the controller evaluates.

    If ``known``, the selectors that the controller evaluates, is empty, rules with selectors are removed. Host ports
    stay. None if ``rules`` is None.
    """
    if rules is None or known:
        return rules
    return msgspec.structs.replace(rules, apart=(), together=(), spread=())


def alone(rules: Rules) -> Rules:
    """Return a pod's rules that can be checked before other members are placed.

    Affinity and topology spread are removed; anti-affinity and host ports stay.
    """
    return msgspec.structs.replace(rules, spread=(), together=())


def quotas(picture: Picture, roles: RoleRules) -> list[Quota]:
    """Return the quotas that stand for a gang's rules about single nodes.

    A quota limits how many of the gang's pods fit on each node. The rules are anti-affinity and topology spread by
    hostname, and host ports. ``roles`` has the gang's pods with their rules.
    """
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
    """Return for anti-affinity by hostname how much of a node each pod uses.

    These amounts are the ``needs`` of quotas. A role is all pods with equal requests. The result has a tuple for each
    pod selector of these rules, with one number for each role. In each quota, a node has the amount ``_FULL``.

    * If the pods of a role exclude each other, each uses ``_FULL``: the whole node.
    * If a role excludes a role of this kind, or is excluded by it, each of its pods uses 1. So many of them fit on a
      node, but not together with a pod of that role.
    * If roles that do not exclude themselves exclude other roles, there are two sides. The side with fewer pods is
      treated as if its pods excluded each other.
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
    """Return for each host port and address which roles use it.

    Each tuple has one number for each role (pods with equal requests): 1 if its pods use the port, else 0. A node has
    each port once.
    """
    used = [() if rules is None else rules.ports for rules in roles.rules]
    ports = dict.fromkeys(itertools.chain(*used))
    # A port of all addresses is taken with each single address of the same port, if some pod uses one.
    single = {port[:2] for port in ports if port[2] != ALL_ADDRESSES}
    ports = dict.fromkeys(port for port in ports if port[2] != ALL_ADDRESSES or port[:2] not in single)
    return [tuple(int(any(are_in_conflict(port, other) for other in some)) for some in used) for port in ports]


def _spread_on_nodes(picture: Picture, roles: RoleRules, rules: Rules, spread: Spread) -> Ints | None:
    """Return how many more pods each node may have by a topology spread by hostname.

    The shape is (rows,). The number is the fewest pods of any node, plus the skew, less the pods that the node has now.
    It is 0 if this is negative. A node that the constraint does not count has no limit (``_FULL``). There is one row
    per node.

    None if quotas cannot stand for the constraint. This is so if the gang's own pods could raise the number on the node
    with the fewest pods, and so change these numbers. It is also so if the constraint counts other pods of the gang
    than those that have it. Then ``gang_cells`` evaluates the constraint.

    Args:
        picture: The cluster cache.
        roles: The gang's pods with their rules.
        rules: All rules of a pod that has the constraint.
        spread: The constraint.
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
    """Return whether quotas of nodes are enough to keep a topology spread by hostname.

    If not, ``gang_cells`` distributes the pods over cells (groups of nodes), with one cell for each node. ``roles`` has
    the gang's pods; ``counts`` has the present pods of each node.
    """
    holders = frozenset(role for role, rules in enumerate(roles.rules) if rules is not None and spread in rules.spread)
    pods, least = roles.selected[spread.pods], least_count(spread, counts)
    if holders != pods:
        return False
    is_never_full = len(counts) < spread.least_places
    is_never_full |= sum(roles.pods[role] for role in pods) < sum(count == least for count in counts.values())
    return is_never_full or len(counts) > MOST_NODES
