"""MIG devices: a GPU instance at its placement, and in it the compute instance that takes all of it.

A device is named by placement (``<gpu uuid>-<profile id>-<start>``), or it is a GPU whose instances are made on demand
(``<gpu uuid>``, with slices as capacities). An instance that is there already and nobody's is used as it is, and never
destroyed; where all are handed out as they are, one that is gone is waited for. Facts: nvml.h, NVIDIA's MIG user guide;
MIG mode changes without a reset from Hopper on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dradriver.api import mig_devices, names, quantity, slices
from dradriver.api.config import Mig as Pin
from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.devices.control import NOT_FOUND, NOT_SUPPORTED, Control, Placed
from dradriver.node.devices.hardware_journal import Made
from dradriver.node.devices.kinds import AllocatedDevice, Found
from dradriver.node.devices.nvidia import mig_packing
from dradriver.node.devices.nvidia.capabilities import Capabilities
from dradriver.node.devices.whole import named
from dradriver.node.errors import ClaimError, DeviceBusyError, HardwareError, NotYetError
from dradriver.topology.machine import Gpu, Machine, MigProfile

logger = logging.getLogger(__name__)

_PLACEMENT: Final = re.compile(r"-([0-9]{1,3})-([0-9]{1,2})")


class Mig:
    """MIG instances, made on demand or there already."""

    name = "mig"
    makes = True
    part = True

    def __init__(
        self,
        capabilities: Capabilities,
        *,
        parent: Callable[[int], DeviceNode],
        common: Callable[[], Edits],
        made: Callable[[str], bool] = lambda _: True,
        switched: Callable[[], None] = lambda: None,
    ) -> None:
        """Make no instance yet.

        Args:
            capabilities: The device nodes that open an instance to a container.
            parent: Gives the device node of the GPU with a minor number.
            common: Gives what every container needs to use the driver; may raise ``NotYetError``.
            made: Says whether instances are made for claims on the GPU with this uuid, or handed out as they are; may
                raise ``NotYetError``. Asked in the thread that changes hardware.
            switched: Called after a change of a GPU's MIG mode, in the thread that changes hardware.
        """
        self._capabilities = capabilities
        self._parent = parent
        self._common = common
        self._made = made
        self._switched = switched
        self._told: set[tuple[str, int, Placed]] = set()

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found | None:
        """Return the GPU of a placement, or of slices that a claim has of a GPU, unless these are all of it.

        All slices without a profile are a whole GPU, where the GPU can be one: in MIG mode it has no NVLink.
        """
        gpu = named(machine, wish.device)
        if gpu is None:
            return _placement(machine, wish.device)
        if names.CAPACITY_MEMORY_SLICES not in wish.consumed:
            return None
        pin = wish.config.mig.get(wish.request) if wish.config is not None else None
        memory, compute = (
            quantity.whole(wish.consumed.get(key, "0"))
            for key in (names.CAPACITY_MEMORY_SLICES, names.CAPACITY_COMPUTE_SLICES)
        )
        asked = {"memory": memory, "compute": compute}
        if pin is not None:
            return Found(gpu, asked | _pinned(pin, gpu))
        every = gpu.profiles
        if not every:
            raise NotYetError(f"GPU {gpu.uuid}: the driver has not told its MIG profiles yet")
        all_of_it = (max(profile.size for profile in every), max(profile.compute for profile in every))
        if (memory, compute) == all_of_it and (gpu.mig is None or mig_devices.can_be_whole(gpu)):
            return None
        return Found(gpu, asked)

    def settle(self, control: Control, intents: Sequence[Made], beside: Sequence[Made]) -> list[dict[str, Any]]:
        """Return profile and placement of each: the pinned ones, and for the others those that leave the most."""
        gpu = intents[0].uuid
        every = control.profiles(gpu)
        there, driver = _instances(control, gpu), control.driver()
        noted = [(placed, one) for one in beside if (placed := _placed(one.wanted)) is not None]
        owned = [placed for placed, one in noted if one.in_load(driver)]
        self._tell(gpu, {number: placed for number, placed in there.items() if placed not in owned})
        room = mig_packing.taken(every, {*there.values(), *(placed for placed, _ in noted)})
        settled: list[dict[str, Any] | None] = [None] * len(intents)
        open_: list[tuple[int, MigProfile]] = []
        for n, intent in enumerate(intents):
            profile = _profile(every, intent)
            start = intent.wanted.get("start")
            if start is None:
                open_.append((n, profile))
                continue
            found = Placed(profile.id, start)
            if "profile" in intent.wanted and found in there.values() and found not in owned:
                settled[n] = _wanted(profile, start) | {"found": True}
                continue
            if "profile" in intent.wanted and found not in there.values() and not self._made(gpu):
                raise NotYetError(
                    f"device {intent.device}: MIG instance {profile.name} at {start} is gone, and none is made for "
                    f"pods on this GPU; make it again: nvidia-smi mig -i {gpu} -cgi {profile.id}:{start} -C"
                )
            if start not in profile.starts:
                known = ", ".join(map(str, profile.starts))
                raise ClaimError(f"device {intent.device}: {profile.name} cannot start at {start}; it can at {known}")
            if not room.fits(profile, start, max(p.compute for p in every)):
                raise DeviceBusyError(f"device {intent.device}: {_who(found, every, there, owned)}")
            room = room.put(profile, start)
            settled[n] = _wanted(profile, start)
        starts = mig_packing.pack(every, room, [profile for _, profile in open_])
        if starts is None:
            wanted = ", ".join(profile.name for _, profile in open_)
            raise DeviceBusyError(f"GPU {gpu} has no room for {wanted}: {_who(None, every, there, owned)}")
        for (n, profile), start in zip(open_, starts, strict=True):
            settled[n] = _wanted(profile, start)
        return [one for one in settled if one is not None]

    def make(self, control: Control, made: Made) -> dict[str, Any]:
        """Make the GPU instance, then its compute instance; MIG mode is turned on where that needs no reset."""
        placed = _placed(made.wanted)
        assert placed is not None, "it was settled"
        if made.wanted.get("found"):
            return self._there(control, made, placed)
        if not control.mig_mode(made.uuid):
            control.set_mig_mode(made.uuid, True)
            self._switched()
        profile = next((one for one in control.profiles(made.uuid) if one.id == placed.profile), None)
        if profile is None:
            raise ClaimError(f"device {made.device}: its GPU has no MIG profile {placed.profile}")
        instance = control.create_gpu_instance(made.uuid, profile, placed.start)
        compute = control.create_compute_instance(made.uuid, instance)
        return self._done(control, made, instance, compute)

    def undo(self, control: Control, made: Made, beside: Sequence[Made]) -> None:
        """Destroy what was made, from the inside out, and end MIG mode with the last of all where it needs no reset.

        An instance at its place that has another number or uuid is somebody else's. Without these, of what an agent
        was killed at, the place tells it, which was free when the intent was written.
        """
        placed, driver = _placed(made.wanted), control.driver()
        if placed is None or made.wanted.get("found") or not made.in_load(driver):
            return
        for instance, at in _instances(control, made.uuid).items():
            if at != placed:
                continue
            if _is_own(control, made, instance):
                _destroy(control, made.uuid, instance)
            else:
                logger.warning("device %s is gone; instance %d in its place is not ours", made.device, instance)
        if any(one.in_load(driver) for one in beside):
            return
        try:
            self._end_mode(control, made.uuid)
        except HardwareError as error:  # the device is gone; ``rest`` tries again
            logger.warning("GPU %s stays in MIG mode: %s", made.uuid, error)

    def there(self, control: Control, made: Made) -> bool:
        """Return whether the instance is at its place, by number and uuid."""
        placed = _placed(made.wanted)
        return any(at == placed and _is_own(control, made, n) for n, at in _instances(control, made.uuid).items())

    def rest(self, control: Control, gpu: str) -> None:
        """End MIG mode where instances are made for claims and none is left: the GPU is published as whole, too.

        Whoever was in the way may be gone by now (nvml.h, nvmlDeviceSetMigMode: idle the device, and retry). Who turned
        the mode on is all the same: where instances come with claims, so does the mode, and the log says what to do.
        """
        try:
            made = self._made(gpu)
        except NotYetError:
            return
        if made and self._end_mode(control, gpu):
            said = (
                "GPU %s had no MIG instance, and its MIG mode is ended: to make instances by hand, give it mig: static"
            )
            logger.warning(said, gpu)

    def _end_mode(self, control: Control, gpu: str) -> bool:
        """End MIG mode where no instance is; return whether it was on."""
        if _instances(control, gpu) or not control.mig_mode(gpu):
            return False
        control.set_mig_mode(gpu, False)
        self._switched()
        return True

    def told(self, wanted: Mapping[str, Any], done: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return profile and placement, and the MIG device's own uuid."""
        told = {"type": "mig", "profile": wanted.get("name"), "placement": wanted.get("start")}
        return {key: value for key, value in (told | {"uuid": (done or {}).get("mig")}).items() if value is not None}

    def edits(self, gpu: Gpu, made: Made | None) -> Edits:  # noqa: ARG002  # its minor may have changed since
        """Return the nodes that open it: the GPU's own, the instance's and the compute instance's."""
        assert made is not None
        assert made.done is not None
        done = made.done
        nodes = self._capabilities.nodes(done["minor"], done["instance"], done["compute"])
        return self._common() + Edits(nodes=(self._parent(done["minor"]), *nodes))

    def _tell(self, gpu: str, unknown: dict[int, Placed]) -> None:
        """Say once of each instance that nobody's entry explains that it is there: it is never destroyed."""
        for number, placed in unknown.items():
            if (gpu, number, placed) not in self._told:
                self._told.add((gpu, number, placed))
                said = "GPU %s has an instance that no claim of this node made: number %d, profile %d at %d"
                logger.warning(said, gpu, number, placed.profile, placed.start)

    def _there(self, control: Control, made: Made, placed: Placed) -> dict[str, Any]:
        for instance, at in control.gpu_instances(made.uuid).items():
            computes = control.compute_instances(made.uuid, instance) if at == placed else {}
            for compute, uuid in computes.items() if len(computes) == 1 else ():
                if control.processes(made.uuid, instance, compute):
                    raise DeviceBusyError(f"device {made.device}: a process that no claim explains is on {uuid}")
                return self._done(control, made, instance, compute)
        raise NotYetError(f"device {made.device}: the instance there has not one compute instance; make it anew")

    def _done(self, control: Control, made: Made, instance: int, compute: int) -> dict[str, Any]:
        uuid = control.compute_instances(made.uuid, instance)[compute]
        return {"instance": instance, "compute": compute, "mig": uuid, "minor": control.minor(made.uuid)}


