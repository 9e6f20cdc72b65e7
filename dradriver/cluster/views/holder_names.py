"""Names for people: the pods and claims that use a device or have a tentative placement on it.

A claim is *pinned* to the devices that the controller chose for it.
"""

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
from dradriver.counted import first_of
from dradriver.topology.natural import natural

_MOST_PODS: Final = 3  # of one claim that are named on a line

Where = tuple[str, str, str]
"""Driver, pool and name of a device."""


class Hold(enum.Enum):
    """How a claim uses a GPU: allocated, tentatively placed, or only monitored."""

    ALLOCATED = "allocated"  # by the scheduler
    TENTATIVE = "tentative"  # by our controller, until the scheduler has allocated it
    ADMIN = "admin"  # adminAccess, for monitoring: takes the GPU from nobody


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that uses a GPU, with the pods that it is for.

    Attributes:
        namespace: The namespace of the claim and its pods.
        claim: The claim's name.
        pods: Names of the pods that may use it. For a tentative placement, the pods that wait for it.
        hold: The way in which it uses the GPU.
        share: The id of its share of the GPU; empty for all of it.
        part: Its fraction of the GPU in the form of pod annotations, ``25%/20480Mi`` or ``1g.10gb@6``; empty for all of
            it.
    """

    namespace: str
    claim: str
    pods: tuple[str, ...]
    hold: Hold
    share: str = ""
    part: str = ""

    @property
    def who(self) -> str:
        """Return the user of the GPU as ``namespace/pod``, or as the claim if no pod uses it."""
        named = first_of(self.pods, _MOST_PODS) or f"{self.claim}, a claim without pod"
        return f"{self.namespace}/{named}"

    @property
    def words(self) -> str:
        """Return in words who uses the GPU, and how, such as tentatively."""
        share = self.part or (f"share {self.share}" if self.share else "")
        how = {Hold.ADMIN: "adminAccess", Hold.TENTATIVE: "tentative"}.get(self.hold, "")
        marks = ", ".join(filter(None, (how, share)))
        return self.who + (f" ({marks})" if marks else "")


Held = dict[str, list[tuple[str, str, Holder]]]
"""By pool: a driver, its name of a device, and who holds that."""


def held_by(claims: Iterable[Claim], shared: Mapping[Where, Device]) -> Held:
    """Return the users of each device: claims to which it is allocated, or which our controller pinned to it.

    Args:
        claims: Claims of all namespaces.
        shared: The devices that several claims can use.
    """
    held: Held = {}
    for claim in sorted(claims, key=lambda claim: claim.key):
        for (driver, pool, device), holder in _holds(claim, shared):
            held.setdefault(pool, []).append((driver, device, holder))
    return held


def _holds(claim: Claim, shared: Mapping[Where, Device]) -> Iterator[tuple[Where, Holder]]:
    """Yield the devices of a claim, each with the claim's pods.

    An unallocated claim has the devices that the controller chose. ``shared`` has devices that several claims can use.
    """
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
    """Yield the devices that our controller chose for an unallocated claim, with its waiting pods.

    ``pin`` has these devices; None if there are none. ``parts`` has the fractions of the claim's requests; other
    requests get whole GPUs.
    """
    namespace, name = claim.key
    waiting_pods = tuple(pod for pod, _ in pins.owners(claim))
    if pin is None or not waiting_pods:
        return
    for request, uuids in pin.uuids.items():
        part = result_annotations.described(parts[request]) if request in parts else ""
        holder = Holder(namespace=namespace, claim=name, pods=waiting_pods, hold=Hold.TENTATIVE, part=part)
        for uuid in uuids:
            yield (OURS.driver, pin.choice.node, resource_slices.device_name(uuid)), holder


def _has_all_compute(result: AllocationResult, device: Device | None) -> bool:
    """Return whether a claim has all the compute of a device that claims can share.

    Then its user is shown without a share. ``result`` is the allocation. False if ``device`` is None: only one claim
    can use it.
    """
    capacity = {} if device is None else device.capacity
    # Compute decides: unlike memory, no more of it is promised than the device has.
    compute = next((name for name in (names.CAPACITY_CORES, names.CAPACITY_COMPUTE_SLICES) if name in capacity), "")
    try:
        taken = quantity.whole(result.consumed_capacity.get(compute, "0"))
        return compute != "" and taken >= quantity.whole(str(capacity[compute].get("value")))
    except WordError:
        return False
