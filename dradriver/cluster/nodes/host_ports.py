"""Host ports of pods, and conflicts between two pods over them. It serves pods of this driver and foreign pods.

It follows the scheduler's plugin NodePorts (nodeports/node_ports.go, ``HostPortInfo`` of
kube-scheduler/framework/types.go, Kubernetes 1.35). The API server writes the host ports of a pod with ``hostNetwork``
into its containers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from dradriver.api.base.pods import Container, ContainerPort

HostPort: TypeAlias = tuple[str, int, str]
"""Protocol, number and IP address of the host."""

MOST: Final = 64  # host ports of one pod; the scheduler alone judges a pod with more
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104
_SIDECAR: Final = "Always"


def host_ports(containers: Iterable[Container], init_containers: Iterable[Container]) -> tuple[HostPort, ...]:
    """Return the host ports of a pod's containers and sidecars, sorted."""
    sidecars = (container for container in init_containers if container.restart_policy == _SIDECAR)
    ports = {
        _host_port(port) for container in (*containers, *sidecars) for port in container.ports if port.host_port > 0
    }
    return tuple(sorted(ports)) if ports else ()


def are_in_conflict(port: HostPort, other: HostPort) -> bool:
    """Return whether two pods with these host ports cannot share a node."""
    if port[:2] != other[:2]:
        return False
    return port[2] == other[2] or ALL_ADDRESSES in (port[2], other[2])


def _host_port(port: ContainerPort) -> HostPort:
    return port.protocol or "TCP", port.host_port, port.host_ip or ALL_ADDRESSES
