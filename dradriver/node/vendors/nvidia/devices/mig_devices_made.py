"""The kind of MIG devices: a GPU instance at its placement, and its compute instance, made for claims.

An allocated device has one of two forms:

* Its name has a placement (``<gpu uuid>-<profile id>-<start>``).
* Its name is the GPU's (``<gpu uuid>``), and the claim has slices of it as capacities. Instances are then made on
  demand.

If an instance exists already and belongs to no claim, the agent uses it and never destroys it. On some GPUs the agent
makes no instances, and hands out only those that exist. If one of these disappears, the agent waits until it exists
again.

Sources: nvml.h, NVIDIA's MIG user guide. From Hopper on, MIG mode changes without a reset.

A placement is a position on the GPU: the first memory slice of an instance. A journal entry is the record on disk of an
instance that the agent makes for a claim (``hardware_journal``).
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
    """The kind of MIG instances, which the agent makes on demand or which exist already."""

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
        """Store the arguments; make no instance yet.

        Args:
            capabilities: Returns the device nodes in ``/dev/nvidia-caps`` that a container needs to use an instance.
            parent: Returns the device node of the GPU with a minor number.
            common: Returns the edits that every container needs to use the driver; may raise ``NotYetError``.
            made: Returns whether the agent makes instances for claims on the GPU with this uuid. If False, it hands out
                only instances that exist. May raise ``NotYetError``. Called in the thread that changes hardware.
            switched: Called after a change of a GPU's MIG mode, in the thread that changes hardware.
        """
        self._capabilities = capabilities
        self._parent = parent
        self._common = common
        self._made = made
        self._switched = switched
        self._told: set[tuple[str, int, Placed]] = set()

    def find(self, machine: Machine, allocated: AllocatedDevice) -> Found[MigRequest] | None:
        """Return the GPU and the MIG request of an allocated device; None if the device is no MIG instance.

        The device is a published MIG placement, or slices of a GPU. A claim that has all slices of a GPU and names no
        profile gets the whole GPU, if the GPU can leave MIG mode. In MIG mode the GPU would have no NVLink.

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
            raise NotYetError(f"GPU {gpu.uuid}: the GPU driver has not reported its MIG profiles yet")
        all_slices = (max(profile.size for profile in profiles), max(profile.compute for profile in profiles))
        if (memory, compute) == all_slices and (gpu.mig is None or mig_devices.can_be_whole(gpu)):
            return None
        return Found(gpu, request)

    def settle(
        self, control: Control, intents: Sequence[Change[MigRequest, MigInstance]], beside: Sequence[Made]
    ) -> list[MigPlace]:
        """Return the profile and placement of each MIG device that will be made on one GPU.

        Args:
            control: Controls the GPU's hardware.
            intents: The devices to place, all of one GPU.
            beside: Journal entries of other devices that agents made on this GPU, or are making.

        Returns:
            The places, in the order of ``intents``. If the claim does not name the place of a device, the place is
            chosen so that large instances stay possible.

        Raises:
            NotYetError: A published instance disappeared, or the driver is not ready.
            ClaimError: The claim names a place that does not exist for the profile.
            DeviceBusyError: The GPU has no room for the instances.
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
                    f"device {intent.device}: MIG instance {profile.name} at {start} is gone, and the driver "
                    f"makes no instances for pods on this GPU. Create it again: nvidia-smi mig -i {gpu} -cgi "
                    f"{profile.id}:{start} -C"
                )
            if start not in profile.starts:
                known = ", ".join(map(str, profile.starts))
                raise ClaimError(
                    f"device {intent.device}: {profile.name} cannot start at {start}. It can start at {known}."
                )
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

        An instance that exists already is used unchanged. MIG mode is turned on first if that needs no reset. The
        caller writes each yielded state of the entry ``made`` to the hardware journal. The first state has the number
        of the GPU instance, before its compute instance is made. If another program took the place, the state says that
        there is no instance.
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
        """Destroy the instances of a MIG device, and end MIG mode if no other device is left.

        Nothing is done if the agent did not make the instance, or if the driver was loaded again, which ends all
        instances. MIG mode stays on if the GPU has other instances or devices of agents, or if the mode ends only with
        a reset.

        An instance at the same place with another number or uuid belongs to another program, and is not destroyed. If
        the agent was killed before it wrote the number, only the place identifies the instance, because the place was
        free when the intent was written. Then the instance is destroyed only if it has no compute instance: the agent
        writes the number before it makes a compute instance.

        Args:
            control: Controls the GPU's hardware.
            made: The entry of the device.
            beside: Other devices that agents made on this GPU.
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
                logger.warning(
                    "Device %s is gone. Instance %d in its place was not made by this driver and stays.",
                    made.device,
                    instance,
                )

        # Other devices of agents are on the GPU: MIG mode stays on.
        if any(other.in_load(driver) for other in beside):
            return
        try:
            self._end_mode(control, made.uuid)
        except HardwareError as error:  # the device is gone; ``rest`` tries again
            logger.warning("GPU %s stays in MIG mode: %s", made.uuid, error)

    def check(self, control: Control, made: MigChange) -> None:
        """Do nothing, because a MIG device can be used as soon as it is made."""

    def there(self, control: Control, made: MigChange) -> bool:
        """Return whether the MIG device of the journal entry ``made`` still exists.

        It must be at its place, with the same number and uuid.
        """
        there = _instances(control, made.uuid)
        return any(at == made.wanted.placed and _is_own(control, made, number) for number, at in there.items())

    def rest(self, control: Control, gpu: str) -> None:
        """End MIG mode if the agent makes this GPU's instances and none is left.

        An earlier attempt may have failed because of a process that has ended since (nvml.h, nvmlDeviceSetMigMode: idle
        the device, and retry). The mode is also ended if an administrator turned it on, because the agent turns it on
        again when a claim needs it. A log line says how to keep the mode on.
        """
        try:
            made = self._made(gpu)
        except NotYetError:
            return
        if made and self._end_mode(control, gpu):
            said = (
                "GPU %s had no MIG instance, so its MIG mode was turned off. To make instances by hand, "
                "write mig: "
                "static for it in the policies file."
            )
            logger.warning(said, gpu)

    def _end_mode(self, control: Control, gpu: str) -> bool:
        """End MIG mode of a GPU without MIG instances; return whether the mode was on.

        If MIG mode would be turned on at the next reset, this is cancelled, too.
        """
        if _instances(control, gpu):
            return False
        on = control.mig_mode(gpu)
        control.set_mig_mode(gpu, False)
        if on:
            self._switched()
        return on

    def told(self, made: MigChange) -> dict[str, Any]:
        """Return the attributes of a MIG device that was made: profile, placement and uuid.

        ``made`` is the device's journal entry.
        """
        assert made.done is not None, "it was made"
        return {
            "type": "mig",
            "profile": made.wanted.name,
            "placement": made.wanted.start,
            "uuid": made.done.mig,
        }

    def edits(self, gpu: Gpu, made: MigChange) -> Edits:  # noqa: ARG002  # its minor may have changed since
        """Return what a container gets for a MIG device: the driver's libraries and the device nodes.

        The nodes are those of the GPU, of the GPU instance and of the compute instance. Their numbers are those in the
        journal entry ``made``.
        """
        assert made.done is not None, "it was made"
        done = made.done
        nodes = self._capabilities.nodes(done.minor, done.instance, done.compute)
        return self._common() + Edits(nodes=(self._parent(done.minor), *nodes))

    def _tell(self, gpu: str, unknown: dict[int, Placed]) -> None:
        """Log once each MIG instance in ``unknown``, which no entry of the hardware journal has.

        The agent never destroys such an instance, because another program made it.
        """
        for number, placed in unknown.items():
            if (gpu, number, placed) not in self._told:
                self._told.add((gpu, number, placed))
                said = "GPU %s has a MIG instance that no claim of this node created: number %d, profile %d at %d"
                logger.warning(said, gpu, number, placed.profile, placed.start)


