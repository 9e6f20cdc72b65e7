"""Node agents that are missing: the DaemonSet wants more pods, or pods use GPUs of a node without an agent.

A *finding* is the result of one check: PASS, WARN or FAIL, with the repair. The agent of a node is *gone* if pods use
GPUs of the node, and the node has no slices any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dradriver.cli.verifier.driver_pods import NODE, SELECTOR, Pod, container_of, is_ready, pods_of
from dradriver.cli.verifier.finding import Finding, failed, passed
from dradriver.cluster.views.gone_node_views import GoneNode
from dradriver.counted import counted, first_of
from dradriver.view.terminal_text import plain


class MissingAgent(msgspec.Struct, frozen=True, kw_only=True):
    """A node agent that is missing, for ``gputopo health``. All text in it is safe to print.

    Attributes:
        node: Its node; empty if the node is not known.
        why: How the check found that it is missing.
        repair: The repair.
    """

    node: str
    why: str
    repair: str


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
    """Return the finding that the DaemonSet wants more node agents than there are.

    The result is None if there are enough. ``wanted`` is the number that should exist, ``pods`` are those that exist,
    and ``ready`` of these are ready.
    """
    if len(pods) >= wanted:
        return None
    lacking = counted(wanted - len(pods), "pod is", "pods are")
    cure = f"kubectl -n {namespace} describe daemonset -l {SELECTOR} says why {lacking} not made"
    return failed(
        NODE,
        f"{ready} of {counted(wanted, 'pod')} that the DaemonSet wants {'is' if ready == 1 else 'are'} ready",
        cure,
    )


def findings(gone: Sequence[GoneNode], pods: Iterable[Pod], namespace: str) -> Iterator[Finding]:
    """Yield a finding for each of the first five nodes whose agent is gone; a PASS if there is no such node.

    One further finding counts the nodes after the first five.

    Args:
        gone: The nodes whose agent is gone.
        pods: The pods of node agents.
        namespace: The driver's namespace.
    """
    own = {str(pod["spec"].get("nodeName")): str(pod["metadata"]["name"]) for pod in pods}
    for node in gone[:_MOST]:
        holders = list(dict.fromkeys(holder.who for _, each in node.gpus for holder in each))
        said = f"{node.name}: {node.why}: {first_of(holders, _MOST_HOLDERS)}"
        yield failed("agents", said, _cure(node.name, own.get(node.name), namespace))
    if len(gone) > _MOST:
        yield failed(
            "agents", f"the same on {counted(len(gone) - _MOST, 'more node')}", "gputopo topo --cluster shows them all"
        )
    if not gone:
        yield passed("agents", "every node whose GPUs are allocated has its node agent's slices")


def missing(gone: Sequence[GoneNode], pods: Sequence[Pod], wanted: int, namespace: str) -> list[MissingAgent]:
    """Return the node agents that are missing: nodes without one, pods that are not ready or were not created.

    Args:
        gone: The nodes whose agent is gone.
        pods: The pods of the driver's namespace.
        wanted: Number of agents that the DaemonSets want; 0 if that is not known.
        namespace: The driver's namespace.
    """
    agents = pods_of(pods, NODE)
    pod_of = {str(pod["spec"].get("nodeName") or ""): str(pod["metadata"]["name"]) for pod in agents}
    lacking = [_missing(node.name, node.why, _cure(node.name, pod_of.get(node.name), namespace)) for node in gone]
    names_of_gone = {node.name for node in gone}
    unready = [pod for pod in agents if not is_ready(pod)]
    for pod in unready:
        node, name = str(pod["spec"].get("nodeName") or ""), str(pod["metadata"]["name"])
        if node not in names_of_gone:
            look = f"Run kubectl -n {namespace} describe pod {name} and kubectl -n {namespace} logs {name} -c {NODE}"
            lacking.append(_missing(node, f"its pod {name} is not ready", look))
    if (few := too_few(wanted, agents, len(agents) - len(unready), namespace)) is not None:
        lacking.append(_missing("", few.said, few.cure))
    return lacking


def _missing(node: str, why: str, repair: str) -> MissingAgent:
    return MissingAgent(node=plain(node), why=plain(why), repair=plain(repair))


def _cure(node: str, pod: str | None, namespace: str) -> str:
    if pod is not None:
        return f"its agent publishes nothing: kubectl -n {namespace} logs {pod} -c {NODE}"
    return (
        f"no agent's pod is there: compare the labels and taints of the node (kubectl describe node {node}) with "
        f"kubectl -n {namespace} describe daemonset -l {SELECTOR}"
    )
