"""Writes what was decided for a workload, for one pod or the pods of a gang: all of it or nothing.

A plan takes two writes for each pod: its claim is created, and then its gate is removed. No gate is removed before all
claims are there, so a plan that fails keeps no GPU from others. Each write is safe to repeat; the API shows whatever is
left half done, and ``observe`` reads it there.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.gang_barrier_device import GO, OFF
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Claim
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import conflicts
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord, claim_record
from dradriver.controller.steps.actions import Settle
from dradriver.controller.writing import several_writes
from dradriver.controller.writing.api_writer import ApiWriter
from dradriver.controller.writing.placed import Placed
from dradriver.controller.writing.reasons import Reasons
from dradriver.controller.writing.write_outcome import MovedOnError, Outcome, UnsureError, outcome
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client, PatchKind, Unreachable
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.queue.pending import Member
from dradriver.queue.write_lanes import Lanes, Slot
from dradriver.reason import Reason

logger = logging.getLogger(__name__)

AT_ONCE: Final = 8  # writes of one gang; it has one slot of those that all workloads share
MANAGER: Final = "gpu-topology-gang"  # of the seats' conditions: the node agents apply entries to the same list


class Commit:
    """The writes of workloads. The executor runs them, each with a slot of its own."""

    def __init__(
        self, client: Client, writer: ApiWriter, picture: Picture, lanes: Lanes, placed: Placed, reasons: Reasons
    ) -> None:
        """Make one that has written nothing.

        Args:
            client: The API server.
            writer: Makes single writes.
            picture: The cluster cache.
            lanes: Say whether the server is in trouble: then the writes of a gang follow one another.
            placed: Told of each placement.
            reasons: Told of pods that do not wait any more.
        """
        self._client, self._writer, self._picture, self._lanes = client, writer, picture, lanes
        self._placed, self._reasons = placed, reasons

    async def place(self, plan: Mapping[Member, Placement], slot: Slot) -> None:
        """Commit a plan: create its claims, then remove the gates of its pods.

        The gates are removed once all claims exist. The cluster cache counts the claims already (``Picture.promise``).
        A pod that has no gate any more only needs its claim: the scheduler waits for the claim.

        The cluster cache counts the claims already (``Picture.promise``). A pod that has no gate any more only needs
        its claim: the scheduler waits for the claim.

        If a claim cannot be created, the others are deleted again; ``_undo`` says when they stay.

        Raises:
            MovedOnError: Something changed meanwhile; look again.
            PausedError: The server wants a pause. Some claims are there; go on later.
            UnsureError: A claim may be there; ask the server before anything else. Nothing was undone.
            ApiError: The server refuses a write.
            Unreachable: No answer.
        """
        made: list[ClaimRecord] = []
        # Single pods, and pods that come late to a gang which has started and so does not gather its pods any more.
        placed_alone = [member for member in plan if not self._picture.gangs.gathers(member.key)]

        async def create(member: Member, placement: Placement) -> None:
            if not member.pod.gated:
                # A new leader sees pods and claims by two reflectors: its predecessor's claim may not have come yet.
                if await self._writer.look(member.wish.claim) is not None:
                    raise MovedOnError(f"claim {'/'.join(member.wish.claim)} exists already")
                if not self._lives(member):  # its deletion was seen while the server was asked
                    raise MovedOnError(f"pod {'/'.join(member.key)} is gone")
                self._writer.go_on(slot)  # before each further write: raises if the server wants a pause
                # Once the claim exists the scheduler may bind the pod, and its annotations must be right by then. The
                # reason stays if the scheduler refused the pod before: it may refuse this node, too.
                kept = {names.REASON} if self._reasons.placed_again(member.pod) else set()
                texts = {key: text for key, text in placement.texts.items() if key not in kept}
                await self._writer.pods.annotate(member.pod, texts)
                self._writer.go_on(slot)
                if not placement.hostnames:
                    await self._nominate(member, placement.node)
                    self._writer.go_on(slot)
            made.append(await self._writer.create(member.pod, member.wish, placement))

        began = asyncio.get_running_loop().time()
        try:
            for places in _in_order(plan):  # pods with required affinity after the others
                await self._each((partial(create, member, placement) for member, placement in places), slot)
            self._check(plan, made)  # whether the claims and GPUs are still the plan's: a creation may hang for long
            # The pods that a late pod came to have ended meanwhile: it must start with all others of its gang.
            if any(self._picture.gangs.gathers(member.key) for member in placed_alone):
                raise MovedOnError("its gang is to begin as a whole")
        except UnsureError:
            raise
        except BaseException as error:
            await self._undo(plan, made, error, slot)
            raise
        if gated := {member: placement for member, placement in plan.items() if member.pod.gated}:
            self._writer.go_on(slot)
            await self._open(gated, slot, began)

    async def _undo(
        self, plan: Mapping[Member, Placement], made: Collection[ClaimRecord], error: BaseException, slot: Slot
    ) -> None:
        """Undo a plan that failed: count its claims no more, and delete those that were made.

        They are not deleted if the task was cancelled, or if the server itself is in trouble. The next look at their
        pods goes on with them or deletes them.

        Args:
            plan: The plan.
            made: The claims of it that were made.
            error: Why it failed.
            slot: The slot of its writes.

        Raises:
            PausedError: The server wants a pause. The claims stay, too, and are looked at after it.
        """
        for member in plan:
            self._picture.release(member.wish.claim)
        is_cancelled = not isinstance(error, Exception)
        is_server_in_trouble = isinstance(error, DriverError) and outcome(error) is Outcome.SERVER
        if not made or is_cancelled or is_server_in_trouble:
            return
        self._writer.go_on(slot)
        back = [claim for claim in made if self._picture.accounts.has(claim)]
        await self._each((partial(self._writer.withdraw, claim) for claim in back), slot)

    def _check(self, plan: Mapping[Member, Placement], made: Iterable[ClaimRecord]) -> None:
        """Raise MovedOnError if the plan does not hold any more: claims are gone, or others have its GPUs."""
        if not all(map(self._picture.accounts.has, made)):
            raise MovedOnError("claims of it are gone again")
        for member, placement in plan.items():
            if conflicts.overtaken(self._picture, member.wish.claim, placement):
                raise MovedOnError(f"GPUs chosen on node {placement.node} were given to another claim meanwhile")

    async def open_gates(self, places: Mapping[Member, Placement], slot: Slot) -> None:
        """Commit placements whose claims exist: remove the gates of their pods.

        If that is refused while all are gated, their claims are deleted, so that they keep no GPU from others.

        Raises:
            MovedOnError: A pod was changed or deleted meanwhile.
            PausedError: Some gates are gone; go on later.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        await self._open(places, slot, asyncio.get_running_loop().time())

    async def _open(self, places: Mapping[Member, Placement], slot: Slot, began: float) -> None:
        """Do what ``open_gates`` does; ``began`` is when the workload's writes began, by the loop's clock."""
        claims = [member.wish.claim for member in places]
        # Also the last gate of a gang that has not started: its other pods wait for this one.
        is_gang = any(self._picture.gangs.gathers(member.key) for member in places)
        # Without gang barriers (``seat``) the first pods of a gang can be bound before the others. A nomination has the
        # scheduler keep CPU and memory for those. A pod that is not confined to nodes (no ``hostnames``) costs the
        # scheduler less if it need not look at all nodes.
        has_no_barrier = is_gang and not all(place.seat for place in places.values())
        nominated = [member for member, place in places.items() if has_no_barrier or not place.hostnames]
        await self._each((partial(self._nominate, member, places[member].node) for member in nominated), slot)

        async def remove_gate(member: Member, placement: Placement) -> None:
            for key in claims:  # one whose creation hung may have been revoked, so that others get its GPUs
                if (claim := self._picture.claims.get(key)) is None or claim.deleting:
                    raise MovedOnError(f"claim {'/'.join(key)} is gone again")
            # Other writes of a gang change its pods meanwhile, as a nomination does. Any other pod must be the one that
            # was decided about.
            pod = self._now(member) if is_gang or member in nominated else member.pod
            if pod.gated:  # another leader may have removed it meanwhile. ``lift`` refuses a pod that has changed.
                await self._writer.pods.lift(pod, placement)

        try:
            for some_places in _in_order(places):
                await self._each((partial(remove_gate, member, place) for member, place in some_places), slot)
        except (ApiError, Unreachable) as error:
            # After a conflict or timeout some gates of a gang may be gone although no answer came.
            concern = outcome(error)
            is_refused = concern is Outcome.OBJECT or (concern is Outcome.MOMENT and not is_gang)
            if is_refused and all(self._now(member).gated for member in places):  # delete the claims
                self._writer.go_on(slot)  # after a pause the gates are tried again, and not after the back-off
                known_claims = (self._picture.claims.get(claim) for claim in claims)
                to_delete = [claim for claim in known_claims if claim and claim.devices is None and not claim.deleting]
                await self._each((partial(self._writer.withdraw, claim) for claim in to_delete), slot)
            raise
        for member, placement in places.items():
            self._placed.lifted(member, placement, began)
            self._reasons.taken_away(member.key)

    async def join(self, member: Member, placement: Placement, slot: Slot) -> None:
        """Commit that a gated pod shares the allocated claim of other pods: remove its gate.

        Raises:
            MovedOnError: The claim or the pod was changed or deleted meanwhile.
            PausedError: The claim is the pod's; remove its gate later.
            ApiError: The server refuses; the claim, which others use, stays.
            Unreachable: No answer.
        """
        began = asyncio.get_running_loop().time()
        try:
            claim = await self._writer.owners.adopt(member.pod, placement.joins)
            if claim.deleting or claim.devices is None:
                raise MovedOnError(f"claim {'/'.join(claim.key)} was given back meanwhile")
            self._writer.go_on(slot)
            await self._writer.pods.lift(member.pod, placement)
        finally:
            self._picture.joined(member.key)
        self._placed.lifted(member, placement, began)
        self._reasons.taken_away(member.key)

    async def hand_over(self, member: Member, why: Reason, slot: Slot, *, has_claim: bool) -> None:
        """Commit that kube-scheduler places a pod for which there is no place, by a claim that is pinned to no GPU.

        The claim comes first: of a pod without its claim the scheduler says nothing, and autoscalers would not see it.

        Raises:
            MovedOnError: Something changed meanwhile; look again.
            PausedError: The claim is there; remove the gate later.
            UnsureError: The claim may be there; ask the server before anything else.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        reason = Reason(why.cause, f"handed over to the scheduler: {why}")
        if not has_claim:
            await self._writer.create_handed_over(member.pod, member.wish)
            self._writer.go_on(slot)
        if member.pod.gated:
            await self._writer.pods.hand_over(member.pod, reason.text)
            self._reasons.taken_away(member.key)
        else:
            self._reasons.want(member.pod, reason)
        logger.info("pod %s/%s: handed over to the scheduler: %s", *member.key, why)

    async def settle(self, member: Member, step: Settle, slot: Slot) -> None:
        """Commit corrections of what is not true any more of pods. It raises what ``go`` raises."""
        if step.joins is not None:
            await self._writer.owners.adopt(member.pod, step.joins.uid)
            slot.begin()
        if step.texts:
            await self._writer.pods.annotate(member.pod, step.texts)
        await self._each((partial(self._nominate, gated, None) for gated in step.unnominate), slot)

    async def go(self, claims: Iterable[ClaimRecord], slot: Slot) -> None:
        """Commit that seated members may be bound: tell the scheduler.

        Raises:
            MovedOnError: One lost its seat meanwhile.
            PausedError: Some are told; go on later.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        await self._each((partial(self._tell, claim, GO) for claim in claims), slot)

    async def release(self, claims: Iterable[ClaimRecord], slot: Slot) -> None:
        """Commit a release: delete claims, and free those with a gang barrier device.

        The scheduler keeps a deleted claim with a gang barrier until a condition says that the barrier is off. The
        condition comes after the deletion: else the scheduler would take the same place again. If a claim is deleted
        and off and still exists, no pod uses it, and its finalizer is removed here.

        Raises:
            MovedOnError: A claim was changed meanwhile.
            PausedError: Some are gone; go on later.
            ApiError: The server refuses.
            Unreachable: No answer.
        """

        async def release_one(claim: ClaimRecord) -> None:
            is_off = claim.seat is not None and OFF in claim.seat.told
            # 1. Once the scheduler was told anything, the pod may be bound already.
            if claim.seat is not None and (is_off or GO in claim.seat.told):
                await self._unbound(claim)
            # 2. Delete the claim, or help the deletion on if the scheduler did not.
            if not claim.deleting:
                await self._writer.withdraw(claim)
            elif is_off:
                await self._writer.unprotect(claim)
            # 3. Have the scheduler let go of it.
            if claim.seat is not None and not is_off:
                await self._tell(claim, OFF)

        await self._each((partial(release_one, claim) for claim in claims), slot)

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
        now = datetime.datetime.now(datetime.UTC)
        body = gang_barrier_device.status(claim.metadata, claim.seat, condition, now=now)
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

    def go_on(self, slot: Slot) -> None:
        """Check before the next write of a commit that it may go on. It raises what ``ApiWriter.go_on`` raises."""
        self._writer.go_on(slot)

    async def stand(self, claims: Iterable[ClaimRecord]) -> bool:
        """Return whether committed placements still exist at the server. It raises what ``ApiWriter.look`` raises."""
        for claim in claims:
            known = await self._writer.look(claim.key)
            if known is None or known.uid != claim.uid or known.deleting or known.devices is not None:
                return False
        return True

    async def _nominate(self, member: Member, node: str | None) -> None:
        """Have the scheduler keep a pod's CPU and memory on its node, and try this node first; None for no node.

        If the controller may not write the status of pods, the pod stays as it is.
        """
        pod = self._now(member)
        body = {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": node}}
        name, namespace = pod.metadata.name, pod.metadata.namespace
        try:
            changed = await self._client.patch(
                PODS, name, body, kind=PatchKind.MERGE, namespace=namespace, subresource="status", type=Pod
            )
        except ApiError as error:
            if outcome(error) is Outcome.SERVER or error.not_found:
                raise
            # A nomination only helps the scheduler, so no pod waits because a policy or a webhook refuses it.
            member.may_nominate = False
            logger.warning("pod %s/%s: its CPU is not kept on node %s: %s", namespace, name, node, error)
            return
        self._picture.assume_pod(changed, was=pod)

    def _lives(self, member: Member) -> bool:
        """Return whether a member's pod is in the cluster cache still."""
        pod = self._picture.pods.get(member.key)
        return pod is not None and pod.metadata.uid == member.uid

    def _now(self, member: Member) -> Pod:
        """Return a member's pod as it is known now, if it is the same one."""
        pod = self._picture.pods.get(member.key)
        return pod if pod is not None and pod.metadata.uid == member.uid else member.pod

    async def _each(self, actions: Iterable[several_writes.Action], slot: Slot) -> None:
        """Do all of some writes, a few at once. Raises the worst of what went wrong, once none is under way."""
        all_actions = list(actions)
        if len(all_actions) == 1:
            await all_actions[0]()
            return

        async def go_on(action: several_writes.Action) -> None:
            self._writer.go_on(slot)
            await action()

        steps = (partial(go_on, action) for action in all_actions)
        await several_writes.each(steps, at_once=1 if self._lanes.troubled else AT_ONCE, on_error=self._heed)

    def _heed(self, error: Exception) -> None:
        if isinstance(error, ApiError) and error.retry_after_s and outcome(error) is Outcome.SERVER:
            self._lanes.failed(error)


def _in_order(places: Mapping[Member, Placement]) -> list[list[tuple[Member, Placement]]]:
    """Return placements in the order in which the scheduler must see the pods; those of one list in any order.

    A pod with required affinity comes after the pods that it may have to be next to. If the scheduler refuses it before
    these are placed, it looks at it again only after minutes: pods at the gang barrier cause no event that wakes it.
    """
    rules = {member: member.wish.rules for member in places}
    has_affinity = {member: some is not None and bool(some.together) for member, some in rules.items()}
    groups = ([item for item in places.items() if has_affinity[item[0]] == is_later] for is_later in (False, True))
    return [group for group in groups if group]
