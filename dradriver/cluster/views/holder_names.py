"""The names of the pods and claims that hold a device or are promised it, as users see them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from dradriver.allocator.request import Part
from dradriver.api.base import names, quantity
from dradriver.api.base.allocating_driver import OURS
from dradriver.api.base.dra_objects import AllocationResult, Device
from dradriver.api.base.errors import WordError
from dradriver.api.claims import claim_builder, pins, result_annotations
from dradriver.api.claims.pins import Claim
from dradriver.api.slices import resource_slices
from dradriver.cluster.gpus.remaining import part_on
from dradriver.topology.natural import natural

_MOST_PODS: Final = 3  # of one claim that are named on a line

Where = tuple[str, str, str]
"""Driver, pool and name of a device."""


class Hold(enum.Enum):
    """How a claim holds a GPU."""

    ALLOCATED = "allocated"  # by the scheduler
    PROMISED = "promised"  # by our controller, until the scheduler has allocated it
    ADMIN = "admin"  # adminAccess, for monitoring: takes the GPU from nobody


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and the pods that it is for.

    Attributes:
        namespace: Of claim and pods.
        claim: Name.
        pods: Names of the pods that may use it; of a promise, the pod that waits for it.
        hold: How it holds the GPU.
        share: The id of the share of the GPU that it has, empty for all of it.
        part: What part of the GPU it has, as pods are told, ``25%/20480Mi`` or ``1g.10gb@6``; empty for all of it.
    """

    namespace: str
    claim: str
    pods: tuple[str, ...]
    hold: Hold
    share: str = ""
    part: str = ""

    @property
    def who(self) -> str:
        """Return the holder's name: ``namespace/pod``, or the claim if no pod uses it."""
        named = ", ".join(self.pods[:_MOST_PODS]) or f"{self.claim}, a claim without pod"
        more = len(self.pods) - _MOST_PODS
        return f"{self.namespace}/{named}" + (f" and {more} more" if more > 0 else "")

    @property
    def words(self) -> str:
        """Return in words the name of a GPU's holder, and how it holds the GPU."""
        share = self.part or (f"share {self.share}" if self.share else "")
        marks = (["adminAccess"] if self.hold is Hold.ADMIN else []) + ([share] if share else [])
        promised = "promised to " if self.hold is Hold.PROMISED else ""
        return f"{promised}{self.who}" + (f" ({', '.join(marks)})" if marks else "")


Held = dict[str, list[tuple[str, str, Holder]]]
"""By pool: a driver, its name of a device, and who holds that."""


def held_by(claims: Iterable[Claim], shared: Mapping[Where, Device]) -> Held:
    """Return the holder of each device: by allocation, else by our controller's pin.

    Args:
        claims: Claims of all namespaces.
        shared: The devices that several claims may have.
    """
    held: Held = {}
    for claim in sorted(claims, key=lambda claim: claim.key):
        for (driver, pool, device), holder in _holds(claim, shared):
            held.setdefault(pool, []).append((driver, device, holder))
    return held


def _holds(claim: Claim, shared: Mapping[Where, Device]) -> Iterator[tuple[Where, Holder]]:
    """Yield the devices of a claim with the pods that hold them: those allocated, or else those that its pin names."""
    pin = pins.pin(claim)
    pinned_parts = {} if pin is None else claim_builder.parts_of(pin.choice, pin.uuids)
    if claim.status.allocation is None:
        yield from _pinned(claim, pin, pinned_parts)
        return

    namespace, name = claim.key
    users = sorted(claim.status.reserved_for, key=lambda user: natural(user.name))
    pods = tuple(user.name if user.resource == "pods" else f"{user.resource} {user.name}" for user in users)
    for result in claim.status.allocation.devices.results:
        if names.is_seat(result.driver, result.pool):
            continue  # the device of a gang barrier: no GPU
        hold = Hold.ADMIN if result.admin_access else Hold.ALLOCATED
        where = result.driver, result.pool, result.device
        part = pinned_parts.get(result.request)
        allocated_part = pins.part_of(claim, result)
        if part is None and allocated_part is not None:
            part = part_on(0, allocated_part)
        part_text = "" if part is None else result_annotations.described(part)
        # The scheduler gives a share id also to a claim that has all of a device which claims may share.
        share = "" if not part_text and _has_all_compute(result, shared.get(where)) else result.share_id or ""
        yield where, Holder(namespace=namespace, claim=name, pods=pods, hold=hold, share=share, part=part_text)


def _pinned(claim: Claim, pin: pins.Pin | None, parts: Mapping[str, Part]) -> Iterator[tuple[Where, Holder]]:
    """Yield the devices that our controller has chosen for the pods of a claim which is not allocated yet."""
    namespace, name = claim.key
    waiting_pods = tuple(pod for pod, _ in pins.owners(claim))
    if pin is None or not waiting_pods:
        return
    for request, uuids in pin.uuids.items():
        part = result_annotations.described(parts[request]) if request in parts else ""
        holder = Holder(namespace=namespace, claim=name, pods=waiting_pods, hold=Hold.PROMISED, part=part)
        for uuid in uuids:
            yield (OURS.driver, pin.choice.node, resource_slices.device_name(uuid)), holder


def _has_all_compute(result: AllocationResult, device: Device | None) -> bool:
    """Return whether a claim has all compute of a device that claims may share."""
    capacity = {} if device is None else device.capacity
    # Compute decides: unlike memory, no more of it is promised than the device has.
    compute = next((name for name in (names.CAPACITY_CORES, names.CAPACITY_COMPUTE_SLICES) if name in capacity), "")
    try:
        taken = quantity.whole(result.consumed_capacity.get(compute, "0"))
        return compute != "" and taken >= quantity.whole(str(capacity[compute].get("value")))
    except WordError:
        return False
