"""MIG devices that are made for claims: a GPU instance at its placement, and its compute instance.

A device is named by placement (``<gpu uuid>-<profile id>-<start>``), or it is a GPU whose instances are made on demand
(``<gpu uuid>``, with slices as capacities). An instance that is there already and nobody's is used as it is, and never
destroyed; where all are handed out as they are, one that is gone is waited for. Facts: nvml.h, NVIDIA's MIG user guide;
MIG mode changes without a reset from Hopper on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from dradriver.api.base import names, quantity
from dradriver.api.slices import mig_devices, resource_slices
from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.devices.control_interface import INSUFFICIENT_RESOURCES, NOT_FOUND, NOT_SUPPORTED, Control, Placed
from dradriver.node.devices.device_kinds import AllocatedDevice, Found
from dradriver.node.devices.hardware_journal import Change, Made
from dradriver.node.devices.part_records import MigInstance, MigPlace
from dradriver.node.devices.whole_gpus import named
from dradriver.node.errors import ClaimError, DeviceBusyError, HardwareError, NotYetError
from dradriver.node.vendors.nvidia.devices import mig_packing
from dradriver.node.vendors.nvidia.devices.capabilities import Capabilities
from dradriver.node.vendors.nvidia.devices.mig_packing import MigRequest
from dradriver.topology.machine import Gpu, Machine, MigProfile
from dradriver.topology.mig_limits import binding_limits

logger = logging.getLogger(__name__)

_PLACEMENT: Final = re.compile(r"-([0-9]{1,3})-([0-9]{1,2})")

MigChange = Change[MigPlace, MigInstance]

_NONE: Final = MigInstance(instance=-1, compute=-1, mig="", minor=-1)  # no instance was made, or none in it yet


class Mig:
    """MIG instances, made on demand or there already."""

    name = "mig"
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

    def find(self, machine: Machine, allocated: AllocatedDevice) -> Found[MigRequest] | None:
        """Return the GPU and the MIG request of an allocated device.

        None if the device is not made of MIG slices.

        The device is a published MIG placement, or slices of a GPU. All slices of a GPU without a profile are the whole
        GPU, if it can leave MIG mode: in MIG mode it has no NVLink.

        Raises:
            NotYetError: The driver has not told the GPU's MIG profiles yet.
        """
        # A device of a whole GPU's name has slices as capacities; the name of a placement has profile and start.
        gpu = named(machine, allocated.device)
        if gpu is None:
            return _placement(machine, allocated.device)
        if names.CAPACITY_MEMORY_SLICES not in allocated.consumed:
            return None

        # The claim's configuration can name the profile (and the start on each GPU) that the controller chose.
        pin = allocated.config.mig.get(allocated.request) if allocated.config is not None else None
        memory, compute = (
            quantity.whole(allocated.consumed.get(key, "0"))
            for key in (names.CAPACITY_MEMORY_SLICES, names.CAPACITY_COMPUTE_SLICES)
        )
        request = MigRequest(memory=memory, compute=compute)
        if pin is not None:
            return Found(gpu, request._replace(name=pin.profile, start=pin.starts.get(gpu.uuid)))
        profiles = gpu.profiles
        if not profiles:
            raise NotYetError(f"GPU {gpu.uuid}: the driver has not told its MIG profiles yet")
        all_slices = (max(profile.size for profile in profiles), max(profile.compute for profile in profiles))
        if (memory, compute) == all_slices and (gpu.mig is None or mig_devices.can_be_whole(gpu)):
            return None
        return Found(gpu, request)

    def settle(
        self, control: Control, intents: Sequence[Change[MigRequest, MigInstance]], beside: Sequence[Made]
    ) -> list[MigPlace]:
        """Return the profile and placement by which each MIG device of one GPU will be made.

        Args:
            control: Controls the GPU's hardware.
            intents: The devices to place, all of one GPU.
            beside: Other devices that agents made on this GPU, or are making.

        Returns:
            The places, in the order of ``intents``. Devices without a pinned start are packed so that the most room is
            left for others.

        Raises:
            NotYetError: A published instance disappeared, or the driver is not ready.
            ClaimError: A pinned start does not exist for the profile.
            DeviceBusyError: There is no room.
        """
        # If the driver is not ready this raises, before any hardware is changed.
        self._common()
        gpu = intents[0].uuid
        profiles = control.profiles(gpu)

        # 1. What takes room on the GPU: instances that exist, and those that agents have noted and not made yet.
        # ``existing`` are the GPU's instances by number. ``driver`` is the present load of the driver, with which
        # instances of an earlier load are gone. ``made_by_agents`` are placements that agents made.
        existing, driver = _instances(control, gpu), control.driver()
        entries = [entry for entry in beside if isinstance(entry.wanted, MigPlace)]
        made_by_agents = [entry.wanted.placed for entry in entries if entry.in_load(driver)]
        self._tell(gpu, {number: placed for number, placed in existing.items() if placed not in made_by_agents})
        limits = binding_limits(profiles)
        room = mig_packing.taken(profiles, {*existing.values(), *(entry.wanted.placed for entry in entries)})

        # 2. Devices with a pinned start, some of which are published instances that exist already.
        places: list[MigPlace | None] = [None] * len(intents)
        without_start: list[tuple[int, MigProfile]] = []
        for index, intent in enumerate(intents):
            profile, start = mig_packing.requested(profiles, intent.device, intent.wanted), intent.wanted.start
            if start is None:
                without_start.append((index, profile))
                continue
            # A request that names the profile is for an instance that is published as a device of its own.
            position, is_published = Placed(profile.id, start), intent.wanted.profile is not None
            # Use the instance that is there. If it has gone it is made again, but only if this GPU's are made at all.
            if is_published and position in existing.values() and position not in made_by_agents:
                places[index] = MigPlace.of(profile, start, found=True)
                continue
            if is_published and position not in existing.values() and not self._made(gpu):
                raise NotYetError(
                    f"device {intent.device}: MIG instance {profile.name} at {start} is gone, and none is made for "
                    f"pods on this GPU; make it again: nvidia-smi mig -i {gpu} -cgi {profile.id}:{start} -C"
                )
            if start not in profile.starts:
                known = ", ".join(map(str, profile.starts))
                raise ClaimError(f"device {intent.device}: {profile.name} cannot start at {start}; it can at {known}")
            if not room.fits(profile, start, limits):
                obstacle = mig_packing.in_the_way(position, profiles, existing, made_by_agents)
                raise DeviceBusyError(f"device {intent.device}: {obstacle}")
            room = room.put(profile, start, limits)
            places[index] = MigPlace.of(profile, start)

        # 3. The others, packed together.
        starts = mig_packing.pack(profiles, room, [profile for _, profile in without_start])
        if starts is None:
            profile_names = ", ".join(profile.name for _, profile in without_start)
            obstacle = mig_packing.in_the_way(None, profiles, existing, made_by_agents)
            raise DeviceBusyError(f"GPU {gpu} has no room for {profile_names}: {obstacle}")
        for (index, profile), start in zip(without_start, starts, strict=True):
            places[index] = MigPlace.of(profile, start)
        return [place for place in places if place is not None]

    def make(self, control: Control, made: MigChange) -> Iterator[MigChange]:
        """Make a MIG device: the GPU instance, then its compute instance.

        MIG mode is turned on first if that needs no reset. Each yielded state is written to the ledger: the number of
        the GPU instance before its compute instance is made, or that there is no instance because its place was taken.
        """
        # A published instance is there already, and is used as it is.
        if made.wanted.found:
            yield msgspec.structs.replace(made, done=_there(control, made))
            return
        if not control.mig_mode(made.uuid):
            control.set_mig_mode(made.uuid, True)
            self._switched()
        profile = next((other for other in control.profiles(made.uuid) if other.id == made.wanted.profile), None)
        if profile is None:
            raise ClaimError(f"device {made.device}: its GPU has no MIG profile {made.wanted.profile}")
        try:
            instance = control.create_gpu_instance(made.uuid, profile, made.wanted.start)
        except HardwareError as error:
            # Somebody else took the place: there is nothing to undo.
            if error.code == INSUFFICIENT_RESOURCES:
                yield msgspec.structs.replace(made, was=_NONE)
            raise
        yield msgspec.structs.replace(made, was=msgspec.structs.replace(_NONE, instance=instance))
        compute = control.create_compute_instance(made.uuid, instance)
        yield msgspec.structs.replace(made, done=_done(control, made, instance, compute))

    def undo(self, control: Control, made: MigChange, beside: Sequence[Made]) -> None:
        """Destroy the instances of a MIG device, and end MIG mode if it was the last.

        ``beside`` has the other devices that agents made on this GPU. MIG mode stays on if it ends only with a reset.

        An instance at the same place with another number or uuid belongs to another program. If the agent was killed
        before the number was written, the place alone tells: it was free when the intent was written. Then only an
        instance without a compute instance is destroyed, because the number is written before a compute instance is
        made.
        """
        # Instances end with a load of the driver, and those that were found are not this agent's to destroy.
        driver = control.driver()
        if made.wanted.found or not made.in_load(driver):
            return
        for instance, position in _instances(control, made.uuid).items():
            if position != made.wanted.placed:
                continue
            if _is_own(control, made, instance):
                _destroy(control, made.uuid, instance)
            else:
                logger.warning("device %s is gone; instance %d in its place is not ours", made.device, instance)

        # Other devices of agents are on the GPU: MIG mode stays on.
        if any(other.in_load(driver) for other in beside):
            return
        try:
            self._end_mode(control, made.uuid)
        except HardwareError as error:  # the device is gone; ``rest`` tries again
            logger.warning("GPU %s stays in MIG mode: %s", made.uuid, error)

    def check(self, control: Control, made: MigChange) -> None:
        """Raise nothing: a MIG device can be used at once."""

    def there(self, control: Control, made: MigChange) -> bool:
        """Return whether a MIG device is at its place, by number and uuid."""
        there = _instances(control, made.uuid)
        return any(at == made.wanted.placed and _is_own(control, made, number) for number, at in there.items())

    def rest(self, control: Control, gpu: str) -> None:
        """End MIG mode if instances are made for claims and none is left.

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
        """End MIG mode where no instance is, also one that waits for a reset; return whether it was on."""
        if _instances(control, gpu):
            return False
        on = control.mig_mode(gpu)
        control.set_mig_mode(gpu, False)
        if on:
            self._switched()
        return on

    def told(self, made: MigChange) -> dict[str, Any]:
        """Return the attributes of a MIG device: profile, placement and uuid."""
        assert made.done is not None, "it was made"
        return {
            "type": "mig",
            "profile": made.wanted.name,
            "placement": made.wanted.start,
            "uuid": made.done.mig,
        }

    def edits(self, gpu: Gpu, made: MigChange) -> Edits:  # noqa: ARG002  # its minor may have changed since
        """Return the device nodes that open a MIG device: the GPU's, the instance's and the compute instance's."""
        assert made.done is not None, "it was made"
        done = made.done
        nodes = self._capabilities.nodes(done.minor, done.instance, done.compute)
        return self._common() + Edits(nodes=(self._parent(done.minor), *nodes))

    def _tell(self, gpu: str, unknown: dict[int, Placed]) -> None:
        """Say once of each instance that nobody's entry explains that it is there: it is never destroyed."""
        for number, placed in unknown.items():
            if (gpu, number, placed) not in self._told:
                self._told.add((gpu, number, placed))
                said = "GPU %s has an instance that no claim of this node made: number %d, profile %d at %d"
                logger.warning(said, gpu, number, placed.profile, placed.start)


