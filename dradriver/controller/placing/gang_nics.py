"""Finds NICs for the pods of a gang: plans whose nodes have enough, and different NICs for each pod.

The allocator plans a gang without knowing NICs. A node is *short* if a plan puts pods on it that request more NICs than
it has near their GPUs. Then another plan is made, without the node or without its GPUs that cannot have NICs.
``gang_plan`` calls this module.

A *member* is a pod of the gang. A *snapshot* is a read-only view of the cluster cache, for example without some claims.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.allocator.request import NEAR_REQUIRED, Whole
from dradriver.api.base.errors import WordError
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.vocabulary.nic_requests import NicAsk
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.nics.nic_inventory import Place
from dradriver.cluster.nodes.columns import Bools, Ints
from dradriver.controller.placing import nic_choice, nic_places, nic_refusals
from dradriver.controller.placing.nic_choice import Chosen, Gpus
from dradriver.controller.placing.nic_node import NicSearchEffort
from dradriver.controller.placing.nic_refusals import NoNicsError
from dradriver.errors import DriverError
from dradriver.queue.pending import Member
from dradriver.queue.placement_request import PlacementRequest

MOST_LOOKS: Final = 8  # plans of one search whose nodes have enough NICs, but not for the plan's GPUs


class Dealt(NamedTuple):
    """A node and a set of its GPUs, for one pod in the next plan.

    The sets of all pods of a node are chosen together, so that each pod can have its NICs.
    """

    node: str
    gpus: frozenset[int]


class ShortError(DriverError):
    """Some nodes of a plan have too few NICs.

    Attributes:
        refusal: The refusal of the gang, for the case that no other plan is made.
        short: For each of these nodes, the members there that request NICs. Each member has its numbers of GPUs by the
            name of the claim's request.
        other_nodes: The nodes of the plan with enough NICs.
    """

    reason = NoNicsError.reason

    def __init__(
        self,
        refusal: NoNicsError,
        short: Mapping[str, Mapping[Member, Mapping[str, int]]],
        other_nodes: Collection[str],
    ) -> None:
        super().__init__(str(refusal))
        self.refusal, self.short, self.other_nodes = refusal, short, other_nodes


class Search:
    """A search for a gang plan whose nodes have enough NICs.

    The allocator does not know NICs. So the caller works in a loop:

    1. The caller makes a plan from ``snapshot``, and looks for the NICs on its nodes.
    2. If some nodes have too few NICs, the caller calls ``learn``.
    3. The next ``snapshot`` offers, of these nodes, only GPUs that can all have NICs at once.

    If these GPUs are too few for any pod, the node is left out. Later searches leave it out, too, until something
    changes there.

    Attributes:
        sets: By member, the node and the GPUs that the next plan should give to it.
    """

    def __init__(self, snapshot: Snapshot, members: Sequence[Member], wants: Gang | None) -> None:
        """Begin a search; ``wants`` is the author's request for the whole gang, if any.

        Raises:
            NoPlaceError: The NICs of the cluster are not read yet, or the driver cannot choose all NICs that must be
                near GPUs.
            WordError: The pods request different NICs.
        """
        picture = snapshot.picture
        self._picture, self._whole_snapshot = picture, snapshot
        self._namespace = members[0].key[0]
        self._ask = asked(picture, [member.wish for member in members])
        # Whether GPUs that cannot have NICs have to be left out, because NICs must be near GPUs or share an attribute.
        self._narrows = self._ask is not None and nic_choice.demands(self._ask)

        # What the next snapshot leaves out.
        self._rows: Bools | None = None
        self._avoided: set[str] = set()
        self._fleet: Fleet | None = None  # the GPUs without those that cannot have NICs; None for all

        # What this search has learned so far.
        self._looks = 0
        # A node without NICs fails the whole plan, so no node may be skipped.
        self._effort = NicSearchEffort(skips_nodes=False)
        self._seen: set[str] = set()  # nodes whose NICs were searched for a plan
        self._short: set[str] = set()  # nodes of these that had too few NICs
        self._apart: dict[str, frozenset[int]] = {}  # by node: GPUs that can all have NICs
        self._pods: dict[str, Mapping[Member, Mapping[str, int]]] = {}  # by node: its pods when it was short
        self._has_dealt = self._has_learned = False  # whether ``deal`` was called; whether later searches know more
        self.sets: dict[Member, Dealt] = {}

        # What earlier searches have learned. Only for the tenant's own fleet: another has other GPUs in each search.
        # ``_skips``: nodes are left out from the start. ``_has_suspects``: some of these could do in another plan.
        self._skips = self._has_suspects = False
        self._remembers = self._narrows and snapshot.fleet is picture.fleets.of(self._namespace)
        if self._remembers:
            self._skip_known_nodes(members, wants)

    def _skip_known_nodes(self, members: Sequence[Member], wants: Gang | None) -> None:
        """Leave out nodes that earlier searches found short of NICs.

        There are two kinds of these nodes:

        * Nodes that have too few NICs even for the smallest pod of the gang. They are remembered under ``_short_key``.
        * Nodes that had too few in one plan, and could have enough in another. They are remembered under
          ``_suspect_key``, and tried again after all other nodes.

        Args:
            members: The pods of the gang.
            wants: The author's request for the whole gang, if any.
        """
        picture, snapshot = self._picture, self._whole_snapshot
        requests = [member.wish.request for member in members]
        with_nics = [member.wish.request for member in members if member.wish.nics is not None]
        self._fewest_gpus = min((request.gpus for request in with_nics if isinstance(request, Whole)), default=0)
        view = picture.fleets.views.whose(self._namespace)
        self._short_key = "gang", self._ask, self._fewest_gpus, self._namespace, view
        # The key contains all pods: a search for another part of the gang must not clear the suspects of this one.
        self._suspect_key = *self._short_key, wants, tuple(requests)

        rows = np.ones(picture.nodes.rows, np.bool_) if snapshot.rows is None else snapshot.rows
        short = picture.nics.counts.short.of(self._short_key, rows)
        suspects = picture.nics.counts.short.of(self._suspect_key, rows) & ~short
        self._has_suspects = bool(suspects.any())
        self._skips = self._has_suspects or bool(short.any())
        if self._skips:
            self._rows = rows & ~short & ~suspects

    def learn(self, error: ShortError, *, is_last: bool = False) -> None:
        """Change the next ``snapshot`` after a plan failed because nodes have too few NICs.

        Of these nodes (in ``error``), the snapshot then offers only GPUs that can all have NICs. A node without enough
        of them is left out.

        Args:
            error: The error of the plan.
            is_last: Whether the caller makes no other plan. Then only later searches use what was found.

        Raises:
            NoNicsError: No other plan may be made: ``is_last`` is True, too many plans have failed, or ``deal`` was
                called.
        """
        self._looks += 1
        if is_last:
            self._looks = MOST_LOOKS + 1
            self._short.update(error.short)
        if self._looks > MOST_LOOKS or self._has_dealt:
            raise self.refusal() or error.refusal

        self._seen.update(error.short, error.other_nodes)
        self._short.update(error.short)
        for node, pods in error.short.items():
            if not self._narrow(node, pods):
                self._avoided.add(node)
        if self._apart:
            self._fleet = self._whole_snapshot.fleet.narrowed(self._apart)
        # The last plan is made only from nodes whose NICs were searched, so it cannot fail for an unknown node.
        if self._looks == MOST_LOOKS:
            seen = self._picture.nodes.named(self._seen)
            self._rows = seen if self._rows is None else self._rows & seen

    @property
    def snapshot(self) -> Snapshot:
        """Return the snapshot for a gang's next plan, without nodes and GPUs that lack NICs."""
        return self._whole_snapshot.among(self._rows).avoiding(self._avoided).offering(self._fleet)

    def deal(self) -> bool:
        """Choose GPUs with NICs for each pod of nodes with too few NICs; set ``sets``.

        Without ``sets``, the allocator chooses GPUs by their links alone. One pod may then get two GPUs with NICs that
        two pods could have used. Call this once, after all plans without ``sets`` have failed.

        Returns:
            Whether to make another plan. False if no node has NICs for all its pods, and at later calls.
        """
        if self._has_dealt or not self._narrows:
            return False
        self._has_dealt = True
        for node, pods in self._pods.items():
            _, sets = self._offers(node, pods, one_set_each=True)
            if len(sets) == len(pods):
                self.sets |= sets
                self._apart[node] = frozenset[int]().union(*(dealt.gpus for dealt in sets.values()))
        if not self.sets:
            return False
        self._avoided -= self._apart.keys()
        self._fleet = self._whole_snapshot.fleet.narrowed(self._apart)
        return True

    def _narrow(self, node: str, pods: Mapping[Member, Mapping[str, int]]) -> bool:
        """Offer, of a short node, only GPUs that can have NICs; return whether any can.

        If the node is still short after an earlier call, the result is False: the caller leaves the node out of this
        search.

        Later searches leave the node out, too, if it surely has too few NICs: if the search on the node was complete,
        and its first pod is one of the gang's smallest.

        Args:
            node: The node.
            pods: Its pods that request NICs, each with its numbers of GPUs by the name of the claim's request.
        """
        if not self._narrows or node in self._apart:
            return False
        self._pods[node] = pods
        offered, _ = self._offers(node, pods)
        if offered:
            self._apart[node] = offered
            return True
        gpus_of_first_pod = sum(next(iter(pods.values())).values())
        if self._remembers and gpus_of_first_pod == self._fewest_gpus and node not in self._effort.cut_short:
            self._remember(self._short_key, [node])
        return False

    def _offers(
        self, node: str, pods: Mapping[Member, Mapping[str, int]], *, one_set_each: bool = False
    ) -> tuple[frozenset[int], dict[Member, Dealt]]:
        """Return a node's GPUs that can all have NICs, and a set for each pod.

        The sets are chosen in the order of the pods. If a pod finds no set, it and all later pods are missing in the
        result.

        Args:
            node: The node.
            pods: Its pods that request NICs, each with its numbers of GPUs by the name of the claim's request.
            one_set_each: Whether each pod needs a set of its own. If False, it is enough to return GPUs among which the
                allocator may choose, and sets can be missing.
        """
        assert self._ask is not None, "it demands something"
        uuids, free_gpus = self._picture.inventory.uuids(node), self._whole_snapshot.fleet.free(node)
        are_same_size = len({sum(pod.values()) for pod in pods.values()}) == 1
        offered: frozenset[int] = frozenset()
        sets: dict[Member, Dealt] = {}
        taken: set[Place] = set()
        for number, (member, pod) in enumerate(pods.items()):
            requested, is_last = sum(pod.values()), number + 1 == len(pods)
            # Fewer than requested: no set can have NICs. More: any set of them can. As many: only this set is offered.
            gpus_with_nics = nic_choice.gpus_apart(
                self._picture, self._ask, node, free_gpus, requested,
                is_last_pod=is_last, one_set=one_set_each, taken=taken, effort=self._effort,
            )  # fmt: skip
            if len(gpus_with_nics) < requested:
                # With other GPUs for the pods before it there may be some for this one: the failure proves nothing, and
                # is noted as a search that did not end (``ended=True``: it was cut short).
                if number > 0:
                    self._picture.nics.counts.looked(self._ask, node, ended=True)
                break
            offered |= gpus_with_nics
            # More than requested means that any of them will do, and no other GPU: also for the next pods.
            if len(gpus_with_nics) > requested and are_same_size and not one_set_each:
                break

            # The pod gets the first ones, with NICs that are taken for the next pods.
            pod_gpus = sorted(gpus_with_nics)[:requested]
            sets[member] = Dealt(node, frozenset(pod_gpus))
            free_gpus = free_gpus - sets[member].gpus
            remaining = iter(pod_gpus)
            pod_uuids = {
                name: [uuids[gpu] for gpu in itertools.islice(remaining, count)] for name, count in pod.items()
            }
            nics = nic_choice.chosen(self._picture, self._ask, node, pod_uuids, taken=taken, effort=self._effort)
            taken |= {(node, address) for addresses in (nics or {}).values() for address in addresses}
        return offered, sets

    def _remember(self, key: Hashable, nodes: Collection[str]) -> None:
        """Make later searches with the same key leave out these nodes.

        The key stands for the requests for which the nodes have too few NICs.
        """
        self._has_learned = True
        self._picture.nics.counts.short.add(key, self._picture.nodes.named(nodes))

    def refusal(self) -> NoNicsError | None:
        """Return why the gang has no plan; None if NICs are not the cause.

        Also note which nodes the next search leaves out or tries again.
        """
        if self._ask is None or not (self._looks or self._skips):
            return None
        is_exhausted = self._looks >= MOST_LOOKS
        if not is_exhausted and not self._has_suspects:
            return nic_refusals.refusal(self._picture, self._ask)
        if not is_exhausted:
            # All other nodes were tried: the next search tries the suspects again.
            self._picture.nics.counts.short.forget_of(self._suspect_key)
        elif self._remembers:
            # The next search tries other nodes first.
            self._remember(self._suspect_key, self._short)
        if self._has_learned:
            # The next search finds more. The new version makes those who wait for a change search again.
            self._picture.version += 1
        return nic_refusals.unfinished(self._ask, "Not all plans for the gang were tried")


