"""Decides how each GPU is published (whole, shared, cut into slices), and how that changes with the policies file.

The *mode* of a GPU says how it is published. The *form* is the part of the mode that must not change while a claim uses
the GPU. A change of form at the wrong time would allocate parts of the GPU twice. For example, shares are not counted
among MIG slices. And when an allocated device disappears from the slices, the scheduler treats what the device used of
the GPU as free.

So a change of form has four steps:

1. The GPU stays in its old form, with a taint that keeps new claims off it.
2. The taint stays published for ``GRACE_S``. In this time the scheduler writes the allocations that it began before.
3. The agent waits until no claim of the GPU is prepared on this node.
4. The agent asks the API server whether any claim is allocated to the GPU. The pod of an allocated claim may still wait
   for a volume or for the kubelet.

Then the GPU changes. A new agent starts with the published modes, or with the remembered modes if nothing is published.

A fraction is a MIG slice or a share. The fields of slices that the API server keeps (``SliceFeatures``) matter because
an old server drops the taint.
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
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.slices import mig_devices, resource_slices
from dradriver.api.slices.slice_features import SliceFeatures
from dradriver.kube.backoff import wait_s
from dradriver.node.errors import NotYetError
from dradriver.node.publishing.remembered_modes import Remembered
from dradriver.node.vendors.nvidia.devices.mps_and_time_slicing import Sharing
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

KEY: Final = names.PREFIX + "mode-changes"
GRACE_S: Final = 60.0
ASK_S: Final = 30.0  # least time between two questions to the API server, each of which reads all claims
MOST_ASK_S: Final = 300.0  # longest such time for one GPU: a claim may have it for days while its pod does not start
LOOK_S: Final = 5.0  # how often to check whether a waiting GPU may change now


class _Waiting(msgspec.Struct):
    """A GPU that waits to be published in another way, because claims may use it.

    Attributes:
        since_wall: Start of the wait, seconds since 1970.
        kept_off_since: When the taint was first seen published, by the monotonic clock; None while it is not published.
        questions: Number of questions to the API server so far.
        next_question: Earliest time of the next question, by the monotonic clock.
    """

    since_wall: float
    kept_off_since: float | None = None
    questions: int = 0
    next_question: float = -math.inf


class ModeTransitions:
    """Decides how each GPU is published (its mode): whole, shared or cut into slices.

    Attributes:
        modes: The mode that was decided last for each GPU, by uuid. An earlier agent may have decided it. Includes GPUs
            that are absent now.
        waiting: The GPUs that wait for a change, by uuid.
        to_confirm: Uuids of waiting GPUs that may change as soon as the API server confirms that no claim is allocated
            to them. The caller asks the API server, and calls ``decide`` again with the answer.
        mig_off: Uuids of GPUs that stay whole although the policies file requests MIG slices. Their MIG mode is off,
            and only a reset turns it on.
        uncut: Uuids of GPUs that stay whole although the policies file requests fractions. Their vendor's GPUs cannot
            be divided.
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
        """Read the remembered modes; decide nothing yet.

        Args:
            policies: Returns the policies in force.
            node: This node's name.
            mps: Whether MPS daemons can run on this node.
            remembered: Stores decisions on disk; None if they end with the process.
            clock: Returns seconds that never go back.
            wall: Returns seconds since 1970.
        """
        self._policies = policies
        self._node = node
        self._mps = mps
        self._clock = clock
        self._wall = wall
        self._warned_of_mps: set[str] = set()  # uuids of GPUs that the policies file shares by MPS while MPS is off
        self._remembered = remembered

        # What ``decide`` has decided, by the GPU's uuid.
        self.modes: dict[str, Mode] = {} if remembered is None else remembered.read()  # the mode of each GPU
        self.waiting: dict[str, _Waiting] = {}  # GPUs that keep their mode, tainted, until no claim uses them
        self.to_confirm: set[str] = set()  # waiting GPUs of which the API server must say that no claim has them
        self._next_question = -math.inf  # earliest time of the next such question to the API server, by the clock
        self.mig_off: set[str] = set()  # GPUs that should be sliced and stay whole, because MIG mode is off
        self.uncut: set[str] = set()  # GPUs that should be divided, of a vendor whose GPUs cannot be divided

    def sharing(self, gpu: Gpu) -> Sharing:
        """Return how a GPU is shared now: by MPS or time-slicing, and with which settings.

        Raises:
            NotYetError: The GPU's mode is not known yet.
        """
        mode = self.modes.get(gpu.uuid)
        if mode is None:
            raise NotYetError(f"the node agent does not know yet how GPU {gpu.uuid} is shared")
        by_mps = mode.shared == "mps"
        shm_mib = mode.dev_shm_mib or None
        return Sharing(by="mps" if by_mps else "time-slicing", equal=mode.equal_shares, shm_mib=shm_mib)

    def makes_instances(self, gpu: str) -> bool:
        """Return whether the agent makes MIG instances for claims on the GPU with this uuid, by the GPU's mode.

        Raises:
            NotYetError: The GPU's mode is not known yet.
        """
        mode = self.modes.get(gpu)
        if mode is None:
            raise NotYetError(f"the node agent does not know yet whether it makes MIG instances for pods on GPU {gpu}")
        return mode.mig in ("dynamic", "placements")

    def exclusive(self, gpu: str) -> bool:
        """Return whether only one namespace at a time may use fractions of the GPU with this uuid."""
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
        """Decide the mode in which each GPU is published; return taints by uuid.

        A GPU that must wait before its mode can change keeps its mode and gets a taint.

        Args:
            machine: The machine.
            labels: The labels of the node.
            published: The published modes of GPUs, by uuid (see function ``published``).
            kept_off: Uuids of the GPUs that no new claim gets, by the published slices (see function ``kept_off``).
            used: Uuids of GPUs that prepared claims have; None if unknown.
            able: The fields of slices that the API server keeps.
            allocated: Names of the node's devices that are allocated, by the API server's answer; None if it was not
                asked or did not answer.
        """
        # ``to_confirm``: GPUs of which the caller asks the API server next. ``allocated`` is its answer of the last
        # time.
        asked_about, self.to_confirm = self.to_confirm, set()
        self.mig_off = set()
        policies = self._policies()
        self.uncut = {gpu.uuid for gpu in machine.gpus if uncut(policies, node=self._node, labels=labels, gpu=gpu)}
        decided: dict[str, Mode] = {}
        taints: dict[str, list[dict[str, Any]]] = {}
        for gpu in machine.gpus:
            # 1. The mode that the policies want, if the GPU can have it.
            before = self._before(gpu, published)
            mode = resource_slices.as_handed_out(gpu, self._mode_by_policies(gpu, labels, before), able)
            # In these modes instances are made for claims. Before Hopper MIG mode needs a reset, so that a GPU with MIG
            # mode off (``mig`` is None) stays whole.
            if mode.mig in ("dynamic", "placements") and gpu.mig is None and not mig_devices.can_be_whole(gpu):
                self.mig_off.add(gpu.uuid)
                mode = Mode()

            # 2. A GPU whose form changes keeps its mode, with a taint, until nobody uses it.
            # ``form``: what of a mode cannot change while a claim uses the GPU.
            if before is None or mode.form == before.form:
                self.waiting.pop(gpu.uuid, None)
            else:
                if gpu.uuid not in self.waiting:
                    self._start_waiting(gpu, before, mode)
                answer = allocated if gpu.uuid in asked_about else None
                if not self._may_change(gpu, kept_off, used, answer):
                    mode, taints[gpu.uuid] = before, [taint(KEY, self.waiting[gpu.uuid].since_wall)]
            decided[gpu.uuid] = mode

        # 3. Remember the decisions, and forget GPUs that are not in the machine.
        if self.to_confirm:
            self._next_question = self._clock() + ASK_S
        self.modes |= decided
        if self._remembered is not None:
            self._remembered.write(self.modes)
        for uuid in self.waiting.keys() - decided.keys():
            del self.waiting[uuid]
        return taints

    def _before(self, gpu: Gpu, published: Mapping[str, Mode]) -> Mode | None:
        """Return how a GPU is published now (its mode); None if unknown.

        If no published slice shows the mode, the result is the mode that was decided last.
        """
        in_slices, decided = published.get(gpu.uuid), self.modes.get(gpu.uuid)
        if in_slices is None or decided is None or in_slices.shared != decided.shared:
            return in_slices or decided
        # Slices do not contain the size of /dev/shm.
        return msgspec.structs.replace(in_slices, dev_shm_mib=decided.dev_shm_mib)

    def _start_waiting(self, gpu: Gpu, before: Mode, mode: Mode) -> None:
        logger.info("GPU %s is to be %s instead of %s once nobody has it", gpu.uuid, _text(mode), _text(before))
        self.waiting[gpu.uuid] = _Waiting(self._wall())

    def _may_change(
        self, gpu: Gpu, kept_off: Collection[str], used: Collection[str] | None, allocated: Collection[str] | None
    ) -> bool:
        """Return whether a waiting GPU may change now.

        If only the API server's answer is missing, the method adds the GPU to ``to_confirm``.

        Args:
            gpu: The GPU.
            kept_off: Uuids of the GPUs that no new claim gets, by the published slices.
            used: Uuids of GPUs that prepared claims have; None if unknown.
            allocated: Names of allocated devices, if the API server was asked about this GPU; else None.
        """
        waiting = self.waiting[gpu.uuid]
        if not self._has_waited(waiting, gpu.uuid in kept_off) or used is None or gpu.uuid in used:
            return False

        # No prepared claim has it. A claim may be allocated that the kubelet has not prepared yet: the API server
        # knows.
        if allocated is not None:
            return not _holds(gpu, allocated)
        if self._clock() >= max(waiting.next_question, self._next_question):
            wait = wait_s(waiting.questions, first_s=ASK_S, longest_s=MOST_ASK_S)
            waiting.next_question = self._clock() + wait
            waiting.questions += 1
            self.to_confirm.add(gpu.uuid)
        return False

    def _has_waited(self, waiting: _Waiting, is_kept_off: bool) -> bool:
        """Return whether a waiting GPU's taint has been published without a gap for one minute.

        ``is_kept_off`` says whether the taint is published now.
        """
        if not is_kept_off:
            waiting.kept_off_since = None
            return False
        if waiting.kept_off_since is None:
            waiting.kept_off_since = self._clock()
        return self._clock() - waiting.kept_off_since >= GRACE_S

    def _mode_by_policies(self, gpu: Gpu, labels: Mapping[str, str], before: Mode | None) -> Mode:
        """Return the mode (how the GPU is published) that the policies file requests.

        If the file has no rule for the GPU, the result is ``before``. If ``before`` is None, the result follows the
        GPU's MIG mode: whole if it is off, else the MIG instances that exist. If MPS is off on the node, a GPU is not
        shared by MPS.
        """
        mode = mode_of(self._policies(), node=self._node, labels=labels, gpu=gpu)
        if mode is None:
            return before or Mode(mig="off" if gpu.mig is None else "static")
        if mode.shared != "mps" or self._mps:
            return mode
        if gpu.uuid not in self._warned_of_mps:
            self._warned_of_mps.add(gpu.uuid)
            logger.warning(
                "GPU %s is not shared: the policies file says mps, and MPS is off. Set mps.enabled in the chart.",
                gpu.uuid,
            )
        return Mode(mig=mode.mig)


