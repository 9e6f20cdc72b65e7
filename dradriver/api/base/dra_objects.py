"""The parts of ResourceSlices and ResourceClaims that decisions are made from. As in ``objects``."""

from __future__ import annotations

from typing import Any

import msgspec

from dradriver.api.base import names
from dradriver.api.base.objects import Condition, Metadata, Part, Taint
from dradriver.api.base.pods import NodeSelector


class Pool(Part, frozen=True):
    """A slice's place in its pool; consumers use only the highest generation, once all its slices are there."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class Device(Part, frozen=True):
    """A device: attributes stay as the API writes them, ``{"uuid": {"string": "…"}}``."""

    name: str = ""
    attributes: dict[str, dict[str, Any]] = {}
    taints: list[Taint] = []
    allow_multiple_allocations: bool = False
    capacity: dict[str, dict[str, Any]] = {}
    consumes_counters: list[Any] = []

    @property
    def blocked(self) -> bool:
        """Return whether a taint keeps new claims off a DRA device."""
        return any(taint.blocks for taint in self.taints)

    def text(self, attribute: str) -> str:
        """Return a DRA device's attribute that is text; empty if it is missing, or something else."""
        text = self.attributes.get(attribute, {}).get("string", "")
        return text if isinstance(text, str) else ""

    def number(self, attribute: str) -> int | None:
        """Return a DRA device's attribute that is a number; None if it is missing, or something else."""
        number = self.attributes.get(attribute, {}).get("int")
        return number if isinstance(number, int) else None


class SliceSpec(Part, frozen=True):
    """A slice's content."""

    driver: str = ""
    node_name: str = ""
    pool: Pool = Pool()
    devices: list[Device] = []


class ResourceSlice(Part, frozen=True):
    """A part of a node's pool of devices."""

    metadata: Metadata
    spec: SliceSpec = SliceSpec()


class Opaque(Part, frozen=True):
    """A driver's own configuration inside a claim."""

    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class DeviceConfig(Part, frozen=True):
    """One configuration of an allocation and the requests it is for (none: all)."""

    source: str = ""
    requests: list[str] = []
    opaque: Opaque | None = None


class AllocationResult(Part, frozen=True):
    """One allocated device. ``request`` is ``main`` or ``main/sub``."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str] = {}  # of a device that several claims share; empty: the whole device
    admin_access: bool | None = None  # for monitoring: takes no device from anybody


class DeviceAllocation(Part, frozen=True):
    """All devices of a claim."""

    results: list[AllocationResult] = []
    config: list[DeviceConfig] = []


class Allocation(Part, frozen=True):
    """What the scheduler gave a claim."""

    devices: DeviceAllocation = DeviceAllocation()
    allocation_timestamp: str = ""
    node_selector: NodeSelector | None = None  # nodes that can use the devices; None: all nodes


class Consumer(Part, frozen=True):
    """A pod or another object that may use a claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceCondition(Condition, frozen=True):
    """One condition of an allocated device, and since when it is what it is."""

    last_transition_time: str | None = None


class DeviceStatus(Part, frozen=True):
    """What the driver said of an allocated device; ``data`` is any JSON, by whoever may write claims' status."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    data: msgspec.Raw = msgspec.Raw(b"{}")
    conditions: list[DeviceCondition] = []


class ClaimStatus(Part, frozen=True):
    """Where a claim's life stands."""

    allocation: Allocation | None = None
    reserved_for: list[Consumer] = []
    devices: list[DeviceStatus] = []


class ResourceClaim(Part, frozen=True):
    """A claim, without its spec: what was allocated is what counts."""

    metadata: Metadata
    status: ClaimStatus = ClaimStatus()

    @property
    def results(self) -> list[AllocationResult]:
        """Return the allocation results of a DRA claim that are GPUs or parts of them; empty if not allocated."""
        if self.status.allocation is None:
            return []
        ours = (result for result in self.status.allocation.devices.results if result.driver == names.DRIVER)
        return [result for result in ours if not names.is_seat(result.driver, result.pool)]

    def owned_by(self, pod_uid: str) -> bool:
        """Return whether the pod of this uid controls the DRA claim: another claim may have its name."""
        return any(owner.uid == pod_uid and owner.controller for owner in self.metadata.owner_references)
