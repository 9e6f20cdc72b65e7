"""Whether the driver's processes use the policies of the ConfigMap; ``gputopo verify`` calls this.

A *digest* is a hash of the text of the policies file. The leading controller writes the digest of its policies on its
Lease. Standby controllers, webhook and node agents own no object that they could write on. Their metrics have the
digest, and ``gputopo verify`` reads the metrics through the API server's proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.unmatched_selectors import NodeGpus, unmatched
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
from dradriver.cli.verifier.finding import Finding, failed, first_few, passed, warned
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.connection import TooLongError
from dradriver.kube.resources import PODS
from dradriver.reason import sentences

METRIC: Final = b"gpu_topology_policies_digest "
_MAX_AT_ONCE: Final = 16
_ASKING_S: Final = 20.0  # for all pods together: a proxy that reaches no pod needs 30 s for each
_MOST_NAMED: Final = 8  # pods in a command
_METRICS_BYTES: Final = 4 * 2**20


class Used(msgspec.Struct, frozen=True):
    """The policies that the pods of controller, webhook and node agents use.

    Attributes:
        fingerprints: The digest of the policies, by pod name; empty if the pod's metrics do not have it.
        unknown: Why the pod's metrics could not be read, by pod name.
        parts: The component of the driver, such as the controller, by pod name.
    """

    fingerprints: Mapping[str, str]
    unknown: Mapping[str, str]
    parts: Mapping[str, str]


async def ask(client: Client, pods: Iterable[Pod], namespace: str) -> Used:
    """Return which policies the driver's ready pods use, from their metrics.

    Args:
        client: The API server's client, inside its ``async with`` block.
        pods: The pods of the driver's namespace.
        namespace: The driver's namespace.
    """
    # Each pod serves its metrics on the port named ``health``.
    ready = [
        (str(pod["metadata"]["name"]), part, _health_port(pod, part))
        for part in (CONTROLLER, WEBHOOK, NODE)
        for pod in pods_of(pods, part)
        if is_ready(pod)
    ]
    port_of_pod = {name: port for name, _, port in ready}
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
    return Used(fingerprints, failures, {name: part for name, part, _ in ready})


def _health_port(pod: Pod, part: str) -> int:
    ports: Sequence[Mapping[str, Any]] = (container_of(pod, part) or {}).get("ports") or ()
    return next((int(port["containerPort"]) for port in ports if port.get("name") == "health"), 0)


def _fingerprint(metrics: bytes) -> str:
    """Return the digest of the policies that a process uses.

    The result is empty if the metrics of the process do not have it.

    Raises:
        ValueError: The metrics cannot be read.
        OverflowError: A metric is infinite.
    """
    for line in metrics.splitlines():
        if line.startswith(METRIC):
            return Policies(digest=int(float(line.removeprefix(METRIC)))).fingerprint
    return ""


def finding(leases: Iterable[Mapping[str, Any]], used: Used, stored: InForce, namespace: str) -> Finding:
    """Return the result of a check: whether all processes use the policies in the ConfigMap.

    Only the first problem is reported. The order is file, controller, other pods, because an earlier problem causes the
    later ones.

    Args:
        leases: The leases of the driver's namespace.
        used: The digest of the policies that each of the driver's pods uses.
        stored: The policies in the chart's ConfigMap. ``error`` says what is invalid in the policies file; ``trouble``
            says why the policies were not found or cannot be read.
        namespace: The driver's namespace.
    """
    check, stored_digest = "policies", stored.policies.fingerprint
    if stored.error:
        return failed(
            check, sentences(stored.error, "The controller keeps the last valid file"),
            "run gputopo policies check FILE with your file, correct it, and upgrade the chart. To go back: "
            f"helm rollback {stored.release or 'RELEASE'} --namespace {namespace}",
        )  # fmt: skip
    if stored.trouble:
        return warned(check, stored.trouble, "do what the message says, and repeat this command")

    log = f"kubectl -n {namespace} logs -l {COMPONENT}=controller"
    leader_digest = _fingerprint_of_leader(leases)
    if not leader_digest:
        return warned(
            check, "no controller says which policies it uses",
            f"see the check leader. A controller of an older release does not say it: {log}",
        )  # fmt: skip
    if leader_digest != stored_digest:
        return warned(
            check, f"the controller uses policies with digest {leader_digest}, and the ConfigMap has {stored_digest}",
            "repeat this command after 10 s. If it says the same, the controller cannot read the "
            f"ConfigMap: {log}",
        )  # fmt: skip

    outdated_pods = sorted(name for name, digest in used.fingerprints.items() if digest not in ("", stored_digest))
    if outdated_pods:
        return warned(
            check, f"the digest {stored_digest} of the controller and the ConfigMap is not that of "
            f"{first_few(outdated_pods)}",
            "the kubelet brings a changed ConfigMap into a pod within about 75 s: repeat this command after that. If "
            f"it says the same, {_restart(outdated_pods, used.parts, namespace)}",
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
            f"look at the image of these pods: kubectl -n {namespace} describe pod "
            f"{' '.join(pods_without_digest[:_MOST_NAMED])}",
        )  # fmt: skip

    count = len(used.fingerprints)
    pods = "1 pod of controller, webhook and node agents uses"
    if count != 1:
        pods = f"{count} pods of controller, webhook and node agents use" if count else "the controller that leads uses"
    return passed(check, f"{pods} those of the ConfigMap, digest {stored_digest}")


def unmatched_selectors(policies: Policies, nodes: Iterable[NodeGpus]) -> Iterator[Finding]:
    """Yield a warning about each cap and partition of the policies that selects no GPU of the cluster."""
    for messages in unmatched(policies.tenants, nodes).values():
        for message in messages:
            yield warned(
                "policies", message,
                "correct the value policies, and upgrade the chart. Nothing, if the GPUs come later",
            )  # fmt: skip


def _restart(outdated: Sequence[str], parts: Mapping[str, str], namespace: str) -> str:
    """Return how to start pods again: by their names, or by their owners if they are many.

    Args:
        outdated: Names of the pods.
        parts: The component of each pod.
        namespace: The driver's namespace.
    """
    if len(outdated) <= _MOST_NAMED:
        return f"delete the pods: kubectl -n {namespace} delete pod {' '.join(outdated)}"
    commands = [
        f"kubectl -n {namespace} rollout restart {'daemonset' if part == NODE else 'deployment'} -l {COMPONENT}={part}"
        for part in sorted({parts[name] for name in outdated})
    ]
    return f"restart these {len(outdated)} pods by their owners: {'; '.join(commands)}"


def _fingerprint_of_leader(leases: Iterable[Mapping[str, Any]]) -> str:
    """Return the digest of the policies that the leading controller uses.

    The result is empty if the Lease does not have it. A controller of an earlier release does not replace its
    predecessor's annotation on the Lease. So the annotation counts only if it names the present holder.
    """
    for lease in leases:
        if lease["metadata"]["name"] == LEASE:
            note = str((lease["metadata"].get("annotations") or {}).get(names.POLICIES, ""))
            writer, _, fingerprint = note.rpartition("=")
            return fingerprint if writer == (lease.get("spec") or {}).get("holderIdentity") else ""
    return ""
