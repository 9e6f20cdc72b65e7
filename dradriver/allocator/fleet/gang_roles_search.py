"""An exact search for places for the pods of several roles of a gang.

``gang_search`` calls it last, because it finds places that placing role after role misses. A *role* is all pods of a
gang that are equal. First the search lists the combinations of pods that fit on one node, once for equal nodes. Then it
adds node after node. For each combination of pods that the nodes so far can hold, it remembers the fewest nodes that
are needed. The work grows with ``nodes * (pods of one role + 1) * (pods of the next + 1) * ...``. The effort limits it,
and records if the search gives up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.fleet.gang_effort import CALL, ROLE_CALLS, Effort
from dradriver.allocator.fleet.gang_nodes import GangNodes, disjoint_sets, pod_capacity
from dradriver.allocator.gang_request import Role
from dradriver.allocator.sets.subsets import Bools, Ints

_MOST_CELLS = 1 << 25  # a bound on memory: combinations of pods times steps
_MOST_OPTIONS = 1 << 12  # combinations of pods on one node
_MANY = np.iinfo(np.int64).max // 2
_NO_LIMIT = np.iinfo(np.int64).max

Sets = tuple[tuple[int, ...], ...]
"""For each role the sets of its pods on one node, as masks."""


class Asked(NamedTuple):
    """The roles of a gang, and the limits for all nodes together.

    Attributes:
        members: The roles.
        counts: For each role the number of pods that need a place.
        least: The fewest GPUs of the gang on a node that has some of its pods.
        most_nodes: How many nodes without pods of the gang may be used at most; None for any number.
    """

    members: Sequence[Role]
    counts: Sequence[int]
    least: int
    most_nodes: int | None


def sets_by_node(
    asked: Asked, nodes_by_role: Sequence[GangNodes], *, gpus: Ints, amounts: Ints | None, effort: Effort
) -> dict[int, Sets] | None:  # fmt: skip
    """Return the GPU sets of all roles' pods on each node, by an exact search over the nodes.

    The search is a dynamic program. A *cell* is a combination of pods: how many of each role. For each cell it computes
    the fewest new nodes that can hold these pods.

    1. Give up if the table of cells is too large.
    2. Add the nodes one after another: an *option* is one combination of pods that the node can hold.
    3. Go back from the cell of all pods, node after node, to see which option each node has.

    Args:
        asked: The roles, their pods and the limits of the gang.
        nodes_by_role: For each role the nodes that its pods may be placed on. GPUs and resources that placed members
            use are subtracted already.
        gpus: By ``name_rank``, how many GPUs the gang has on the node already.
        amounts: Free resources other than GPUs, by row.
        effort: How many evaluations of nodes the search may spend.

    Returns:
        By ``GangNodes.name_rank`` the sets of each role's pods. None if there is no place, or the search gave up.
    """
    cells = int(np.prod([count + 1 for count in asked.counts], dtype=np.float64))

    # 1. Too large a table: give up before anything is spent.
    if cells > _MOST_CELLS:
        effort.gave_up = True
        return None

    # ``ranks`` are the usable nodes: name ranks, a node's number in the whole fleet. ``at[role, node]`` is the node's
    # index in the role's table; -1 if the role may not use it.
    ranks = np.unique(np.concatenate([nodes.name_rank for nodes in nodes_by_role]))
    if not effort.spend(ROLE_CALLS * CALL + 100 * len(ranks) + cells):
        return None
    at = np.full((len(nodes_by_role), len(ranks)), -1, dtype=np.int64)
    for role, nodes in enumerate(nodes_by_role):
        at[role, np.searchsorted(ranks, nodes.name_rank)] = np.arange(len(nodes.kind))
    one_node = _OneNode(asked, nodes_by_role, at, gpus[ranks], amounts, effort)

    # By cell the fewest new nodes that hold it: before any node is added only the cell of no pods is reached.
    fewest_nodes = np.full([count + 1 for count in asked.counts], _MANY, dtype=np.int64)
    fewest_nodes[(0,) * fewest_nodes.ndim] = 0
    max_nodes = sum(asked.counts) if asked.most_nodes is None else min(asked.most_nodes, sum(asked.counts))

    # By the options of a node, as bytes: how many new nodes with these options were added.
    uses_of_options: dict[bytes, int] = {}

    # 2. For each step: the node, the combinations of pods that it can hold, and by cell the index of the used one.
    steps: list[tuple[int, Ints, NDArray[np.int16]]] = []
    for node, is_new in enumerate((gpus[ranks] == 0).tolist()):
        options = one_node.options(node)
        # The only option is to hold no pod. A node with pods of the gang must still keep the fewest GPUs on a node.
        if is_new and len(options) < 2:
            continue
        options_key = options.tobytes()
        uses_of_options[options_key] = uses_of_options.get(options_key, 0) + is_new
        # The gang uses at most ``max_nodes`` new nodes, so more nodes that can hold the same add nothing.
        if uses_of_options[options_key] > max_nodes:
            continue
        # No option at all: either a node with pods of the gang keeps too few GPUs, or the effort is spent.
        if not len(options) or not effort.spend(len(options) * (cells + CALL)):
            return None
        if cells * len(steps) > _MOST_CELLS:
            effort.gave_up = True
            return None
        fewest_nodes, reached = _with_node(fewest_nodes, options, new=is_new)
        steps.append((node, options, reached))

    # The last cell is that of all pods.
    if effort.is_spent or fewest_nodes.flat[-1] > min(max_nodes, _MANY - 1):
        return None

    # 3. Back from the last node to the first: which pods each node got.
    sets_by_rank: dict[int, Sets] = {}
    remaining = np.array(asked.counts)
    for node, options, reached in reversed(steps):
        pods_by_role = options[reached[tuple(remaining)]]
        remaining = remaining - pods_by_role
        if pods_by_role.any():
            sets = one_node.sets(node, pods_by_role)
            assert sets is not None, "it was among the options"
            sets_by_rank[int(ranks[node])] = sets
    return sets_by_rank


def _with_node(best: Ints, own: Ints, *, new: bool) -> tuple[Ints, NDArray[np.int16]]:
    """Return for each cell the fewest nodes, and the option of the added node.

    A cell is a combination of pods by role that all nodes so far hold together. An option is a combination of pods that
    the added node alone can hold. The second array has, for each cell, the index in ``own`` of the option that the
    added node takes.

    Args:
        best: The fewest nodes for each cell without the added node.
        own: The options of the added node.
        new: Whether the added node has no pods of the gang yet. Only such a node adds one to the number of nodes.
    """
    out = np.full(best.shape, _MANY, dtype=np.int64)
    reached = np.zeros(best.shape, dtype=np.int16)
    for option, vector in enumerate(own.tolist()):
        into = tuple(slice(count, None) for count in vector)
        with_it = best[tuple(slice(size - count) for count, size in zip(vector, best.shape, strict=True))]
        with_it = with_it + int(new and any(vector))
        better = with_it < out[into]
        out[into][better] = with_it[better]
        reached[into][better] = option
    return out, reached


class _OneNode:
    """The combinations of a gang's pods, of all roles, that each single node can hold.

    The answer is computed once for equal nodes.
    """

    def __init__(
        self,
        asked: Asked,
        nodes_by_role: Sequence[GangNodes],
        at: Ints,
        gpus: Ints,
        amounts: Ints | None,
        effort: Effort,
    ) -> None:
        """Read all figures of single nodes into arrays, and find the nodes that are equal.

        Args:
            asked: The roles, their pods and the limits of the gang.
            nodes_by_role: By role the nodes that its pods may be placed on.
            at: (roles, nodes), the index of the node in the role's table; -1 if the role may not use it.
            gpus: (nodes,), GPUs that the gang has on the node already.
            amounts: Free resources other than GPUs, by row.
            effort: How many evaluations of nodes the search may spend.
        """
        self._asked, self._nodes_by_role, self._at, self._gpus, self._effort = asked, nodes_by_role, at, gpus, effort

        # By role: the GPUs of a pod (roles,), and what a pod needs of each other resource (roles, resources), 0 for
        # none.
        self._sizes = np.array([role.pod.gpus for role in asked.members])
        columns = max(len(role.needs) for role in asked.members)
        self._needs = np.array([(*role.needs, *[0] * (columns - len(role.needs))) for role in asked.members])
        is_usable = at >= 0

        # An array (roles, nodes) of one field of the roles' tables; ``missing`` where the role may not use the node.
        def field_of(name: str, missing: int) -> Ints:
            columns_of_roles = [getattr(nodes, name) for nodes in nodes_by_role]
            return np.array([
                np.where(is_in_table, column[node], missing) if len(column) else np.full(len(node), missing)
                for column, node, is_in_table in zip(columns_of_roles, at, is_usable, strict=True)
            ])  # fmt: skip

        # By role and node: the kind of machine and the usable positions. By node and role: the pods that it can hold.
        self._kind, self._mask = field_of("kind", -1), field_of("mask", 0)
        self._capacity = np.minimum(field_of("capacity", 0).T, asked.counts)

        # By node: its row in ``amounts``, the same for all roles, and what it has free of each resource.
        row = field_of("row", -1).max(axis=0)
        self._free = np.full((len(row), columns), _NO_LIMIT)
        if amounts is not None and len(amounts):
            # A node without counted resources has no room for pods that need some: ``capacity`` says so already.
            is_counted = (row >= 0) & (row < len(amounts))
            self._free[is_counted] = amounts[row[is_counted], :columns]

        # Nodes are alike if they differ only in resources that the gang could not use anyway.
        useful_free = np.minimum(self._free, self._capacity @ self._needs)
        keys = np.column_stack((self._kind.T, self._mask.T, self._capacity, useful_free, gpus))
        self._alike = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
        self._options: dict[int, Ints] = {}  # by the number of a group of alike nodes
        self._known: dict[tuple[tuple[int, ...], ...], Sets | None] = {}

        # The roles with the largest sets come first: if they do not fit, smaller ones need not be tried.
        self._order = sorted(range(len(nodes_by_role)), key=lambda role: -asked.members[role].pod.gpus)

    def options(self, node: int) -> Ints:
        """Return all combinations of a gang's pods that one node can hold.

        The shape is (options, roles). A row is one combination: the number of pods of each role.
        """
        alike = int(self._alike[node])
        if alike not in self._options:
            self._options[alike] = self._found(node)
        return self._options[alike]

    def _found(self, node: int) -> Ints:
        """Find all combinations of a gang's pods that a node can hold: (options, roles).

        The node must have enough GPUs and other resources, and sets for all pods that do not overlap. If there are too
        many combinations to try, the result is empty, and the search is marked as given up.
        """
        capacity = self._capacity[node]
        number = int(np.prod(capacity + 1, dtype=np.float64))
        if number > _MOST_OPTIONS:
            self._effort.gave_up = True
        if number > _MOST_OPTIONS or not self._effort.spend(number * 100):
            return np.zeros((0, len(capacity)), dtype=np.int64)
        combinations: Ints = np.indices(capacity + 1).reshape(len(capacity), -1).T
        gpus, needed = combinations @ self._sizes, combinations @ self._needs

        # A combination fits by its GPUs, by the fewest GPUs of the gang on a node, and by all other resources.
        total = gpus + self._gpus[node]
        fits = (gpus <= self._usable(node)) & ((total >= self._asked.least) | (total == 0))
        combinations = combinations[fits & ((needed <= self._free[node]) | (needed == 0)).all(axis=1)]
        if self._takes_any_sets(node):
            return combinations
        if not self._effort.spend(5 * CALL * len(combinations)):
            return np.zeros((0, len(capacity)), dtype=np.int64)
        has_sets = [self.sets(node, vector) is not None for vector in combinations]
        with_sets: Ints = combinations[np.array(has_sets, dtype=np.bool_)]
        return with_sets

    def _usable(self, node: int) -> int:
        """Return how many GPUs of a node at least one of the roles can use."""
        return int(np.bitwise_or.reduce(self._mask[:, node])).bit_count()

    def _takes_any_sets(self, node: int) -> bool:
        """Return whether each role accepts any set of the node's usable GPUs, and all roles can use the same GPUs.

        If so, the number of GPUs alone decides which combinations fit.
        """
        roles = np.flatnonzero(self._capacity[node])
        if len(set(self._mask[roles, node].tolist())) > 1:
            return False
        for role in roles.tolist():
            nodes, at = self._nodes_by_role[role], int(self._at[role, node])
            tables, mask = nodes.group(at).tables, int(self._mask[role, node])
            members = tables.members(nodes.request.gpus)
            inside = members[members & ~mask == 0]
            if not tables.allowed(nodes.criteria[int(nodes.kind[at])])[inside].all():
                return False
        return True

    def sets(self, node: int, vector: Ints) -> Sets | None:
        """Return the GPU sets of a combination of pods on one node.

        The result is None if the pods do not fit. ``vector`` has the number of pods of each role.
        """
        masks, counts = tuple(self._mask[:, node].tolist()), tuple(vector.tolist())
        return self._by_roles(node, masks, counts) or self._in_any_way(node, masks, counts)

    def _by_roles(self, node: int, masks: tuple[int, ...], counts: tuple[int, ...]) -> Sets | None:
        """Return the GPU sets of a combination of pods, by placing one role after another, the largest first.

        The result is None if one role finds no sets. ``masks`` are the GPUs that each role can use, ``counts`` its
        number of pods.
        """
        out: list[tuple[int, ...]] = [()] * len(counts)
        taken = 0
        for role in self._order:
            if not counts[role]:
                continue
            nodes, own = self._nodes_by_role[role], int(self._at[role, node])
            tables, criteria, free = nodes.group(own).tables, nodes.criteria[int(nodes.kind[own])], masks[role] & ~taken
            if int(pod_capacity(tables, nodes.request.gpus, criteria)[free]) < counts[role]:
                return None
            found = disjoint_sets(tables, free, counts[role], request=nodes.request, criteria=criteria)
            out[role] = tuple(found)
            taken |= sum(found)
        return tuple(out)

    def _in_any_way(self, node: int, masks: tuple[int, ...], counts: tuple[int, ...]) -> Sets | None:
        """Return the GPU sets of a combination of pods, by trying all possibilities.

        The result is None if the pods do not fit. The answer is stored, and used again for equal nodes. ``masks`` are
        the GPUs that each role can use, ``counts`` its number of pods.
        """
        if int(np.dot(counts, self._sizes)) > int(np.bitwise_or.reduce(masks)).bit_count():
            return None
        key = tuple(self._kind[:, node].tolist()), masks, counts
        if key not in self._known:
            self._known[key] = self._tried(node, masks, counts)
        return self._known[key]

    def _tried(self, node: int, masks: tuple[int, ...], counts: tuple[int, ...]) -> Sets | None:
        """Return the GPU sets of a combination of pods; every set of one pod is tried.

        The pod is of the largest remaining role. For each set, the remaining pods are tried in the same way on the
        remaining GPUs. The result is None if the pods do not fit. ``masks`` are the GPUs that each role can still use,
        ``counts`` its number of remaining pods.
        """
        role = next((role for role in self._order if counts[role]), None)
        if role is None:
            return ((),) * len(counts)
        nodes, own = self._nodes_by_role[role], int(self._at[role, node])
        tables = nodes.group(own).tables
        members = tables.members(nodes.request.gpus)
        allowed: Bools = tables.allowed(nodes.criteria[int(nodes.kind[own])])[members]
        fewer = tuple(count - (number == role) for number, count in enumerate(counts))
        for mask in members[allowed & (members & ~masks[role] == 0)].tolist():
            if not self._effort.spend(CALL):
                return None
            rest = self._in_any_way(node, tuple(each & ~mask for each in masks), fewer)
            if rest is not None:
                return tuple((mask, *other) if number == role else other for number, other in enumerate(rest))
        return None
