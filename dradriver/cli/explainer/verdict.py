"""What the controller makes of a pod: its own review and decision, over what was read once."""

from __future__ import annotations

import asyncio

import msgspec

from dradriver.api.base.allocating_driver import bound
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import claim_key
from dradriver.api.policies.model import Policies
from dradriver.cli.cluster import policies_in_force
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cli.explainer import gang_shown, pod_history, static_pods, workload_reader
from dradriver.cli.explainer.model import Happening, Verdict
from dradriver.cli.explainer.workload_reader import NotReadyError
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.view.terminal_text import plain


async def verdict(client: Client, server: ServerConfig, pod: Pod, policies: Policies | None, drivers: str) -> Verdict:
    """Return what is to be said of a pod, as far as the server lets us read.

    Args:
        client: The server's, entered.
        server: The server, for messages.
        pod: The pod.
        policies: Those that the controller follows, if the caller knows them. None reads them.
        drivers: The driver's namespace, which has them and what tenants have had; empty where nobody knows it.
    """
    key = claim_key(pod)
    unread: list[str] = []

    async def told(uid: str, about: str) -> list[Happening]:
        try:
            return await pod_history.events(client, server, pod.metadata.namespace, uid, about)
        except ClusterError as error:
            unread.append(str(error))
            return []

    if pod.finished or not (pod.placed or pod.static):
        events = await told(pod.metadata.uid, "pod")
        return Verdict(happened=pod_history.in_order([*pod_history.own(pod, None), *events]), unread=tuple(unread))
    if policies is None:
        followed = await policies_in_force.read(client, server, drivers)
        policies = followed.policies
        unread += filter(None, [followed.trouble])
    own = Own(policies)
    scene = Scene(client, server, policies, own=own)
    if policies.tenants and drivers:
        await own.read(client, server, drivers)
    elif policies.queue.reservation.after_minutes and drivers:
        await own.read_reservations(client, server, drivers)
    unread += own.unread
    events, _ = await asyncio.gather(told(pod.metadata.uid, "pod"), scene.read())
    claim = static_pods.claim_of(scene, pod) if key is None else scene.claims.get(key)
    if claim is not None and not claim.owned_by(pod.metadata.uid):
        claim = None  # somebody else's under the same name
    if claim is not None:
        events += await told(claim.metadata.uid, "claim")
    with bound(scene.ledger):
        judged = await (static_pods.static(scene, pod, claim) if pod.static else _judged(scene, pod))
    return msgspec.structs.replace(
        judged,
        reason=plain(judged.reason),
        nearest=plain(judged.nearest),
        happened=pod_history.in_order([*pod_history.own(pod, claim), *events]),
        unread=tuple(dict.fromkeys([*scene.unread, *unread])),
    )


async def _judged(scene: Scene, pod: Pod) -> Verdict:
    """Return what the controller would make of a pod, alone or with its gang."""
    scene.put(pod)
    key = pod.metadata.namespace, pod.metadata.name
    gang = None
    if scene.whole and pod.metadata.deletion_timestamp is None:
        if (why := scene.picture.gangs.waits(key)) and pod.gated and scene.picture.claim_of(pod) is None:
            return Verdict(reason=why.text)
        gang = await workload_reader.read_gang(scene, pod)
    try:
        workload = await workload_reader.read(scene, pod, gang)
        judged = await workload.verdict()
    except NotReadyError as error:
        judged = Verdict(reason=str(error))
    if gang is None or judged.gang is not None:
        return judged
    return msgspec.structs.replace(judged, gang=gang_shown.described(scene, gang, pod))
