"""Whose turn it is before a pod's: the controller's own order, in which a gang is one."""

from __future__ import annotations

from typing import Final

from dradriver import __version__
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key
from dradriver.api.policies.model import Policies
from dradriver.cli.cluster import policies_in_force as in_force
from dradriver.cli.cluster.largest_gangs import stand
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cli.explainer.model import Turn
from dradriver.controller.steps.next_step import next_step
from dradriver.controller.steps.pod_steps import Place
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.queue import reservation_rules as reservation
from dradriver.queue.namespace_tenants import ALL
from dradriver.queue.queue_order import Standing, line
from dradriver.queue.units import Member, Unit
from dradriver.view.output import warn
from dradriver.view.terminal_text import plain

_BEFORE: Final = 3


def turn(scene: Scene, unit: Unit) -> Turn:
    """Return the position of a pod, or of its gang, by the controller's own order."""
    tenants = scene.tenants
    others = [other for other in waiting(scene) if other.key != unit.key]
    unit.trust(tenants.highest(unit.key[0]))
    standing = line((*others, unit), tenants)
    position = next(number for number, one in enumerate(standing) if one.unit is unit)
    before = [one.unit for one in standing[:position]]
    own = standing[position]
    named, held = own.tenant != ALL, scene.reserved(unit)
    return Turn(
        position=position + 1,
        waiting=len(standing),
        alike=sum(_alike(other, unit) for other in before),
        before=tuple(plain("/".join((other.key[0], other.lead.key[1]))) for other in before[-_BEFORE:]),
        tenant=plain(own.tenant) if named else "",
        priority=-unit.order[0],
        share=round(tenants.relative(own.tenant), 2) if named else None,
        reserved="" if held is None else plain(reservation.reason(held)),
    )


async def read(server: ServerConfig, policies: Policies | None, namespace: str | None) -> tuple[Scene, list[Standing]]:
    """Return the cluster and all that wait, in order; what may not be read is warned of.

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
        await own.read(client, server, await in_force.driver_namespace(client, namespace))
        scene = Scene(client, server, own.policies, own=own)
        await scene.read()
    for trouble in (*own.unread, *scene.unread):
        warn(trouble)
    stand(scene)
    return scene, line(waiting(scene), scene.tenants)


def waiting(scene: Scene) -> list[Unit]:
    """Return all pods that want a place, and of each gang that does one unit."""
    picture, found, gangs = scene.picture, [], set[Key]()
    for key, pod in picture.pods.items():
        if pod.finished or pod.metadata.deletion_timestamp is not None:
            continue
        own, highest = picture.gangs.of(key), scene.tenants.highest(key[0])
        if own is None or picture.gangs.started(own.gang):
            if isinstance(next_step(Member(pod), picture, 0.0), Place) and not picture.gangs.waits(key):
                found.append(Unit(Member(pod, picture.templates.of(pod)), highest=highest))
        elif own.gang not in gangs:
            gangs.add(own.gang)
            members = [picture.pods[each] for each in picture.gangs.pods(own.gang)]
            size = own.wants.size if own.wants is not None and own.wants.size is not None else own.member.size
            there = size is None or len(members) >= size[0]
            if there and all(picture.claim_of(each) is None for each in members):
                found.append(Unit(*map(Member, members), key=own.gang, highest=highest))
                found[-1].whole(len(members) if size is None else size[0])
    return found


def _alike(one: Unit, other: Unit) -> bool:
    try:
        return one.kind == other.kind
    except WordError:
        return False