def published(current_slices: Iterable[ResourceSlice], machine: Machine) -> dict[str, Mode]:
    """Return how GPUs are published now (their modes: whole, shared or sliced), by uuid.

    Args:
        current_slices: This driver's slices of the node.
        machine: The node's machine; other GPUs in the slices are ignored.
    """
    # By uuid: memory, the mode by the first device that says one, GPUs published whole, and GPUs that claims share.
    memory = {gpu.uuid: gpu.memory_mib for gpu in machine.gpus}
    modes: dict[str, Mode] = {}
    whole: set[str] = set()
    divisible: set[str] = set()  # published as one device that several claims share
    for resource_slice in current_slices:
        for device in resource_slice.spec.devices:
            uuid = device.text("uuid") or device.text("parentUUID")
            if uuid in memory and modes.get(uuid, Mode()).whole:
                modes[uuid] = _mode(device, memory[uuid])
            if device.text("type").endswith("gpu"):
                whole.add(uuid)
            if device.text("sharing") and device.allow_multiple_allocations:
                divisible.add(uuid)

    # A GPU that could be whole and is not published as a whole: the policies offer it in fractions only.
    for gpu in machine.gpus:
        mode = modes.get(gpu.uuid)
        is_cut = mode is not None and mode.mig in ("dynamic", "placements") and mig_devices.can_be_whole(gpu)
        if mode is not None and gpu.uuid not in whole and (is_cut or gpu.uuid in divisible):
            modes[gpu.uuid] = msgspec.structs.replace(mode, fractions_only=True)
    return modes


