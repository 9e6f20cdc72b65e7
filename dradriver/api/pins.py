"""What a claim holds: the devices it was given, or those that it is pinned to."""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.allocator.request import Choice
from dradriver.api import claims, config, names, slices
from dradriver.api.errors import WordError
from dradriver.api.objects import DeviceConfig, Pod, ResourceClaim

Key = tuple[str, str]
"""Namespace and name of an object."""

Device = tuple[str, str]
"""Pool and name of a device. The name is the GPU's identity, so it outlives the GPU's absence."""


class _Devices(msgspec.Struct, rename="camel", frozen=True, gc=False):
    config: list[DeviceConfig] = []


class _Spec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    devices: _Devices = _Devices()


class Claim(ResourceClaim, frozen=True):
    """A claim with the part of its spec that says which GPUs it is pinned to.

    The ``choice`` annotation alone would not do: it holds the machine's own numbers, which shift when a GPU is lost,
    and annotations can be changed while a claim's spec cannot.
    """

    spec: _Spec = _Spec()

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name


class Pin(msgspec.Struct, frozen=True):
    """What one of our claims was made for.

    Attributes:
        choice: The choice, by the machine's numbers of that time.
        devices: The chosen GPUs' devices.
        uuids: The chosen GPUs, in the order of the claim's requests.
    """

    choice: Choice
    devices: frozenset[Device]
    uuids: tuple[str, ...]


def pin(claim: Claim) -> Pin | None:
    """Return what a claim of ours is pinned to; None for any other claim and for one that was tampered with."""
    try:
        choice = claims.read_choice(claim)
        opaque = [
            c.opaque for c in claim.spec.devices.config if c.opaque is not None and c.opaque.driver == names.DRIVER
        ]
        if choice is None or len(opaque) != 1:
            return None
        order = config.read(opaque[0].parameters).order
    except (WordError, RecursionError):  # annotations are anybody's text, nested as deep as 256 KiB allow
        return None
    uuids = tuple(uuid for part in order.values() for uuid in part)
    return Pin(choice=choice, devices=frozenset((choice.node, slices.device_name(uuid)) for uuid in uuids), uuids=uuids)


def allocated(claim: Claim) -> frozenset[Device]:
    """Return this driver's devices that the scheduler gave the claim; one for monitoring takes none from anybody."""
    return frozenset((result.pool, result.device) for result in claim.results if not result.admin_access)


def owner(claim: Claim) -> tuple[str, str] | None:
    """Return name and uid of the pod that controls a claim, or None."""
    for reference in claim.metadata.owner_references:
        if reference.controller and reference.kind == "Pod":
            return reference.name, reference.uid
    return None


def claim_key(pod: Pod) -> Key | None:
    """Return the key of the claim that the webhook gave a pod, whether it exists or not."""
    return None if pod.claim_name is None else (pod.metadata.namespace, pod.claim_name)


KEEP: Final = ("CUDA_", "NCCL_", "NVIDIA_")
"""What the node agent's edits can touch: other variables of the author's need no protection."""


def kept_env(pod: Pod, containers: frozenset[str]) -> list[str]:
    """Return the variables that the author set in the given containers and that an edit must not replace."""
    spec = (*pod.spec.init_containers, *pod.spec.containers)
    return sorted({e.name for c in spec if c.name in containers for e in c.env if e.name.startswith(KEEP)})
