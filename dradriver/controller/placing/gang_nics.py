"""NICs for the pods of a gang: places have enough of them, and each pod gets others than those before it."""

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
from dradriver.controller.placing.nic_node import Tries
from dradriver.controller.placing.nic_refusals import NoNicsError
from dradriver.queue.pending import Member
from dradriver.queue.placement_request import PlacementRequest

MOST_LOOKS: Final = 8  # at plans whose nodes have enough NICs, and not beside the plan's GPUs


class Dealt(NamedTuple):
    """The GPUs of a node that a pod is to have, so that each pod there has those that have NICs."""

    node: str
    gpus: frozenset[int]


class ShortError(NoNicsError):
    """A plan is nothing because of some of its nodes.

    Attributes:
        short: Those that have too few NICs, with the members that ask for some there, and how many GPUs each of these
            has by its requests.
        others: The plan's other nodes.
    """

    def __init__(
        self, error: NoNicsError, short: Mapping[str, Mapping[Member, Mapping[str, int]]], others: Collection[str]
    ) -> None:
        super().__init__(str(error), stable=error.stable)
        self.short, self.others = short, others


class Search:
    """A search for a plan: of what NICs have to do with GPUs the allocator knows nothing, so plans tell of it.

    Of a node that was short those GPUs are offered from then on that can all have NICs. Where these are too few for any
    pod, the node is left out, in later searches of the tenant's own fleet, too, until something of it changes.

    Attributes:
        sets: Nodes and GPUs that members prefer.
    """

    def __init__(self, snapshot: Snapshot, members: Sequence[Member], wants: Gang | None) -> None:
        """Begin, with what ``gang_plan.plan`` is given.

        Raises:
            NoPlaceError: What there is of NICs is not known yet.
            WordError: The pods ask for different NICs.
        """
        picture, self._whole = snapshot.picture, snapshot
        self._avoided: set[str] = set()
        self._rows: Bools | None = None
        self._fleet: Fleet | None = None
        self._picture, self._namespace = picture, members[0].key[0]
        self._ask = asked(picture, [member.wish for member in members])
        self._looks, self._skips, self._supposed, self._learns = 0, False, False, False
        self._tries = Tries(every_node=True)
        self._seen: set[str] = set()
        self._short: set[str] = set()
        self._apart: dict[str, frozenset[int]] = {}
        self._pods: dict[str, Mapping[Member, Mapping[str, int]]] = {}  # that were on a node when it was short
        self._dealt = False
        self.sets: dict[Member, Dealt] = {}
        self._narrows = self._ask is not None and nic_choice.demands(self._ask)
        # Of a fleet that is not the tenant's own nothing is remembered: its GPUs are others each time.
        self._remembers = self._narrows and snapshot.fleet is picture.fleets.of(self._namespace)
        if self._remembers:
            whole = (member.wish.request for member in members if member.wish.nics is not None)
            self._least = min((request.gpus for request in whole if isinstance(request, Whole)), default=0)
            self._key = "gang", self._ask, self._least, self._namespace, picture.fleets.views.whose(self._namespace)
            every = np.ones(picture.nodes.rows, np.bool_) if snapshot.rows is None else snapshot.rows
            # Other pods of the gang, as many, are tried, too: they would forget what these have found.
            self._supposes = *self._key, wants, tuple(member.wish.request for member in members)
            short = picture.nics.counts.short.of(self._key, every)
            supposed = picture.nics.counts.short.of(self._supposes, every) & ~short
            self._supposed = bool(supposed.any())
            self._skips = self._supposed or bool(short.any())
            if self._skips:
                self._rows = every & ~short & ~supposed

    def learn(self, error: ShortError, *, is_last: bool = False) -> None:
        """Take in why a plan was nothing. If it was the last one to be looked at, the next search looks elsewhere.

        Raises:
            NoNicsError: No other plan is looked at.
        """
        self._looks += 1
        if is_last:
            self._looks = MOST_LOOKS + 1
            self._short.update(error.short)
        if self._looks > MOST_LOOKS or self._dealt:
            raise self.refusal() or error
        self._seen.update(error.short, error.others)
        self._short.update(error.short)
        for node, pods in error.short.items():
            if not self._narrow(node, pods):
                self._avoided.add(node)
        if self._apart:
            self._fleet = self._whole.fleet.narrowed(self._apart)
        if self._looks == MOST_LOOKS:  # a last time, on nodes of which it is known by now what they have
            seen = self._picture.nodes.named(self._seen)
            self._rows = seen if self._rows is None else self._rows & seen

    @property
    def snapshot(self) -> Snapshot:
        """What the next search looks at."""
        return self._whole.among(self._rows).avoiding(self._avoided).offering(self._fleet)

    def deal(self) -> bool:
        """Say once, at last, which pods had rather have which GPUs; returns whether there is anything to say.

        The allocator, which knows no NICs, deals GPUs out as they are linked, and one pod may get those with NICs that
        two could share.
        """
        if self._dealt or not self._narrows:
            return False
        self._dealt = True
        for node, pods in self._pods.items():
            _, sets = self._offers(node, pods, deal=True)
            if len(sets) == len(pods):
                self.sets |= sets
                self._apart[node] = frozenset[int]().union(*(own.gpus for own in sets.values()))
        if not self.sets:
            return False
        self._avoided -= self._apart.keys()
        self._fleet = self._whole.fleet.narrowed(self._apart)
        return True

    def _narrow(self, node: str, pods: Mapping[Member, Mapping[str, int]]) -> bool:
        """Offer those GPUs of a node that can all have NICs; returns whether these are enough for any of its pods."""
        if not self._narrows or node in self._apart:
            return False
        self._pods[node] = pods
        offered, _ = self._offers(node, pods)
        if offered:
            self._apart[node] = offered
            return True
        if (
            self._remembers
            and sum(next(iter(pods.values())).values()) == self._least
            and node not in self._tries.starved
        ):
            self._remember(self._key, [node])
        return False

    def _offers(
        self, node: str, pods: Mapping[Member, Mapping[str, int]], *, deal: bool = False
    ) -> tuple[frozenset[int], dict[Member, Dealt]]:
        """Return GPUs of a node that can all have NICs, and a set of them for each pod, as far as they go."""
        assert self._ask is not None, "it demands something"
        known, left = self._picture.inventory.uuids(node), self._whole.fleet.free(node)
        are_alike = len({sum(pod.values()) for pod in pods.values()}) == 1
        offered: frozenset[int] = frozenset()
        sets: dict[Member, Dealt] = {}
        taken: set[Place] = set()
        for number, (member, pod) in enumerate(pods.items()):
            gpus = sum(pod.values())
            apart = nic_choice.gpus_apart(
                self._picture, self._ask, node, left, gpus,
                alone=number + 1 == len(pods), deal=deal, taken=taken, tries=self._tries,
            )  # fmt: skip
            if len(apart) < gpus:
                if number:  # with other GPUs for those before it there may be some
                    self._picture.nics.counts.looked(self._ask, node, ended=True)
                break
            offered |= apart
            if len(apart) > gpus and are_alike and not deal:  # any of them will do, and others none
                break
            mine = sorted(apart)[:gpus]
            sets[member] = Dealt(node, frozenset(mine))
            left = left - sets[member].gpus
            each = iter(mine)
            own = {name: [known[at] for at in itertools.islice(each, count)] for name, count in pod.items()}
            found = nic_choice.chosen(self._picture, self._ask, node, own, taken=taken, tries=self._tries)
            taken |= {(node, address) for some in (found or {}).values() for address in some}
        return offered, sets

    def _remember(self, key: Hashable, nodes: Collection[str]) -> None:
        self._learns = True
        self._picture.nics.counts.short.add(key, self._picture.nodes.named(nodes))

    def refusal(self) -> NoNicsError | None:
        """Return why there is no plan, where nodes were left out because of their NICs; None where none was."""
        if self._ask is None or not (self._looks or self._skips):
            return None
        if self._looks < MOST_LOOKS and not self._supposed:
            return nic_refusals.refusal(self._picture, self._ask)
        if self._looks < MOST_LOOKS:  # all others were looked at: these once more, when somebody asks again
            self._picture.nics.counts.short.forget_of(self._supposes)
        elif self._remembers:  # so that others are looked at, though in another plan these might do
            self._remember(self._supposes, self._short)
        if self._learns:
            self._picture.version += 1  # whoever asks again is told more: from here on
        return nic_refusals.unfinished(self._ask, "not all plans for the gang were looked at")


