"""The position of a pod or its gang in the queue, by the controller's own order."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Final

import msgspec

from dradriver import __version__
from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import policies_in_force, workload_names
from dradriver.cli.cluster.largest_gangs import stand
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cli.explainer.model import Turn
from dradriver.cluster.pods.gang_pods import Membership
from dradriver.controller.steps.actions import Place
from dradriver.controller.steps.observe import observe
from dradriver.controller.steps.step import step
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.queue import reservation_rules
from dradriver.queue.limits import NeverAllowedError
from dradriver.queue.namespace_tenants import ALL
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.placement_request import Kind
from dradriver.queue.queue_order import Standing, line
from dradriver.view.output import warn
from dradriver.view.terminal_text import plain

_BEFORE: Final = 3
_MOST_READ: Final = 64  # pods whose volumes are looked for, each by a few reads


def position(scene: Scene, workload: PendingWorkload) -> Turn:
    """Return the position of a pod, or of its gang, in the controller's queue."""
    tenants = scene.tenants
    others = [other for other in waiting(scene) if other.key != workload.key and not is_refused(scene, other)]
    workload.trust(tenants.highest(workload.key[0]))
    queue = line((*others, workload), tenants)
    number = next(number for number, one in enumerate(queue) if one.workload is workload)
    workloads_before = [one.workload for one in queue[:number]]
    own_standing, request = queue[number], _asked(scene, workload)
    has_tenant, reservation = own_standing.tenant != ALL, scene.reserved(workload)
    return Turn(
        position=number + 1,
        waiting=len(queue),
        alike=0 if request is None else sum(_asked(scene, other) == request for other in workloads_before),
        before=tuple(workload_names.names_of(scene, workloads_before[-_BEFORE:])),
        tenant=plain(own_standing.tenant) if has_tenant else "",
        priority=-workload.order[0],
        share=round(tenants.relative(own_standing.tenant), 2) if has_tenant else None,
        reserved="" if reservation is None else plain(reservation_rules.reason(reservation)),
    )


async def read_what_pods_name(scene: Scene, workload: PendingWorkload | None = None) -> None:
    """Read the templates and volumes that waiting pods name.

    The templates and volumes determine what a pod requests, and whether it may start. The controller knows them for all
    waiting pods. Here, if many pods wait, only the volumes of the first ones are read. Nothing is read twice.

    Args:
        scene: The cluster.
        workload: The explained workload; pods with an equal request come first.
    """
    picture = scene.picture
    pods = [pod for pod in picture.pods.values() if pod.gated and not pod.finished]
    unread = [pod for pod in pods if pod.template is not None and picture.templates.of(pod) is None]
    for namespace in sorted({pod.metadata.namespace for pod in unread}):
        await scene.read_templates(namespace)
    if not any(map(picture.volumes.unread_of, pods)):
        return
    if workload is not None:
        asked = _asked(scene, _without_volumes(workload))
        others = (other for other in waiting(scene) if other.key != workload.key)
        alike = [other for other in others if _asked(scene, _without_volumes(other)) == asked]
        pods[:0] = [member.pod for other in alike for member in other.members]
    for pod in itertools.islice(filter(picture.volumes.unread_of, pods), _MOST_READ):
        await scene.volumes_of(pod)


def _without_volumes(workload: PendingWorkload) -> PendingWorkload:
    members = [Member(member.pod, member.template) for member in workload.members]
    return PendingWorkload(*members, key=workload.key) if workload.is_gang else PendingWorkload(*members)


async def read(server: ServerConfig, policies: Policies | None, namespace: str | None) -> tuple[Scene, list[Standing]]:
    """Read the cluster, and return it with all waiting workloads in order.

    A warning is printed about objects that the user may not read.

    Args:
        server: The API server.
        policies: The policies of the user's file; None to use the policies in force.
        namespace: The driver's namespace, if the user names it.

    Raises:
        ApiError: The server refuses.
        Unreachable: The server does not answer.
    """
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        own = Own(policies)
        await own.read(client, server, await policies_in_force.driver_namespace(client, namespace))
        scene = Scene(client, server, own.policies, own=own)
        await scene.read()
        await read_what_pods_name(scene)
    for trouble in (*own.unread, *scene.unread):
        warn(trouble)
    stand(scene)
    return scene, line(waiting(scene), scene.tenants)


