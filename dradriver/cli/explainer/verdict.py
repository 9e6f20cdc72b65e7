"""The verdict of ``gputopo explain`` on a pod: the controller's own review and decision on one reading of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from dradriver.api.base.allocating_driver import bound
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import claim_key
from dradriver.api.pod import resolved
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import cluster_reading, driver_dependents, policies_in_force, workload_names
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.cluster.installation import Installation
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cli.explainer import gang_shown, pod_history, static_pods, workload_reader
from dradriver.cli.explainer.model import Happening, Place, UnhealthyPod, Verdict
from dradriver.cli.explainer.shown_places import place_by_scheduler, place_of, with_unhealthy
from dradriver.cli.explainer.subject import deletion
from dradriver.cli.explainer.workload_reader import NotReadyError
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import RESOURCE_CLAIMS
from dradriver.view.terminal_text import plain

_BY_DEFAULTS: Final = "The policies in force cannot be read. By the default policies: "


async def verdict(
    client: Client,
    server: ServerConfig,
    pod: Pod,
    policies: Policies | None,
    driver: Installation,
    *,
    others: Sequence[Pod] = (),
) -> Verdict:
    """Return the verdict of ``gputopo explain`` on a pod.

    The verdict's ``unread`` names objects that the user may not read.

    Args:
        client: The API server's client, inside its ``async with`` block.
        server: The server, for messages.
        pod: The pod.
        policies: The policies that the controller uses. None reads them from the cluster.
        driver: The driver's installation. Its namespace has the policies and the tenants' usage; empty if not known.
        others: The other pods of the owner or gang that the user named. Those with unhealthy GPUs are listed.
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

    if driver.absence:  # no controller decides, so there is no decision to make again
        events = await read_events(pod.metadata.uid, "pod")
        reason = await _without_driver(client, server, pod, unread)
        happened = pod_history.in_order([*pod_history.own(pod, None), *events])
        return Verdict(reason=reason, happened=happened, unread=tuple(unread))

    if policies is None:
        followed = await policies_in_force.read(client, server, driver.namespace)
        policies = followed.policies
        unread += filter(None, [followed.trouble])

    # Shares of tenants and reservations decide the order of the queue. They are read only if the policies have any.
    tenant_usage = Own(policies)
    scene = Scene(client, server, policies, own=tenant_usage)
    if policies.tenants and driver.namespace:
        await tenant_usage.read(client, server, driver.namespace)
    elif policies.queue.reservation.after_minutes and driver.namespace:
        await tenant_usage.read_reservations(client, server, driver.namespace)
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
        unhealthy_pods = tuple(_unhealthy(scene, others))
    place = pod_verdict.place
    # A position in the queue means that the controller's search was repeated. It depends on the policies.
    doubt = _BY_DEFAULTS if pod_verdict.turn is not None and not policies.known else ""
    return msgspec.structs.replace(
        pod_verdict,
        place=None if place is None else with_unhealthy(scene, place),
        reason=plain(doubt + pod_verdict.reason),
        nearest=plain(pod_verdict.nearest),
        same_name=_gang_called(scene, pod),
        unhealthy_pods=unhealthy_pods,
        happened=pod_history.in_order([*pod_history.own(pod, claim), *events]),
        unread=tuple(dict.fromkeys([*scene.unread, *unread])),
    )


async def _without_driver(client: Client, server: ServerConfig, pod: Pod, unread: list[str]) -> str:
    """Return what it means for a pod that no driver is installed, and what helps.

    If the user may not read claims, ``unread`` gets a message, and a bound pod counts as one with GPUs.
    """
    try:
        claims = await cluster_reading.listed(
            client, server, RESOURCE_CLAIMS, cluster_reading.read_claim, namespace=pod.metadata.namespace
        )
        has_devices = pod.metadata.uid in driver_dependents.users_of_devices(claims)
    except ClusterError as error:
        unread.append(str(error))
        has_devices = bool(pod.spec.node_name)
    state = driver_dependents.state_of(pod, has_devices=has_devices)
    if state is None:
        return deletion(pod) or "The pod does not need the driver."
    name = f"{pod.metadata.name} -n {pod.metadata.namespace}"
    return plain(driver_dependents.CURES[state].after.format(pod=name))


def _unhealthy(scene: Scene, pods: Iterable[Pod]) -> Iterator[UnhealthyPod]:
    """Yield those of the pods that have GPUs with a fault in the listed cluster, ``scene``."""
    for pod in pods:
        place = _held_place(scene, pod)
        if place is not None and (gpus := with_unhealthy(scene, place).unhealthy):
            yield UnhealthyPod(pod=plain(pod.metadata.name), node=place.node, gpus=gpus)


def _held_place(scene: Scene, pod: Pod) -> Place | None:
    """Return the place whose GPUs the claim of a pod has or is tentatively given; None without one.

    For a pod that joins a claim of others this is their place, too.
    """
    key = claim_key(pod)
    if key is None and (made_by_template := static_pods.claim_of(scene, pod)) is not None:
        key = made_by_template.key
    claim = None if key is None else scene.picture.claims.get(key)
    if key is None or claim is None or not claim.owned_by(pod.metadata.uid):
        return None
    if claim.pin is not None:
        return place_of(claim.pin.choice, claim.pin.uuids)
    try:
        return place_by_scheduler(scene, key, resolved.read(pod.metadata.annotations).request)
    except WordError:
        return None


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
