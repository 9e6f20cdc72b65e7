"""Plans gangs whose pods have rules about each other beyond single nodes: zones, affinity.

``gang_plan`` calls this module. A cell is all nodes with equal values of the labels that the rules name. ``gang_cells``
distributes the pods over the cells, and the allocator plans within each cell.

A *role* is all pods of a gang with equal requests. A *plan* is the places of all its pods.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np

from dradriver.allocator.fleet.domain_capacity import capacity_by_row
from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.fleet.gang_effort import CALL, Effort
from dradriver.allocator.gang_request import GangChoice
from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.affinity import HOSTNAME
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.columns import Ints
from dradriver.cluster.pods.pod_rules import Spread
from dradriver.controller.placing import gang_cells, member_rules
from dradriver.controller.placing.gang_cells import Puzzle, Ways
from dradriver.controller.placing.gang_roles import Asked
from dradriver.controller.placing.member_rules import RoleRules
from dradriver.reason import Cause, sentences

MOST_TRIES: Final = 16  # ways to share the pods that the allocator is asked for
MOST_PLANS: Final = 4  # of these that have a place, and are compared


class Cells(NamedTuple):
    """The nodes, divided into cells: nodes with equal values of the labels that rules name.

    Attributes:
        labels: The labels that the rules of the gang name.
        values: For each cell the values of these labels; None for a label that its nodes do not have.
        of_row: For each node the index of its cell; -1 for nodes that no pod of the gang may use: (rows,), one row per
            node.
    """

    labels: tuple[str, ...]
    values: list[tuple[str | None, ...]]
    of_row: Ints


def labels(picture: Picture, asked: Asked) -> tuple[str, ...]:
    """Return the node labels that define the cells of a gang.

    ``asked`` is the gang as the allocator sees it. A cell is all nodes with equal values of these labels. The pods'
    rules about each other beyond single nodes name them, such as the zone. Empty without rules of this kind.
    """
    roles = asked.rules
    if roles is None:
        return ()
    names: set[str] = set()
    for rules in roles.rules:
        if rules is None:
            continue
        names |= {term.place for term in rules.apart if term.place != HOSTNAME and roles.selected[term.pods]}
        names |= {term.place for term in rules.together}
        for spread in rules.spread:
            counts = picture.neighbours.spread_counts(rules, spread, roles.without)
            if spread.place != HOSTNAME or not member_rules.is_by_node(roles, spread, counts):
                names.add(spread.place)
    return tuple(sorted(names))


def placed(
    picture: Picture, fleet: Fleet, asked: Asked, names: tuple[str, ...], place: Callable[[Asked], GangChoice]
) -> tuple[Asked, GangChoice]:
    """Return the best plan that keeps the rules of a gang's pods about each other.

    Only the first few plans that keep the rules are compared.

    Args:
        picture: The cluster cache.
        fleet: The GPUs.
        asked: The gang as the allocator sees it, by roles: pods with equal requests.
        names: The labels, from ``labels``.
        place: Asks the allocator for a plan.

    Returns:
        The request to the allocator for this plan, and the plan. In the request, a role may be divided into several
        roles, one for each cell (group of nodes, such as a zone).

    Raises:
        NoPlaceError: No plan was found with the effort that the gang may spend.
    """
    # Half as much work as one try of the allocator may cost. Each step of ``ways`` is charged as one call of numpy.
    effort = Effort().fraction(2)
    cells = _cells(picture, asked, names)
    puzzle = _puzzle(picture, fleet, asked, cells)
    plans: list[tuple[Asked, GangChoice]] = []
    for number, shares in enumerate(gang_cells.ways(puzzle, partial(effort.spend, CALL))):
        # ``shares``: for each role its number of pods by cell. ``divided`` has a role for each of these numbers, which
        # may use the nodes of its cell only.
        divided = _divided(asked, cells, shares)
        with contextlib.suppress(NoPlaceError):
            plans.append((divided, place(divided)))
        # Plans are compared if each is in one cell: one of these may be in a narrower part of the network.
        is_in_one_cell = len({cell for share in shares for cell in share}) == 1
        if len(plans) == (MOST_PLANS if is_in_one_cell else 1) or number + 1 == MOST_TRIES:
            break
    if plans:
        return min(plans, key=lambda plan: _badness(fleet, plan[1]))
    place(asked)  # it says what is missing if the gang has no place even without these rules
    raise _refusal(asked, is_complete=not effort.is_spent)


def _badness(fleet: Fleet, choice: GangChoice) -> tuple[int, int, int]:
    """Return the sort key of the plan ``choice``; smaller is better.

    It has three numbers: the preferences that are not met, the gang's network level (0 is the nearest), and the number
    of nodes. ``fleet`` has the network levels.
    """
    all_levels = fleet.sites.all_levels
    reach = all_levels.index(choice.reach) if choice.reach in all_levels else len(all_levels)
    return len(choice.fallback), reach, len(choice.nodes)


def _cells(picture: Picture, asked: Asked, names: tuple[str, ...]) -> Cells:
    of_row = np.full(picture.nodes.rows, -1, np.int64)
    numbers: dict[tuple[str | None, ...], int] = {}
    for row in np.flatnonzero(np.logical_or.reduce(asked.eligible)).tolist():
        node_labels = picture.nodes.labels_of(picture.nodes.name(row))
        values = tuple(node_labels.get(name) for name in names)
        of_row[row] = numbers.setdefault(values, len(numbers))
    return Cells(names, list(numbers), of_row)


def _puzzle(picture: Picture, fleet: Fleet, asked: Asked, cells: Cells) -> Puzzle:
    roles = asked.rules
    assert roles is not None, "there are labels to share the pods by"
    known = cells.of_row >= 0
    free = np.zeros(len(known), np.int64)
    capacity = []
    for role, fit in zip(asked.request.members, asked.eligible, strict=True):
        of_role = capacity_by_row(fleet, role, len(known), eligible=fit, amounts=asked.amounts)
        free = np.maximum(free, of_role.gpus)
        capacity.append(_sums(cells, of_role.pods))
    return Puzzle(
        pods=roles.pods,
        cells=cells.values,
        capacity=capacity,
        gpus=[role.pod.gpus for role in asked.request.members],
        free=_sums(cells, free),
        apart=_apart(roles, cells),
        together=_together(picture, roles, cells),
        spread=_spread(picture, roles, cells),
    )


def _sums(cells: Cells, by_row: Ints) -> list[int]:
    known = cells.of_row >= 0
    sums: list[int] = np.bincount(cells.of_row[known], by_row[known], minlength=len(cells.values)).astype(int).tolist()
    return sums


def _apart(roles: RoleRules, cells: Cells) -> list[gang_cells.Apart]:
    rules = [
        gang_cells.Apart(cells.labels.index(term.place), frozenset({role}), roles.selected[term.pods])
        for role, rules in enumerate(roles.rules)
        if rules is not None
        for term in rules.apart
        if term.place in cells.labels and roles.selected[term.pods]
    ]
    return list(dict.fromkeys(rules))


def _together(picture: Picture, roles: RoleRules, cells: Cells) -> list[gang_cells.Together]:
    rules = []
    for role, own_rules in enumerate(roles.rules):
        if own_rules is None or not own_rules.together:
            continue
        chosen = [term.pods for term in own_rules.together]
        places = dict.fromkeys(term.place for term in own_rules.together)
        domains = tuple(
            (cells.labels.index(place), frozenset(picture.neighbours.places(place, chosen, roles.without)))
            for place in places
        )
        pods = frozenset.intersection(*(roles.selected[selector] for selector in chosen))
        rules.append(gang_cells.Together(role, pods, domains))
    return rules


def _spread(picture: Picture, roles: RoleRules, cells: Cells) -> list[gang_cells.Spread]:
    """Return a gang's topology spread constraints by those labels that define its ``cells``.

    Cells are groups of nodes, such as zones. Equal constraints of several roles (pods with equal requests) become one,
    if they also compare the same domains.
    """
    holders: dict[tuple[Spread, tuple[tuple[str, int], ...]], set[int]] = {}
    for role, own_rules in enumerate(roles.rules):
        for spread in () if own_rules is None else own_rules.spread:
            if own_rules is not None and spread.place in cells.labels:
                counts = picture.neighbours.spread_counts(own_rules, spread, roles.without)
                holders.setdefault((spread, tuple(counts.items())), set()).add(role)
    return [
        gang_cells.Spread(
            key=cells.labels.index(spread.place),
            holders=frozenset(who),
            pods=roles.selected[spread.pods],
            skew=spread.skew,
            counts=dict(counts),
            is_least_zero=len(counts) < spread.least_places,
        )
        for (spread, counts), who in holders.items()
    ]


def _divided(asked: Asked, cells: Cells, shares: Ways) -> Asked:
    """Return the request to the allocator, with the gang's roles divided by cell.

    A role is all pods with equal requests; a cell is a group of nodes, such as a zone. The pods of a role in one cell
    become a role of their own. Members that keep their places stay in the first of the roles into which their role is
    divided.

    Args:
        asked: The undivided request.
        cells: The cells.
        shares: For each role, the number of pods by cell.
    """
    roles = asked.rules
    assert roles is not None, "there are labels to share the pods by"
    parts, members, eligible = [], [], []
    end = 0
    for role, fit, share in zip(asked.request.members, asked.eligible, shares, strict=True):
        of_role = asked.members[end : end + role.pods]
        end += role.pods
        kept = [member for member in of_role if member.key not in roles.new]
        new = [member for member in of_role if member.key in roles.new]
        some = list(share.items()) or [(-1, 0)]
        for number, (cell, pods) in enumerate(sorted(some)):
            part = [*new[:pods], *(kept if number == 0 else ())]
            del new[:pods]
            parts.append(msgspec.structs.replace(role, pods=len(part)))
            members += part
            eligible.append(fit if cell < 0 else fit & (cells.of_row == cell))
    first, *others = parts
    request = msgspec.structs.replace(
        asked.request, pod=first.pod, pods=first.pods, needs=first.needs, roles=tuple(others), least_pods=None
    )
    return msgspec.structs.replace(asked, request=request, members=tuple(members), eligible=eligible)


def _refusal(asked: Asked, *, is_complete: bool) -> NoPlaceError:
    """Return the error that no plan keeps the rules of a gang's pods.

    ``asked`` has the pods and their rules. If not ``is_complete``, the error adds that not every plan was tried.
    """
    end = "" if is_complete else "The search ended at its limit before it had tried every plan"
    rules = ", ".join(_words(asked))
    text = f"No plan with the free GPUs meets the rules of the gang's pods about each other: {rules}"
    return NoPlaceError(sentences(text, end), cause=Cause.GPUS)


def _words(asked: Asked) -> list[str]:
    """Return the rules of the gang ``asked`` as texts, each with an example pod."""
    words: dict[str, str] = {}
    end = 0
    for role, rules in zip(asked.request.members, () if asked.rules is None else asked.rules.rules, strict=False):
        pod = asked.members[end].key[1]
        end += role.pods
        if rules is None:
            continue
        rows: Mapping[str, Sequence[str]] = {
            "anti-affinity by": [term.place for term in rules.apart],
            "affinity by": [term.place for term in rules.together],
            "topology spread by": [f"{spread.place} (maxSkew {spread.skew})" for spread in rules.spread],
        }
        for rule, places in rows.items():
            for place in places:
                words.setdefault(f"{rule} {place}", f"{rule} {place} (pod {pod})")
    return list(words.values())
