"""How each GPU is published (whole, shared, cut into slices) while the policies file changes.

A device that is published in another form beside what claims have of it would be handed out twice: shares are not
counted among slices, and a device that goes while it is allocated gives its counters back. So a GPU whose form is to
change is first kept from new claims, by a taint, in its old form. Once that has been published for a while, so that
what the scheduler had begun before is written, and no claim of it is prepared, the API server is asked whether one is
allocated: its pod may wait for a volume, or for the kubelet, as long as it likes. Only where none is the GPU changes.
A new agent begins anew with what is published, or where nothing is, with what it remembers.
"""

from __future__ import annotations

import datetime
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names, quantity
from dradriver.api.base.dra_objects import Device, ResourceSlice
from dradriver.api.base.errors import WordError
from dradriver.api.policies.fields import SharedWord
from dradriver.api.policies.gpu_modes import Mode, mode_of, uncut
from dradriver.api.policies.model import Policies
from dradriver.api.slices import mig_devices, resource_slices
from dradriver.api.slices.slice_features import SliceFeatures
from dradriver.kube.backoff import wait_s
from dradriver.node.errors import NotYetError
from dradriver.node.publishing.remembered_modes import Remembered
from dradriver.node.vendors.nvidia.devices.share import Sharing
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

KEY: Final = names.PREFIX + "mode-changes"
GRACE_S: Final = 60.0
ASK_S: Final = 30.0  # how often to ask the API server at most, which has all claims of the cluster read
MOST_ASK_S: Final = 300.0  # how often at last of one GPU, that a claim may have for days whose pod never starts
LOOK_S: Final = 5.0  # how often to look whether a GPU may change by now


class _Waiting(msgspec.Struct):
    """A GPU that is to change.

    Attributes:
        wall: Since what time of day.
        kept_off: Since when new claims are kept off it, by the clock; None while they are not.
        asked: How often the API server was asked.
        again: When it may be asked again, by the clock.
    """

    wall: float
    kept_off: float | None = None
    asked: int = 0
    again: float = -math.inf


