"""Lifted pods that are not bound yet: a pin that cannot be had any more is replaced within the pod's nodes.

After its gate is lifted nothing about a pod's nodes can change, but a claim that is not allocated can be deleted and
created again under the same name. kube-scheduler allocates the new one as soon as it sees it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Collection

import msgspec

from dradriver.allocator.request import NoPlaceError
from dradriver.api import results
from dradriver.api.objects import Pod
from dradriver.api.pins import Claim, claim_key, pin
from dradriver.controller import metrics
from dradriver.controller.choosing import Chooser, Wish, read_wish
from dradriver.controller.cluster import Cluster
from dradriver.controller.writing import Writer


class Cause(enum.StrEnum):
    """Why a claim is made anew; the values are metric labels."""

    MISSING = "missing"  # somebody deleted it
    TAKEN = "taken"  # another claim was given one of its devices
    GONE = "gone"  # one of its devices is not offered any more
    DAMAGED = "damaged"  # nobody knows any more what it stands for
    UNSCHEDULABLE = "unschedulable"  # the scheduler finds the node infeasible, whatever we think of it


class _Patience(msgspec.Struct):
    """What is known of one pod: the claim last seen unschedulable, since when, and how often it was made anew."""

    claim: str = ""
    since: float = 0.0
    renewals: int = 0


class Renewer:
    """Looks after lifted pods until they are bound."""

    def __init__(self, cluster: Cluster, chooser: Chooser, writer: Writer, *, patience_s: float) -> None:
        """``patience_s``: how long a pod may be unschedulable before it is moved; doubled with every renewal."""
        self._cluster = cluster
        self._chooser = chooser
        self._writer = writer
        self._patience_s = patience_s
        self._known: dict[str, _Patience] = {}

    def keep(self, uids: Collection[str]) -> None:
        """Forget all pods but these."""
        for uid in self._known.keys() - set(uids):
            del self._known[uid]

    async def look(self, pod: Pod) -> float | None:
        """Make the pod's claim anew if it has to be. Returns the seconds after which to look again (None: an event).

        Raises:
            NoPlaceError: It has to be, but there is no other set on the pod's nodes.
            WordError: The pod was changed into something that cannot be placed.
            MovedOnError: Something changed meanwhile; look again.
            ApiError: The server refused a write.
        """
        if pod.spec.node_name:
            await self._writer.tell(pod, None)
            return None
        if pod.status.nominated_node_name:
            return None  # its victims are ending, or the scheduler is binding it
        key = claim_key(pod)
        claim = self._cluster.claims.get(key) if key is not None else None
        if claim is not None and not claim.owned_by(pod.metadata.uid):
            raise NoPlaceError(f"claim {claim.metadata.name} belongs to somebody else; delete this pod")
        if claim is not None and (claim.status.allocation is not None or claim.metadata.deletion_timestamp is not None):
            return None
        cause, wait_s = self._cause(pod, claim)
        if cause is None:
            await self._writer.tell(pod, None)
            return wait_s
        await self._renew(pod, read_wish(pod), claim, cause)
        return None

    def _cause(self, pod: Pod, claim: Claim | None) -> tuple[Cause | None, float | None]:
        """Return why the claim has to be made anew, or how long to wait before that could be so."""
        if claim is None:
            return Cause.MISSING, None
        pinned = pin(claim)
        if pinned is None:
            return Cause.DAMAGED, None
        inventory = self._cluster.inventory
        for device in sorted(pinned.devices):
            for other in inventory.holders(device) - {claim.key}:
                if self._cluster.claims[other].status.allocation is not None:
                    return Cause.TAKEN, None
            if inventory.usable(device) is False:
                return Cause.GONE, None
        if not any(
            c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
            for c in pod.status.conditions
        ):
            self._known.get(pod.metadata.uid, _Patience()).claim = ""
            return None, None
        now = asyncio.get_running_loop().time()
        known = self._known.setdefault(pod.metadata.uid, _Patience())
        if known.claim != claim.metadata.uid:
            known.claim, known.since = claim.metadata.uid, now
        # Doubled each time: a pod that fits nowhere for reasons only the scheduler sees must not go round and round.
        left = known.since + self._patience_s * 2.0 ** min(known.renewals, 6) - now
        return (None, left) if left > 0 else (Cause.UNSCHEDULABLE, None)

    async def _renew(self, pod: Pod, wish: Wish, claim: Claim | None, cause: Cause) -> None:
        pinned = pin(claim) if claim is not None else None
        avoid = pinned.choice.node if pinned is not None and cause is Cause.UNSCHEDULABLE else ""
        try:
            choice = self._chooser.rank_again(pod, wish, avoid=avoid)[0]
        except NoPlaceError as error:
            raise NoPlaceError(
                f"{_WORDS[cause]}, and the nodes that this pod was placed for have no other set: {error}; "
                "delete the pod to have it placed anew"
            ) from None
        if claim is not None:
            await self._writer.delete_claim(claim)
        # The annotations first: once the claim exists the scheduler may bind the pod, and they must be right by then.
        machine = self._cluster.inventory.machine(choice.node)
        assert machine is not None, "a choice is made from the machines of the inventory"
        await self._writer.annotate(pod, results.written(choice, machine))
        await self._writer.create_claim(pod, wish, choice)
        known = self._known.setdefault(pod.metadata.uid, _Patience())
        known.renewals += 1
        metrics.RENEWALS.labels(cause.value).inc()


_WORDS = {
    Cause.MISSING: "its claim was deleted",
    Cause.TAKEN: "another claim was given one of its GPUs",
    Cause.GONE: "one of its GPUs is not offered any more",
    Cause.DAMAGED: "its claim's notes were changed",
    Cause.UNSCHEDULABLE: "the scheduler finds no room on its node",
}