def asked(picture: Picture, wishes: Sequence[PlacementRequest]) -> NicAsk | None:
    """Return what those pods of a gang ask of NICs that ask for some; None where none does.

    Raises:
        NoPlaceError: What there is of NICs is not known yet.
        WordError: They ask for different NICs.
    """
    every = {nic_places.readable(picture, wish).nics for wish in wishes if wish.nics is not None}
    found = {ask for ask in every if ask is not None and ask.requests}
    if len(found) > 1:
        raise WordError(
            "the pods of the gang ask for different NICs beside their GPUs: give them one ResourceClaimTemplate"
        )
    return found.pop() if found else None


def column(picture: Picture, ask: NicAsk, fit: Bools) -> Ints:
    """Return how many NICs each of some nodes has for such pods: (rows, 1); none where it has too few for one.

    Where they must be near GPUs only those count that are near any: else a plan would be made on nodes without.
    """
    return picture.nics.counts.of(ask, fit, every=True)[:, np.newaxis]


def told(members: Sequence[Member]) -> str:
    """Return what pods of a gang want beside their GPUs, as a part of a reason."""
    asks = (member.wish.nics for member in members)
    ask = next((ask for ask in asks if ask is not None and ask.requests), None)
    if ask is None:
        return ""
    return f"; a pod wants {nic_refusals.wanted(ask)} {'near' if ask.near == NEAR_REQUIRED else 'beside'} its GPUs"


def chosen(picture: Picture, placed: Mapping[Member, tuple[str, Gpus]]) -> dict[Member, Chosen]:
    """Return the NICs of each member, given its node and its GPUs by the claim's requests.

    Raises:
        ShortError: Some members cannot have them beside their GPUs.
    """
    out: dict[Member, Chosen] = {}
    short: dict[str, dict[Member, dict[str, int]]] = {}
    ask: NicAsk | None = None
    taken, tries = set[Place](), Tries(every_node=True)
    for member, (node, gpus) in placed.items():
        if member.wish.nics is None:
            continue
        wish = nic_places.readable(picture, member.wish)
        found = nic_places.chosen(picture, wish, node, gpus, taken=taken, tries=tries)
        if found is None:
            assert wish.nics is not None, "it asks for some"
            ask, short[node] = wish.nics, {}
            continue
        out[member] = found
        taken |= {(node, address) for each in found.values() for address in each}
    if ask is not None:  # all of them at once: each would cost a plan of its own
        for member, (node, gpus) in placed.items():
            if node in short and member.wish.nics is not None and member.wish.nics.requests:
                short[node][member] = {name: len(own) for name, own in gpus.items()}
        others = {node for node, _ in placed.values()} - short.keys()
        raise ShortError(nic_refusals.refusal(picture, ask), short, others)
    return out
