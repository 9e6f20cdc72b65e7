"""Writes a decision for a workload, a single pod or the pods of a gang: all of it or nothing. The executor calls it.

A plan takes two writes for each pod: its claim is created, and then its gate is removed. No gate is removed before all
claims exist, so a plan that fails keeps no GPU from others. Each write is safe to repeat. If the writes stop half-way,
the API shows how far they came, and ``observe`` reads it there.

A *plan* is the chosen places (node and GPUs) of a workload's pods. A *gang barrier device* in a pod's claim keeps the
pod unbound until its whole gang can start. The *write lanes* limit for how many workloads the controller writes objects
at once.
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
    """The writes for each decision about a workload.

    The executor runs them. ``slot`` is always the right to write that the executor got for the workload.
    """

    def __init__(
        self, client: Client, writer: ApiWriter, picture: Picture, lanes: Lanes, placed: Placed, reasons: Reasons
    ) -> None:
        """Make an object that has written nothing.

        Args:
            client: The API server.
            writer: Makes single writes.
            picture: The cluster cache.
            lanes: Say whether the server is in trouble: then the writes of a gang follow one another.
            placed: Reports each placement.
            reasons: Removes the reasons of pods that do not wait any more.
        """
        self._client, self._writer, self._picture, self._lanes = client, writer, picture, lanes
        self._placed, self._reasons = placed, reasons

    async def place(self, plan: Mapping[Member, Placement], slot: Slot) -> None:
        """Write a plan: create its claims, then remove the gates of its pods.

        The cluster cache counts the claims already (``Picture.promise``). The gates are removed once all claims exist.
        A pod without this driver's gate only needs its claim, because the scheduler waits for the claim.

        If a claim cannot be created, the other claims of the plan are deleted again; ``_undo`` says when they stay.
        ``slot`` is the workload's right to write.

        Raises:
            MovedOnError: Something changed meanwhile; look again.
            CrowdedError: Other programs kept changing the namespace's quota.
            PausedError: The server wants a pause. Some claims exist; go on later.
            UnsureError: A claim may exist; read it from the server before any other write. Nothing was undone.
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
        """Undo a failed plan: stop counting its claims, and delete the claims that were created.

        They are not deleted if the task was cancelled, or if the server itself is in trouble. The next step of their
        pods then uses or deletes them.

        Args:
            plan: The plan.
            made: The claims of the plan that were created.
            error: Why the plan failed.
            slot: The workload's right to write.

        Raises:
            PausedError: The server wants a pause. The claims stay until the next step of their pods, after the pause.
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
        """Raise MovedOnError if a plan is not valid any more.

        It is not if one of its claims (``made``) is gone, or if other claims have got its GPUs.
        """
        if not all(map(self._picture.accounts.has, made)):
            raise MovedOnError("claims of it are gone again")
        for member, placement in plan.items():
            if conflicts.overtaken(self._picture, member.wish.claim, placement):
                raise MovedOnError(f"GPUs chosen on node {placement.node} were given to another claim meanwhile")

    async def open_gates(self, places: Mapping[Member, Placement], slot: Slot) -> None:
        """Remove the gates of the pods of ``places``, whose claims exist.

        If the server refuses this while all pods are gated, their claims are deleted, so that they keep no GPU from
        others. ``slot`` is the workload's right to write.

        Raises:
            MovedOnError: A pod was changed or deleted meanwhile.
            PausedError: The server wants a pause. Some gates are removed; go on later.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        await self._open(places, slot, asyncio.get_running_loop().time())

    async def _open(self, places: Mapping[Member, Placement], slot: Slot, began: float) -> None:
        """Do what ``open_gates`` does: remove the gates of the pods of ``places``.

        ``began`` is when the workload's writes began, by the event loop's clock. ``slot`` is the workload's right to
        write.
        """
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
        """Let a gated pod share the allocated claim of other pods, and remove its gate.

        ``placement`` names the claim; ``slot`` is the workload's right to write.

        Raises:
            MovedOnError: The claim or the pod was changed or deleted meanwhile.
            PausedError: The server wants a pause. The pod owns the claim now; remove its gate later.
            ApiError: The server refuses; the claim stays, because others use it.
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
        """Let kube-scheduler place a pod: create its claim and remove its gate.

        The claim is pinned to no GPU. It is created first: without a claim the scheduler reports nothing about the pod,
        and autoscalers would not see it. If ``has_claim``, it exists already. ``why`` is the reason to show on the pod;
        ``slot`` is the workload's right to write.

        Raises:
            MovedOnError: Something changed meanwhile; look again.
            CrowdedError: Other programs kept changing the namespace's quota.
            PausedError: The server wants a pause. The claim exists; remove the gate later.
            UnsureError: The claim may exist; read it from the server before any other write.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        reason = Reason(why.cause, f"Handed over to the scheduler. {why}")
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
        """Correct a pod's annotations, the owners of its claim, and nominated nodes.

        ``step`` says what to correct; ``slot`` is the workload's right to write. It raises MovedOnError if the pod or
        its claim was changed meanwhile, and otherwise the same errors as ``go``.
        """
        if step.joins is not None:
            await self._writer.owners.adopt(member.pod, step.joins.uid)
            slot.begin()
        if step.texts:
            await self._writer.pods.annotate(member.pod, step.texts)
        await self._each((partial(self._nominate, gated, None) for gated in step.unnominate), slot)

    async def go(self, claims: Iterable[ClaimRecord], slot: Slot) -> None:
        """Tell the scheduler that the pods of a gang may be bound.

        Until then, the gang barrier devices in these claims keep the pods unbound.

        ``slot`` is the workload's right to write.

        Raises:
            MovedOnError: A member lost its gang barrier device meanwhile.
            PausedError: The server wants a pause. Some claims are written; go on later.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        await self._each((partial(self._tell, claim, GO) for claim in claims), slot)

    async def release(self, claims: Iterable[ClaimRecord], slot: Slot) -> None:
        """Delete claims; have the scheduler release those with a gang barrier device.

        This device keeps the claim's pod unbound until the gang can start.

        The scheduler keeps a deleted claim with a gang barrier device until a condition on it says that the barrier is
        off. This condition is written after the deletion. Otherwise the scheduler would keep the same place for the pod
        again. If the claim still exists after both writes, no pod uses it, and a later call removes its finalizer.
        ``slot`` is the workload's right to write.

        Raises:
            MovedOnError: A claim was changed meanwhile.
            PausedError: The server wants a pause. Some claims are gone; go on later.
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
        """Raise if a pod of a claim is bound.

        The API server is asked, because the reflector may not have shown a binding yet.

        Raises:
            MovedOnError: A pod is bound.
            ApiError: The server refuses to answer.
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
        """Check that the next write for a workload may begin.

        It raises the same errors as ``ApiWriter.go_on``. ``slot`` is the workload's right to write.
        """
        self._writer.go_on(slot)

    async def stand(self, claims: Iterable[ClaimRecord]) -> bool:
        """Return whether the server still has all these claims, unallocated and not being deleted.

        It raises the same errors as ``ApiWriter.look``.
        """
        for claim in claims:
            known = await self._writer.look(claim.key)
            if known is None or known.uid != claim.uid or known.deleting or known.devices is not None:
                return False
        return True

    async def _nominate(self, member: Member, node: str | None) -> None:
        """Set ``nominatedNodeName`` of a pod to a node; None removes it.

        The scheduler then keeps the pod's CPU and memory on the node, and tries this node first. If the API server
        refuses this write, the pod stays unchanged, and the controller does not nominate it again.
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
            logger.warning(
                "Pod %s/%s: status.nominatedNodeName cannot be set to %s, so CPU and memory are not "
                "kept for it there: %s",
                namespace,
                name,
                node,
                error,
            )
            return
        self._picture.assume_pod(changed, was=pod)

    def _lives(self, member: Member) -> bool:
        """Return whether the cluster cache still has a member's pod, with the same uid."""
        pod = self._picture.pods.get(member.key)
        return pod is not None and pod.metadata.uid == member.uid

    def _now(self, member: Member) -> Pod:
        """Return the newest state of a member's pod from the cluster cache.

        If the pod is gone from the cache, return the member's own copy.
        """
        pod = self._picture.pods.get(member.key)
        return pod if pod is not None and pod.metadata.uid == member.uid else member.pod

    async def _each(self, actions: Iterable[several_writes.Action], slot: Slot) -> None:
        """Run the writes ``actions``, a few at once; then raise the worst error.

        ``slot`` is the workload's right to write.
        """
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
    """Return ``places`` as lists, in the order in which the scheduler must see the pods.

    There are one or two lists. The pods of one list can come in any order. Pods with required affinity are in the
    second list: the pods that they must be next to may be in the first. If the scheduler sees pods with affinity first,
    it refuses them, and tries them again only after minutes. The reason is that pods of a gang are kept unbound at
    first (gang barrier), and cause no event that makes it try sooner.
    """
    rules = {member: member.wish.rules for member in places}
    has_affinity = {member: some is not None and bool(some.together) for member, some in rules.items()}
    groups = ([item for item in places.items() if has_affinity[item[0]] == is_later] for is_later in (False, True))
    return [group for group in groups if group]
