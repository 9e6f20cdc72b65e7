"""Reads the objects of NVIDIA's ComputeDomains (multi-node NVLink); this driver writes none of them.

A pod joins a domain by a claim for a *channel*. The claim's ResourceClaimTemplate was created by NVIDIA's controller
for the domain. A node has one channel for claims, ``channel-0``. So only one pod with a channel runs on a node at a
time, and the node belongs to one domain at a time. A label of the node names the domain from the first pod on
(kubernetes-sigs/dra-driver-nvidia-gpu, cmd/compute-domain-kubelet-plugin: ``computeDomainPublishedDevices``,
``AddNodeLabel``, ``assertImexChannelNotAllocated``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from dradriver.api.base.dra_objects import ResourceClaim, ResourceSlice

DRIVER: Final = "compute-domain.nvidia.com"
DEVICE_CLASS: Final = "compute-domain-default-channel.nvidia.com"
DOMAIN_LABEL: Final = "resource.nvidia.com/computeDomain"  # on a node: the uid of its domain
CHANNEL: Final = "channel-0"  # the one that claims are given, also with ``allocationMode: All``
_KIND: Final = "ComputeDomainChannelConfig"
_LONGEST: Final = 63  # characters of a label's value, which a domain's uid becomes


class _Exactly(msgspec.Struct, rename="camel", frozen=True):
    device_class_name: str = ""


class _Request(msgspec.Struct, frozen=True):
    exactly: _Exactly | None = None


class _Opaque(msgspec.Struct, frozen=True):
    driver: str = ""
    parameters: Any = None


class _Config(msgspec.Struct, frozen=True):
    opaque: _Opaque | None = None


class _Devices(msgspec.Struct, frozen=True):
    requests: list[_Request] | None = None
    config: list[_Config] | None = None


class _ClaimSpec(msgspec.Struct, frozen=True):
    devices: _Devices = _Devices()


class _TemplateSpec(msgspec.Struct, frozen=True):
    spec: _ClaimSpec = _ClaimSpec()


_DECODER: Final = msgspec.json.Decoder(_TemplateSpec)


def domain_of(spec: msgspec.Raw) -> str | None:
    """Return the uid of the ComputeDomain whose channel a template requests; None if it requests none.

    The uid is empty if the template requests a channel, but lacks the configuration that NVIDIA's controller writes.

    Args:
        spec: The template's ``spec``, JSON.
    """
    if DEVICE_CLASS.encode() not in bytes(spec):  # as in nearly all templates
        return None
    try:
        devices = _DECODER.decode(spec).spec.devices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    exactly_requests = [exactly.exactly for exactly in devices.requests or ()]
    if not any(exactly is not None and exactly.device_class_name == DEVICE_CLASS for exactly in exactly_requests):
        return None
    for config in devices.config or ():
        parameters = config.opaque.parameters if config.opaque is not None and config.opaque.driver == DRIVER else None
        domain = (
            parameters.get("domainID") if isinstance(parameters, dict) and parameters.get("kind") == _KIND else None
        )
        if isinstance(domain, str) and len(domain) <= _LONGEST:
            return domain
    return ""


def node_of(piece: ResourceSlice) -> str | None:
    """Return the node whose ComputeDomain channel a slice offers; None for any other slice.

    A channel connects a pod to multi-node NVLink. Each node has one.
    """
    spec = piece.spec
    offers = any(device.name == CHANNEL and not device.blocked for device in spec.devices)
    return spec.node_name if spec.driver == DRIVER and spec.node_name == spec.pool.name and offers else None


def held(claim: ResourceClaim) -> tuple[str, ...]:
    """Return the nodes on which a channel of a ComputeDomain is allocated to a claim.

    A channel connects a pod to multi-node NVLink. The result is empty if the claim has no channel, or is not allocated.
    """
    return tuple(_given(claim)) if claim.status.allocation is not None else ()


def _given(claim: ResourceClaim) -> Iterator[str]:
    assert claim.status.allocation is not None, "asked before"
    for result in claim.status.allocation.devices.results:
        if result.driver == DRIVER and result.device == CHANNEL and not result.admin_access:
            yield result.pool