def kept_off(found: Iterable[ResourceSlice], machine: Machine) -> set[str]:
    """Return the uuids of the GPUs that no new claim gets, by the node's slices.

    These GPUs are about to be published in another way (another mode). All their devices have the taint of the change.
    If the API server does not keep taints, the slices have no devices of these GPUs instead.
    """
    open_ = {
        device.text("uuid") or device.text("parentUUID")
        for piece in found
        for device in piece.spec.devices
        if all(taint.key != KEY for taint in device.taints)
    }
    return {gpu.uuid for gpu in machine.gpus} - open_


def _holds(gpu: Gpu, devices: Iterable[str]) -> bool:
    """Return whether one of these device names belongs to the GPU or to one of its fractions."""
    name = resource_slices.device_name(gpu.uuid)
    return any(device == name or device.startswith(f"{name}-") for device in devices)


def listed(found: Iterable[ResourceSlice]) -> dict[str, list[str]]:
    """Return the device names of all fractions of GPUs in a node's slices, by the GPU's uuid."""
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
    """Return a taint with the effect ``NoSchedule``, which keeps new claims off a device.

    Args:
        key: The key of the taint.
        wall: The time of the taint, in seconds since 1970.
    """
    added = datetime.datetime.fromtimestamp(int(wall), datetime.UTC)
    return {"key": key, "effect": "NoSchedule", "timeAdded": f"{added:%Y-%m-%dT%H:%M:%SZ}"}


def _overcommit(device: Device, memory_mib: int) -> float:
    try:
        total = quantity.whole(str(device.capacity.get(names.CAPACITY_MEMORY, {}).get("value", "0"))) >> 20
    except WordError:
        return 1.0
    # To as many places as files have: what is published is rounded down to MiB.
    return max(round(total / memory_mib, 4), 1.0) if memory_mib and device.allow_multiple_allocations else 1.0


def _text(mode: Mode) -> str:
    if mode.shared != "none":
        return f"shared by {mode.shared}" + (f" in {mode.equal_shares} equal shares" if mode.equal_shares else "")
    return "whole" if mode.mig == "off" else f"in MIG mode {mode.mig}"
