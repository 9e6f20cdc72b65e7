"""One pod's wish and the places for it, best first. Decides; writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.allocator.request import Choice, NoPlaceError, Request
from dradriver.api import names, resolved, results
from dradriver.api.errors import WordError
from dradriver.api.objects import Pod
from dradriver.api.pins import Key, Pin, claim_key
from dradriver.controller.capacity import request_of
from dradriver.controller.cluster import Cluster

MOST_NODES: Final = 8  # binding slows down beyond: 126 pods/s with 8 nodes, 100 with 16, 58 with 64


class Wish(msgspec.Struct, frozen=True):
    """What a pod asks for: the request, the containers that it is split over, and the claim that will hold it."""

    request: Request
    containers: tuple[str, ...]
    claim: Key


def read_wish(pod: Pod) -> Wish:
    """Return what a placed pod asks for.

    Raises:
        WordError: What the webhook admitted was changed since into something that cannot be placed.
    """
    noted = resolved.read(pod.metadata.annotations)
    known = {c.name for c in (*pod.spec.init_containers, *pod.spec.containers)}
    if strangers := sorted(set(noted.containers) - known):
        raise WordError(f"{names.REQUEST}: the pod has no container {strangers[0]!r}; create the pod anew")
    key = claim_key(pod)
    if key is None:
        raise WordError(f"spec.resourceClaims has no entry {names.POD_CLAIM} with a claim's name; create the pod anew")
    return Wish(noted.request, tuple(noted.containers), key)


class Chooser:
    """Ranks places for pods.

    Within one pass a wish that found no place is not tried again for the next pod that is alike: placing takes places
    away and never adds any.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._failed: dict[bytes, str] = {}

    def begin(self) -> None:
        """Start a pass: what failed before may succeed now."""
        self._failed.clear()

    def rank(self, pod: Pod, wish: Wish) -> list[Choice]:
        """Return the best set on each of up to 8 nodes, best node first, for a pod that is placed the first time.

        Raises:
            NoPlaceError: Nothing fits; the message says why, and which nodes were left out.
        """
        alike = _likeness(pod, wish)
        if (told := self._failed.get(alike)) is not None:
            raise NoPlaceError(told)
        fit, causes = self._cluster.eligible(pod)
        try:
            return self._rank(wish, fit, causes)
        except NoPlaceError as error:
            self._failed[alike] = str(error)
            raise

    def rank_again(self, pod: Pod, wish: Wish, *, avoid: str = "") -> list[Choice]:
        """Return the places for a lifted pod: its affinity already keeps it on its nodes.

        What its present claim holds counts as free, and so does what the pod takes from its node.

        Args:
            pod: The lifted pod.
            wish: Its wish.
            avoid: A node that the scheduler finds infeasible.

        Raises:
            NoPlaceError: Nothing fits on its nodes.
        """
        fit, causes = self._cluster.eligible(pod, again=True)
        with self._cluster.inventory.without(wish.claim):
            return self._rank(wish, [name for name in fit if name != avoid], causes)

    def held(self, pod: Pod, wish: Wish, pinned: Pin) -> list[Choice]:
        """Return the places for a gated pod that has a claim: the claim's own first, if it is still right.

        The claim was left by a crash or by a conflict between its creation and the lifting of the gate. It is of use
        only if its GPUs are what the pod would get on that node now: the pod's annotations may have changed since.

        Raises:
            NoPlaceError: Nothing fits, the claim's own GPUs included.
        """
        fit, causes = self._cluster.eligible(pod)
        with self._cluster.inventory.without(wish.claim):
            choices = self._rank(wish, fit, causes)
            node = pinned.choice.node
            if node not in fit:
                return choices
            try:
                mine = self._rank(wish, [node], causes)[0]
            except NoPlaceError:
                return choices
        if not self.matches(mine, pinned):
            return choices
        return [mine, *(choice for choice in choices if choice.node != node)][:MOST_NODES]

    def matches(self, choice: Choice, pinned: Pin | None) -> bool:
        """Return whether a choice is the very set that a claim is pinned to."""
        if pinned is None or choice.node != pinned.choice.node:
            return False
        uuids = self.uuids(choice)
        return sorted(uuids[index] for index in choice.gpus) == sorted(pinned.uuids) and (
            choice.containers == pinned.choice.containers
        )

    def uuids(self, choice: Choice) -> dict[int, str]:
        """Return the uuids of the GPUs of a choice's node by the machine's own number."""
        machine = self._cluster.inventory.machine(choice.node)
        assert machine is not None, "a choice is made from the machines of the inventory"
        return results.uuid_of(machine)

    def _rank(self, wish: Wish, fit: list[str], causes: Mapping[str, int]) -> list[Choice]:
        left_out = ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items()))
        fleet = self._cluster.inventory.fleet
        if not fit:
            if not fleet.nodes:
                raise NoPlaceError("no node offers GPUs of this driver")
            raise NoPlaceError(f"no node with GPUs can run this pod: {left_out or 'none is left'}")
        try:
            return fleet.rank(wish.request, eligible=fit, limit=MOST_NODES)
        except NoPlaceError as error:
            raise NoPlaceError(f"{error}; nodes left out: {left_out}" if left_out else str(error)) from None


def _likeness(pod: Pod, wish: Wish) -> bytes:
    spec = pod.spec
    return msgspec.json.encode(
        (wish.request, spec.node_selector, spec.affinity, spec.tolerations, sorted(request_of(pod).items()))
    )
