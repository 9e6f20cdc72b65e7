"""The verdict of ``gputopo explain`` on a pod: the controller's own review and decision on one reading of a cluster."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from dradriver.api.base.allocating_driver import bound
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import claim_key
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import policies_in_force, workload_names
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cli.explainer import gang_shown, pod_history, static_pods, workload_reader
from dradriver.cli.explainer.model import Happening, Verdict
from dradriver.cli.explainer.shown_places import with_unhealthy
from dradriver.cli.explainer.workload_reader import NotReadyError
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.view.terminal_text import plain

_BY_DEFAULTS: Final = "The policies in force cannot be read. By the default policies: "


async def verdict(
    client: Client, server: ServerConfig, pod: Pod, policies: Policies | None, driver_namespace: str
) -> Verdict:
    """Return the verdict of ``gputopo explain`` on a pod.

    The verdict's ``unread`` names objects that the user may not read.

    Args:
        client: The API server's client, inside its ``async with`` block.
        server: The server, for messages.
        pod: The pod.
        policies: The policies that the controller uses. None reads them from the cluster.
        driver_namespace: The driver's namespace, which has the policies and the tenants' usage; empty if not known.
    """
    key = claim_key(pod)  # None for a static pod, whose claim Kubernetes makes and names
    unread: list[str] = []

    async def read_events(uid: str, about: str) -> list[Happening]:
        try:
            return await pod_history.events(client, server, pod.metadata.namespace, uid, about)
        except ClusterError as error:
            unread.append(str(error))
            return []

    # A pod that has ended, or that the driver does not place, has a history and no verdict: nothing else is read.
    if pod.finished or not (pod.placed or pod.static):
        events = await read_events(pod.metadata.uid, "pod")
        return Verdict(happened=pod_history.in_order([*pod_history.own(pod, None), *events]), unread=tuple(unread))

    if policies is None:
        followed = await policies_in_force.read(client, server, driver_namespace)
        policies = followed.policies
        unread += filter(None, [followed.trouble])

    # Shares of tenants and reservations decide the order of the queue. They are read only if the policies have any.
    tenant_usage = Own(policies)
    scene = Scene(client, server, policies, own=tenant_usage)
    if policies.tenants and driver_namespace:
        await tenant_usage.read(client, server, driver_namespace)
    elif policies.queue.reservation.after_minutes and driver_namespace:
        await tenant_usage.read_reservations(client, server, driver_namespace)
    unread += tenant_usage.unread
    events, _ = await asyncio.gather(read_events(pod.metadata.uid, "pod"), scene.read())

    claim = static_pods.claim_of(scene, pod) if key is None else scene.claims.get(key)
    if claim is not None and not claim.owned_by(pod.metadata.uid):
        claim = None  # another pod's claim of the same name
    if claim is not None:
        events += await read_events(claim.metadata.uid, "claim")

    # The controller's code asks a context variable which driver allocates GPUs.
    with bound(scene.ledger):
        pod_verdict = await (static_pods.static(scene, pod, claim) if pod.static else _controller_verdict(scene, pod))
    place = pod_verdict.place
    # A position in the queue means that the controller's search was repeated. It depends on the policies.
    doubt = _BY_DEFAULTS if pod_verdict.turn is not None and not policies.known else ""
    return msgspec.structs.replace(
        pod_verdict,
        place=None if place is None else with_unhealthy(scene, place),
        reason=plain(doubt + pod_verdict.reason),
        nearest=plain(pod_verdict.nearest),
        same_name=_gang_called(scene, pod),
        happened=pod_history.in_order([*pod_history.own(pod, claim), *events]),
        unread=tuple(dict.fromkeys([*scene.unread, *unread])),
    )


def _gang_called(scene: Scene, pod: Pod) -> str:
    """Return the name of the gang that is called like a pod of its namespace; empty for none."""
    gangs = scene.picture.gangs
    in_namespace = (gangs.of(key) for key in scene.picture.pods if key[0] == pod.metadata.namespace)
    called = (gang for gang in in_namespace if gang is not None and workload_names.gang_name(gang) == pod.metadata.name)
    return next(map(workload_names.of_gang, called), "")


async def _controller_verdict(scene: Scene, pod: Pod) -> Verdict:
    """Return what the controller would decide about a pod, alone or with its gang.

    ``scene`` is the cluster, as it was listed.
    """
    scene.put(pod)
    key = pod.metadata.namespace, pod.metadata.name
    gang = None
    if scene.whole and pod.metadata.deletion_timestamp is None:
        if (why := scene.picture.gangs.waits(key)) and pod.gated and scene.picture.claim_of(pod) is None:
            return Verdict(reason=why.text)
        gang = await workload_reader.read_gang(scene, pod)
    try:
        workload = await workload_reader.read(scene, pod, gang)
        pod_verdict = await workload.verdict()
    except NotReadyError as error:
        pod_verdict = Verdict(reason=str(error))
    if gang is None or pod_verdict.gang is not None:
        return pod_verdict
    return msgspec.structs.replace(pod_verdict, gang=gang_shown.described(scene, gang, pod))
