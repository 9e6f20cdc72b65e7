"""Changes this node's own GPUs: by NVML (``nvidia-ml-py``), and by the process that runs MPS daemons.

``NvmlControl`` implements ``Control``, the interface of all code that changes GPUs.

Each call opens its own NVML session. This is fast while the discovery, the code that reads the GPUs, keeps a session
open. And no session of this module stays open when the driver must be replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from dradriver.node.devices.control_interface import (
    IN_USE,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    TIMEOUT,
    UNINITIALIZED,
    Placed,
)
from dradriver.node.errors import HardwareError
from dradriver.node.mps.mps_files import MpsFolder, Server
from dradriver.node.vendors.nvidia.devices.control_session import Session
from dradriver.node.vendors.nvidia.discovery import binding
from dradriver.node.vendors.nvidia.discovery.nvml_interface import NvmlError
from dradriver.topology.machine import MigProfile

logger = logging.getLogger(__name__)

_MODULE: Final = Path("/sys/module/nvidia")  # the host's, in every container
_HOPPER: Final = 9  # compute capability
_MPS_S: Final = 10.0  # a daemon ends within one, or not soon
_MPS_LOOK_S: Final = 0.05


class NvmlControl:
    """Changes this node's own GPUs, for the one thread that changes hardware."""

    def __init__(
        self,
        *,
        driver_root: Path | None,
        mps: MpsFolder,
        module: Path = _MODULE,
        released: Callable[[], str | None] = lambda: None,
        mps_s: float = _MPS_S,
    ) -> None:
        """Store the arguments; call nothing yet.

        Args:
            driver_root: Root of the file system with the driver; None asks the dynamic linker.
            mps: The folder for requests to the process that runs MPS daemons.
            module: The module's folder in /sys, which exists while the module is loaded.
            released: Returns the reason why all processes must close the driver now; None if they may keep it open.
            mps_s: Seconds to wait for a daemon's end.
        """
        self._driver_root = driver_root
        self._mps = mps
        self._module = module
        self._released = released
        self._mps_s = mps_s

    def driver(self) -> str:
        """Return an id that is new each time that NVIDIA's module is loaded.

        The id is the inode number of the module's folder in /sys. It is empty if the module is not loaded.
        """
        with contextlib.suppress(OSError):
            return str(self._module.stat().st_ino)
        return ""

    def minor(self, gpu: str) -> int:
        """Return the N of a GPU's ``/dev/nvidiaN``, by NVML."""
        with self._session() as nvml:
            return int(nvml.ask("nvmlDeviceGetMinorNumber", nvml.device(gpu)))

    def mig_mode(self, gpu: str) -> bool:
        """Return by NVML whether MIG mode is on; False if the product has no MIG."""
        with self._session() as nvml:
            return nvml.mig_mode(nvml.device(gpu))

    def set_mig_mode(self, gpu: str, on: bool) -> None:
        """Turn MIG mode on or off; if that needs a reset, raise HardwareError.

        NVML itself would accept a change that needs a reset, and would make it at the next reset. If an agent was
        killed in this call, such a request may be left in NVML. A later call that turns the mode off cancels it.
        """
        call = "nvmlDeviceSetMigMode"
        with self._session() as nvml:
            device = nvml.device(gpu)
            if nvml.mig_mode(device) == on:
                if not on:
                    _stay_off(nvml, gpu)
                return
            if not _resetless(nvml, device):
                text = (
                    f"GPU {gpu} changes its MIG mode at a reset only: nvidia-smi -i {gpu} -mig {int(on)}, then reset it"
                )
                raise HardwareError(call, RESET_REQUIRED, text)
            # Processes would lose the GPU.
            if nvml.ask("nvmlDeviceGetComputeRunningProcesses", device):
                raise HardwareError(call, IN_USE, f"processes are on GPU {gpu}")
            try:
                status = int(nvml.ask(call, device, int(on)))
                if status or nvml.mig_mode(nvml.device(gpu)) != on:
                    raise HardwareError(call, status or IN_USE, f"GPU {gpu} did not change its MIG mode")
            except (HardwareError, NvmlError):
                # Else the next reset would turn the mode on.
                if on:
                    _stay_off(nvml, gpu)
                raise

    def profiles(self, gpu: str) -> tuple[MigProfile, ...]:
        """Return by NVML the MIG profiles of which instances can be created on a GPU."""
        with self._session() as nvml:
            return nvml.profiles(nvml.device(gpu))

    def gpu_instances(self, gpu: str) -> dict[int, Placed]:
        """Return by NVML the place of each GPU instance, by its number."""
        with self._session() as nvml:
            device = nvml.device(gpu)
            if not nvml.mig_mode(device):
                return {}
            placed = {}
            for info in nvml.profile_infos(device):
                for instance in nvml.gpu_instances(device, info):
                    about = nvml.ask("nvmlGpuInstanceGetInfo", instance)
                    placed[int(about.id)] = Placed(int(about.profileId), int(about.placement.start))
            return placed

    def create_gpu_instance(self, gpu: str, profile: MigProfile, start: int) -> int:
        """Create by NVML a GPU instance that begins at memory slice ``start``, and return its number."""
        with self._session() as nvml:
            placement = nvml.module.c_nvmlGpuInstancePlacement_t(start, profile.size)
            made = nvml.ask(
                "nvmlDeviceCreateGpuInstanceWithPlacement", nvml.device(gpu), profile.id, ctypes.byref(placement)
            )
            return int(nvml.ask("nvmlGpuInstanceGetInfo", made).id)

    def destroy_gpu_instance(self, gpu: str, instance: int) -> None:
        """Destroy a GPU instance by NVML."""
        with self._session() as nvml:
            nvml.ask("nvmlGpuInstanceDestroy", nvml.gpu_instance(gpu, instance))

    def compute_instances(self, gpu: str, instance: int) -> dict[int, str]:
        """Return by NVML the uuid of the MIG device of each compute instance, by the compute instance's number."""
        with self._session() as nvml:
            within = nvml.gpu_instance(gpu, instance)
            own = int(nvml.ask("nvmlGpuInstanceGetInfo", within).profileId)
            profiles = nvml.compute_infos(nvml.device(gpu), within, own)
            infos = [info for profile in profiles for info in nvml.compute_instances(within, profile)]
            return {int(info.id): nvml.uuid(info.device) for info in infos}

    def create_compute_instance(self, gpu: str, instance: int) -> int:
        """Create by NVML the compute instance that takes all of a GPU instance, and return its number."""
        with self._session() as nvml:
            within = nvml.gpu_instance(gpu, instance)
            own = int(nvml.ask("nvmlGpuInstanceGetInfo", within).profileId)
            device = nvml.device(gpu)
            slices = next((info.sliceCount for info in nvml.profile_infos(device) if info.id == own), 0)
            # Of two profiles of all slices the first is the plain one (the later ones: more media engines, NVLink).
            profile = next(
                (info for info in nvml.compute_infos(device, within, own) if info.sliceCount == slices), None
            )
            if profile is None:
                said = f"GPU instance {instance} of GPU {gpu} has no compute profile of {slices} slices"
                raise HardwareError("nvmlGpuInstanceGetComputeInstanceProfileInfo", NOT_FOUND, said)
            made = nvml.ask("nvmlGpuInstanceCreateComputeInstance", within, profile.id)
            return int(nvml.ask("nvmlComputeInstanceGetInfo_v2", made).id)

    def destroy_compute_instance(self, gpu: str, instance: int, compute: int) -> None:
        """Destroy a compute instance by NVML."""
        with self._session() as nvml:
            within = nvml.gpu_instance(gpu, instance)
            nvml.ask("nvmlComputeInstanceDestroy", nvml.ask("nvmlGpuInstanceGetComputeInstanceById", within, compute))

    def processes(self, gpu: str, instance: int, compute: int) -> int:
        """Return by NVML how many processes compute on a MIG device; 0 in a virtual machine that cannot see them."""
        with self._session() as nvml:
            handle = nvml.ask("nvmlGpuInstanceGetComputeInstanceById", nvml.gpu_instance(gpu, instance), compute)
            device = nvml.ask("nvmlComputeInstanceGetInfo_v2", handle).device
            try:
                return len(nvml.ask("nvmlDeviceGetComputeRunningProcesses", device))
            except NvmlError as error:
                if error.code != NOT_SUPPORTED:
                    raise
                return 0

    def compute_mode(self, gpu: str) -> int:
        """Return by NVML the compute mode of a GPU, which says who may use it."""
        with self._session() as nvml:
            return int(nvml.ask("nvmlDeviceGetComputeMode", nvml.device(gpu)))

    def set_compute_mode(self, gpu: str, mode: int) -> None:
        """Set by NVML the compute mode of a GPU, which says who may use it."""
        with self._session() as nvml:
            nvml.ask("nvmlDeviceSetComputeMode", nvml.device(gpu), mode)

    def start_mps(self, gpu: str, server: Server) -> None:
        """Request MPS shares of a GPU with the limits ``server`` from the MPS process."""
        before = self._mps.wanted(gpu)
        if before is not None and not before.server.limits_as(server):
            said = f"its shares are served with other limits ({before.server}) until the last of them is given back"
            raise HardwareError("nvidia-cuda-mps-control", IN_USE, f"GPU {gpu}: {said}")
        self._mps.want(gpu, server)

    def check_mps(self, gpu: str, server: Server) -> None:
        """Check that the MPS process serves shares of a GPU with the limits ``server``.

        If not, the error is HardwareError.
        """
        ready = self._mps.ready(gpu)
        if ready is None or not ready.server.limits_as(server) or ready.trouble:
            raise self._mps_error(gpu, "does not serve")

    def stop_mps(self, gpu: str) -> None:
        """Request the end of a GPU's MPS shares, and wait until the MPS process answers that it serves none."""
        self._mps.want_none(gpu)
        until = time.monotonic() + self._mps_s
        while not self._mps.ended(gpu):
            if time.monotonic() >= until:
                raise self._mps_error(gpu, "does not end")
            time.sleep(_MPS_LOOK_S)

    def _mps_error(self, gpu: str, said: str) -> HardwareError:
        ready = self._mps.ready(gpu)
        why = ready.trouble if ready is not None and ready.trouble else "is the DaemonSet for MPS on this node?"
        return HardwareError("nvidia-cuda-mps-control", TIMEOUT, f"MPS {said} GPU {gpu}: {why}")

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
        if (reason := self._released()) is not None:
            raise HardwareError("nvmlInit", UNINITIALIZED, f"the driver is let go: {reason}")
        try:
            with binding.opened(driver_root=self._driver_root) as nvml:
                yield Session(nvml)
        except NvmlError as error:
            raise HardwareError(error.query, error.code, error.said) from error


def _resetless(nvml: Session, device: Any) -> bool:
    return bool(nvml.ask("nvmlDeviceGetCudaComputeCapability", device)[0] >= _HOPPER)


def _stay_off(nvml: Session, gpu: str) -> None:
    """Cancel a change that would turn MIG mode on at the GPU's next reset.

    The change is cancelled only on GPUs that can change the mode without a reset. On older GPUs an administrator has
    requested the change, so it stays. A change that would turn MIG mode off always stays.
    """
    try:
        device = nvml.device(gpu)
        if nvml.mig_modes(device) == (False, True) and _resetless(nvml, device):
            nvml.ask("nvmlDeviceSetMigMode", device, 0)
    except NvmlError as error:
        logger.warning(
            "GPU %s enters MIG mode at its next reset, because the request for MIG mode cannot be cancelled: %s",
            gpu,
            error,
        )
