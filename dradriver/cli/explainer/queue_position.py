"""The position of a pod, or of its gang, in the queue: the controller's own order."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Final

import msgspec

from dradriver import __version__
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import policies_in_force
from dradriver.cli.cluster.largest_gangs import stand
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cli.explainer.model import Turn
from dradriver.controller.steps.actions import Place
from dradriver.controller.steps.observe import observe
from dradriver.controller.steps.step import step
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.queue import reservation_rules
from dradriver.queue.namespace_tenants import ALL
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.placement_request import Kind
from dradriver.queue.queue_order import Standing, line
from dradriver.view.output import warn
from dradriver.view.terminal_text import plain

_BEFORE: Final = 3
_MOST_READ: Final = 64  # pods whose volumes are looked for, each by a few reads


def position(scene: Scene, workload: PendingWorkload) -> Turn:
    """Return the position of a pod, or of its gang, in the queue, by the controller's own order."""
    tenants = scene.tenants
    others = [other for other in waiting(scene) if other.key != workload.key]
    workload.trust(tenants.highest(workload.key[0]))
    standing = line((*others, workload), tenants)
    number = next(number for number, one in enumerate(standing) if one.workload is workload)
    before = [one.workload for one in standing[:number]]
    own, asked = standing[number], _asked(scene, workload)
    named, held = own.tenant != ALL, scene.reserved(workload)
    return Turn(
        position=number + 1,
        waiting=len(standing),
        alike=0 if asked is None else sum(_asked(scene, other) == asked for other in before),
        before=tuple(plain("/".join((other.key[0], other.lead.key[1]))) for other in before[-_BEFORE:]),
        tenant=plain(own.tenant) if named else "",
        priority=-workload.order[0],
        share=round(tenants.relative(own.tenant), 2) if named else None,
        reserved="" if held is None else plain(reservation_rules.reason(held)),
    )


async def read_volumes(scene: Scene, workload: PendingWorkload) -> None:
    """Read where the volumes of waiting pods are that request what a workload does: they are alike if these are, too.

    The controller knows the volumes of all waiting pods. Of many pods the volumes of the first are read.
    """
    asked = _asked(scene, _without_volumes(workload))
    others = (other for other in waiting(scene) if other.key != workload.key)
    alike = (other for other in others if _asked(scene, _without_volumes(other)) == asked)
    unread = (member.pod for other in alike for member in other.members)
    for pod in itertools.islice(filter(scene.picture.volumes.unread_of, unread), _MOST_READ):
        await scene.volumes_of(pod)


def _without_volumes(workload: PendingWorkload) -> PendingWorkload:
    members = [Member(member.pod, member.template) for member in workload.members]
    return PendingWorkload(*members, key=workload.key) if workload.is_gang else PendingWorkload(*members)


async def read(server: ServerConfig, policies: Policies | None, namespace: str | None) -> tuple[Scene, list[Standing]]:
    """Read the cluster, and return it with all workloads in the queue by position; warn of what may not be read.

    Args:
        server: The API server.
        policies: The policies of the user's file. None takes those in force.
        namespace: The driver's namespace, if the user names it.

    Raises:
        ApiError: The server refuses.
        Unreachable: No answer.
    """
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        own = Own(policies)
        await own.read(client, server, await policies_in_force.driver_namespace(client, namespace))
        scene = Scene(client, server, own.policies, own=own)
        await scene.read()
    for trouble in (*own.unread, *scene.unread):
        warn(trouble)
    stand(scene)
    return scene, line(waiting(scene), scene.tenants)


def waiting(scene: Scene) -> list[PendingWorkload]:
    """Return all workloads that have a position in the queue: pods that want a place, and gangs that do."""
    picture, found, gangs = scene.picture, [], set[Key]()
    for key, pod in picture.pods.items():
        if pod.finished or pod.metadata.deletion_timestamp is not None:
            continue
        own, highest = picture.gangs.of(key), scene.tenants.highest(key[0])
        if own is None or picture.gangs.started(own.gang):
            if isinstance(step(observe(Member(pod), picture, 0.0), picture, 0.0), Place) and not picture.gangs.waits(
                key
            ):
                found.append(PendingWorkload(_member(scene, pod), highest=highest))
        elif own.gang not in gangs:
            gangs.add(own.gang)
            members = [picture.pods[each] for each in picture.gangs.pods(own.gang)]
            size = own.wants.size if own.wants is not None and own.wants.size is not None else own.member.size
            there = size is None or len(members) >= size[0]
            if there and all(picture.claim_of(each) is None for each in members):
                of_gang = [_member(scene, each) for each in members]
                found.append(PendingWorkload(*of_gang, key=own.gang, highest=highest))
                found[-1].whole(len(members) if size is None else size[0])
    return found


def _member(scene: Scene, pod: Pod) -> Member:
    """Return a pod as the controller has it, with its template, and where its volumes are as far as that was read."""
    return Member(pod, scene.picture.templates.of(pod), scene.picture.volumes.of(pod))


def _asked(scene: Scene, workload: PendingWorkload) -> tuple[Counter[Kind], Gang | None] | None:
    """Return how many pods ask for what, and what their gang asks for as a whole; None if a request cannot be read.

    The name of a gang is not part of it: each gang is an equivalence class of its own in the queue.
    """
    gang = None
    if workload.is_gang:
        wants = scene.picture.gangs.said(workload.key).wants or Gang()
        gang = msgspec.structs.replace(wants, name=None, pods=None, on_member_loss=None)
    try:
        return Counter(member.wish.kind for member in workload.members), gang
    except WordError:
        return None
