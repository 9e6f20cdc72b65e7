"""The demo on a cluster: the examples applied, and what their pods got."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dradriver.allocator.request import Choice, Whole
from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.slices import resource_slices
from dradriver.topology import profiles
from tests.cluster.progress import announce
from tests.demo.examples import EXAMPLES
from tests.demo.plain import FirstFit, worth
from tests.demo.table import Row
from tests.deploy import Target

NAMESPACE = "demo"


def apply(cluster: Target) -> None:
    """Apply the examples one file after the other and wait until their pods run or say why they wait."""
    cluster.kubectl("create", "namespace", NAMESPACE, check=False)
    for path in sorted(EXAMPLES.glob("*.yaml")):
        announce(f"applying examples/{path.name} and waiting for its pods", 3)
        cluster.kubectl("-n", NAMESPACE, "apply", "-f", str(path))
        cluster.kubectl(*("-n", NAMESPACE, "wait", "--for=create", "--timeout=30s", "pod", "--all"), check=False)
        cluster.kubectl(
            *("-n", NAMESPACE, "wait", "--for=condition=Ready", "--timeout=60s", "pod", "--all"), check=False
        )


def rows(cluster: Target, machines: Mapping[str, str]) -> list[Row]:
    """Return the table's rows for the pods in the demo's namespace, in order of creation."""
    return rows_of(_items(cluster, "pods"), _items(cluster, "resourceclaims"), machines)


def rows_of(pods: Iterable[dict[str, Any]], claims: Iterable[dict[str, Any]], machines: Mapping[str, str]) -> list[Row]:
    """Return the table's rows for pods with their claims, in order of creation; ``machines``: the profile of a node."""
    loaded = {node: profiles.load(profile, seed=node) for node, profile in machines.items()}
    index = {resource_slices.device_name(g.uuid): g.index for machine in loaded.values() for g in machine.gpus}
    plain = FirstFit(loaded)
    claim_of = {claim["metadata"]["name"]: claim for claim in claims}
    table = []
    for pod in sorted(pods, key=_age):
        got = None
        held = [result for name in _claim_names(pod) for result in _results(claim_of.get(name, {}))]
        if held:
            node = held[0]["pool"]
            got = worth(loaded[node], sorted(index[result["device"]] for result in held), node=node)
        count = len(held) or _asked(pod)
        other: Choice | None = plain.take(Whole(containers=(count,)), list(loaded)) if count else None
        reason = pod["metadata"].get("annotations", {}).get(names.REASON, "")
        table.append(Row(pod["metadata"]["name"], got, other, reason))
    return table


def _asked(pod: dict[str, Any]) -> int:
    """Return the number of whole GPUs that a pod requests."""
    annotations = pod["metadata"].get("annotations", {})
    request = resolved.read(annotations).request if names.REQUEST in annotations else None
    return sum(request.containers) if isinstance(request, Whole) else 0


def _age(pod: dict[str, Any]) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]


def _items(cluster: Target, kind: str) -> list[dict[str, Any]]:
    shown = cluster.kubectl("-n", NAMESPACE, "get", kind, "-o", "json").stdout
    found: list[dict[str, Any]] = json.loads(shown)["items"]
    return found


def _claim_names(pod: dict[str, Any]) -> list[str]:
    entries = [*pod["spec"].get("resourceClaims", ()), *pod["status"].get("resourceClaimStatuses", ())]
    return [entry["resourceClaimName"] for entry in entries if "resourceClaimName" in entry]


def _results(claim: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return [result for result in found if result["driver"] == names.DRIVER]
