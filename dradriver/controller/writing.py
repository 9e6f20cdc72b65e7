"""The writes: claims and pods. Each is safe to repeat, and each is refused by the server if the object moved on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from dradriver.allocator.request import Choice
from dradriver.api import affinity, claims, names, results
from dradriver.api.jsonpatch import Patch
from dradriver.api.objects import Pod
from dradriver.api.pins import Claim, Key, kept_env
from dradriver.controller.choosing import Wish
from dradriver.controller.cluster import Cluster
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS

logger = logging.getLogger(__name__)

LONGEST_REASON: Final = 1024


class MovedOnError(DriverError):
    """Another writer was first. A reflector will show what it wrote; then the pod is looked at again."""

    reason = "MovedOn"


def in_trouble(error: ApiError) -> bool:
    """Return whether a refusal says something about the server, or about us, and not about one object."""
    return error.status in (401, 408, 429) or error.status >= 500


class Writer:
    """Writes decisions to the API server, and into the live picture at once."""

    def __init__(self, client: Client, cluster: Cluster) -> None:
        self._client = client
        self._cluster = cluster

    async def create_claim(self, pod: Pod, wish: Wish, choice: Choice) -> None:
        """Create the pod's claim, pinned to a choice.

        Raises:
            MovedOnError: A claim of that name exists; it is part of the live picture now.
            ApiError: The server refuses, as a quota makes it do.
        """
        machine = self._cluster.inventory.machine(choice.node)
        assert machine is not None, "a choice is made from the machines of the inventory"
        body = claims.pinned(
            pod,
            choice,
            requests=wish.containers,
            uuids=results.uuid_of(machine),
            keep_env=kept_env(pod, frozenset(wish.containers)),
        )
        namespace, name = wish.claim
        try:
            claim = await self._client.create(RESOURCE_CLAIMS, body, namespace=namespace, type=Claim)
        except ApiError as error:
            if not error.already_exists:
                raise
            await self._look_at_claim(wish.claim)
            raise MovedOnError(f"claim {namespace}/{name} exists already") from None
        self._cluster.assume_claim(claim)
        logger.info(
            "pod %s/%s: claim %s pinned to GPUs %s of node %s",
            namespace,
            pod.metadata.name,
            name,
            list(choice.gpus),
            choice.node,
        )

    async def delete_claim(self, claim: Claim) -> None:
        """Delete a claim as it was seen.

        Raises:
            MovedOnError: It is another one by now, or was changed: the scheduler may be giving it devices.
        """
        namespace, name = claim.key
        try:
            await self._client.delete(
                RESOURCE_CLAIMS,
                name,
                namespace=namespace,
                uid=claim.metadata.uid,
                resource_version=claim.metadata.resource_version,
            )
        except ApiError as error:
            if not error.conflict:
                raise
            raise MovedOnError(f"claim {namespace}/{name} was changed meanwhile") from None

    async def lift(self, pod: Pod, choices: Sequence[Choice]) -> None:
        """Take our gate from a pod: narrow it to the choices' nodes and note the first choice, all in one patch.

        Raises:
            MovedOnError: The pod was changed or deleted meanwhile.
        """
        first = choices[0]
        machine = self._cluster.inventory.machine(first.node)
        assert machine is not None, "a choice is made from the machines of the inventory"
        gate = next(i for i, gate in enumerate(pod.spec.scheduling_gates) if gate.name == names.GATE)
        notes = {names.AFFINITY: affinity.note(pod)} | results.written(first, machine)
        patch = Patch().test("metadata", "resourceVersion", value=pod.metadata.resource_version)
        affinity.narrow(pod, {choice.node: self._hostname(choice.node) for choice in choices}, patch)
        for key, value in notes.items():
            if value is not None:
                patch.add("metadata", "annotations", key, value=value)
            elif key in pod.metadata.annotations:
                patch.remove("metadata", "annotations", key)
        patch.test("spec", "schedulingGates", gate, "name", value=names.GATE)
        patch.remove("spec", "schedulingGates", gate)
        name, namespace = pod.metadata.name, pod.metadata.namespace
        try:
            lifted = await self._client.patch(PODS, name, patch, kind=PatchKind.JSON, namespace=namespace, type=Pod)
        except ApiError as error:
            if await self._moved_on(pod, error):
                raise MovedOnError(f"pod {namespace}/{name} was changed meanwhile") from None
            raise
        self._cluster.assume_pod(lifted, was=pod)

    async def annotate(self, pod: Pod, changes: Mapping[str, str | None]) -> bool:
        """Set annotations of a pod, and remove those that are None. Returns whether there was anything to change.

        Raises:
            MovedOnError: There is another pod of that name by now, or none.
        """
        news = {key: value for key, value in changes.items() if pod.metadata.annotations.get(key) != value}
        if not news:
            return False
        body = {"metadata": {"uid": pod.metadata.uid, "annotations": news}}
        name, namespace = pod.metadata.name, pod.metadata.namespace
        try:
            changed = await self._client.patch(PODS, name, body, kind=PatchKind.MERGE, namespace=namespace, type=Pod)
        except ApiError as error:
            if await self._moved_on(pod, error):
                raise MovedOnError(f"pod {namespace}/{name} was changed meanwhile") from None
            raise
        if not changed.gated:
            self._cluster.assume_pod(changed, was=pod)
        return True

    async def tell(self, pod: Pod, reason: str | None) -> bool:
        """Write on a pod why it waits, or take that away. Returns whether that was a change."""
        text = reason if reason is None or len(reason) <= LONGEST_REASON else reason[: LONGEST_REASON - 3] + "..."
        try:
            return await self.annotate(pod, {names.REASON: text})
        except MovedOnError as error:
            logger.debug("no reason written: %s", error)
            return False

    def _hostname(self, node: str) -> str:
        known = self._cluster.nodes.get(node)
        return node if known is None else known.metadata.labels.get(affinity.HOSTNAME, node)

    async def _look_at_claim(self, key: Key) -> None:
        namespace, name = key
        try:
            self._cluster.assume_claim(await self._client.get(RESOURCE_CLAIMS, name, namespace=namespace, type=Claim))
        except ApiError as error:
            if not error.not_found:
                raise

    async def _moved_on(self, pod: Pod, error: ApiError) -> bool:
        """Return whether a patch was refused because the pod is not what it was.

        A test that does not hold, or another uid, is answered like a change that validation refuses: 422.
        """
        if error.not_found or error.conflict:
            return True
        if not error.invalid:
            return False
        try:
            now = await self._client.get(PODS, pod.metadata.name, namespace=pod.metadata.namespace, type=Pod)
        except ApiError as again:
            if again.not_found:
                return True
            raise
        return now.metadata.resource_version != pod.metadata.resource_version