def _placement(machine: Machine, device: str) -> Found | None:
    for gpu in machine.gpus:
        own = slices.device_name(gpu.uuid)
        if device.startswith(own) and (match := _PLACEMENT.fullmatch(device.removeprefix(own))):
            return Found(gpu, {"profile": int(match[1]), "start": int(match[2])})
    return None


def _pinned(pin: Pin, gpu: Gpu) -> dict[str, Any]:
    start = pin.starts.get(gpu.uuid)
    return {"name": pin.profile} | ({} if start is None else {"start": start})


def _profile(every: Sequence[MigProfile], intent: Made) -> MigProfile:
    """Return the profile that is wanted by id, by name, or by the slices that a claim has of a GPU.

    Raises:
        ClaimError: The GPU has none such, or it is more than the claim was allocated.
    """
    wanted = intent.wanted
    if "profile" in wanted:
        said, found = str(wanted["profile"]), [one for one in every if one.id == wanted["profile"]]
    elif "name" in wanted:
        said, found = wanted["name"], [one for one in every if one.name == wanted["name"]]
    else:
        sizes = (wanted["memory"], wanted["compute"])
        said = "of {} memory and {} compute slices".format(*sizes)
        found = [one for one in every if mig_packing.is_plain(one) and (one.size, one.compute) == sizes]
    if not found:
        known = ", ".join(sorted({one.name for one in every})) or "none"
        raise ClaimError(f"device {intent.device}: its GPU has no MIG profile {said}; it has {known}")
    if "memory" in wanted and (found[0].size > wanted["memory"] or found[0].compute > wanted["compute"]):
        raise ClaimError(
            f"device {intent.device}: {found[0].name} takes {found[0].size} memory and {found[0].compute} compute "
            f"slices; the claim was allocated {wanted['memory']} and {wanted['compute']}"
        )
    return found[0]


