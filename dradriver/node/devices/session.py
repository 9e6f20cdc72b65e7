"""NVML with all that MIG needs of it, by the functions and structures of ``nvidia-ml-py``.

Profiles are asked for by NVML's enumeration, everything after that by the profile's own id (nvml.h, MIG).
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from dradriver.node.devices.control import INVALID_ARGUMENT, NOT_SUPPORTED, Profile
from dradriver.node.discovery.nvml import FUNCTION_NOT_FOUND, UNKNOWN
from dradriver.node.errors import HardwareError

_MOST_PROFILES: Final = 64  # of the enumeration; there are 18
_MOST_PLACEMENTS: Final = 64
_MOST_SLICES: Final = 64


class Session:
    """An open library. Every method may raise ``HardwareError``.

    Attributes:
        binding: The module ``pynvml``.
    """

    def __init__(self, pynvml: Any) -> None:
        self.binding = pynvml

    def ask(self, query: str, *arguments: object) -> Any:
        """Return what a function of the binding returns."""
        try:
            return getattr(self.binding, query)(*arguments)
        except self.binding.NVMLError as error:
            raise HardwareError(query, int(error.value), str(error)) from error

    def device(self, uuid: str) -> Any:
        """Return the handle of a GPU or a MIG device."""
        return self.ask("nvmlDeviceGetHandleByUUID", uuid)

    def uuid(self, device: Any) -> str:
        """Return the identity of a GPU or a MIG device."""
        kind, dash, number = str(self.ask("nvmlDeviceGetUUID", device)).partition("-")
        return kind.upper() + dash + number.lower()

    def mig_mode(self, device: Any) -> bool:
        """Return whether MIG mode is on; never so where the product has none."""
        try:
            return bool(self.ask("nvmlDeviceGetMigMode", device)[0])
        except HardwareError as error:
            if error.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                raise
            return False

    def gpu_instance(self, gpu: str, instance: int) -> Any:
        """Return the handle of a GPU instance by its number."""
        return self.ask("nvmlDeviceGetGpuInstanceById", self.device(gpu), instance)

    def profile_infos(self, device: Any) -> list[Any]:
        """Return NVML's own profiles of GPU instances."""
        return self._enumerated("nvmlDeviceGetGpuInstanceProfileInfoV", device)

    def compute_infos(self, instance: Any) -> list[Any]:
        """Return those of compute instances within a GPU instance."""
        shared = self.binding.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        return self._enumerated("nvmlGpuInstanceGetComputeInstanceProfileInfoV", instance, shared)

    def _enumerated(self, query: str, of: Any, *more: object) -> list[Any]:
        found = []
        for number in range(_MOST_PROFILES):
            try:
                found.append(self.ask(query, of, number, *more))
            except HardwareError as error:
                if error.code == INVALID_ARGUMENT and number:  # beyond the last that this library knows
                    break
                if error.code != NOT_SUPPORTED:
                    raise
        return found

    def profile(self, device: Any, info: Any) -> Profile | None:
        """Return a profile with its placements; None where the GPU has none for it."""
        query, form = "nvmlDeviceGetGpuInstancePossiblePlacements", self.binding.c_nvmlGpuInstancePlacement_t
        try:
            placements, count = self._listed(query, form, _MOST_PLACEMENTS, device, info.id)
        except HardwareError as error:
            if error.code != NOT_SUPPORTED:
                raise
            return None
        spans = [(int(one.start), int(one.size)) for one in placements[:count]]
        sizes = {size for _, size in spans}
        if len(sizes) > 1 or any(
            not (start >= 0 and size > 0 and start + size <= _MOST_SLICES) for start, size in spans
        ):
            said = f"profile {info.id} has placements {spans}, which are none"
            raise HardwareError(query, UNKNOWN, said)
        if not spans:
            return None
        return Profile(
            id=int(info.id),
            name=str(info.name).removeprefix("MIG "),
            compute=int(info.sliceCount),
            memory_mib=int(info.memorySizeMB),
            most=int(info.instanceCount),
            starts=tuple(sorted(start for start, _ in spans)),
            size=sizes.pop(),
        )

    def gpu_instances(self, device: Any, info: Any) -> list[Any]:
        """Return the handles of the GPU instances of a profile."""
        form = self.binding.c_nvmlGpuInstance_t
        found, count = self._listed("nvmlDeviceGetGpuInstances", form, int(info.instanceCount), device, info.id)
        return list(found[:count])

    def compute_instances(self, instance: Any, profile: Any) -> list[Any]:
        """Return what NVML says of the compute instances of a profile."""
        form = self.binding.c_nvmlComputeInstance_t
        most = int(profile.instanceCount)
        found, count = self._listed("nvmlGpuInstanceGetComputeInstances", form, most, instance, profile.id)
        return [self.ask("nvmlComputeInstanceGetInfo_v2", one) for one in found[:count]]

    def _listed(self, query: str, form: Any, most: int, of: Any, profile: Any) -> tuple[Any, int]:
        found, count = (form * max(1, most))(), ctypes.c_uint(most)
        self.ask(query, of, profile, found, ctypes.byref(count))
        return found, min(count.value, most)
