"""The workload that a pod is of, read as the controller has it: the pod alone, or all pods of its gang."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.gangs.gang_owners import Alone
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer.gang_shown import GangPods
from dradriver.cli.explainer.gang_workload import GangWorkload
from dradriver.cli.explainer.pod_workload import PodWorkload
from dradriver.cli.explainer.workload import Workload
from dradriver.cluster.pods.volumes import Unbound
from dradriver.controller.steps.gang_sizes import done_of, size_of
from dradriver.controller.steps.gang_step import in_order
from dradriver.queue.pending import Member, PendingWorkload


class NotReadyError(Exception):
    """No place is looked for. The message says why, and is empty if what could not be read says it."""


async def read_gang(scene: Scene, pod: Pod) -> GangPods | None:
    """Return the gang of a pod, with what its volumes and its owner say; None for a pod that is in none."""
    picture = scene.picture
    own = picture.gangs.of((pod.metadata.namespace, pod.metadata.name))
    if own is None:
        return None
    keys = picture.gangs.pods(own.gang)
    of = picture.gangs.said(own.gang)
    owners = scene.owners()
    if (size := size_of(own.gang, of, owners)) is None:
        await owners.read()
        size = size_of(own.gang, of, owners)
    if isinstance(size, Alone):
        picture.gangs.dissolve(own.gang)
        return None
    if of.member.read is not None and of.member.read.kind == "PodGroup":
        await scene.read_groups(own.gang[0])
    pods = [picture.pods[key] for key in keys]
    await _read_templates(scene, pods)
    members = await _members(scene, pods)
    for member in members:
        member.near, member.may_nominate = own.gang[1], False
    await _read_nics(scene, members)
    ranked = [(member, picture.gangs.rank(key)) for member, key in zip(members, keys, strict=True)]
    return GangPods(of, PendingWorkload(*in_order(ranked), key=own.gang), size, done_of(picture.gangs, of, owners))


async def read(scene: Scene, pod: Pod, gang: GangPods | None) -> Workload:
    """Return the workload of a pod.

    Args:
        scene: The cluster.
        pod: The pod that is asked about.
        gang: Its gang. A pod of a gang that has started gets its place by itself.

    Raises:
        NotReadyError: The pod lacks something without which no place is looked for.
    """
    asked = None if gang is None else next(each for each in gang.pending.members if each.uid == pod.metadata.uid)
    if gang is not None and asked is not None and not scene.picture.gangs.started(gang.pending.key):
        try:
            _ = asked.wish
        except WordError as error:
            raise NotReadyError(str(error)) from error
        return GangWorkload(scene, asked, gang)
    if not await _read_templates(scene, [pod]):
        raise NotReadyError
    (member,) = await _members(scene, [pod])
    waits = pod.gated and scene.picture.claim_of(pod) is None
    if waits and (lacking := scene.picture.lacking_of(pod)) is not None:
        raise NotReadyError(lacking.text)
    try:
        _ = member.wish
    except WordError as error:
        if pod.gated:
            raise NotReadyError(str(error)) from error
    if pod.metadata.deletion_timestamp is not None and not pod.spec.node_name:
        raise NotReadyError("it is being deleted, and gets no place any more")
    if not scene.whole:
        raise NotReadyError
    await _read_nics(scene, [member])
    return PodWorkload(scene, asked or member, PendingWorkload(member), gang)


async def _read_templates(scene: Scene, pods: Sequence[Pod]) -> bool:
    """Read the templates that pods of one namespace name. Returns whether those of their GPUs may be read."""
    may_be_read = True
    if any(pod.template is not None for pod in pods):
        may_be_read = await scene.read_templates(pods[0].metadata.namespace)
    await scene.read_beside(pods)
    return may_be_read


async def _members(scene: Scene, pods: Sequence[Pod]) -> list[Member]:
    """Return pods with their templates, and where their volumes are."""
    places = await asyncio.gather(*map(scene.volumes_of, pods))
    return [
        Member(pod, scene.picture.templates.of(pod), () if isinstance(where, Unbound) else where)
        for pod, where in zip(pods, places, strict=True)
    ]


async def _read_nics(scene: Scene, members: Sequence[Member]) -> None:
    """Read the slices of NICs if a pod asks for some."""

    def asks(member: Member) -> bool:
        try:
            return member.wish.nics is not None
        except WordError:
            return False

    if any(map(asks, members)):
        await scene.read_nics()
