"""Implements ``Nvml`` by the distribution ``nvidia-ml-py``, imported as ``pynvml``: one ctypes module without types.

The import happens only when a library is opened. So a node agent with simulated GPUs never loads ``pynvml``.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from dradriver.node.vendors.nvidia.discovery import library, library_sessions, mig_profiles
from dradriver.node.vendors.nvidia.discovery.nvml_calls import NvmlCalls, bounded, sure
from dradriver.node.vendors.nvidia.discovery.nvml_interface import (
    FABRIC_COMPLETED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NOT_FOUND,
    UNKNOWN,
    VERSION_MISMATCH,
    Fabric,
    Handle,
    Nvml,
    NvmlError,
    Sample,
)
from dradriver.topology.machine import MigProfile, PathType

_ANCESTORS: Final = {  # nvmlGpuTopologyLevel_t; two GPUs of one board (0) share its switch
    0: PathType.PIX,
    10: PathType.PIX,
    20: PathType.PXB,
    30: PathType.PHB,
    40: PathType.NODE,
    50: PathType.SYS,
}

# The largest answers that are believed, far above any part: what is beyond is nonsense of a broken GPU or library.
_MOST_GPUS: Final = 1024
_NODE_MASKS: Final = 16  # of 64 bits: Linux has at most 1024 NUMA nodes (CONFIG_NODES_SHIFT)
_MOST_BYTES: Final = 1 << 44
_MOST_MILLIWATTS: Final = 100_000_000
_MOST_MBPS: Final = 10_000_000
_MOST_MINOR: Final = (1 << 20) - 1  # Linux
_MOST_GENERATION: Final = 16
_MOST_LANES: Final = 64
_MOST_LINKS: Final = 128
_MOST_SLOTS: Final = 64
_MOST_INSTANCE: Final = 0xFFFF
_MOST_REMOTE_TYPE: Final = 255
_MOST_P2P_STATUS: Final = 255
_MOST_MAJOR: Final = 99
_MOST_CUDA: Final = 999_990  # 999.99
_MOST_ERRORS: Final = 1 << 48
_MOST_ACTION: Final = 255
_MOST_REASONS: Final = (1 << 32) - 1
_ALL: Final = 100  # percent
_SUCCESS: Final = 0
_NO_INSTANCE: Final = (1 << 32) - 1  # nvml.h, nvmlProcessInfo_t: of a process on a GPU out of MIG mode


class Library(Nvml, Protocol):
    """An open NVML library: the queries of discovery, and those that MIG changes need.

    Attributes:
        module: The module ``pynvml``.
    """

    module: Any

    def mig_infos(self, gpu: Handle, on: bool) -> list[Any]:
        """Return NVML's records of MIG profiles, also of profiles that have no placement on the GPU.

        ``on`` says whether the GPU's MIG mode is on. The answer is stored and used again as long as the mode stays the
        same.
        """

    def ask(self, query: str, *arguments: object) -> Any:
        """Call a function of ``pynvml`` and return its result.

        Raises:
            NvmlError: NVML refused, the library is too old to have the function, or the answer is not valid text.
        """


@contextlib.contextmanager
def opened(*, driver_root: Path | None = None) -> Iterator[Library]:
    """Open NVML for a single reading; the session ends with the ``with`` block.

    Args:
        driver_root: Root of the file system with the driver; None asks the dynamic linker. A process keeps the
            library that it opened first.

    Raises:
        NvmlError: There is no library, no driver behind it, or no permission.
    """
    nvml = begin(driver_root=driver_root)
    try:
        yield nvml
    finally:
        end(nvml)


def begin(*, driver_root: Path | None = None) -> Library:
    """Begin an NVML session and return the open library.

    The session sees the GPUs that exist now, and keeps them open until ``end``.

    Raises:
        NvmlError: See ``opened``.
    """
    import pynvml

    library.load(driver_root)
    nvml = _Binding(pynvml)
    nvml.ask("nvmlInit")
    library_sessions.begun(nvml)
    return nvml


def end(nvml: Nvml) -> None:
    """End an NVML session that ``begin`` returned. The session then keeps no GPU open."""
    assert isinstance(nvml, _Binding)
    if library_sessions.ended(nvml):
        with contextlib.suppress(NvmlError):
            nvml.ask("nvmlShutdown")


class _Binding(NvmlCalls):
    """Implements ``Library`` by the functions of ``pynvml``."""

    def driver_version(self) -> str:
        return self.text("nvmlSystemGetDriverVersion")

    def cuda_version(self) -> str:
        version = self.number("nvmlSystemGetCudaDriverVersion_v2", most=_MOST_CUDA)
        return f"{version // 1000}.{version % 1000 // 10}"

    def count(self) -> int:
        return self.number("nvmlDeviceGetCount", most=_MOST_GPUS)

    def gpu(self, index: int) -> Handle:
        return Handle(self.ask("nvmlDeviceGetHandleByIndex", index))

    def device(self, uuid: str) -> Handle:
        handle = library_sessions.handle(uuid)
        return self._look_for(uuid) if handle is None else handle

    def _look_for(self, uuid: str) -> Handle:
        """Return the handle of the GPU with this uuid, after a query to each GPU.

        ``nvmlDeviceGetHandleByUUID`` fails for all GPUs if one is lost (nvml.h).
        """
        others: list[NvmlError] = []
        for index in range(self.count()):
            try:
                gpu = self.gpu(index)
                if self.uuid(gpu) == uuid:
                    return gpu
            except NvmlError as error:  # it may be the one
                others.append(error)
        none = NvmlError("nvmlDeviceGetUUID", NOT_FOUND, f"no GPU is {uuid}")
        raise next((other for other in others if other.code != GPU_IS_LOST), others[0] if others else none)

    def uuid(self, gpu: Handle) -> str:
        kind, dash, number = self.text("nvmlDeviceGetUUID", gpu).partition("-")
        uuid = kind.upper() + dash + number.lower()
        if kind.upper() == "GPU":
            library_sessions.keep(uuid, gpu)
        return uuid

    def minor(self, gpu: Handle) -> int:
        return self.number("nvmlDeviceGetMinorNumber", gpu, most=_MOST_MINOR)

    def bus_id(self, gpu: Handle) -> str:
        return _bus_id(self.ask("nvmlDeviceGetPciInfo_v3", gpu))

    def numa_nodes(self, gpu: Handle) -> tuple[int, ...]:
        scope = self.module.NVML_AFFINITY_SCOPE_NODE
        masks = self.ask("nvmlDeviceGetMemoryAffinity", gpu, _NODE_MASKS, scope)
        return tuple(64 * n + bit for n, mask in enumerate(masks) for bit in range(64) if int(mask) >> bit & 1)

    def product(self, gpu: Handle) -> str:
        return self.text("nvmlDeviceGetName", gpu)

    def compute_capability(self, gpu: Handle) -> tuple[int, int]:
        query = "nvmlDeviceGetCudaComputeCapability"
        major, minor = self.ask(query, gpu)
        return bounded(query, int(major), _MOST_MAJOR), bounded(query, int(minor), 9)

    def memory_mib(self, gpu: Handle) -> int:
        query = "nvmlDeviceGetMemoryInfo"
        return bounded(query, int(self.ask(query, gpu).total), _MOST_BYTES) >> 20

    def power_watts(self, gpu: Handle) -> int:
        return self.number("nvmlDeviceGetPowerManagementDefaultLimit", gpu, most=_MOST_MILLIWATTS) // 1000

    def persistent(self, gpu: Handle) -> bool:
        return bool(self.number("nvmlDeviceGetPersistenceMode", gpu, most=1))

    def pcie_link(self, gpu: Handle) -> tuple[int, int]:
        generation = self.number("nvmlDeviceGetMaxPcieLinkGeneration", gpu, most=_MOST_GENERATION)
        return generation, self.number("nvmlDeviceGetMaxPcieLinkWidth", gpu, most=_MOST_LANES)

    def link_count(self, gpu: Handle) -> int:
        return self.field(gpu, self.module.NVML_FI_DEV_NVLINK_LINK_COUNT, most=_MOST_LINKS)

    def link_active(self, gpu: Handle, link: int) -> bool:
        return bool(self.number("nvmlDeviceGetNvLinkState", gpu, link, most=1))

    def links_active(self, gpu: Handle, count: int) -> tuple[bool | NvmlError, ...]:
        states = self.fields(gpu, self.module.NVML_FI_DEV_NVLINK_GET_STATE, range(count), most=1)
        return tuple(state if isinstance(state, NvmlError) else bool(state) for state in states)

    def link_remote_type(self, gpu: Handle, link: int) -> int:
        return self.number("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link, most=_MOST_REMOTE_TYPE)

    def link_remote(self, gpu: Handle, link: int) -> str:
        return _bus_id(self.ask("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link))

    def link_mbps(self, gpu: Handle, link: int) -> int:
        try:
            return self.field(gpu, self.module.NVML_FI_DEV_NVLINK_GET_SPEED, link, most=_MOST_MBPS)
        except NvmlError:  # before driver 515 there is one speed for all links
            return self.field(gpu, self.module.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, most=_MOST_MBPS)

    def c2c_lanes(self, gpu: Handle) -> int:
        return self.field(gpu, self.module.NVML_FI_DEV_C2C_LINK_COUNT, most=_MOST_LINKS)

    def c2c_gbps(self, gpu: Handle, lanes: int) -> float:
        status, rate = self.module.NVML_FI_DEV_C2C_LINK_GET_STATUS, self.module.NVML_FI_DEV_C2C_LINK_GET_MAX_BW
        up = [n for n, state in enumerate(self.fields(gpu, status, range(lanes), most=1)) if sure(state)]
        return sum(map(sure, self.fields(gpu, rate, up, most=_MOST_MBPS) if up else ())) / 1000

    def ancestor(self, a: Handle, b: Handle) -> PathType:
        level = int(self.ask("nvmlDeviceGetTopologyCommonAncestor", a, b))
        if level not in _ANCESTORS:
            raise NvmlError("nvmlDeviceGetTopologyCommonAncestor", UNKNOWN, f"level {level} is not known")
        return _ANCESTORS[level]

    def nvlink_p2p(self, a: Handle, b: Handle) -> bool:
        what = self.module.NVML_P2P_CAPS_INDEX_NVLINK
        return self.number("nvmlDeviceGetP2PStatus", a, b, what, most=_MOST_P2P_STATUS) == 0

    def uncorrected_errors(self, gpu: Handle) -> int:
        what = self.module.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self.module.NVML_VOLATILE_ECC
        return self.number("nvmlDeviceGetTotalEccErrors", gpu, *what, most=_MOST_ERRORS)

    def row_remaps(self, gpu: Handle) -> tuple[bool, bool]:
        query = "nvmlDeviceGetRemappedRows"
        _, _, pending, failed = self.ask(query, gpu)
        return bool(bounded(query, int(pending), 1)), bool(bounded(query, int(failed), 1))

    def recovery_action(self, gpu: Handle) -> int:
        return self.field(gpu, self.module.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, most=_MOST_ACTION)

    def slow_reasons(self, gpu: Handle) -> int:
        try:
            return self.number("nvmlDeviceGetCurrentClocksEventReasons", gpu, most=_MOST_REASONS)
        except NvmlError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
            return self.number("nvmlDeviceGetCurrentClocksThrottleReasons", gpu, most=_MOST_REASONS)  # before 535

    def fabric(self, gpu: Handle) -> Fabric:
        info: Any = self.module.c_nvmlGpuFabricInfo_v2_t()
        try:
            self.ask("nvmlDeviceGetGpuFabricInfoV", gpu, ctypes.byref(info))
        except NvmlError as error:
            if error.code not in (FUNCTION_NOT_FOUND, VERSION_MISMATCH):
                raise
            info = self.module.c_nvmlGpuFabricInfo_t()  # drivers before 550 (nvml.h)
            self.ask("nvmlDeviceGetGpuFabricInfo", gpu, ctypes.byref(info))
        if info.state != FABRIC_COMPLETED:  # before, NVML says nothing else (nvml.h, nvmlGpuFabricInfo_t)
            return Fabric(int(info.state))
        cluster, clique = bytes(info.clusterUuid), ""
        if not info.status and any(cluster):
            text = cluster.hex()
            clique = f"{'-'.join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))}.{info.cliqueId}"
        return Fabric(int(info.state), int(info.status), int(getattr(info, "healthMask", 0)), clique)

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        query = "nvmlDeviceGetMigMode"
        current, pending = self.ask(query, gpu)
        return bool(bounded(query, int(current), 1)), bool(bounded(query, int(pending), 1))

    def mig_slots(self, gpu: Handle) -> int:
        return self.number("nvmlDeviceGetMaxMigDeviceCount", gpu, most=_MOST_SLOTS)

    def mig_device(self, gpu: Handle, slot: int) -> Handle:
        return Handle(self.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, slot))

    def mig_ids(self, device: Handle) -> tuple[int, int]:
        instance = self.number("nvmlDeviceGetGpuInstanceId", device, most=_MOST_INSTANCE)
        return instance, self.number("nvmlDeviceGetComputeInstanceId", device, most=_MOST_INSTANCE)

    def mig_infos(self, gpu: Handle, on: bool) -> list[Any]:
        return library_sessions.answer("infos", gpu, on, lambda: mig_profiles.infos(self, gpu))

    def mig_profiles(self, gpu: Handle, on: bool) -> tuple[MigProfile, ...]:
        def read() -> tuple[MigProfile, ...]:
            return mig_profiles.read(self, gpu, self.mig_infos(gpu, on))

        return library_sessions.answer("profiles", gpu, on, read)

    def mig_placement(self, gpu: Handle, instance: int) -> tuple[int, int]:
        info = self.ask("nvmlGpuInstanceGetInfo", self.ask("nvmlDeviceGetGpuInstanceById", gpu, instance))
        start = bounded("nvmlGpuInstanceGetInfo", int(info.placement.start), _MOST_SLOTS)
        return bounded("nvmlGpuInstanceGetInfo", int(info.profileId), _MOST_INSTANCE), start

    def processes(self, gpu: Handle) -> tuple[int, ...]:
        return tuple(sorted(int(process.pid) for process in self.ask("nvmlDeviceGetComputeRunningProcesses", gpu)))

    def instances(self, gpu: Handle) -> frozenset[int]:
        found = (int(one.gpuInstanceId) for one in self.ask("nvmlDeviceGetComputeRunningProcesses", gpu))
        return frozenset(number for number in found if number != _NO_INSTANCE)

    def utilization(self, gpu: Handle) -> int:
        query = "nvmlDeviceGetUtilizationRates"
        return bounded(query, int(self.ask(query, gpu).gpu), _ALL)

    def samples(self, gpu: Handle, since_us: int) -> tuple[Sample, ...]:
        query = "nvmlDeviceGetProcessUtilization"
        try:
            found = self.ask(query, gpu, since_us)
        except NvmlError as error:
            # "If no valid sample entries are found", says nvml.h; pynvml makes an error of a success without any, too.
            if error.code in (NOT_FOUND, _SUCCESS):
                return ()
            raise
        return tuple(
            Sample(
                int(one.pid),
                int(one.timeStamp),
                max(bounded(query, int(part), _ALL) for part in (one.smUtil, one.memUtil, one.encUtil, one.decUtil)),
            )
            for one in found
        )


def _bus_id(info: Any) -> str:
    """Return NVML's bus id (``00000000:06:00.0``) in the form of /sys.

    The function builds it from NVML's numbers, because NVML's text has capital letters in some places. If a virtual
    machine does not see a switch, the bus id of the switch is ``ffffffff:ffff:ff.0``, which /sys never has.
    """
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
