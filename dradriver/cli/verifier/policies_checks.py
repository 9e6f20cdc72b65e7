"""Whether the driver's processes use the policies of the ConfigMap; ``gputopo verify`` calls this.

The controller that leads writes on its Lease which policies it uses. The controllers that stand by, webhook and node
agents own no object that they could write on. Their metric has the digest, and the API server's proxy reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster.policies_in_force import InForce
from dradriver.cli.verifier.driver_pods import (
    COMPONENT,
    CONTROLLER,
    LEASE,
    NODE,
    WEBHOOK,
    Pod,
    container_of,
    is_ready,
    pods_of,
)
from dradriver.cli.verifier.finding import Finding, first_few, passed, warned
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.connection import TooLongError
from dradriver.kube.resources import PODS

METRIC: Final = b"gpu_topology_policies_digest "
_MAX_AT_ONCE: Final = 16
_ASKING_S: Final = 20.0  # for all pods together: a proxy that reaches no pod needs 30 s for each
_METRICS_BYTES: Final = 4 * 2**20


class Used(msgspec.Struct, frozen=True):
    """Which policies the pods of controller, webhook and node agents use.

    Attributes:
        fingerprints: Of their policies, by the names of pods; empty if the pod's metrics do not say.
        unknown: Why the pod could not be asked, by the names of pods.
    """

    fingerprints: Mapping[str, str]
    unknown: Mapping[str, str]


async def ask(client: Client, pods: Iterable[Pod], namespace: str) -> Used:
    """Return for the policies checks which policies the driver's ready pods use, by their metrics.

    Args:
        client: An entered client.
        pods: The pods of the driver's namespace.
        namespace: The driver's namespace.
    """
    # Each pod serves its metrics on the port named ``health``.
    port_of_pod = {
        str(pod["metadata"]["name"]): _health_port(pod, part)
        for part in (CONTROLLER, WEBHOOK, NODE)
        for pod in pods_of(pods, part)
        if is_ready(pod)
    }
    fingerprints: dict[str, str] = {}
    failures = dict.fromkeys(port_of_pod, f"no answer in {_ASKING_S:g} s")  # until a pod answers
    connections = asyncio.Semaphore(_MAX_AT_ONCE)

    async def ask_pod(name: str, port: int) -> None:
        async with connections:
            # The API server's proxy to a pod: /api/v1/namespaces/…/pods/NAME:PORT/proxy/metrics.
            path = f"{PODS.path(namespace, f'{name}:{port}')}/proxy/metrics"
            try:
                fingerprints[name] = _fingerprint(
                    await client.connection.request("GET", path, max_bytes=_METRICS_BYTES)
                )
            except (DriverError, TooLongError, ValueError, OverflowError) as error:
                failures[name] = str(error) or "its metrics cannot be read"
            else:
                del failures[name]

    # Pods that have not answered by then keep their entry in ``failures``.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ASKING_S), asyncio.TaskGroup() as tasks:
            for name, port in port_of_pod.items():
                tasks.create_task(ask_pod(name, port))
    return Used(fingerprints, failures)


def _health_port(pod: Pod, part: str) -> int:
    ports: Sequence[Mapping[str, Any]] = (container_of(pod, part) or {}).get("ports") or ()
    return next((int(port["containerPort"]) for port in ports if port.get("name") == "health"), 0)


def _fingerprint(metrics: bytes) -> str:
    """Return the fingerprint of the policies that a process uses, empty if its metrics do not say.

    Raises:
        ValueError: They cannot be read.
        OverflowError: They say infinity.
    """
    for line in metrics.splitlines():
        if line.startswith(METRIC):
            return Policies(digest=int(float(line.removeprefix(METRIC)))).fingerprint
    return ""


def finding(leases: Iterable[Mapping[str, Any]], used: Used, stored: InForce, namespace: str) -> Finding:
    """Return the finding of the policies checks: whether all processes use the policies that the ConfigMap holds.

    The first trouble counts, in the order in which it explains the others: the file, the controller, the other pods.

    Args:
        leases: The leases of the driver's namespace.
        used: The policies that the driver's pods use, as digests (``fingerprints``) by the pod's name.
        stored: The policies in the chart's ConfigMap; ``trouble`` says why they cannot be used.
        namespace: The driver's namespace.
    """
    check, stored_digest = "policies", stored.policies.fingerprint
    if stored.trouble:
        return warned(check, stored.trouble, "gputopo policies check FILE names what is wrong in a policies file")

    log = f"kubectl -n {namespace} logs -l {COMPONENT}=controller"
    leader_digest = _fingerprint_of_leader(leases)
    if not leader_digest:
        return warned(
            check, "no controller says which policies it uses",
            f"see the check leader; a controller of an older release says nothing: {log}",
        )  # fmt: skip
    if leader_digest != stored_digest:
        return warned(
            check, f"the controller uses policies with digest {leader_digest}, and the ConfigMap has {stored_digest}",
            f"repeat this command after 10 s; if it says the same, the controller cannot read the ConfigMap: {log}",
        )  # fmt: skip

    outdated_pods = sorted(name for name, digest in used.fingerprints.items() if digest not in ("", stored_digest))
    if outdated_pods:
        return warned(
            check, f"the digest {stored_digest} of the controller and the ConfigMap is not that of "
            f"{first_few(outdated_pods)}",
            "the kubelet brings a changed ConfigMap into a pod within about 75 s: repeat this command after that; if "
            f"it says the same, delete the pods: kubectl -n {namespace} delete pod {outdated_pods[0]}",
        )  # fmt: skip
    if used.unknown:
        name, why = min(used.unknown.items())
        return warned(
            check, f"which policies {first_few(sorted(used.unknown))} use is not known: {name}: {why}",
            f"this needs the verb get on pods/proxy in namespace {namespace}, and an API server that reaches the port "
            "health of these pods",
        )  # fmt: skip
    pods_without_digest = sorted(name for name, digest in used.fingerprints.items() if not digest)
    if pods_without_digest:
        return warned(
            check, f"the metrics of {first_few(pods_without_digest)} do not say which policies these pods use",
            f"look at the pod's log and its image: kubectl -n {namespace} describe pod {pods_without_digest[0]}",
        )  # fmt: skip

    count = len(used.fingerprints)
    pods = "1 pod of controller, webhook and node agents uses"
    if count != 1:
        pods = f"{count} pods of controller, webhook and node agents use" if count else "the controller that leads uses"
    return passed(check, f"{pods} those of the ConfigMap, digest {stored_digest}")


def _fingerprint_of_leader(leases: Iterable[Mapping[str, Any]]) -> str:
    """Return the fingerprint of the policies that the leading controller uses, empty if it does not say.

    A controller of an earlier release leaves its predecessor's annotation on the Lease, so the holder counts.
    """
    for lease in leases:
        if lease["metadata"]["name"] == LEASE:
            note = str((lease["metadata"].get("annotations") or {}).get(names.POLICIES, ""))
            writer, _, fingerprint = note.rpartition("=")
            return fingerprint if writer == (lease.get("spec") or {}).get("holderIdentity") else ""
    return ""
