"""The fields of ResourceSlices and ResourceClaims that the driver reads.

As the structs of ``objects``, they have only the fields that are used. Never send one of them back as an update.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dradriver.api.base import names
from dradriver.api.base.objects import Condition, Metadata, Part, Taint
from dradriver.api.base.pods import NodeSelector


class Pool(Part, frozen=True):
    """The pool of a slice, with its generation and the number of slices.

    A driver raises the generation when it publishes a pool again. Consumers use only the highest generation, and only
    when all its slices exist.
    """

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class Device(Part, frozen=True):
    """A device of a slice. Each attribute keeps the API's form, with its type: ``{"uuid": {"string": "…"}}``."""

    name: str = ""
    attributes: dict[str, dict[str, Any]] = {}
    taints: list[Taint] = []
    allow_multiple_allocations: bool = False
    capacity: dict[str, dict[str, Any]] = {}
    consumes_counters: list[Any] = []

    @property
    def blocked(self) -> bool:
        """Return whether a taint of a DRA device keeps new claims from the device.

        A taint does so if its effect is NoSchedule or NoExecute.
        """
        return any(taint.blocks for taint in self.taints)

    def text(self, attribute: str) -> str:
        """Return a DRA device's string attribute; empty if missing or of another type."""
        text = self.attributes.get(attribute, {}).get("string", "")
        return text if isinstance(text, str) else ""

    def number(self, attribute: str) -> int | None:
        """Return a DRA device's integer attribute; None if missing or of another type."""
        number = self.attributes.get(attribute, {}).get("int")
        return number if isinstance(number, int) else None


class SliceSpec(Part, frozen=True):
    """The spec of a ResourceSlice."""

    driver: str = ""
    node_name: str = ""
    pool: Pool = Pool()
    devices: list[Device] = []


class ResourceSlice(Part, frozen=True):
    """A ResourceSlice: some devices of a node's pool."""

    metadata: Metadata
    spec: SliceSpec = SliceSpec()


class Opaque(Part, frozen=True):
    """A driver's own configuration inside a claim."""

    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class DeviceConfig(Part, frozen=True):
    """One configuration of an allocation, and the names of the requests that it applies to.

    Without names it applies to all requests.
    """

    source: str = ""
    requests: list[str] = []
    opaque: Opaque | None = None


class AllocationResult(Part, frozen=True):
    """One allocated device.

    ``request`` is the name of the claim's request. For a request with alternatives it is ``request/alternative``.
    """

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str] = {}  # of a device that several claims share; empty: the whole device
    admin_access: bool | None = None  # for monitoring: takes no device from anybody


class DeviceAllocation(Part, frozen=True):
    """The allocated devices of a claim, and their configuration."""

    results: list[AllocationResult] = []
    config: list[DeviceConfig] = []


class Allocation(Part, frozen=True):
    """The allocation in a claim's status, which the scheduler writes."""

    devices: DeviceAllocation = DeviceAllocation()
    allocation_timestamp: str = ""
    node_selector: NodeSelector | None = None  # nodes that can use the devices; None: all nodes


class Consumer(Part, frozen=True):
    """A pod or another object that may use a claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceCondition(Condition, frozen=True):
    """One condition of an allocated device, with the time of its last change."""

    last_transition_time: str | None = None


class DeviceStatus(Part, frozen=True):
    """The status of an allocated device in a claim.

    ``data`` can be any JSON: everyone who may write the status of claims can write it.
    """

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    data: msgspec.Raw = msgspec.Raw(b"{}")
    conditions: list[DeviceCondition] = []


class ClaimStatus(Part, frozen=True):
    """The status of a claim: its allocation, the pods that use it, and the status of its devices."""

    allocation: Allocation | None = None
    reserved_for: list[Consumer] = []
    devices: list[DeviceStatus] = []


class ResourceClaim(Part, frozen=True):
    """A ResourceClaim's metadata and status. Its spec, with the requests, is not read.

    The driver counts the devices that were allocated, and not those that were requested.
    """

    metadata: Metadata
    status: ClaimStatus = ClaimStatus()

    @property
    def results(self) -> list[AllocationResult]:
        """Return the devices that were allocated to a claim; empty if the claim is not allocated."""
        if self.status.allocation is None:
            return []
        ours = (result for result in self.status.allocation.devices.results if result.driver == names.DRIVER)
        return [result for result in ours if not names.is_seat(result.driver, result.pool)]

    def owned_by(self, pod_uid: str) -> bool:
        """Return whether the claim's controlling owner is the pod with this uid.

        The pod's name is not enough, because another pod can have had the same name.
        """
        return any(owner.uid == pod_uid and owner.controller for owner in self.metadata.owner_references)