def _there(control: Control, made: MigChange) -> MigInstance:
    """Return the instance that is at its place already, with one compute instance that nobody uses.

    Raises:
        DeviceBusyError: Somebody uses it.
        NotYetError: There is none such.
        HardwareError: The hardware does not say.
    """
    for instance, at in control.gpu_instances(made.uuid).items():
        computes = control.compute_instances(made.uuid, instance) if at == made.wanted.placed else {}
        for compute, uuid in computes.items() if len(computes) == 1 else ():
            if control.processes(made.uuid, instance, compute):
                raise DeviceBusyError(f"device {made.device}: a process that no claim explains is on {uuid}")
            return _done(control, made, instance, compute)
    raise NotYetError(f"device {made.device}: the instance there has not one compute instance; make it anew")


def _done(control: Control, made: MigChange, instance: int, compute: int) -> MigInstance:
    uuid = control.compute_instances(made.uuid, instance)[compute]
    return MigInstance(instance=instance, compute=compute, mig=uuid, minor=control.minor(made.uuid))


def _placement(machine: Machine, device: str) -> Found[MigRequest] | None:
    for gpu in machine.gpus:
        own = resource_slices.device_name(gpu.uuid)
        if device.startswith(own) and (match := _PLACEMENT.fullmatch(device.removeprefix(own))):
            return Found(gpu, MigRequest(profile=int(match[1]), start=int(match[2])))
    return None


def _instances(control: Control, gpu: str) -> dict[int, Placed]:
    """Return the GPU instances; none where MIG mode was turned off, by whomever."""
    try:
        return control.gpu_instances(gpu)
    except HardwareError as error:
        if error.code != NOT_SUPPORTED:
            raise
        return {}


def _is_own(control: Control, made: MigChange, instance: int) -> bool:
    """Return whether the instance at its place is what was made, as far as that was noted."""
    noted, uuids = made.noted, _compute_instances(control, made.uuid, instance).values()
    if noted is None:
        return not uuids
    return noted.instance == instance and (not uuids or noted.mig in ("", *uuids))


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
