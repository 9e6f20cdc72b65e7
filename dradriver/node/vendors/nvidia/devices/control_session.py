"""NVML with all that changing MIG needs of it, on top of what discovery asks, by the structures of ``nvidia-ml-py``."""

from __future__ import annotations

from typing import Any

from dradriver.node.vendors.nvidia.discovery import library_sessions, mig_profiles
from dradriver.node.vendors.nvidia.discovery.binding import Library
from dradriver.node.vendors.nvidia.discovery.nvml_interface import FUNCTION_NOT_FOUND, NOT_SUPPORTED, NvmlError
from dradriver.topology.machine import MigProfile


class Session:
    """An open library. Every method may raise ``NvmlError``.

    Attributes:
        module: ``pynvml``.
        ask: Returns what a function of it returns, by its name and arguments.
    """

    def __init__(self, nvml: Library) -> None:
        self._nvml = nvml
        self.module = nvml.module
        self.ask = nvml.ask

    def device(self, gpu: str) -> Any:
        """Return, in the session that changes MIG, NVML's handle of a GPU, by its uuid."""
        return self._nvml.device(gpu)

    def uuid(self, device: Any) -> str:
        """Return the identity of a GPU or a MIG device in the session that changes MIG."""
        return self._nvml.uuid(device)

    def mig_mode(self, device: Any) -> bool:
        """Return in the session that changes MIG whether MIG mode is on; never so if the product has none."""
        return self.mig_modes(device)[0]

    def mig_modes(self, device: Any) -> tuple[bool, bool]:
        """Return in the session that changes MIG whether MIG mode is on, and will be after the next reset."""
        try:
            return self._nvml.mig_mode(device)
        except NvmlError as error:
            if error.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                raise
            return False, False

    def gpu_instance(self, gpu: str, instance: int) -> Any:
        """Return, in the session that changes MIG, NVML's handle of a GPU instance, by its number."""
        return self.ask("nvmlDeviceGetGpuInstanceById", self.device(gpu), instance)

    def profiles(self, device: Any) -> tuple[MigProfile, ...]:
        """Return the profiles that instances can have, for a session that changes MIG."""
        return self._nvml.mig_profiles(device, self.mig_mode(device))

    def profile_infos(self, device: Any) -> list[Any]:
        """Return, in the session that changes MIG, NVML's records of GPU instance profiles, placeable or not."""
        return self._nvml.mig_infos(device, True)

    def compute_infos(self, device: Any, instance: Any, profile: int) -> list[Any]:
        """Return, in the session that changes MIG, NVML's records of a GPU instance's compute instance profiles.

        The GPU instance's own profile is given by id.
        """
        shared = self.module.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        known = self.module.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
        query = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"

        def ask() -> list[Any]:
            return mig_profiles.enumerated(self.ask, query, known, instance, shared)

        return library_sessions.answer(f"infos within profile {profile}", device, True, ask)

    def gpu_instances(self, device: Any, info: Any) -> list[Any]:
        """Return, in the session that changes MIG, NVML's handles of the GPU instances of a profile."""
        form, most = self.module.c_nvmlGpuInstance_t, int(info.instanceCount)
        return mig_profiles.listed(self.ask, "nvmlDeviceGetGpuInstances", form, most, device, info.id)

    def compute_instances(self, instance: Any, profile: Any) -> list[Any]:
        """Return, in the session that changes MIG, NVML's records of the compute instances of a profile."""
        form, most = self.module.c_nvmlComputeInstance_t, int(profile.instanceCount)
        query = "nvmlGpuInstanceGetComputeInstances"
        handles = mig_profiles.listed(self.ask, query, form, most, instance, profile.id)
        return [self.ask("nvmlComputeInstanceGetInfo_v2", handle) for handle in handles]