def is_refused(scene: Scene, workload: PendingWorkload) -> bool:
    """Return whether a workload requests more GPUs than its tenant's caps ever allow."""
    try:
        scene.limits.allow(workload)
    except NeverAllowedError:
        return True
    except (NoPlaceError, WordError):
        return False
    return False


def gathering(scene: Scene) -> dict[Key, tuple[PendingWorkload, int]]:
    """Return the gangs of which too few pods exist, each with the number of pods that it needs to start."""
    picture = scene.picture
    found: dict[Key, tuple[PendingWorkload, int]] = {}
    for key, pod in picture.pods.items():
        membership = picture.gangs.of(key)
        if membership is None or picture.gangs.started(membership.gang) or membership.gang in found or _ends(pod):
            continue
        members = [picture.pods[each] for each in picture.gangs.pods(membership.gang)]
        needed = _needed(scene, membership)
        if needed is not None and len(members) < needed and all(picture.claim_of(each) is None for each in members):
            of_gang = [_member(scene, each) for each in members]
            highest = scene.tenants.highest(key[0])
            found[membership.gang] = PendingWorkload(*of_gang, key=membership.gang, highest=highest), needed
    return found


def _ends(pod: Pod) -> bool:
    return pod.finished or pod.metadata.deletion_timestamp is not None


def _needed(scene: Scene, membership: Membership) -> int | None:
    """Return the number of pods that a gang needs to start, without those that have succeeded.

    The result is None if the pods do not say the size of their gang.
    """
    wants = membership.wants
    size = wants.size if wants is not None and wants.size is not None else membership.member.size
    return None if size is None else max(1, size[0] - scene.picture.gangs.done(membership.gang))


def waiting(scene: Scene) -> list[PendingWorkload]:
    """Return all workloads of the listed cluster that need a place now: pods, and gangs of which enough pods exist."""
    picture, workloads, seen_gangs = scene.picture, [], set[Key]()
    for key, pod in picture.pods.items():
        if _ends(pod):
            continue
        if pod.gated and picture.lacking_of(pod) is not None and picture.gangs.of(key) is None:
            continue  # it waits for a volume or a template, and not for its turn
        membership, highest = picture.gangs.of(key), scene.tenants.highest(key[0])
        # 1. A pod alone, or one that comes to a gang which has started: it waits if the controller would place it now.
        if membership is None or picture.gangs.started(membership.gang):
            if isinstance(step(observe(Member(pod), picture, 0.0), picture, 0.0), Place) and not picture.gangs.waits(
                key
            ):
                workloads.append(PendingWorkload(_member(scene, pod), highest=highest))
        # 2. A gang, once for all its pods: it waits if enough pods exist, and none of them has a claim.
        elif membership.gang not in seen_gangs:
            seen_gangs.add(membership.gang)
            members = [picture.pods[each] for each in picture.gangs.pods(membership.gang)]
            needed = _needed(scene, membership)
            if len(members) >= (needed or 0) and all(picture.claim_of(each) is None for each in members):
                of_gang = [_member(scene, each) for each in members]
                workloads.append(PendingWorkload(*of_gang, key=membership.gang, highest=highest))
                workloads[-1].wanting, workloads[-1].least = frozenset(of_gang), needed or len(members)
                workloads[-1].whole(needed or len(members))
    return workloads


def _member(scene: Scene, pod: Pod) -> Member:
    """Return a pod as the controller has it: with its template and its volumes' nodes.

    The nodes are known only if the volumes were read.
    """
    return Member(pod, scene.picture.templates.of(pod), scene.picture.volumes.of(pod))


def _asked(scene: Scene, workload: PendingWorkload) -> tuple[Counter[Kind], Gang | None] | None:
    """Return the requests of a workload for comparison: pods per equivalence class, and the gang's requirements.

    The name of the gang is left out, so that two gangs with the same requests compare as equal. The result is None if a
    request cannot be read.
    """
    gang = None
    if workload.is_gang:
        wants = scene.picture.gangs.said(workload.key).wants or Gang()
        gang = msgspec.structs.replace(wants, name=None, pods=None, on_member_loss=None)
    try:
        return Counter(member.wish.kind for member in workload.members), gang
    except WordError:
        return None
