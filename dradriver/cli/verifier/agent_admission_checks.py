"""Whether Kubernetes creates the pods of node agents: Pod Security or another admission plugin can refuse them.

A *finding* is the result of one check: PASS, WARN or FAIL, with the repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dradriver.api.base import pod_security
from dradriver.cli.verifier.finding import Finding, failed

REFUSALS: Final = "reason=FailedCreate,involvedObject.kind=DaemonSet"
"""Selects the Events that say why pods of DaemonSets are not created."""


def findings(labels: Mapping[str, str], events: Iterable[Mapping[str, Any]], namespace: str) -> Iterator[Finding]:
    """Yield the finding that Kubernetes cannot create node agents; nothing if it can.

    Args:
        labels: The labels of the driver's namespace.
        events: The Events of ``REFUSALS`` in that namespace; empty if no node agent is missing.
        namespace: The driver's namespace.
    """
    level = pod_security.forbidding_level(labels)
    if level:
        yield failed("pod-security", pod_security.problem(namespace, level), pod_security.cure(namespace))
        return
    # The standard can also come from the API server's configuration, which no client can read.
    last = max(events, key=lambda event: str(event.get("lastTimestamp") or ""), default=None)
    if last is None:
        return
    message = str(last.get("message") or "")
    if "PodSecurity" in message:
        yield failed("pod-security", message, pod_security.cure(namespace))
    else:
        cure = f"kubectl -n {namespace} get events --field-selector {REFUSALS} lists all"
        yield failed("agents", f"Kubernetes does not create a node agent: {message}", cure)
