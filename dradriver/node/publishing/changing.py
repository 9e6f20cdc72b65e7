"""As what each GPU is published while the policies file changes.

A device that is published in another form beside what claims have of it would be handed out twice: shares are not
counted among slices, and a device that goes while it is allocated gives its counters back. So a GPU whose form is to
change is first kept from new claims, by a taint, in its old form. It changes once no claim of it is prepared, and not
before those that were allocated earlier had time to be. A claim whose pod takes longer to start is not known here.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from dradriver.api import names, quantity, slices
from dradriver.api.abilities import Abilities
from dradriver.api.errors import WordError
from dradriver.api.objects import Device, ResourceSlice
from dradriver.api.policies.model import Policies, SharedWord
from dradriver.api.policies.modes import Mode, mode_of
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

KEY: Final = names.PREFIX + "mode-changes"
GRACE_S: Final = 60.0
LOOK_S: Final = 5.0  # how often to look whether a GPU may change by now


class Changing:
    """Decides as what each GPU is published.

    Attributes:
        modes: What was decided last, by the GPU's uuid; empty until something was.
        waiting: Since when each GPU waits that is to change, by the clock.
    """

    def __init__(
        self,
        policies: Callable[[], Policies],
        *,
        node: str,
        mps: bool = True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Keep what is needed.

        Args:
            policies: Gives those in force.
            node: This node's name.
            mps: Whether this node has what starts MPS daemons.
            clock: Gives seconds.
            wall: Gives the time of day.
        """
        self._policies = policies
        self._node = node
        self._mps = mps
        self._clock = clock
        self._wall = wall
        self._said: set[str] = set()
        self.modes: dict[str, Mode] = {}
        self.waiting: dict[str, tuple[float, float]] = {}

    def decide(
        self,
        machine: Machine,
        *,
        labels: Mapping[str, str],
        published: Mapping[str, Mode],
        used: Collection[str] | None,
        able: Abilities,
    ) -> dict[str, list[dict[str, Any]]]:
        """Decide anew, into ``modes``. Returns the taints of GPUs that are kept from new claims, by uuid.

        Args:
            machine: The machine.
            labels: The node's.
            published: As what GPUs are published now, by uuid (``published``).
            used: Uuids of the GPUs of which claims are prepared; None where that is not known.
            able: What the API server keeps.
        """
        decided: dict[str, Mode] = {}
        taints: dict[str, list[dict[str, Any]]] = {}
        for gpu in machine.gpus:
            before = published.get(gpu.uuid) or self.modes.get(gpu.uuid)
            mode = slices.as_handed_out(gpu, self._wanted(gpu, labels, before), able)
            if before is None or (mode.mig, mode.shared) == (before.mig, before.shared):
                self.waiting.pop(gpu.uuid, None)
            elif gpu.uuid in self.waiting or self._wait(gpu, before, mode):
                since, wall = self.waiting[gpu.uuid]
                if used is None or gpu.uuid in used or self._clock() - since < GRACE_S:
                    mode, taints[gpu.uuid] = before, [taint(KEY, wall)]
            decided[gpu.uuid] = mode
        self.modes = decided
        for uuid in self.waiting.keys() - decided.keys():
            del self.waiting[uuid]
        return taints

    def _wait(self, gpu: Gpu, before: Mode, mode: Mode) -> bool:
        logger.info("GPU %s is to be %s instead of %s once nobody has it", gpu.uuid, _told(mode), _told(before))
        self.waiting[gpu.uuid] = self._clock(), self._wall()
        return True

    def _wanted(self, gpu: Gpu, labels: Mapping[str, str], before: Mode | None) -> Mode:
        mode = mode_of(self._policies(), node=self._node, labels=labels, gpu=gpu)
        if mode is None:
            return before or Mode(mig="off" if gpu.mig is None else "static")
        if mode.shared != "mps" or self._mps:
            return mode
        if gpu.uuid not in self._said:
            self._said.add(gpu.uuid)
            logger.warning("GPU %s is not shared: the policies file says mps; set mps.enabled in the chart", gpu.uuid)
        return Mode(mig=mode.mig)


def published(found: Iterable[ResourceSlice], machine: Machine) -> dict[str, Mode]:
    """Return as what GPUs are published, by uuid, judged from a node's slices of this driver."""
    memory = {gpu.uuid: gpu.memory_mib for gpu in machine.gpus}
    modes: dict[str, Mode] = {}
    for piece in found:
        for device in piece.spec.devices:
            uuid = _text(device, "uuid") or _text(device, "parentUUID")
            if uuid in memory and modes.get(uuid, Mode()).whole:
                modes[uuid] = _mode(device, memory[uuid])
    return modes


def listed(found: Iterable[ResourceSlice]) -> dict[str, list[str]]:
    """Return the names of the parts of GPUs that a node's slices have as devices, by the GPU's uuid."""
    names_of: dict[str, list[str]] = {}
    for piece in found:
        for device in piece.spec.devices:
            names_of.setdefault(_text(device, "parentUUID"), []).append(device.name)
    return names_of


def _mode(device: Device, memory_mib: int) -> Mode:
    exclusive: Any = "namespace" if _text(device, "exclusiveTo") == "namespace" else ""
    if _text(device, "sharing"):
        shared: SharedWord = "mps" if _text(device, "sharing") == "mps" else "time-slicing"
        return Mode(shared=shared, memory_overcommit=_overcommit(device, memory_mib), exclusive_to=exclusive)
    if _text(device, "mig") == "dynamic":
        return Mode(mig="dynamic", exclusive_to=exclusive)
    if device.consumes_counters:
        return Mode(mig="placements", exclusive_to=exclusive)
    return Mode(mig="static" if _text(device, "type") == "mig" else "off", exclusive_to=exclusive)


def taint(key: str, wall: float) -> dict[str, Any]:
    """Return the taint that keeps new claims off a device since a time of day."""
    added = datetime.datetime.fromtimestamp(int(wall), datetime.UTC)
    return {"key": key, "effect": "NoSchedule", "timeAdded": f"{added:%Y-%m-%dT%H:%M:%SZ}"}


def _overcommit(device: Device, memory_mib: int) -> float:
    try:
        total = quantity.whole(str(device.capacity.get(names.CAPACITY_MEMORY, {}).get("value", "0"))) >> 20
    except WordError:
        return 1.0
    # To as many places as files have: what is published is rounded down to MiB.
    return max(round(total / memory_mib, 4), 1.0) if memory_mib and device.allow_multiple_allocations else 1.0


def _text(device: Device, attribute: str) -> str:
    text = device.attributes.get(attribute, {}).get("string", "")
    return text if isinstance(text, str) else ""


def _told(mode: Mode) -> str:
    if mode.shared != "none":
        return f"shared by {mode.shared}"
    return "whole" if mode.mig == "off" else f"in MIG mode {mode.mig}"
