"""The position of a pod or its gang in the queue, by the controller's own order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from dradriver import __version__
from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs.gang_annotations import Gang, Size
from dradriver.api.gangs.gang_owners import Alone
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import installation, workload_names
from dradriver.cli.cluster.largest_gangs import stand
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cli.explainer.model import Turn
from dradriver.cluster.pods.gang_pods import Membership
from dradriver.controller.steps.actions import Place
from dradriver.controller.steps.gang_sizes import done_of, is_of_group, size_of
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
from dradriver.reason import Reason
from dradriver.view.output import warn
from dradriver.view.terminal_text import plain

_BEFORE: Final = 3
_MOST_READ: Final = 64  # pods whose volumes are looked for, each by a few reads
_MOST_OWNERS: Final = 512  # gangs whose owner is read, each by one read


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
    """Read the owners, templates and volumes that waiting pods name.

    These objects determine how many pods a gang needs, what a pod requests, and whether it may start. The controller
    knows them for all waiting pods. Here, if many pods wait, only the first owners and volumes are read. Nothing is
    read twice.

    Args:
        scene: The cluster.
        workload: The explained workload; pods with an equal request come first.
    """
    picture = scene.picture
    await _read_owners(scene)
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


async def _read_owners(scene: Scene) -> None:
    """Read the owners that say how many pods waiting gangs need, those of the oldest gangs first."""
    gangs = scene.picture.gangs
    oldest_first = sorted(
        _unstarted(scene), key=lambda gang: min(pod.metadata.creation_timestamp or "" for pod in gang[1])
    )
    for membership, _ in oldest_first:
        _ = _size(scene, membership)  # ``owners`` reads what it was asked about
    await scene.owners.read_new(_MOST_OWNERS)
    for membership, _ in oldest_first:
        if isinstance(_size(scene, membership), Alone):  # by its owner it is no gang
            gangs.dissolve(membership.gang)
        elif is_of_group(membership):
            await scene.read_groups(membership.gang[0])


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
        own, driver = Own(policies), await installation.read(client, server, namespace)
        await own.read(client, server, driver.namespace)
        scene = Scene(client, server, own.policies, own=own, absence=driver.absence)
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


def gathering(scene: Scene) -> dict[Key, tuple[PendingWorkload, int | None]]:
    """Return the gangs that have no position yet, each with the number of pods that it needs to start.

    Too few pods of the gang exist, or the number is not known, which is then None.
    """
    found: dict[Key, tuple[PendingWorkload, int | None]] = {}
    for membership, pods in _unstarted(scene):
        needed = _needed(scene, membership)
        if needed is None or len(pods) < needed:
            found[membership.gang] = _gang(scene, membership, pods), needed
    return found


def _unstarted(scene: Scene) -> Iterator[tuple[Membership, list[Pod]]]:
    """Yield the gangs that have neither started nor claims, each with its pods that have not ended."""
    picture = scene.picture
    for gang in picture.gangs:
        pods = [picture.pods[key] for key in picture.gangs.pods(gang)]
        if not picture.gangs.started(gang) and all(picture.claim_of(pod) is None for pod in pods):
            yield picture.gangs.said(gang), pods


def _size(scene: Scene, membership: Membership) -> Size | Alone | Reason | None:
    """Return the size of a gang, by its pods or else by their owner, as ``gang_sizes.size_of`` does."""
    wants = membership.wants
    if wants is not None and wants.size is not None:
        return wants.size
    return size_of(membership.gang, membership, scene.owners)


def _needed(scene: Scene, membership: Membership) -> int | None:
    """Return the number of pods that a gang needs to start, without those that need no place.

    The result is None if the size of the gang is not known.
    """
    size = _size(scene, membership)
    return max(1, size[0] - done_of(scene.picture.gangs, membership, scene.owners)) if isinstance(size, tuple) else None


def waiting(scene: Scene) -> list[PendingWorkload]:
    """Return all workloads of the listed cluster that need a place now: pods, and gangs of which enough pods exist."""
    picture, workloads = scene.picture, []
    # 1. A pod alone, or one that comes to a gang which has started: it waits if the controller would place it now.
    for key, pod in picture.pods.items():
        if pod.finished or pod.metadata.deletion_timestamp is not None or picture.gangs.gathers(key):
            continue
        if pod.gated and picture.lacking_of(pod) is not None and picture.gangs.of(key) is None:
            continue  # it waits for a volume or a template, and not for its turn
        if isinstance(step(observe(Member(pod), picture, 0.0), picture, 0.0), Place) and not picture.gangs.waits(key):
            highest = scene.tenants.highest(key[0])
            workloads.append(PendingWorkload(_member(scene, pod), highest=highest))
    # 2. A gang, once for all its pods: it waits if enough pods exist, and none of them has a claim.
    for membership, pods in _unstarted(scene):
        needed = _needed(scene, membership)
        if needed is not None and len(pods) >= needed:
            gang = _gang(scene, membership, pods)
            gang.want(gang.members, needed)
            workloads.append(gang)
    return workloads


def _gang(scene: Scene, membership: Membership, pods: Sequence[Pod]) -> PendingWorkload:
    highest = scene.tenants.highest(membership.gang[0])
    return PendingWorkload(*(_member(scene, pod) for pod in pods), key=membership.gang, highest=highest)


def _member(scene: Scene, pod: Pod) -> Member:
    """Return a pod as the controller has it: with its template and its volumes' nodes.

    The nodes are known only if the volumes were read.
    """
    return Member(pod, scene.picture.templates.of(pod), scene.picture.volumes.of(pod))


def _asked(scene: Scene, workload: PendingWorkload) -> tuple[Counter[Kind], Gang | None] | None:
    """Return the requests of a workload for comparison: how many pods have each request, and the gang's limits.

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
