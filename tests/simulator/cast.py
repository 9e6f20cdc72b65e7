"""Pods as the webhook admits them."""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from tests.fakes.apistore import Object

WISHES: Final[tuple[dict[str, str], ...]] = (
    {},
    {},
    {"policy": "nvlink"},
    {"preferred": "nvlink,same-numa"},
    {"required": "same-numa"},
    {"strategy": "spread"},
    {"strategy": "pack"},
    {"product": "NVIDIA GeForce RTX 4090"},
    {"min-busbw": "20GB/s"},
    {"min-memory": "20Gi"},
    {"policy": "nvlink", "when-full": "hand-over"},
)
COUNTS: Final[tuple[dict[str, int], ...]] = (
    {"main": 1},
    {"main": 2},
    {"main": 2},
    {"main": 4},
    {"main": 4},
    {"main": 8},
    {"left": 2, "right": 2},
    {"left": 3, "right": 1},
    {"main": 3},
)
OTHER_GATE: Final = "tenant.example.com/budget"

PARTS: Final[tuple[tuple[dict[str, str], tuple[dict[str, int], ...]], ...]] = (
    ({"share": "0.25"}, ({"main": 1}, {"left": 1, "right": 1})),
    ({"share": "0.5"}, ({"main": 1}, {"left": 1, "right": 1})),
    ({"memory": "10Gi"}, ({"main": 1},)),
    ({"cores": "40", "memory": "3Gi"}, ({"main": 1}, {"left": 1, "right": 1})),
    ({"mig-profile": "1g.10gb"}, ({"main": 1}, {"main": 2}, {"left": 2, "right": 1})),
    ({"mig-profile": "3g.40gb"}, ({"main": 1}, {"main": 2})),
    ({"mig-profile": "2g.20gb"}, ({"main": 1},)),
)
"""Words about parts of a GPU, and the containers that may have them."""


def claim_of(pod: str) -> str:
    """Return the claim name that the webhook gave a pod."""
    return f"{names.CLAIM_PREFIX}{pod}"


def notes(counts: dict[str, int], wishes: dict[str, str]) -> dict[str, str]:
    """Return the annotations of an admitted pod: its author's, and the webhook's note."""
    own = {names.PREFIX + key: value for key, value in wishes.items()}
    return own | {names.REQUEST: resolved.write(resolved.resolve(Annotations(own), counts))}


def pod(name: str, namespace: str, counts: dict[str, int], wishes: dict[str, str], **spec: Any) -> Object:
    """Return a gated pod; ``spec`` is added to its own, ``cpu`` is what its first container requests."""
    cpu = spec.pop("cpu", "0")
    written = notes(counts, wishes)
    noted = resolved.read(written)
    requests = noted.requests
    claim = claim_of(name) if noted.shared is msgspec.UNSET else noted.shared
    containers = [
        {
            "name": container,
            "image": "example.com/image",
            "resources": {
                "requests": {"cpu": cpu} if at == 0 and cpu != "0" else {},
                "claims": [{"name": names.POD_CLAIM, "request": request} for request in requests[container]],
            },
        }
        for at, container in enumerate(counts)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {names.LABEL: names.LABEL_PLACED},
            "annotations": written,
        },
        "spec": {
            "schedulingGates": [{"name": names.GATE}],
            "resourceClaims": [{"name": names.POD_CLAIM, "resourceClaimName": claim}],
            "containers": containers,
        }
        | spec,
        "status": {"phase": "Pending"},
    }


def any_pod(name: str, namespace: str, rng: random.Random) -> Object:
    """Return some honest pod."""
    spec: Object = {"cpu": rng.choice(("0", "0", "1", "500m", "5"))}
    if rng.random() < 0.25:
        spec["priority"] = rng.choice((-10, 100, 1000))
    if rng.random() < 0.12:
        spec["nodeSelector"] = {"zone": rng.choice(("a", "b"))}
    if rng.random() < 0.12:
        terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms[: rng.randint(1, 2)]}}
        spec["affinity"] = {"nodeAffinity": required}
    if rng.random() < 0.15:
        spec["tolerations"] = [{"operator": "Exists"}]
    if rng.random() < 0.06:
        spec["schedulerName"] = "nobody-knows"
    if rng.random() < 0.08:
        spec["schedulingGates"] = [{"name": names.GATE}, {"name": OTHER_GATE}]
    if rng.random() < 0.5:
        words, counts = rng.choice(PARTS)
        return pod(name, namespace, rng.choice(counts), words, **spec)
    return pod(name, namespace, rng.choice(COUNTS), rng.choice(WISHES), **spec)
