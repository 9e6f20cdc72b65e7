"""NVML, NVIDIA's management library, as discovery sees it: what may be asked, with types."""

from __future__ import annotations

from typing import Final, NamedTuple, NewType, Protocol

from dradriver.errors import DriverError
from dradriver.topology.machine import MigProfile, PathType

LIBRARY: Final = "libnvidia-ml.so.1"

# Return values that decide something here (nvml.h, nvmlReturn_t).
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
DRIVER_NOT_LOADED: Final = 9
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
DRIVER_MISMATCH: Final = 18  # the library is not the loaded driver's
VERSION_MISMATCH: Final = 25
DEPRECATED: Final = 26
UNKNOWN: Final = 999

# What ends a link (nvmlIntNvLinkDeviceType_t).
REMOTE_GPU: Final = 0
REMOTE_SWITCH: Final = 2
REMOTE_UNKNOWN: Final = 255

# How far a GPU has joined its NVLink fabric (nvmlGpuFabricState_t).
FABRIC_IN_PROGRESS: Final = 2
FABRIC_COMPLETED: Final = 3


Handle = NewType("Handle", object)


class Fabric(NamedTuple):
    """How a GPU is in its NVLink fabric.

    Attributes:
        state: How far it has joined (``nvmlGpuFabricState_t``): ``FABRIC_COMPLETED``, …
        status: Why it was refused (``nvmlReturn_t``); 0 before that is completed.
        health: What is wrong with it, as a mask; 0 before, and where the driver does not tell.
        clique: ``clusterUUID.cliqueID`` of the multi-node fabric that it has joined; empty for none.
    """

    state: int = 0
    status: int = 0
    health: int = 0
    clique: str = ""


class Sample(NamedTuple):
    """What a process did on a GPU.

    Attributes:
        pid: The process.
        at_us: When, in microseconds since the epoch.
        percent: Of the time, the most of what it used: multiprocessors, memory, encoders or decoders.
    """

    pid: int
    at_us: int
    percent: int


class NvmlError(DriverError):
    """NVML refused a query.

    Attributes:
        query: Name of the function.
        code: NVML's return value.
        said: The library's own words for it.
    """

    reason = "NvmlError"

    def __init__(self, query: str, code: int, said: str) -> None:
        super().__init__(f"{query}: {said} ({code})")
        self.query = query
        self.code = code
        self.said = said


