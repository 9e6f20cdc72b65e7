"""What NVIDIA's driver of ComputeDomains has in a cluster: slices, templates of channels, and claims by them.

As in kubernetes-sigs/dra-driver-nvidia-gpu at 95932046: templates/compute-domain-workload-claim-template.tmpl.yaml,
cmd/compute-domain-kubelet-plugin/deviceinfo.go.
"""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]

DRIVER: Final = "compute-domain.nvidia.com"
CLASS: Final = "compute-domain-default-channel.nvidia.com"
LABEL: Final = "resource.nvidia.com/computeDomain"
CLIQUE: Final = "nvidia.com/gpu.clique"
CLASS_CEL: Final = (
    "device.driver == 'compute-domain.nvidia.com' && "
    "device.attributes['compute-domain.nvidia.com'].type == 'channel' && "
    "device.attributes['compute-domain.nvidia.com'].id == 0"
)


def device(kind: str) -> Object:
    """Return a node's one device of a kind, ``channel`` or ``daemon``."""
    return {"name": f"{kind}-0", "attributes": {"type": {"string": kind}, "id": {"int": 0}}}


def resource_slice(node: str, *kinds: str) -> Object:
    """Return a node's slice; ``kinds`` of devices are both unless they are named."""
    return {
        "metadata": {"name": f"{node}-{DRIVER}-x7k2p"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [device(kind) for kind in kinds or ("channel", "daemon")],
        },
    }


def template(name: str, domain: str, *, namespace: str = "default", mode: str = "Single") -> Object:
    """Return the template of channels that their controller makes for a domain."""
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": domain,
        "allocationMode": mode,
    }
    config = {"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": parameters}}
    request = {"name": "channel", "exactly": {"deviceClassName": CLASS}}
    labels = {LABEL: domain, "resource.nvidia.com/computeDomainTarget": "Workload"}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"spec": {"devices": {"requests": [request], "config": [config]}}},
    }


def entry(template: str) -> Object:
    """Return the entry of a pod's ``resourceClaims`` that asks for a channel."""
    return {"name": "channel", "resourceClaimTemplateName": template}


def claim(name: str, node: str, *, pod: Object | None = None, device: str = "channel-0") -> Object:
    """Return a claim that was given a node's channel, a pod's where one is named."""
    owner = {} if pod is None else {"apiVersion": "v1", "kind": "Pod", "controller": True}
    result = {"request": "channel", "driver": DRIVER, "pool": node, "device": device}
    metadata: Object = {"name": name, "namespace": "default"}
    if pod is not None:
        owner |= {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        metadata["ownerReferences"] = [owner]
    return {
        "metadata": metadata,
        "spec": {"devices": {"requests": [{"name": "channel", "exactly": {"deviceClassName": CLASS}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
