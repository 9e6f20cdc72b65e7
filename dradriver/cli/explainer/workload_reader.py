"""The workload of a pod, read as the controller has it: the pod alone, or all pods of its gang."""

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
from dradriver.cli.explainer.subject import deletion
from dradriver.cli.explainer.workload import Workload
from dradriver.cluster.pods.volumes import Unbound
from dradriver.controller.placing.gang_terms import in_order
from dradriver.controller.steps.gang_sizes import done_of, is_of_group, size_of
from dradriver.queue.pending import Member, PendingWorkload


class NotReadyError(Exception):
    """The controller does not search a place for the explained pod yet.

    The message has the reason. The message is empty if ``Scene.unread`` has the reason.
    """


async def read_gang(scene: Scene, pod: Pod) -> GangPods | None:
    """Read the objects that the placement of a pod's gang needs, into the listed cluster.

    The function returns the gang, or None for a pod without a gang.
    """
    gangs = scene.picture.gangs  # the cluster cache's gangs, by their pods
    membership = gangs.of((pod.metadata.namespace, pod.metadata.name))
    if membership is None:
        return None
    gang = membership.gang  # its key: the namespace first
    keys = gangs.pods(gang)  # of its living pods
    gang_membership = gangs.said(gang)  # with the annotations that count for the whole gang

    # The size may be in the pods' annotations; only otherwise the pods' owners are read.
    size = size_of(gang, gang_membership, scene.owners)
    if size is None:
        await scene.owners.read_new(1)
        size = size_of(gang, gang_membership, scene.owners)
    if isinstance(size, Alone):  # by its owner it is no gang
        gangs.dissolve(gang)
        return None

    # A PodGroup also counts pods without GPUs.
    if is_of_group(gang_membership):
        await scene.read_groups(gang[0])
    pods = [scene.picture.pods[key] for key in keys]
    await _read_templates(scene, pods)
    members = await _members(scene, pods)
    # ``near`` is the gang's name: its pods look for places near each other. ``may_nominate`` is about CPU that the
    # scheduler keeps for a gated pod (``nominatedNodeName``), which does not decide the pod's place.
    for member in members:
        member.near, member.may_nominate = gang[1], False
    await _read_nics(scene, members)
    # The rank orders the pods: the plan gives nearby GPUs to pods with adjacent ranks.
    ranked = [(member, gangs.rank(key)) for member, key in zip(members, keys, strict=True)]
    succeeded = done_of(gangs, gang_membership, scene.owners)
    return GangPods(gang_membership, PendingWorkload(*in_order(ranked), key=gang), size, succeeded)


async def read(scene: Scene, pod: Pod, gang: GangPods | None) -> Workload:
    """Read and return the workload that the controller would place for a pod: its gang, or the pod alone.

    Args:
        scene: The cluster; ``scene.picture`` is the cluster cache, as the controller has it.
        pod: The pod that the user asks about.
        gang: Its gang; None if it is in none. A pod of a gang that has started is placed alone.

    Raises:
        NotReadyError: The controller does not search a place yet, because the pod lacks something.
    """
    gang_member = None
    if gang is not None:
        gang_member = next(member for member in gang.pending.members if member.uid == pod.metadata.uid)
        if not scene.picture.gangs.started(gang.pending.key):
            _check_request(gang_member)
            return GangWorkload(scene, gang_member, gang)

    # 1. The pod as the controller reads it. Where NotReadyError has no message, ``scene.unread`` says what is missing.
    if not await _read_templates(scene, [pod]):
        raise NotReadyError
    (member,) = await _members(scene, [pod])

    # 2. What keeps the controller from looking for a place. A pod waits for what it lacks only while it has its gate
    #    and no claim. Its annotations count only while it has its gate; after that only its claim counts.
    is_waiting = pod.gated and scene.picture.claim_of(pod) is None
    lacking = scene.picture.lacking_of(pod)
    if is_waiting and lacking is not None:
        raise NotReadyError(lacking.text)
    if pod.gated:
        _check_request(member)
    deleted = deletion(pod)
    # Without slices, claims and nodes no place can be looked for. ``scene.unread`` names what is missing, and the
    # command prints that, so the error needs no message.
    if (deleted and not pod.spec.node_name) or not scene.whole:
        raise NotReadyError(deleted)

    # 3. A late pod of a gang is shown as the gang's member, for which places near the gang are searched. What happens
    #    to it next is decided for the pod alone, which is ``PendingWorkload(member)``.
    await _read_nics(scene, [member])
    return PodWorkload(scene, gang_member or member, PendingWorkload(member), gang)


def _check_request(member: Member) -> None:
    """Raise NotReadyError if the request of a pod cannot be read."""
    try:
        _ = member.wish
    except WordError as error:
        raise NotReadyError(str(error)) from error


async def _read_templates(scene: Scene, pods: Sequence[Pod]) -> bool:
    """Read the templates that pods of one namespace name.

    Returns whether the user may read the templates for their GPUs.
    """
    may_be_read = True
    if any(pod.template is not None for pod in pods):
        may_be_read = await scene.read_templates(pods[0].metadata.namespace)
    await scene.read_beside(pods)
    return may_be_read


async def _members(scene: Scene, pods: Sequence[Pod]) -> list[Member]:
    """Return pods with their templates and the nodes of their volumes.

    The function also reads pods that this driver does not place, if the affinity and spread rules of ``pods`` count
    them.
    """
    await scene.read_neighbours(pods)
    places = await asyncio.gather(*map(scene.volumes_of, pods))
    return [
        Member(
            pod,
            scene.picture.templates.of(pod),
            () if isinstance(where, Unbound) else where,
            scene.picture.only_scheduler_knows(pod),
        )
        for pod, where in zip(pods, places, strict=True)
    ]


async def _read_nics(scene: Scene, members: Sequence[Member]) -> None:
    """Read the slices of NIC drivers if a pod requests NICs."""

    def asks(member: Member) -> bool:
        try:
            return member.wish.nics is not None
        except WordError:
            return False

    if any(map(asks, members)):
        await scene.read_nics()