def _wanted(profile: MigProfile, start: int) -> dict[str, Any]:
    return {"profile": profile.id, "name": profile.name, "start": start}


def _placed(wanted: dict[str, Any]) -> Placed | None:
    return Placed(wanted["profile"], wanted["start"]) if {"profile", "start"} <= wanted.keys() else None


def _who(at: Placed | None, every: Sequence[MigProfile], there: dict[int, Placed], owned: Sequence[Placed]) -> str:
    """Return what is in the way, those that nobody's entry explains above all."""
    by_id = {profile.id: profile for profile in every}
    unknown = [
        f"instance {number} ({by_id[one.profile].name if one.profile in by_id else one.profile} at {one.start})"
        for number, one in there.items()
        if one not in owned
        and (
            at is None
            or one.profile not in by_id
            or mig_packing.span(by_id[one.profile], one.start) & mig_packing.span(by_id[at.profile], at.start)
        )
    ]
    if unknown:
        return f"no claim of this node made {', '.join(unknown)}; destroy it by nvidia-smi mig, or leave the GPU to it"
    return "other claims' instances are in the way"


def _instances(control: Control, gpu: str) -> dict[int, Placed]:
    """Return the GPU instances; none where MIG mode was turned off, by whomever."""
    try:
        return control.gpu_instances(gpu)
    except HardwareError as error:
        if error.code != NOT_SUPPORTED:
            raise
        return {}


def _is_own(control: Control, made: Made, instance: int) -> bool:
    """Return whether the instance at its place is what was made, as far as that was noted."""
    noted = made.noted
    if not noted:
        return True
    uuids = _compute_instances(control, made.uuid, instance).values()
    return bool(noted["instance"] == instance and (not uuids or noted["mig"] in uuids))


def _compute_instances(control: Control, gpu: str, instance: int) -> dict[int, str]:
    """Return the compute instances; none where the GPU instance has gone meanwhile."""
    try:
        return control.compute_instances(gpu, instance)
    except HardwareError as error:
        if error.code != NOT_FOUND:
            raise
        return {}


def _destroy(control: Control, gpu: str, instance: int) -> None:
    for compute in _compute_instances(control, gpu, instance):
        _unless_gone(lambda: control.destroy_compute_instance(gpu, instance, compute))  # noqa: B023
    _unless_gone(lambda: control.destroy_gpu_instance(gpu, instance))


def _unless_gone(call: Callable[[], None]) -> None:
    try:
        call()
    except HardwareError as error:
        if error.code != NOT_FOUND:
            raise
