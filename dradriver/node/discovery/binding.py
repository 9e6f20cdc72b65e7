"""``Nvml`` by the distribution ``nvidia-ml-py``, which is imported as ``pynvml``: one module of ctypes without types.

It is imported only when a library is opened, so that a node agent with simulated GPUs never loads it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dradriver.node.discovery.nvml import (
    FUNCTION_NOT_FOUND,
    LIBRARY,
    LIBRARY_NOT_FOUND,
    UNKNOWN,
    VERSION_MISMATCH,
    Handle,
    Nvml,
    NvmlError,
)
from dradriver.topology.machine import PathType

# Where the driver's installers put libraries, below the root of whatever file system holds the driver.
_FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "usr/lib/wsl/lib",
)
_ANCESTORS: Final = {  # nvmlGpuTopologyLevel_t; two GPUs of one board (0) share its switch
    0: PathType.PIX,
    10: PathType.PIX,
    20: PathType.PXB,
    30: PathType.PHB,
    40: PathType.NODE,
    50: PathType.SYS,
}
_FABRIC_READY: Final = 3  # NVML_GPU_FABRIC_STATE_COMPLETED


def find_library(driver_root: Path) -> Path:
    """Return the library below the root of a file system that holds the driver, such as ``/run/nvidia/driver``.

    Raises:
        NvmlError: It is in none of the places where the driver's installers put it.
    """
    for folder in _FOLDERS:
        path = driver_root / folder / LIBRARY
        if path.exists():
            return path
    raise NvmlError("dlopen", LIBRARY_NOT_FOUND, f"no {LIBRARY} below {driver_root}; looked in {', '.join(_FOLDERS)}")


@contextlib.contextmanager
def opened(*, driver_root: Path | None = None) -> Iterator[Nvml]:
    """Open the library for a while: it sees GPUs that came or went since the last time, and holds none afterwards.

    Args:
        driver_root: Root of the file system that holds the driver; None asks the dynamic linker. A process keeps the
            library that it opened first.

    Raises:
        NvmlError: There is no library, no driver behind it, or no permission.
    """
    import pynvml

    if driver_root is not None and str(driver_root) != "/":
        # The binding opens the library by its soname, and the linker answers with one of that soname that is loaded.
        path = find_library(driver_root)
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise NvmlError("dlopen", LIBRARY_NOT_FOUND, f"{path}: {error}") from error
    library = _Binding(pynvml)
    library.ask("nvmlInit")
    try:
        yield library
    finally:
        with contextlib.suppress(NvmlError):
            library.ask("nvmlShutdown")


class _Binding:
    """``Nvml`` by the functions of ``pynvml``."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding

    def ask(self, query: str, *arguments: object) -> Any:
        """Return what a function of the binding returns.

        Raises:
            NvmlError: NVML refused, the library is too old to know the function, or answered what is no text.
        """
        try:
            return getattr(self._binding, query)(*arguments)
        except self._binding.NVMLError as error:
            said = str(error)
            if error.value == LIBRARY_NOT_FOUND:
                said = f"{LIBRARY} was not found; install the NVIDIA driver, or name its file system with --driver-root"
            raise NvmlError(query, int(error.value), said) from error
        except UnicodeError as error:
            raise NvmlError(query, UNKNOWN, f"the answer is no UTF-8 text: {error}") from error

    def _field(self, gpu: Handle, field: int, scope: int = 0) -> int:
        (answer,) = self.ask("nvmlDeviceGetFieldValues", gpu, [(field, scope)])
        if answer.nvmlReturn:
            raise NvmlError(f"nvmlDeviceGetFieldValues({field})", int(answer.nvmlReturn), "no value")
        return int(answer.value.uiVal)

    def driver_version(self) -> str:
        return str(self.ask("nvmlSystemGetDriverVersion"))

    def count(self) -> int:
        return int(self.ask("nvmlDeviceGetCount"))

    def gpu(self, index: int) -> Handle:
        return Handle(self.ask("nvmlDeviceGetHandleByIndex", index))

    def uuid(self, gpu: Handle) -> str:
        kind, dash, number = str(self.ask("nvmlDeviceGetUUID", gpu)).partition("-")
        return kind.upper() + dash + number.lower()

    def minor(self, gpu: Handle) -> int:
        return int(self.ask("nvmlDeviceGetMinorNumber", gpu))

    def bus_id(self, gpu: Handle) -> str:
        return _bus_id(self.ask("nvmlDeviceGetPciInfo_v3", gpu))

    def product(self, gpu: Handle) -> str:
        return str(self.ask("nvmlDeviceGetName", gpu))

    def compute_capability(self, gpu: Handle) -> tuple[int, int]:
        major, minor = self.ask("nvmlDeviceGetCudaComputeCapability", gpu)
        return int(major), int(minor)

    def memory_mib(self, gpu: Handle) -> int:
        return int(self.ask("nvmlDeviceGetMemoryInfo", gpu).total) >> 20

    def power_watts(self, gpu: Handle) -> int:
        return int(self.ask("nvmlDeviceGetPowerManagementLimit", gpu)) // 1000

    def pcie_link(self, gpu: Handle) -> tuple[int, int]:
        generation = int(self.ask("nvmlDeviceGetMaxPcieLinkGeneration", gpu))
        return generation, int(self.ask("nvmlDeviceGetMaxPcieLinkWidth", gpu))

    def link_count(self, gpu: Handle) -> int:
        return self._field(gpu, self._binding.NVML_FI_DEV_NVLINK_LINK_COUNT)

    def link_active(self, gpu: Handle, link: int) -> bool:
        return bool(self.ask("nvmlDeviceGetNvLinkState", gpu, link))

    def link_remote_type(self, gpu: Handle, link: int) -> int:
        return int(self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link))

    def link_remote(self, gpu: Handle, link: int) -> str:
        return _bus_id(self.ask("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link))

    def link_mbps(self, gpu: Handle, link: int) -> int:
        try:
            return self._field(gpu, self._binding.NVML_FI_DEV_NVLINK_GET_SPEED, link)
        except NvmlError:  # before driver 515 there is one speed for all links
            return self._field(gpu, self._binding.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)

    def c2c_gbps(self, gpu: Handle) -> float:
        binding = self._binding
        lanes = range(self._field(gpu, binding.NVML_FI_DEV_C2C_LINK_COUNT))
        active = [n for n in lanes if self._field(gpu, binding.NVML_FI_DEV_C2C_LINK_GET_STATUS, n) == 1]
        return sum(self._field(gpu, binding.NVML_FI_DEV_C2C_LINK_GET_MAX_BW, n) for n in active) / 1000

    def ancestor(self, a: Handle, b: Handle) -> PathType:
        level = int(self.ask("nvmlDeviceGetTopologyCommonAncestor", a, b))
        if level not in _ANCESTORS:
            raise NvmlError("nvmlDeviceGetTopologyCommonAncestor", UNKNOWN, f"level {level} is not known")
        return _ANCESTORS[level]

    def nvlink_p2p(self, a: Handle, b: Handle) -> bool:
        return int(self.ask("nvmlDeviceGetP2PStatus", a, b, self._binding.NVML_P2P_CAPS_INDEX_NVLINK)) == 0

    def fabric(self, gpu: Handle) -> str:
        info: Any = self._binding.c_nvmlGpuFabricInfo_v2_t()
        try:
            self.ask("nvmlDeviceGetGpuFabricInfoV", gpu, ctypes.byref(info))
        except NvmlError as error:
            if error.code not in (FUNCTION_NOT_FOUND, VERSION_MISMATCH):
                raise
            info = self._binding.c_nvmlGpuFabricInfo_t()  # drivers before 545
            self.ask("nvmlDeviceGetGpuFabricInfo", gpu, ctypes.byref(info))
        cluster = bytes(info.clusterUuid)
        if info.state != _FABRIC_READY or info.status or not any(cluster):
            return ""
        text = cluster.hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        return f"{'-'.join(parts)}.{info.cliqueId}"

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        current, pending = self.ask("nvmlDeviceGetMigMode", gpu)
        return bool(current), bool(pending)

    def mig_slots(self, gpu: Handle) -> int:
        return int(self.ask("nvmlDeviceGetMaxMigDeviceCount", gpu))

    def mig_device(self, gpu: Handle, slot: int) -> Handle:
        return Handle(self.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, slot))

    def mig_ids(self, device: Handle) -> tuple[int, int]:
        instance = int(self.ask("nvmlDeviceGetGpuInstanceId", device))
        return instance, int(self.ask("nvmlDeviceGetComputeInstanceId", device))


def _bus_id(info: Any) -> str:
    """Return NVML's bus id (``00000000:06:00.0``) as /sys has it; its numbers, because its text is capitals in places.

    A switch that a virtual machine does not see is ``ffffffff:ffff:ff.0``, which /sys never has.
    """
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
