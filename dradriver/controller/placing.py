"""One step of one gated pod: choose, create its claim, lift the gate."""

from __future__ import annotations

import asyncio

from dradriver.allocator.request import NoPlaceError
from dradriver.api import names
from dradriver.api.errors import WordError
from dradriver.api.objects import Pod
from dradriver.api.pins import Claim, pin
from dradriver.controller import metrics
from dradriver.controller.choosing import Chooser, Wish, read_wish
from dradriver.controller.cluster import Cluster
from dradriver.controller.writing import Writer


class Placer:
    """Places gated pods. Killed at any point and started again, it goes on from the claim that it finds."""

    def __init__(self, cluster: Cluster, chooser: Chooser, writer: Writer) -> None:
        self._cluster = cluster
        self._chooser = chooser
        self._writer = writer

    async def place(self, pod: Pod) -> None:
        """Create the pod's claim, unless it has one that is still right, and lift its gate.

        Raises:
            NoPlaceError: The pod waits.
            WordError: The pod cannot be placed as it is.
            MovedOnError: Something changed meanwhile; look again.
            ApiError: The server refused a write.
        """
        begun = asyncio.get_running_loop().time()
        wish = read_wish(pod)
        if others := [gate.name for gate in pod.spec.scheduling_gates if gate.name != names.GATE]:
            # A set that is promised to a pod which another gate still holds would be of use to nobody.
            raise NoPlaceError(f"waits for scheduling gate {others[0]} of another controller to be lifted first")
        claim = self._cluster.claims.get(wish.claim)
        if claim is None:
            choices = self._chooser.rank(pod, wish)
            await self._writer.create_claim(pod, wish, choices[0])
        else:
            self._check(claim, pod, wish)
            pinned = pin(claim)
            try:
                choices = self._chooser.rank(pod, wish) if pinned is None else self._chooser.held(pod, wish, pinned)
            except NoPlaceError:
                await self._drop(claim)  # a pod that waits keeps nothing from others
                raise
            if not self._chooser.matches(choices[0], pinned):
                await self._drop(claim)
                await self._writer.create_claim(pod, wish, choices[0])
        await self._writer.lift(pod, choices)
        metrics.PLACEMENTS.labels(choices[0].level.value).inc()
        metrics.DURATION.observe(asyncio.get_running_loop().time() - begun)

    async def _drop(self, claim: Claim) -> None:
        if claim.status.allocation is not None:
            # No scheduler gives devices to a gated pod: this picture of the pod is an old one, or somebody meddled.
            raise NoPlaceError(f"its claim {claim.metadata.name} was given other devices; delete this pod")
        await self._writer.delete_claim(claim)

    def _check(self, claim: Claim, pod: Pod, wish: Wish) -> None:
        if not claim.owned_by(pod.metadata.uid):
            raise WordError(
                f"claim {wish.claim[1]} belongs to somebody else; create the pod anew and let admission name its claim"
            )
        if claim.metadata.deletion_timestamp is not None:
            raise NoPlaceError(f"waits until its earlier claim {wish.claim[1]} is gone")
        strangers = [c.name for c in claim.status.reserved_for if c.uid != pod.metadata.uid]
        if strangers:
            raise WordError(f"claim {wish.claim[1]} is used by pod {strangers[0]}; it gives no GPUs to another")
