"""Writes pods: the gate and annotations. The server refuses each write if the pod was replaced.

``ApiWriter``, ``Commit`` and ``Reasons`` call it.

The *gate* is this driver's scheduling gate, which keeps the scheduler from the pod. A *placement* is the node and GPUs
that were chosen for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dradriver.api.base import affinity, names
from dradriver.api.base.jsonpatch import Patch
from dradriver.api.base.pods import Pod
from dradriver.api.claims import nvsentinel_note
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records.placement import Placement
from dradriver.controller.writing.write_outcome import MovedOnError
from dradriver.counted import shortened
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import PODS

LONGEST_REASON: Final = 1024


def cut(reason: str) -> str:
    """Return a reason's text, shortened to the longest annotation that this driver writes."""
    return shortened(reason, LONGEST_REASON)


class PodWriter:
    """Writes and reads pods, and puts each answer into the cluster cache at once."""

    def __init__(self, client: Client, picture: Picture, *, tells_nvsentinel: bool = False) -> None:
        """Make a writer that has written nothing.

        Args:
            client: The API server.
            picture: The cluster cache.
            tells_nvsentinel: Whether pods that get GPUs also get NVSentinel's annotation.
        """
        self._client, self._picture, self._tells_nvsentinel = client, picture, tells_nvsentinel

    async def lift(self, pod: Pod, placement: Placement) -> None:
        """Remove this driver's gate from a pod, restrict its nodes, and annotate it.

        All of this is one patch. The pod may use the nodes of ``placement``, by its node affinity. The annotations name
        the chosen GPUs.

        Raises:
            MovedOnError: The pod was changed or deleted meanwhile.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        note = {names.AFFINITY: affinity.note(pod)} if placement.hostnames else {}
        await self._lift(pod, note | self._with_bridges(placement.texts), placement.hostnames)

    async def hand_over(self, pod: Pod, why: str) -> None:
        """Remove this driver's gate from a pod that kube-scheduler places, and write the reason ``why``.

        It raises the same errors as the method ``lift``.
        """
        await self._lift(pod, {names.REASON: cut(why)}, {})

    async def annotate(self, pod: Pod, changes: Mapping[str, str | None]) -> bool:
        """Set annotations of a pod; remove those whose value is None.

        Returns whether anything had to be changed.

        Raises:
            MovedOnError: The pod was replaced or deleted.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        changes = self._with_bridges(changes)
        news = {key: value for key, value in changes.items() if pod.metadata.annotations.get(key) != value}
        if not news:
            return False
        body = {"metadata": {"uid": pod.metadata.uid, "annotations": news}}
        await self._patch(pod, body, kind=PatchKind.MERGE)
        return True

    async def tell(self, pod: Pod, reason: str | None) -> bool:
        """Write on a pod why it waits; return whether the annotation has changed.

        If ``reason`` is None, the annotation is removed. The method raises the same errors as ``annotate``.
        """
        return await self.annotate(pod, {names.REASON: reason})

    async def lifted(self, pod: Pod) -> bool:
        """Return whether the API server has this pod without this driver's gate.

        Raises:
            ApiError: The server refuses to answer.
            Unreachable: No answer.
        """
        now = await self._now(pod)
        return now is not None and now.metadata.uid == pod.metadata.uid and not now.gated

    async def bound(self, pod: Pod) -> bool:
        """Return whether this pod is bound at the API server; update the cluster cache.

        Raises:
            ApiError: The server refuses to answer.
            Unreachable: No answer.
        """
        now = await self._now(pod)
        if now is None or now.metadata.uid != pod.metadata.uid:
            return False
        self._picture.assume_pod(now, was=pod)
        return bool(now.spec.node_name)

    def _with_bridges(self, texts: Mapping[str, str | None]) -> dict[str, str | None]:
        return nvsentinel_note.with_devices(texts) if self._tells_nvsentinel else dict(texts)

    async def _lift(self, pod: Pod, texts: Mapping[str, str | None], hostnames: Mapping[str, str]) -> None:
        gate = next(i for i, gate in enumerate(pod.spec.scheduling_gates) if gate.name == names.GATE)
        patch = Patch().test("metadata", "resourceVersion", value=pod.metadata.resource_version)
        if hostnames:
            affinity.narrow(pod, hostnames, patch)
        for key, value in texts.items():
            if value is not None:
                patch.add("metadata", "annotations", key, value=value)
            elif key in pod.metadata.annotations:
                patch.remove("metadata", "annotations", key)
        patch.test("spec", "schedulingGates", gate, "name", value=names.GATE)
        patch.remove("spec", "schedulingGates", gate)
        await self._patch(pod, patch, kind=PatchKind.JSON)

    async def _patch(self, pod: Pod, patch: Patch | dict[str, Any], *, kind: PatchKind) -> None:
        """Patch a pod, and put the answer into the cluster cache.

        ``patch`` must contain the uid or resource version of the pod, so that the server refuses it for another pod.

        Raises:
            MovedOnError: The pod was changed or deleted meanwhile.
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        name, namespace = pod.metadata.name, pod.metadata.namespace
        try:
            changed = await self._client.patch(PODS, name, patch, kind=kind, namespace=namespace, type=Pod)
        except ApiError as error:
            if await self._moved_on(pod, error):
                raise MovedOnError(f"pod {namespace}/{name} was changed meanwhile") from None
            raise
        self._picture.assume_pod(changed, was=pod)

    async def _moved_on(self, pod: Pod, error: ApiError) -> bool:
        """Return whether the server refused a patch because the pod has changed.

        The answer 422 alone does not say that. It can mean a failed ``test`` operation of the patch, another uid, or a
        change that validation refuses. So the pod is read.
        """
        if error.not_found or error.conflict:
            return True
        if not error.invalid:
            return False
        now = await self._now(pod)
        if now is None:
            return True
        if now.metadata.resource_version == pod.metadata.resource_version:
            return False
        if now.metadata.uid == pod.metadata.uid:
            self._picture.assume_pod(now, was=pod)
        return True

    async def _now(self, pod: Pod) -> Pod | None:
        """Return the pod with this pod's name at the server; None if there is none."""
        try:
            return await self._client.get(PODS, pod.metadata.name, namespace=pod.metadata.namespace, type=Pod)
        except ApiError as error:
            if error.not_found:
                return None
            raise
