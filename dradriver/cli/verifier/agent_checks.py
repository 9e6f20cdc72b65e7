"""Node agents that are missing: by what the DaemonSet wants, and by nodes whose GPUs have pods and no agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dradriver.cli.verifier.driver_pods import NODE, SELECTOR, Pod, container_of
from dradriver.cli.verifier.finding import Finding, failed, passed
from dradriver.cluster.views.gone_node_views import GoneNode

_MOST: Final = 5  # nodes that get a line each
_MOST_HOLDERS: Final = 3


def desired(daemon_sets: Iterable[Mapping[str, Any]]) -> int:
    """Return how many node agents the DaemonSets of the chart want to run."""
    return sum(int((one.get("status") or {}).get("desiredNumberScheduled") or 0) for one in daemon_sets)


def images(daemon_sets: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the images of the node agents that the DaemonSets of the chart want."""
    templates = ((one.get("spec") or {}).get("template") or {} for one in daemon_sets)
    containers = (container_of(template, NODE) for template in templates if template.get("spec"))
    return frozenset(str(container["image"]) for container in containers if container is not None)


def too_few(wanted: int, pods: Sequence[Pod], ready: int, namespace: str) -> Finding | None:
    """Return the finding of the agent checks that the DaemonSet wants more node agents than there are; else None."""
    if len(pods) >= wanted:
        return None
    cure = f"kubectl -n {namespace} describe daemonset -l {SELECTOR} says why {wanted - len(pods)} pods are not made"
    return failed(NODE, f"{ready} of {wanted} pods that the DaemonSet wants are ready", cure)


def findings(gone: Sequence[GoneNode], pods: Iterable[Pod], namespace: str) -> Iterator[Finding]:
    """Yield the findings of the agent checks: one for each node whose agent is gone, the first five; else a PASS.

    Args:
        gone: The nodes.
        pods: The pods of node agents.
        namespace: The driver's.
    """
    own = {str(pod["spec"].get("nodeName")): str(pod["metadata"]["name"]) for pod in pods}
    for node in gone[:_MOST]:
        holders = list(dict.fromkeys(holder.who for _, each in node.gpus for holder in each))
        more = f" and {len(holders) - _MOST_HOLDERS} more" if len(holders) > _MOST_HOLDERS else ""
        said = f"{node.name}: {node.why}: {', '.join(holders[:_MOST_HOLDERS])}{more}"
        yield failed("agents", said, _cure(node.name, own.get(node.name), namespace))
    if len(gone) > _MOST:
        yield failed("agents", f"the same on {len(gone) - _MOST} more nodes", "gputopo topo --cluster shows them all")
    if not gone:
        yield passed("agents", "every node whose GPUs are allocated has its node agent's slices")


def _cure(node: str, pod: str | None, namespace: str) -> str:
    if pod is not None:
        return f"its agent publishes nothing: kubectl -n {namespace} logs {pod} -c {NODE}"
    return (
        f"no agent's pod is there: compare the labels and taints of the node (kubectl describe node {node}) with "
        f"kubectl -n {namespace} describe daemonset -l {SELECTOR}"
    )