def asked(picture: Picture, wishes: Sequence[PlacementRequest]) -> NicAsk | None:
    """Return the NICs that each pod of a gang requests; None for none.

    All pods that request NICs must request the same. ``wishes`` are the requests of the pods.

    Raises:
        NoPlaceError: The NICs of the cluster are not read yet, or the driver cannot choose all NICs that must be near
            GPUs.
        WordError: The pods request different NICs.
    """
    asks = {nic_places.readable(picture, wish).nics for wish in wishes if wish.nics is not None}
    nonempty = {ask for ask in asks if ask is not None and ask.requests}
    if len(nonempty) > 1:
        raise WordError("The pods of the gang request different NICs. Give them one ResourceClaimTemplate.")
    return nonempty.pop() if nonempty else None


def column(picture: Picture, ask: NicAsk, fit: Bools) -> Ints:
    """Return how many free NICs of the requested kind each node has: (rows, 1).

    The number is 0 if they are too few for one pod. If NICs must be near GPUs, only NICs near any GPU count. Otherwise
    a plan would use nodes that have no near NICs. ``ask`` is the request of one pod for NICs; ``fit`` is a mask of the
    nodes to use. There is one row per node.
    """
    return picture.nics.counts.of(ask, fit, counts_all=True)[:, np.newaxis]


