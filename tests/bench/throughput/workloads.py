"""The pods that are measured, by variant."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dradriver.api.base import names
from dradriver.api.claims.claim_builder import uuid_selector
from tests.bench.throughput.machines import Machines
from tests.bench.throughput.parts import Parts

NAMESPACE = "throughput"
OURS = "ours"
PART = "part"
SHARED = "shared"
OPEN = "open"
CLAIM = "claim"
SHARERS = 100  # pods of one set or claim: a node has room for 110, and a claim for 256
DEFAULT = (OURS, "match", "count", "plain")
HELP = (
    "ours (annotation and limit), match (template with matchAttribute), count (template with count), plain (no GPUs), "
    "part (template of what --parts says), "
    "open (ours with a rule that only the scheduler can evaluate: confined to no node), "
    f"shared (a set of GPUs for {SHARERS} pods each, by annotation), claim (a hand-made claim for as many), "
    "pinN (a hand-made pinned claim and N nodes of affinity: what a controller that costs nothing would reach)"
)
_PINNED = re.compile(r"pin(\d+)")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_OF_OTHER_NAMESPACES = {  # the controller does not know the labels of namespaces
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchLabels": {"app": "none"}},
    "namespaceSelector": {"matchLabels": {"team": "none"}},
}


@dataclasses.dataclass(frozen=True)
class Work:
    """One pod, and the claim that is created before it where its variant wants one."""

    pod: Mapping[str, Any]
    claim: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])


def known(variant: str) -> bool:
    """Return whether there is such a variant."""
    return variant in (*DEFAULT, PART, SHARED, OPEN, CLAIM) or _PINNED.fullmatch(variant) is not None


def templates(gpus: int, parts: Parts | None) -> list[dict[str, Any]]:
    """Return the ResourceClaimTemplates that `match`, `count` and `part` name."""
    request = {"name": "gpus", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": gpus}}
    same = {"requests": ["gpus"], "matchAttribute": f"{names.ATTRIBUTE_DOMAIN}/{_group(gpus)}"}
    devices = {"count": {"requests": [request]}, "match": {"requests": [request], "constraints": [same]}}
    if parts is not None:
        devices[PART] = {"requests": [{"name": "gpus", "exactly": parts.request}]}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"spec": {"devices": content}},
        }
        for name, content in devices.items()
    ]


def works(
    variant: str, prefix: str, count: int, *, gpus: int, machines: Machines, parts: Parts | None = None
) -> list[Work]:
    """Return `count` pods of a variant."""
    pinned = _PINNED.fullmatch(variant)
    if pinned:
        named = [f"{prefix}-{i}" for i in range(count)]
        return [_pinned(each, i, int(pinned[1]), gpus, machines, parts) for i, each in enumerate(named)]
    if variant == CLAIM:
        return [_sharing(f"{prefix}-{i}", i, gpus, machines) for i in range(count)]
    return [Work(_by_words(variant, f"{prefix}-{i}", gpus, parts)) for i in range(count)]


def gang(name: str, count: int, *, gpus: int) -> list[Work]:
    """Return the pods of one gang, `<name>-0` and so on, each of which says its name and size."""
    words = {names.GANG: name, names.GANG_SIZE: str(count)}
    limits = {names.GPU_RESOURCE: gpus}
    return [Work(_pod(f"{name}-{i}", annotations=words, limits=limits)) for i in range(count)]


def alone(name: str, *, gpus: int) -> Work:
    """Return a pod by itself that wants so many GPUs, whichever these are."""
    return Work(_pod(name, annotations={names.POLICY: "best-effort"}, limits={names.GPU_RESOURCE: gpus}))


def _by_words(variant: str, name: str, gpus: int, parts: Parts | None) -> dict[str, Any]:
    if variant == OURS and parts is not None:
        return _pod(name, annotations=parts.annotations, limits={names.GPU_RESOURCE: 1})
    if variant == OURS:
        return _pod(name, annotations={names.POLICY: "nvlink"}, limits={names.GPU_RESOURCE: gpus})
    if variant == SHARED:
        prefix, _, number = name.rpartition("-")
        words = {names.POLICY: "nvlink", names.SHARED_CLAIM: f"{prefix}-set-{int(number) // SHARERS}"}
        return _pod(name, annotations=words, limits={names.GPU_RESOURCE: gpus})
    if variant == OPEN:
        pod = _pod(name, annotations={names.POLICY: "nvlink"}, limits={names.GPU_RESOURCE: gpus})
        pod["spec"]["affinity"] = {"podAntiAffinity": {_REQUIRED: [_OF_OTHER_NAMESPACES]}}
        return pod
    if variant == "plain":
        return _pod(name)
    return _pod(name, claim={"resourceClaimTemplateName": variant})


def _sharing(name: str, number: int, gpus: int, machines: Machines) -> Work:
    """The first pod of each claim brings it."""
    turn, first = divmod(number, SHARERS)
    shared = f"{name.rpartition('-')[0]}-claim-{turn}"
    made = _pinned(shared, turn * (machines.gpus // gpus), 1, gpus, machines, None)
    nodes = [machines.name(turn % machines.count)]
    return Work(_pod(name, claim={"resourceClaimName": shared}, nodes=nodes), made.claim if first == 0 else None)


def _pinned(name: str, number: int, width: int, gpus: int, machines: Machines, parts: Parts | None) -> Work:
    """The sets of a burst share no GPU; the further nodes of the affinity are there to be looked at only.

    Parts are of one GPU after the other, over all nodes, then a second of each.
    """
    each = 1 if parts is not None else gpus
    a_node = machines.gpus // each
    node, part = number // a_node % machines.count, number % a_node
    uuids = machines.uuids(node)[part * each : (part + 1) * each]
    pin = {"deviceClassName": names.DEVICE_CLASS, "count": gpus}
    exactly = pin | {"selectors": [{"cel": {"expression": uuid_selector(uuids)}}]}
    if parts is not None:
        exactly = parts.pinned(uuids[0], number // (a_node * machines.count))
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "devices": {
                "requests": [{"name": "gpus", "exactly": exactly}],
            }
        },
    }
    nodes = [machines.name((node + i) % machines.count) for i in range(width)]
    return Work(_pod(name, claim={"resourceClaimName": name}, nodes=nodes), claim)


def _pod(
    name: str,
    *,
    annotations: Mapping[str, str] | None = None,
    limits: Mapping[str, int] | None = None,
    claim: Mapping[str, str] | None = None,
    nodes: Sequence[str] = (),
) -> dict[str, Any]:
    resources: dict[str, Any] = {"requests": {"cpu": "1", "memory": "1Gi"}}
    spec: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    if limits:
        resources["limits"] = dict(limits)
    if claim:
        resources["claims"] = [{"name": "gpus"}]
        spec["resourceClaims"] = [{"name": "gpus", **claim}]
    if nodes:
        terms = [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes
        ]  # a term takes one name
        required = {_REQUIRED: {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    spec["containers"] = [{"name": "main", "image": "none", "resources": resources}]
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _group(gpus: int) -> str:
    return f"nvlinkGroup{gpus}" if gpus in (2, 4, 8) else "nvlinkDomain"
