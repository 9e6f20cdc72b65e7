"""An NVML session with the calls that change MIG, in addition to the queries that only read.

The calls use the C structures that ``nvidia-ml-py`` defines.
"""

from __future__ import annotations

from typing import Any

from dradriver.node.vendors.nvidia.discovery import library_sessions, mig_profiles
from dradriver.node.vendors.nvidia.discovery.binding import Library
from dradriver.node.vendors.nvidia.discovery.nvml_interface import FUNCTION_NOT_FOUND, NOT_SUPPORTED, NvmlError
from dradriver.topology.machine import MigProfile


class Session:
    """An NVML session in which MIG can be changed. Every method may raise ``NvmlError``.

    Attributes:
        module: The module ``pynvml``.
        ask: Calls a function of ``pynvml`` by its name and arguments, and returns its result.
    """

    def __init__(self, nvml: Library) -> None:
        self._nvml = nvml
        self.module = nvml.module
        self.ask = nvml.ask

    def device(self, gpu: str) -> Any:
        """Return NVML's handle of the GPU with this uuid."""
        return self._nvml.device(gpu)

    def uuid(self, device: Any) -> str:
        """Return the uuid of a GPU or a MIG device."""
        return self._nvml.uuid(device)

    def mig_mode(self, device: Any) -> bool:
        """Return whether MIG mode is on; False if the product has no MIG."""
        return self.mig_modes(device)[0]

    def mig_modes(self, device: Any) -> tuple[bool, bool]:
        """Return whether MIG mode is on now, and whether it will be on after the next reset."""
        try:
            return self._nvml.mig_mode(device)
        except NvmlError as error:
            if error.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                raise
            return False, False

    def gpu_instance(self, gpu: str, instance: int) -> Any:
        """Return NVML's handle of a GPU instance, by its number."""
        return self.ask("nvmlDeviceGetGpuInstanceById", self.device(gpu), instance)

    def profiles(self, device: Any) -> tuple[MigProfile, ...]:
        """Return the MIG profiles of which instances can be created on a GPU."""
        return self._nvml.mig_profiles(device, self.mig_mode(device))

    def profile_infos(self, device: Any) -> list[Any]:
        """Return NVML's records of a GPU's MIG profiles, even of profiles without a placement.

        A placement is a position at which an instance can be created.
        """
        return self._nvml.mig_infos(device, True)

    def compute_infos(self, device: Any, instance: Any, profile: int) -> list[Any]:
        """Return NVML's records of the compute instance profiles that a GPU instance has.

        Args:
            device: The GPU's handle.
            instance: The GPU instance's handle.
            profile: Id of the GPU instance's own profile.
        """
        shared = self.module.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        known = self.module.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
        query = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"

        def ask() -> list[Any]:
            return mig_profiles.enumerated(self.ask, query, known, instance, shared)

        return library_sessions.answer(f"infos within profile {profile}", device, True, ask)

    def gpu_instances(self, device: Any, info: Any) -> list[Any]:
        """Return NVML's handles of the GPU instances that a GPU has of one profile.

        Args:
            device: The GPU's handle.
            info: NVML's record of the profile.
        """
        form, most = self.module.c_nvmlGpuInstance_t, int(info.instanceCount)
        return mig_profiles.listed(self.ask, "nvmlDeviceGetGpuInstances", form, most, device, info.id)

    def compute_instances(self, instance: Any, profile: Any) -> list[Any]:
        """Return NVML's records of the compute instances that a GPU instance has of one profile."""
        form, most = self.module.c_nvmlComputeInstance_t, int(profile.instanceCount)
        query = "nvmlGpuInstanceGetComputeInstances"
        handles = mig_profiles.listed(self.ask, query, form, most, instance, profile.id)
        return [self.ask("nvmlComputeInstanceGetInfo_v2", handle) for handle in handles]
