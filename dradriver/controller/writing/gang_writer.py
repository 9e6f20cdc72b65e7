"""Writes for all members of a gang: a plan as a whole or not at all, and the word that lets them be bound."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from dradriver.api.base import gang_barrier_device as seats
from dradriver.api.base.gang_barrier_device import GO, OFF
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Claim, Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import conflicts
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord, claim_record
from dradriver.controller.writing import several_writes
from dradriver.controller.writing.api_writer import ApiWriter
from dradriver.controller.writing.outcome import MovedOnError, Outcome, UnsureError, outcome
from dradriver.controller.writing.placed import Placed
from dradriver.controller.writing.reasons import Reasons
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client, PatchKind, Unreachable
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.queue.units import Member
from dradriver.queue.write_lanes import Lanes, Slot

logger = logging.getLogger(__name__)

AT_ONCE: Final = 8  # writes of one gang; it has one slot of those that all units share
MANAGER: Final = "gpu-topology-gang"  # of the seats' conditions: the node agents apply entries to the same list


class GangWriter:
    """Writes a gang's plans. Each write is safe to repeat; whatever is left half done the API shows."""

    def __init__(
        self, client: Client, writer: ApiWriter, picture: Picture, lanes: Lanes, placed: Placed, reasons: Reasons
    ) -> None:
        """Make one that has written nothing.

        Args:
            client: The API server.
            writer: Makes single writes.
            picture: The cluster.
            lanes: Say whether the server is in trouble: then the writes of a gang follow one another.
            placed: Told of each placement.
            reasons: Told of pods that do not wait any more.
        """
        self._client = client
        self._writer = writer
        self._picture = picture
        self._lanes = lanes
        self._placed = placed
        self._reasons = reasons

    async def commit(self, plan: Mapping[Member, Placement], slot: Slot) -> None:
        """Create the claims of a plan, and let the scheduler have the pods once all are there.

        The picture counts the claims of the plan already (``Picture.promise``).

        Raises:
            MovedOnError: Something changed meanwhile; look again.
            PausedError: Some claims are there; go on later.
            UnsureError: A claim may be there; ask the server before anything else.
            ApiError: The server refuses one; those that were made are gone again.
            Unreachable: No answer; the same.
        """
        made: list[ClaimRecord] = []

        async def create(member: Member, placement: Placement) -> None:
            if not member.pod.gated:
                # A new leader sees pods and claims by two reflectors: what came before may not have come to it yet.
                if await self._writer.look(member.wish.claim) is not None:
                    raise MovedOnError(f"claim {'/'.join(member.wish.claim)} exists already")
                # Once the claim exists the scheduler may seat the pod, and its annotations must be right by then.
                await self._writer.pods.annotate(member.pod, placement.texts)
            made.append(await self._writer.create(member.pod, member.wish, placement))

        try:
            await self._each((partial(create, member, placement) for member, placement in plan.items()), slot)
            if not all(map(self._picture.accounts.has, made)):  # while the creation of another hung
                raise MovedOnError("claims of its gang are gone again")
            for member, placement in plan.items():
                if conflicts.overtaken(self._picture, member.wish.claim, placement):
                    raise MovedOnError(f"GPUs chosen on node {placement.node} were given to another claim meanwhile")
        except UnsureError:
            raise
        except BaseException as error:
            for member in plan:
                self._picture.release(member.wish.claim)
            server = isinstance(error, DriverError) and outcome(error) is Outcome.SERVER
            if isinstance(error, Exception) and not (server or self._lanes.paused()):
                await self._each((partial(self._writer.withdraw, claim) for claim in made), slot)
            raise
        await self.lift({member: placement for member, placement in plan.items() if member.pod.gated}, slot)
        for member in plan:
            self._reasons.taken_away(member.key)

    async def lift(self, places: Mapping[Member, Placement], slot: Slot) -> None:
        """Take the gates from pods that have their claims; where no seat keeps them from being bound, together.

        Raises:
            MovedOnError: A pod was changed or deleted meanwhile.
            PausedError: Some are lifted; go on later.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        began = asyncio.get_running_loop().time()
        if not all(place.seat for place in places.values()):
            await self._each((partial(self._nominate, m, place.node) for m, place in places.items()), slot)
        claims = [member.wish.claim for member in places]
        try:
            await self._each((partial(self._lift, m, place, claims) for m, place in places.items()), slot)
        except (ApiError, Unreachable) as error:
            known = [self._picture.claims.get(claim) for claim in claims]
            if outcome(error) is Outcome.OBJECT and all(self._now(member).gated for member in places):
                # None is lifted, and none will be for a while: what they have is kept from nobody.
                back = [claim for claim in known if claim is not None and claim.devices is None and not claim.deleting]
                await self._each((partial(self._writer.withdraw, claim) for claim in back), slot)
            raise
        for member, place in places.items():
            self._placed.lifted(member, place, began)

    async def go(self, claims: Iterable[ClaimRecord], slot: Slot) -> None:
        """Tell seated members that they may be bound.

        Raises:
            MovedOnError: One lost its seat meanwhile.
            PausedError: Some are told; go on later.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        await self._each((partial(self._tell, claim, GO) for claim in claims), slot)

    async def give_back(self, claims: Iterable[ClaimRecord], slot: Slot) -> None:
        """Delete claims, and tell the scheduler to let go of those that have a seat; the pods stay as they are.

        A seated pod's claim that is deleted stays until the scheduler lets go of it, which it does at once when the
        seat is said to be off. Said of a claim that is not being deleted, it would take the same place again. One that
        is both and stays all the same nobody uses and nobody will: it goes without the scheduler.

        Raises:
            MovedOnError: A claim was changed meanwhile.
            PausedError: Some are gone; go on later.
            ApiError: The server refuses.
            Unreachable: No answer.
        """

        async def free(claim: ClaimRecord) -> None:
            off = claim.seat is not None and OFF in claim.seat.told
            if claim.seat is not None and (off or GO in claim.seat.told):
                await self._unbound(claim)
            if not claim.deleting:
                await self._writer.withdraw(claim)
            elif off:
                await self._writer.unprotect(claim)
            if claim.seat is not None and not off:
                await self._tell(claim, OFF)

        await self._each((partial(free, claim) for claim in claims), slot)

    async def _unbound(self, claim: ClaimRecord) -> None:
        """Make sure that no pod of a claim is bound, which its reflector may not have shown yet.

        Raises:
            MovedOnError: One is.
            ApiError: The server refuses to say.
            Unreachable: No answer.
        """
        for key in self._picture.claim_users.of(claim.key):
            pod = self._picture.pods.get(key)
            if pod is not None and await self._writer.pods.bound(pod):
                raise MovedOnError(f"pod {pod.metadata.name} is bound by now")

    async def _tell(self, claim: ClaimRecord, condition: str) -> None:
        assert claim.seat is not None, "asked of seats"
        namespace, name = claim.key
        body = seats.status(claim.metadata, claim.seat, condition, now=datetime.datetime.now(datetime.UTC))
        try:
            told = await self._client.patch(
                RESOURCE_CLAIMS, name, body, kind=PatchKind.APPLY, namespace=namespace, subresource="status",
                field_manager=MANAGER, type=Claim,
            )  # fmt: skip
        except ApiError as error:
            if error.not_found or error.conflict or error.invalid:  # of a seat that it has no more
                await self._writer.look(claim.key)
                raise MovedOnError(f"claim {namespace}/{name} was changed meanwhile") from None
            raise
        self._picture.assume_claim(claim_record(told))

    async def _lift(self, member: Member, place: Placement, claims: Iterable[Key]) -> None:
        for key in claims:  # one that hung for long may have been taken back, so that others get its GPUs
            if (claim := self._picture.claims.get(key)) is None or claim.deleting:
                raise MovedOnError(f"claim {'/'.join(key)} of its gang is gone again")
        pod = self._now(member)
        if pod.gated:  # another leader may have lifted it meanwhile
            await self._writer.pods.lift(pod, place)

    async def unnominate(self, members: Iterable[Member], slot: Slot) -> None:
        """Have nothing kept any more for gated members; the same errors as ``go``."""
        await self._each((partial(self._nominate, member, None) for member in members), slot)

    async def _nominate(self, member: Member, node: str | None) -> None:
        """Have the scheduler keep a gated pod's CPU and memory on its node; where we may not, it stays as it is."""
        pod = self._now(member)
        body = {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": node}}
        name, namespace = pod.metadata.name, pod.metadata.namespace
        try:
            changed = await self._client.patch(
                PODS, name, body, kind=PatchKind.MERGE, namespace=namespace, subresource="status", type=Pod
            )
        except ApiError as error:
            if error.status == 403:
                member.may_nominate = False
                logger.warning("pod %s/%s: its CPU is not kept on node %s: %s", namespace, name, node, error)
                return
            raise
        self._picture.assume_pod(changed, was=pod)

    def _now(self, member: Member) -> Pod:
        """Return a member's pod as it is known now, if it is the same one."""
        pod = self._picture.pods.get(member.key)
        return pod if pod is not None and pod.metadata.uid == member.uid else member.pod

    async def _each(self, actions: Iterable[several_writes.Action], slot: Slot) -> None:
        """Do all of some writes, a few at once. Raises the worst of what went wrong, once none is under way."""

        async def go_on(action: several_writes.Action) -> None:
            self._writer.go_on(slot)
            await action()

        at_once = 1 if self._lanes.troubled else AT_ONCE
        await several_writes.each((partial(go_on, action) for action in actions), at_once=at_once, on_error=self._heed)

    def _heed(self, error: Exception) -> None:
        if isinstance(error, ApiError) and error.retry_after_s and outcome(error) is Outcome.SERVER:
            self._lanes.failed(error)