def _there(control: Control, made: MigChange) -> MigInstance:
    """Return the MIG instance that exists already at the place in a journal entry.

    The result includes the number of its compute instance and its uuid.

    Raises:
        DeviceBusyError: A process uses the compute instance.
        NotYetError: There is no instance with exactly one compute instance.
        HardwareError: The hardware does not answer the question.
    """
    for instance, at in control.gpu_instances(made.uuid).items():
        computes = control.compute_instances(made.uuid, instance) if at == made.wanted.placed else {}
        for compute, uuid in computes.items() if len(computes) == 1 else ():
            if control.processes(made.uuid, instance, compute):
                raise DeviceBusyError(f"device {made.device}: a process that belongs to no claim uses {uuid}")
            return _done(control, made, instance, compute)
    raise NotYetError(
        f"device {made.device}: the GPU instance does not have exactly one compute "
        "instance. Create it again with nvidia-smi mig."
    )


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
    """Return the GPU instances of a GPU; empty if MIG mode is off."""
    try:
        return control.gpu_instances(gpu)
    except HardwareError as error:
        if error.code != NOT_SUPPORTED:
            raise
        return {}


def _is_own(control: Control, made: MigChange, instance: int) -> bool:
    """Return whether the agent made the MIG instance at the place of a journal entry.

    The function compares number and uuid with the journal entry ``made``. If the entry has no number yet, an instance
    without compute instances counts as the agent's.
    """
    noted, uuids = made.noted, _compute_instances(control, made.uuid, instance).values()
    if noted is None:
        return not uuids
    return noted.instance == instance and (not uuids or noted.mig in ("", *uuids))


def _compute_instances(control: Control, gpu: str, instance: int) -> dict[int, str]:
    """Return the compute instances of a GPU instance; empty if the GPU instance does not exist any more."""
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