def told(members: Sequence[Member]) -> str:
    """Return a sentence that names the NICs that a gang's pods request; empty for none."""
    asks = (member.wish.nics for member in members)
    ask = next((ask for ask in asks if ask is not None and ask.requests), None)
    if ask is None:
        return ""
    return f"Each pod also requests {nic_refusals.wanted(ask)}{' near its GPUs' if ask.near == NEAR_REQUIRED else ''}"


def chosen(picture: Picture, placed: Mapping[Member, tuple[str, Gpus]]) -> dict[Member, Chosen]:
    """Return the NICs of each member that requests some.

    ``placed`` has the node of each member, and its GPUs by the name of the claim's request.

    Raises:
        ShortError: Some nodes have too few NICs for their members.
    """
    nics_by_member: dict[Member, Chosen] = {}
    short: dict[str, dict[Member, dict[str, int]]] = {}
    short_ask: NicAsk | None = None
    taken: set[Place] = set()
    effort = NicSearchEffort(skips_nodes=False)  # the error must name all nodes that are short
    for member, (node, gpus) in placed.items():
        if member.wish.nics is None:
            continue
        readable_wish = nic_places.readable(picture, member.wish)
        nics = nic_places.chosen(picture, readable_wish, node, gpus, taken=taken, effort=effort)
        if nics is None:
            assert readable_wish.nics is not None, "it asks for some"
            short_ask, short[node] = readable_wish.nics, {}  # the members of a short node are filled in below
            continue
        nics_by_member[member] = nics
        taken |= {(node, address) for addresses in nics.values() for address in addresses}
    if short_ask is None:
        return nics_by_member

    # The error names all short nodes at once: one error for each would cost one more plan for each.
    for member, (node, gpus) in placed.items():
        if node in short and member.wish.nics is not None and member.wish.nics.requests:
            short[node][member] = {name: len(uuids) for name, uuids in gpus.items()}
    other_nodes = {node for node, _ in placed.values()} - short.keys()
    raise ShortError(nic_refusals.refusal(picture, short_ask), short, other_nodes)
