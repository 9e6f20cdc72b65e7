"""Simulated hardware in a file: MIG mode and instances, compute mode and MPS of simulated GPUs.

``SimulatedGpu`` implements ``Control``, the interface of all code that changes GPUs.

The simulation refuses calls as a GPU does, with the same errors in the same order (NVML's MIG functions, nvml.h; MPS
documentation):

- An occupied placement is INSUFFICIENT_RESOURCES.
- A GPU instance with a compute instance, and a compute instance with a process, are IN_USE.
- Objects that do not exist are NOT_FOUND.
- MIG mode before Hopper waits for a reset.

At a reboot, the simulated GPU loses all state except the MIG mode before Hopper, as a real GPU does. If the machine's
own description has MIG instances, they come back at every boot, as if a service of an administrator made them.

Two more files are next to this file. ``hangs`` names calls that get no answer. ``driver`` has an id that is new each
time that the simulated driver is loaded.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from dradriver.api.slices import mig_devices
from dradriver.node import atomic_files
from dradriver.node.devices import control_interface
from dradriver.node.devices.control_interface import (
    IN_USE,
    INSUFFICIENT_RESOURCES,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    Placed,
)
from dradriver.node.errors import HardwareError
from dradriver.node.mps.mps_files import MpsFolder, Server
from dradriver.topology.machine import Gpu, MigDevice, MigProfile
from dradriver.topology.mig_limits import every_limit
from dradriver.topology.profiles import simulated_mig_profiles

_SAID: Final = {
    IN_USE: "In use by another client",
    INSUFFICIENT_RESOURCES: "Insufficient Resources",
    INVALID_ARGUMENT: "Invalid Argument",
    NOT_FOUND: "Not Found",
    NOT_SUPPORTED: "Not Supported",
    RESET_REQUIRED: "GPU requires reset",
}
_LOOK_S: Final = 0.05
_PRODUCT: Final = "NVIDIA H100 80GB HBM3"
_H100: Final = Gpu(
    index=0,
    uuid="",
    minor=0,
    product=_PRODUCT,
    compute_capability="9.0",
    pci="",
    profiles=simulated_mig_profiles.profiles(_PRODUCT),
)


class Instance(msgspec.Struct):
    """One GPU instance: its profile and place, and the uuid of each compute instance in it."""

    profile: int
    start: int
    size: int
    compute: int
    devices: dict[int, str] = {}


class State(msgspec.Struct):
    """The state of one simulated GPU in one boot: MIG mode, compute mode, instances, users.

    ``users`` has an entry for each process, by pid: the uuid of the GPU or MIG device that the process uses.
    """

    boot: str = ""
    mig: bool = False
    mode: int = control_interface.DEFAULT
    server: Server | None = None
    instances: dict[int, Instance] = {}
    users: dict[int, str] = {}


class SimulatedGpu:
    """Changes the GPUs of a simulated node (``Control``), whose states are in a file.

    A GPU that is not in the file has its factory state.
    """

    def __init__(
        self,
        path: Path,
        gpus: Callable[[str], Gpu | None] = lambda _: None,
        *,
        boot: str = "",
        mps: MpsFolder | None = None,
    ) -> None:
        """Store the arguments; the file is read at every call, so that tests and other instances can write it.

        Args:
            path: The file.
            gpus: Returns the description of a GPU, by uuid; None for an unknown GPU, which then is an H100.
            boot: Id of this boot. State in the file that belongs to another boot loses all that a reboot would delete.
            mps: The parent folder of the daemons' folders, which containers mount; None if there are no daemons.
        """
        self._path = path
        self._hangs = path.with_name("hangs")
        self._driver = path.with_name("driver")
        self._boot = boot
        self._mps = mps
        self._gpus = gpus

    @contextlib.contextmanager
    def state(self, gpu: str) -> Iterator[State]:
        """Yield a simulated GPU's state, and write it to the file after the ``with`` block.

        The block may change the state. If the block raises an error, nothing is written.

        Raises:
            OSError: The file cannot be written.
        """
        all_of = self._read()
        state = all_of.setdefault(gpu, self._fresh(self._gpu(gpu)))
        yield state
        self._path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write(self._path, msgspec.json.encode(all_of))

    def reboot(self) -> None:
        """Simulate a reboot: the GPUs lose the state that a reboot deletes."""
        kept = {gpu: self._rebooted(self._gpu(gpu), one) for gpu, one in self._read().items()}
        atomic_files.write(self._path, msgspec.json.encode(kept))

    def reload(self) -> None:
        """Simulate that the driver is unloaded and loaded again.

        The GPUs lose the same state as at a reboot.
        """
        self.reboot()
        atomic_files.write(self._driver, uuid.uuid4().hex.encode())

    def seen(self, gpu: Gpu) -> Gpu:
        """Return a simulated GPU with the MIG devices that are on it now."""
        stored = self._stored().get(gpu.uuid)
        if stored is None:
            return gpu
        state = stored if stored.boot == self._boot else self._rebooted(gpu, stored)
        return msgspec.structs.replace(gpu, mig=_devices(gpu, state) if state.mig else None)

    def driver(self) -> str:
        """Return an id that is new each time that the simulated driver is loaded.

        The id is the content of the file ``driver``. It is empty without the file.
        """
        with contextlib.suppress(OSError):
            return self._driver.read_text().strip()
        return ""

    def minor(self, gpu: str) -> int:
        """Return the minor number N of a simulated GPU's ``/dev/nvidiaN``."""
        return self._gpu(gpu).minor

    def mig_mode(self, gpu: str) -> bool:
        """Return whether MIG mode of a simulated GPU is on."""
        return self._of(gpu).mig

    def set_mig_mode(self, gpu: str, on: bool) -> None:
        """Turn MIG mode of a simulated GPU on or off."""
        call = "nvmlDeviceSetMigMode"
        if not self.profiles(gpu):
            raise _refused(call, NOT_SUPPORTED)
        with self.state(gpu) as state:
            if state.mig == on:
                return
            if not self._resetless(gpu):
                raise _refused(call, RESET_REQUIRED)
            if state.instances or state.users or state.server is not None:
                raise _refused(call, IN_USE)
            state.mig, state.mode = on, control_interface.DEFAULT

    def profiles(self, gpu: str) -> tuple[MigProfile, ...]:
        """Return the MIG profiles of a simulated GPU."""
        return self._gpu(gpu).profiles

    def gpu_instances(self, gpu: str) -> dict[int, Placed]:
        """Return where each GPU instance of a simulated GPU is, by its number."""
        state = self._of(gpu)
        return {number: Placed(one.profile, one.start) for number, one in state.instances.items()}

    def create_gpu_instance(self, gpu: str, profile: MigProfile, start: int) -> int:
        """Create a simulated GPU instance that begins at memory slice ``start``, and return its number."""
        call = "nvmlDeviceCreateGpuInstanceWithPlacement"
        self._answer(call)
        every = self.profiles(gpu)
        known = next((p for p in every if p.id == profile.id), None)
        with self.state(gpu) as state:
            if not state.mig:
                raise _refused(call, NOT_SUPPORTED)
            if known is None or start not in known.starts:
                raise _refused(call, INVALID_ARGUMENT)
            there = list(state.instances.values())
            placed = [p for instance in there for p in every if p.id == instance.profile]
            full = {n for instance in there for n in range(instance.start, instance.start + instance.size)}
            if full & set(range(start, start + known.size)) or any(
                sum(limit.needs[profile] for profile in (*placed, known)) > limit.total for limit in every_limit(every)
            ):
                raise _refused(call, INSUFFICIENT_RESOURCES)
            number = next(n for n in range(1, 16) if n not in state.instances)
            state.instances[number] = Instance(known.id, start, known.size, known.compute)
        return number

    def destroy_gpu_instance(self, gpu: str, instance: int) -> None:
        """Destroy a simulated GPU instance."""
        call = "nvmlGpuInstanceDestroy"
        self._answer(call)
        with self.state(gpu) as state:
            if _instance(call, state, instance).devices:
                raise _refused(call, IN_USE)
            del state.instances[instance]

    def compute_instances(self, gpu: str, instance: int) -> dict[int, str]:
        """Return the uuid of the MIG device of each simulated compute instance, by the compute instance's number."""
        return dict(_instance("nvmlDeviceGetGpuInstanceById", self._of(gpu), instance).devices)

    def create_compute_instance(self, gpu: str, instance: int) -> int:
        """Create a simulated compute instance and return its number."""
        call = "nvmlGpuInstanceCreateComputeInstance"
        self._answer(call)
        with self.state(gpu) as state:
            within = _instance(call, state, instance)
            if within.devices:
                raise _refused(call, INSUFFICIENT_RESOURCES)
            # The same placement has the same uuid as long as the machine runs (NVIDIA MIG user guide).
            within.devices[0] = f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{gpu} {within.profile} {within.start}')}"
            return 0

    def destroy_compute_instance(self, gpu: str, instance: int, compute: int) -> None:
        """Destroy a simulated compute instance."""
        call = "nvmlComputeInstanceDestroy"
        self._answer(call)
        with self.state(gpu) as state:
            within = _instance(call, state, instance)
            if compute not in within.devices:
                raise _refused(call, NOT_FOUND)
            if within.devices[compute] in state.users.values():
                raise _refused(call, IN_USE)
            del within.devices[compute]

    def processes(self, gpu: str, instance: int, compute: int) -> int:
        """Return how many processes are on a simulated MIG device."""
        device = self.compute_instances(gpu, instance).get(compute)
        return sum(on == device for on in self._of(gpu).users.values())

    def compute_mode(self, gpu: str) -> int:
        """Return the compute mode of a simulated GPU, which says who may use it."""
        return self._of(gpu).mode

    def set_compute_mode(self, gpu: str, mode: int) -> None:
        """Set the compute mode of a simulated GPU, which says who may use it."""
        with self.state(gpu) as state:
            if state.mig:
                raise _refused("nvmlDeviceSetComputeMode", NOT_SUPPORTED)
            state.mode = mode

    def start_mps(self, gpu: str, server: Server) -> None:
        """Serve MPS shares of a simulated GPU with these limits."""
        with self.state(gpu) as state:
            if state.mig:
                raise _refused("nvidia-cuda-mps-control", NOT_SUPPORTED)
            if state.server is not None and not state.server.limits_as(server):
                raise _refused("nvidia-cuda-mps-control", IN_USE)
            state.server = server
        if self._mps is not None:
            for name in ("pipe", "shm"):
                (self._mps.of(gpu) / name).mkdir(parents=True, exist_ok=True)

    def check_mps(self, gpu: str, server: Server) -> None:
        """Do nothing, because MPS shares of a simulated GPU are served at once."""

    def stop_mps(self, gpu: str) -> None:
        """Stop serving MPS shares of a simulated GPU."""
        with self.state(gpu) as state:
            state.server = None
        if self._mps is not None:
            self._mps.forget(gpu)

    def _answer(self, call: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            while call in self._hangs.read_text().split():
                time.sleep(_LOOK_S)

    def _gpu(self, gpu: str) -> Gpu:
        return self._gpus(gpu) or _H100

    def _resetless(self, gpu: str) -> bool:
        return mig_devices.can_be_whole(self._gpu(gpu))

    def _of(self, gpu: str) -> State:
        return self._read().get(gpu) or self._fresh(self._gpu(gpu))

    def _read(self) -> dict[str, State]:
        stored = self._stored()
        return {
            gpu: state if state.boot == self._boot else self._rebooted(self._gpu(gpu), state)
            for gpu, state in stored.items()
        }

    def _stored(self) -> dict[str, State]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, State])
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            raise HardwareError(str(self._path), INVALID_ARGUMENT, f"{error}. Remove this file.") from error

    def _fresh(self, gpu: Gpu) -> State:
        sizes = {profile.id: profile for profile in gpu.profiles}
        instances = {
            device.gpu_instance: Instance(
                profile.id, device.start, profile.size, profile.compute, {device.compute_instance: device.uuid}
            )
            for device in gpu.mig or ()
            if device.profile_id is not None and device.start is not None and (profile := sizes.get(device.profile_id))
        }
        return State(boot=self._boot, mig=gpu.mig is not None, instances=instances)

    def _rebooted(self, gpu: Gpu, before: State) -> State:
        fresh = self._fresh(gpu)
        fresh.mig |= before.mig and not mig_devices.can_be_whole(gpu)
        return fresh


def _devices(gpu: Gpu, state: State) -> tuple[MigDevice, ...]:
    by_id = {profile.id: profile for profile in gpu.profiles}
    known = [
        (number, instance, compute, uuid)
        for number, instance in sorted(state.instances.items())
        for compute, uuid in sorted(instance.devices.items())
        if instance.profile in by_id
    ]
    return tuple(
        MigDevice(
            slot=slot,
            uuid=uuid,
            gpu_instance=number,
            compute_instance=compute,
            profile=by_id[instance.profile].name,
            memory_mib=by_id[instance.profile].memory_mib,
            profile_id=instance.profile,
            start=instance.start,
        )
        for slot, (number, instance, compute, uuid) in enumerate(known)
    )


def _refused(call: str, code: int) -> HardwareError:
    return HardwareError(call, code, _SAID[code])


def _instance(call: str, state: State, number: int) -> Instance:
    instance = state.instances.get(number)
    if instance is None:
        raise _refused(call, NOT_FOUND)
    return instance