class Nvml(Protocol):
    """What is asked of an open library. Every method raises ``NvmlError`` where NVML does not answer."""

    def driver_version(self) -> str:
        """Return the driver's version by NVML: ``580.95.05``."""

    def cuda_version(self) -> str:
        """Return the newest CUDA that the driver knows by NVML: ``13.0``."""

    def count(self) -> int:
        """Return the number of GPUs that NVML knows, those that do not answer included."""

    def gpu(self, index: int) -> Handle:
        """Return NVML's handle of a GPU."""

    def device(self, uuid: str) -> Handle:
        """Return NVML's handle of the GPU with this identity; it is looked for only if none is kept."""

    def uuid(self, gpu: Handle) -> str:
        """Return the identity of a GPU or MIG device by NVML: ``GPU-`` or ``MIG-`` and a lower-case UUID."""

    def minor(self, gpu: Handle) -> int:
        """Return N of a GPU's ``/dev/nvidiaN`` by NVML."""

    def bus_id(self, gpu: Handle) -> str:
        """Return a GPU's bus id by NVML as /sys writes it: ``0000:06:00.0``."""

    def numa_nodes(self, gpu: Handle) -> tuple[int, ...]:
        """Return by NVML the NUMA nodes whose memory is nearest: ``NUMA Affinity`` of ``nvidia-smi topo -m``.

        Not ``nvmlDeviceGetNumaNodeId``: that is the node that a Grace GPU's own memory is, which has no CPUs.
        """

    def product(self, gpu: Handle) -> str:
        """Return by NVML the product's name, of a MIG device with profile: ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``."""

    def compute_capability(self, gpu: Handle) -> tuple[int, int]:
        """Return major and minor number of a GPU's compute capability by NVML."""

    def memory_mib(self, gpu: Handle) -> int:
        """Return a GPU's whole memory by NVML in MiB, as ``nvidia-smi`` prints it."""

    def power_watts(self, gpu: Handle) -> int:
        """Return by NVML the power limit that the product comes with; an administrator can set another one."""

    def persistent(self, gpu: Handle) -> bool:
        """Return by NVML whether a GPU stays initialised while no process has it open (persistence mode)."""

    def pcie_link(self, gpu: Handle) -> tuple[int, int]:
        """Return generation and lanes of the best PCIe link that GPU and slot can have, by NVML."""

    def link_count(self, gpu: Handle) -> int:
        """Return the number of NVLinks that a GPU has by NVML, up or down."""

    def link_active(self, gpu: Handle, link: int) -> bool:
        """Return whether an NVLink is up, by NVML."""

    def links_active(self, gpu: Handle, count: int) -> tuple[bool | NvmlError, ...]:
        """Return by NVML whether each of ``count`` NVLinks is up, or why that is unknown; one call, from Hopper on."""

    def link_remote_type(self, gpu: Handle, link: int) -> int:
        """Return by NVML what an NVLink ends in: ``REMOTE_GPU``, … (``nvmlIntNvLinkDeviceType_t``)."""

    def link_remote(self, gpu: Handle, link: int) -> str:
        """Return by NVML the bus id of what an NVLink ends in, as /sys writes it."""

    def link_mbps(self, gpu: Handle, link: int) -> int:
        """Return by NVML an NVLink's signalling rate in MB/s, one direction."""

    def c2c_lanes(self, gpu: Handle) -> int:
        """Return by NVML the number of lanes to the GPU's own CPU (Grace), up or down."""

    def c2c_gbps(self, gpu: Handle, lanes: int) -> float:
        """Return by NVML the GB/s, in one direction, of the active ones of the first ``lanes`` lanes to the CPU."""

    def ancestor(self, a: Handle, b: Handle) -> PathType:
        """Return by NVML the PCIe path between two GPUs, as ``nvidia-smi topo -m`` has it."""

    def nvlink_p2p(self, a: Handle, b: Handle) -> bool:
        """Return by NVML whether two GPUs can reach each other's memory over NVLink."""

    def fabric(self, gpu: Handle) -> Fabric:
        """Return by NVML how the GPU is in its NVLink fabric."""

    def uncorrected_errors(self, gpu: Handle) -> int:
        """Return by NVML the number of uncorrected memory errors since the driver was loaded."""

    def row_remaps(self, gpu: Handle) -> tuple[bool, bool]:
        """Return by NVML whether rows of memory are remapped at the next reset, and whether remapping has failed."""

    def recovery_action(self, gpu: Handle) -> int:
        """Return by NVML what the driver wants done (``nvmlDeviceGpuRecoveryAction_t``): 0 is nothing."""

    def slow_reasons(self, gpu: Handle) -> int:
        """Return by NVML why a GPU's clocks are low now, as a mask (``nvmlClocksEventReason…``)."""

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        """Return by NVML whether MIG mode is on, and whether it will be after the GPU's next reset."""

    def mig_slots(self, gpu: Handle) -> int:
        """Return by NVML how many MIG devices the GPU can have."""

    def mig_device(self, gpu: Handle, slot: int) -> Handle:
        """Return by NVML the MIG device in a slot; an empty one is ``NOT_FOUND``."""

    def mig_ids(self, device: Handle) -> tuple[int, int]:
        """Return by NVML the numbers of a MIG device's GPU instance and compute instance."""

    def mig_profiles(self, gpu: Handle, on: bool) -> tuple[MigProfile, ...]:
        """Return by NVML the profiles that a GPU's MIG instances can have, the smallest first; none without MIG.

        ``on`` is its MIG mode: the answer is kept for as long as that lasts.
        """

    def mig_placement(self, gpu: Handle, instance: int) -> tuple[int, int]:
        """Return by NVML the profile's id and the first memory slice of a GPU instance, by its number."""

    def processes(self, gpu: Handle) -> tuple[int, ...]:
        """Return by NVML the pids of processes that compute on the GPU, as far as this process may see them."""

    def instances(self, gpu: Handle) -> frozenset[int]:
        """Return by NVML the GPU instances that processes compute on; none of a GPU out of MIG mode."""

    def utilization(self, gpu: Handle) -> int:
        """Return by NVML how much of the last second, or sixth of one, the GPU was at work: percent.

        ``NOT_SUPPORTED`` in MIG mode.
        """

    def samples(self, gpu: Handle, since_us: int) -> tuple[Sample, ...]:
        """Return by NVML what processes did on the GPU after a moment, as far back as the driver remembers.

        Those that did nothing need not be among them. ``NOT_SUPPORTED`` in MIG mode.
        """
