"""The rights of the user who runs ``gputopo verify``, by SelfSubjectAccessReview, and the commands that need them.

A *finding* is the result of one check: PASS, WARN or FAIL, with the repair.
"""

from __future__ import annotations

from typing import Any, Final

from dradriver.cli.verifier.finding import Finding, passed, warned
from dradriver.kube.client import Client
from dradriver.kube.resources import (
    CONFIG_MAPS,
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)  # fmt: skip

_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
WANTED: Final = (
    (RESOURCE_SLICES, "", "topo --cluster, health, free, explain"),
    (RESOURCE_CLAIMS, "", "topo --cluster, health, free, explain, idle"),
    (NODES, "", "health, explain, queue"),
    (PODS, "", "explain, queue, defrag"),
    (DEVICE_CLASSES, "", "explain, queue"),
    (CONFIG_MAPS, "driver", "usage, queue, tenants"),
)
"""What is listed, whether in the driver's namespace alone, and by which commands."""


async def findings(client: Client, namespace: str) -> list[Finding]:
    """Return the findings about objects that the user may not list, and the commands that need them.

    Raises:
        ApiError: The API server refuses the review.
        Unreachable: The API server does not answer.
    """
    return [one async for one in _findings(client, namespace)]


async def _findings(client: Client, namespace: str) -> Any:
    lacking = 0
    for resource, where, commands in WANTED:
        asked = {"verb": "list", "group": resource.group, "resource": resource.plural}
        asked |= {"namespace": namespace} if where else {}
        body = {
            "apiVersion": _REVIEWS.api_version, "kind": _REVIEWS.kind, "metadata": {},
            "spec": {"resourceAttributes": asked},
        }  # fmt: skip
        answer: dict[str, Any] = await client.create(_REVIEWS, body)
        if not (answer.get("status") or {}).get("allowed"):
            lacking += 1
            what = f"{resource.plural}.{resource.group}".rstrip(".")
            scope = f" in namespace {namespace}" if where else ""
            yield warned("rights", f"you may not list {what}{scope}", f"gputopo {commands} need the verb list on it")
    if not lacking:
        yield passed("rights", "you may read all that gputopo reads")
