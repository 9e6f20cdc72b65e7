"""What a claim holds: the devices it was given, or those that it is pinned to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.allocator.request import Choice
from dradriver.api import claims, config, slices
from dradriver.api.errors import WordError
from dradriver.api.ledger import OURS, Ledger
from dradriver.api.objects import DeviceConfig, Pod, ResourceClaim

Key = tuple[str, str]
"""Namespace and name of an object."""

Device = tuple[str, str]
"""Pool and name of a device. The name is the GPU's identity, so it outlives the GPU's absence."""

Amount = tuple[tuple[str, str], ...] | None
"""What is taken of a device: quantities by capacity's name, or None for the whole device."""


class _Exactly(msgspec.Struct, rename="camel", frozen=True, gc=False):
    count: int = 1


class _Request(msgspec.Struct, rename="camel", frozen=True, gc=False):
    name: str = ""
    exactly: _Exactly | None = None


class _Devices(msgspec.Struct, rename="camel", frozen=True, gc=False):
    requests: list[_Request] = []
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
        uuids: The chosen GPUs by the claim's requests, in the order of ``choice.containers``.
    """

    choice: Choice
    uuids: dict[str, tuple[str, ...]]

    @property
    def devices(self) -> frozenset[Device]:
        """The chosen GPUs' devices."""
        return devices_of(self.choice.node, self.uuids)

    def numbers(self) -> dict[int, str]:
        """Return the chosen GPUs' uuids by the machine's numbers of that time."""
        return {
            number: uuid
            for numbers, uuids in zip(self.choice.containers, self.uuids.values(), strict=True)
            for number, uuid in zip(numbers, uuids, strict=True)
        }


def devices_of(node: str, uuids: Mapping[str, tuple[str, ...]]) -> frozenset[Device]:
    """Return the devices of a node's GPUs, given by request."""
    return frozenset((node, slices.device_name(uuid)) for part in uuids.values() for uuid in part)


def pin(claim: Claim, ledger: Ledger = OURS) -> Pin | None:
    """Return what a claim of ours is pinned to; None for any other claim and for one that was tampered with."""
    try:
        choice = claims.read_choice(claim)
        opaque = [c.opaque for c in claim.spec.devices.config if c.opaque and c.opaque.driver == ledger.driver]
        if choice is None or len(opaque) != 1:
            return None
        order = config.read(opaque[0].parameters).order
    except (WordError, RecursionError):  # annotations are anybody's text, nested as deep as 256 KiB allow
        return None
    # What the requests do not ask for, the scheduler will not give, whatever the configuration says.
    asked = {request.name: request.exactly.count for request in claim.spec.devices.requests if request.exactly}
    uuids = {name: tuple(order.get(name, ())) for name in asked}
    counts = [len(part) for part in uuids.values()]
    if len(order) != len(asked) or [*asked.values()] != counts or counts != [len(part) for part in choice.containers]:
        return None
    return Pin(choice=choice, uuids=uuids)


def allocated(claim: Claim, ledger: Ledger = OURS) -> dict[Device, Amount]:
    """Return this driver's devices that the scheduler gave the claim; one for monitoring takes none from anybody."""
    if claim.status.allocation is None:
        return {}
    return {
        (result.pool, result.device): tuple(sorted(result.consumed_capacity.items())) or None
        for result in claim.status.allocation.devices.results
        if result.driver == ledger.driver and not result.admin_access
    }


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