class ModeTransitions:
    """Decides how each GPU is published: whole, shared or cut into slices.

    Attributes:
        modes: What was decided last, by an earlier agent too, by the GPU's uuid; also of GPUs that are away.
        waiting: The GPUs that are to change, by uuid.
        ripe: Uuids of those that change if the API server knows no claim that has something of them: it is to be asked,
            and ``decide`` to be called once more.
        mig_off: Uuids of the GPUs that the policies file has cut into slices, and that stay whole: MIG mode is off, and
            comes on at a reset only.
        uncut: Uuids of the GPUs that the policies file has cut up, and of whose vendor there are no parts.
    """

    def __init__(
        self,
        policies: Callable[[], Policies],
        *,
        node: str,
        mps: bool = True,
        remembered: Remembered | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Decide nothing yet; what was remembered is read.

        Args:
            policies: Gives those in force.
            node: This node's name.
            mps: Whether this node has what starts MPS daemons.
            remembered: Keeps what was decided over the end of the process.
            clock: Gives seconds.
            wall: Gives the time of day.
        """
        self._policies = policies
        self._node = node
        self._mps = mps
        self._clock = clock
        self._wall = wall
        self._said: set[str] = set()
        self._remembered = remembered
        self.modes: dict[str, Mode] = {} if remembered is None else remembered.read()
        self.waiting: dict[str, _Waiting] = {}
        self.ripe: set[str] = set()
        self._again = -math.inf  # when the API server may be asked again of any GPU
        self.mig_off: set[str] = set()
        self.uncut: set[str] = set()

    def sharing(self, gpu: Gpu) -> Sharing:
        """Return how a GPU is shared now, while its mode may change.

        Raises:
            NotYetError: That is not known yet.
        """
        mode = self.modes.get(gpu.uuid)
        if mode is None:
            raise NotYetError(f"how GPU {gpu.uuid} is shared is not known yet")
        by_mps = mode.shared == "mps"
        shm_mib = mode.dev_shm_mib or None
        return Sharing(by="mps" if by_mps else "time-slicing", equal=mode.equal_shares, shm_mib=shm_mib)

    def makes_instances(self, gpu: str) -> bool:
        """Return whether MIG instances are made for claims on the GPU with this uuid.

        Raises:
            NotYetError: That is not known yet.
        """
        mode = self.modes.get(gpu)
        if mode is None:
            raise NotYetError(f"whether MIG instances are made for pods on GPU {gpu} is not known yet")
        return mode.mig in ("dynamic", "placements")

    def exclusive(self, gpu: str) -> bool:
        """Return whether parts of the GPU with this uuid are of one namespace at a time."""
        mode = self.modes.get(gpu)
        return mode is not None and mode.exclusive_to == "namespace"

    def decide(
        self,
        machine: Machine,
        *,
        labels: Mapping[str, str],
        published: Mapping[str, Mode],
        kept_off: Collection[str],
        used: Collection[str] | None,
        able: SliceFeatures,
        allocated: Collection[str] | None = None,
    ) -> dict[str, list[dict[str, Any]]]:
        """Decide again how each GPU is published; return the taints of GPUs that are kept from new claims.

        Args:
            machine: The machine.
            labels: The node's.
            published: As what GPUs are published now, by uuid (``published``).
            kept_off: Uuids of the GPUs that take no new claims, as they are published (``kept_off``).
            used: Uuids of the GPUs of which claims are prepared; None where that is not known.
            able: What the API server keeps.
            allocated: Names of the node's devices that claims have, as the API server says; None where it was not
                asked, or does not say.
        """
        asked, self.ripe = self.ripe, set()
        self.mig_off = set()
        policies = self._policies()
        self.uncut = {gpu.uuid for gpu in machine.gpus if uncut(policies, node=self._node, labels=labels, gpu=gpu)}
        decided: dict[str, Mode] = {}
        taints: dict[str, list[dict[str, Any]]] = {}
        for gpu in machine.gpus:
            before = self._before(gpu, published)
            mode = resource_slices.as_handed_out(gpu, self._wanted(gpu, labels, before), able)
            if mode.mig in ("dynamic", "placements") and gpu.mig is None and not mig_devices.can_be_whole(gpu):
                self.mig_off.add(gpu.uuid)
                mode = Mode()
            if before is None or mode.form == before.form:
                self.waiting.pop(gpu.uuid, None)
            elif gpu.uuid in self.waiting or self._wait(gpu, before, mode):
                waiting = self.waiting[gpu.uuid]
                free = self._waited(waiting, gpu.uuid in kept_off) and used is not None and gpu.uuid not in used
                if free and (gpu.uuid not in asked or allocated is None):
                    free = False
                    if self._clock() >= max(waiting.again, self._again):
                        waiting.again = self._clock() + wait_s(waiting.asked, first_s=ASK_S, longest_s=MOST_ASK_S)
                        waiting.asked += 1
                        self.ripe.add(gpu.uuid)
                if not free or _holds(gpu, allocated or ()):
                    mode, taints[gpu.uuid] = before, [taint(KEY, waiting.wall)]
            decided[gpu.uuid] = mode
        if self.ripe:
            self._again = self._clock() + ASK_S
        self.modes |= decided
        if self._remembered is not None:
            self._remembered.write(self.modes)
        for uuid in self.waiting.keys() - decided.keys():
            del self.waiting[uuid]
        return taints

    def _before(self, gpu: Gpu, published: Mapping[str, Mode]) -> Mode | None:
        """Return as what a GPU is published, with what slices do not tell; None where nobody knows."""
        told, known = published.get(gpu.uuid), self.modes.get(gpu.uuid)
        if told is None or known is None or told.shared != known.shared:
            return told or known
        return msgspec.structs.replace(told, dev_shm_mib=known.dev_shm_mib)

    def _wait(self, gpu: Gpu, before: Mode, mode: Mode) -> bool:
        logger.info("GPU %s is to be %s instead of %s once nobody has it", gpu.uuid, _told(mode), _told(before))
        self.waiting[gpu.uuid] = _Waiting(self._wall())
        return True

    def _waited(self, waiting: _Waiting, kept_off: bool) -> bool:
        """Return whether new claims have been kept off long enough; whoever lets them on again begins anew."""
        if not kept_off:
            waiting.kept_off = None
            return False
        if waiting.kept_off is None:
            waiting.kept_off = self._clock()
        return self._clock() - waiting.kept_off >= GRACE_S

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
    """Return how GPUs are published now, by uuid, judged from a node's slices of this driver."""
    memory = {gpu.uuid: gpu.memory_mib for gpu in machine.gpus}
    modes: dict[str, Mode] = {}
    whole: set[str] = set()
    divisible: set[str] = set()  # one device that several claims share, whole or not
    for piece in found:
        for device in piece.spec.devices:
            uuid = device.text("uuid") or device.text("parentUUID")
            if uuid in memory and modes.get(uuid, Mode()).whole:
                modes[uuid] = _mode(device, memory[uuid])
            if device.text("type").endswith("gpu"):
                whole.add(uuid)
            if device.text("sharing") and device.allow_multiple_allocations:
                divisible.add(uuid)
    for gpu in machine.gpus:
        mode = modes.get(gpu.uuid)
        is_cut = mode is not None and mode.mig in ("dynamic", "placements") and mig_devices.can_be_whole(gpu)
        if mode is not None and gpu.uuid not in whole and (is_cut or gpu.uuid in divisible):
            modes[gpu.uuid] = msgspec.structs.replace(mode, fractions_only=True)
    return modes


def kept_off(found: Iterable[ResourceSlice], machine: Machine) -> set[str]:
    """Return the uuids of the GPUs of which no new claim is given anything, judged from a node's slices.

    All devices of such a GPU have the taint of a change, or it has none: so it is where the server keeps no taints.
    """
    open_ = {
        device.text("uuid") or device.text("parentUUID")
        for piece in found
        for device in piece.spec.devices
        if all(taint.key != KEY for taint in device.taints)
    }
    return {gpu.uuid for gpu in machine.gpus} - open_


def _holds(gpu: Gpu, devices: Iterable[str]) -> bool:
    """Return whether one of these names is of the GPU's device, or of a part of it."""
    name = resource_slices.device_name(gpu.uuid)
    return any(device == name or device.startswith(f"{name}-") for device in devices)


def listed(found: Iterable[ResourceSlice]) -> dict[str, list[str]]:
    """Return the names of GPUs' parts that a node's slices have as devices, by the GPU's uuid."""
    names_of: dict[str, list[str]] = {}
    for piece in found:
        for device in piece.spec.devices:
            names_of.setdefault(device.text("parentUUID"), []).append(device.name)
    return names_of


def _mode(device: Device, memory_mib: int) -> Mode:
    exclusive: Any = "namespace" if device.text("exclusiveTo") == "namespace" else ""
    if device.text("sharing"):
        shared: SharedWord = "mps" if device.text("sharing") == "mps" else "time-slicing"
        return Mode(
            shared=shared,
            memory_overcommit=_overcommit(device, memory_mib),
            equal_shares=device.number("equalShares") or 0,
            exclusive_to=exclusive,
        )
    if device.text("mig") == "dynamic":
        return Mode(mig="dynamic", exclusive_to=exclusive)
    if device.consumes_counters:
        return Mode(mig="placements", exclusive_to=exclusive)
    return Mode(mig="static" if device.text("type") == "mig" else "off", exclusive_to=exclusive)


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


def _told(mode: Mode) -> str:
    if mode.shared != "none":
        return f"shared by {mode.shared}" + (f" in {mode.equal_shares} equal shares" if mode.equal_shares else "")
    return "whole" if mode.mig == "off" else f"in MIG mode {mode.mig}"
