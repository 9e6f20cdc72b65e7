"""Finds free GPUs of a node that can all have their NICs at the same time.

The search is a maximum flow over counts of NICs; ``nearest_nics`` then assigns single NICs. NICs that can go to the
same requests and the same GPUs are of one kind and counted together, because a card has dozens of virtual functions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

Kinds: TypeAlias = Mapping[tuple[frozenset[int], frozenset[int]], int]
"""The number of NICs of each kind. A kind is the requests and the GPUs that its NICs may go to."""

_Node: TypeAlias = tuple[str, Hashable]
_SOURCE: Final[_Node] = ("source", None)
_UNLIMITED: Final = 1 << 40


def served(
    kinds: Kinds,
    counts: Sequence[int],
    free_gpus: Sequence[int],
    gpus: int,
    may_go_on: Callable[[], bool],
    *,
    is_last_pod: bool = True,
    one_set: bool = False,
) -> list[int]:
    """Return free GPUs that can all have their NICs at once.

    A request here is one entry of a ResourceClaim that asks for NICs. The NICs of all requests together are divided
    among ``gpus`` GPUs as evenly as possible: some GPUs can get one NIC less than the others.

    Args:
        kinds: The number of NICs of each kind. NICs that can serve the same requests and the same GPUs are of one kind.
        counts: The number of NICs that each request needs.
        free_gpus: The free GPUs, best first.
        gpus: How many GPUs are requested.
        may_go_on: Called before each step of the search for sets other than the best ones. If it returns False, the
            search ends without a set.
        is_last_pod: Whether no further pod will have this request. If so and ``gpus`` is 1, every GPU that can have all
            NICs is returned, even if two of these GPUs cannot have them at the same time. The same holds for a single
            GPU if some NICs cannot serve all requests.
        one_set: Whether to return exactly ``gpus`` GPUs, and to leave as many GPUs as possible to other pods with the
            same request. Then the GPUs that get one NIC less are first chosen among GPUs that cannot have the full
            number of NICs.

    Returns:
        At least ``gpus`` GPUs: any ``gpus`` of them can have their NICs. Fewer than ``gpus`` if there is no such set,
        or if the search was ended.
    """
    # Whether every NIC may go to every request.
    is_alike = all(len(requests) == len(counts) for requests, _ in kinds)

    # A single GPU: each one that can have all NICs by itself.
    if gpus == 1 and (is_last_pod or not is_alike):
        return [gpu for gpu in free_gpus if _Flow(kinds, counts).give(gpu, sum(counts))]

    # ``extra`` GPUs get ``most_each`` NICs, the others ``each_gets``.
    each_gets, extra = divmod(sum(counts), gpus)
    most_each = each_gets + bool(extra)

    # The GPUs that can all have ``most_each`` at once, taken in order of preference. Together they may get more NICs
    # than are requested. If every NIC may go to every request, the requests have no limit, so that only the NICs limit
    # it.
    flow = _Flow(kinds, [_UNLIMITED] * len(counts) if is_alike else counts)
    best = [gpu for gpu in free_gpus if flow.give(gpu, most_each)]
    # Any ``gpus`` GPUs of ``best`` can have all NICs. It does not matter which of them get one less.
    if is_alike and len(best) >= gpus and not (one_set and extra):
        return best

    # With ``one_set``, the GPUs after the first ``extra`` get one NIC less. First come those that cannot have the full
    # number (they are not in ``best``): no other pod with the same request can use them for it.
    with_extra = extra if one_set and extra else len(best)
    preferred = [*best[:with_extra], *(gpu for gpu in free_gpus if gpu not in best), *best[with_extra:]]
    flow = _Flow(kinds, counts)

    # Each GPU needs at most one NIC, and ``best`` has as many GPUs as can have one: no other set is larger. If the NICs
    # do not all find a GPU, ``best`` has fewer GPUs than requested.
    if most_each == 1:
        chosen = preferred[:gpus]
        with_nic = sum(flow.give(gpu, 1) for gpu in chosen)
        return chosen if len(chosen) == gpus and with_nic == sum(counts) else best

    # Otherwise try the sets one after another: each GPU gets the common number, then enough of them one more.
    for remaining_flow, chosen in _sets(flow, preferred, gpus, each_gets, may_go_on):
        if sum(remaining_flow.give(gpu, 1) for gpu in chosen) >= extra:
            return chosen

    # No set was found: the caller must see fewer GPUs than requested, however many ``best`` has.
    return best[: gpus - 1]


def _sets(
    flow: _Flow, order: Sequence[int], gpus: int, each: int, may_go_on: Callable[[], bool]
) -> Iterator[tuple[_Flow, list[int]]]:
    """Yield all sets of ``gpus`` GPUs in which each GPU can have ``each`` NICs.

    Args:
        flow: The NICs that are assigned to GPUs already.
        order: The GPUs to choose from. Sets of GPUs that are first in ``order`` come first.
        gpus: The number of GPUs of a set.
        each: The number of NICs that each GPU of the set gets.
        may_go_on: Called before each further GPU is tried. If it returns False, the search ends.

    Yields:
        A copy of ``flow`` in which the GPUs of the set have their NICs, and the set.
    """
    if not gpus:
        yield flow, []
        return
    for at, gpu in enumerate(order[: len(order) - gpus + 1]):
        if at and not may_go_on():
            return
        with_gpu = flow.copy()
        if with_gpu.give(gpu, each):
            for last, others in _sets(with_gpu, order[at + 1 :], gpus - 1, each, may_go_on):
                yield last, [gpu, *others]


class _Flow:
    """An assignment of NICs to GPUs, as a flow from requests for NICs to GPUs.

    If a GPU has a NIC that another GPU needs, the NIC can move there, provided that the first GPU gets another NIC.
    """

    def __init__(self, kinds: Kinds, counts: Sequence[int]) -> None:
        """Make a flow in which no GPU has a NIC.

        Args:
            kinds: The number of NICs by kind: the requests that may take the NIC, and the GPUs that it may go to.
            counts: The number of NICs that each request needs.
        """
        self._room: dict[_Node, dict[_Node, int]] = {_SOURCE: {}}  # how many more may go from one to another
        for at, count in enumerate(counts):
            self._way(_SOURCE, ("request", at), count)
        for number, ((requests, gpus), count) in enumerate(kinds.items()):
            for at in requests:
                self._way(("request", at), ("in", number), _UNLIMITED)
            self._way(("in", number), ("out", number), count)
            for gpu in gpus:
                self._way(("out", number), ("gpu", gpu), _UNLIMITED)

    def _way(self, start: _Node, end: _Node, room: int) -> None:
        self._room.setdefault(start, {})[end] = room
        self._room.setdefault(end, {})[start] = 0

    def copy(self) -> _Flow:
        """Return a copy of the assignment of NICs to GPUs.

        Changes in one change nothing in the other.
        """
        out = _Flow({}, ())
        out._room = {start: dict(ends) for start, ends in self._room.items()}
        return out

    def give(self, gpu: int, number: int) -> bool:
        """Give a GPU ``number`` more NICs, or none if that is not possible.

        Return whether the GPU got them. NICs of other GPUs can be exchanged, but no other GPU has fewer NICs
        afterwards.
        """
        sent: list[tuple[list[tuple[_Node, _Node]], int]] = []
        while number:
            path = self._path(("gpu", gpu))
            if not path:
                for way, back in reversed(sent):
                    self._send(way, -back)
                return False
            least = min(number, *(self._room[start][end] for start, end in path))
            self._send(path, least)
            sent.append((path, least))
            number -= least
        return True

    def _send(self, path: Sequence[tuple[_Node, _Node]], number: int) -> None:
        for start, end in path:
            self._room[start][end] -= number
            self._room[end][start] += number

    def _path(self, to: _Node) -> list[tuple[_Node, _Node]]:
        """Return the shortest path on which one more NIC can reach the GPU ``to``.

        The path begins at the source, where all flow begins. From there it leads to a request for NICs, to a kind of
        NICs, and to a GPU. It can go on over other kinds and requests whose NICs are exchanged. The path is a list of
        steps: pairs of start and end. The list is empty if there is no path.
        """
        after: dict[_Node, _Node] = {}
        open_ = [to]
        for end in open_:
            for start in self._room.get(end, ()):
                if start in after or start == to or not self._room[start][end]:
                    continue
                after[start] = end
                if start == _SOURCE:
                    path = [(start, end)]
                    while path[-1][1] != to:
                        path.append((path[-1][1], after[path[-1][1]]))
                    return path
                open_.append(start)
        return []
