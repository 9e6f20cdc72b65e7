"""The NVML queries that discovery needs, as a typed Python interface. NVML is NVIDIA's management library."""

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
    """The state of a GPU in its NVLink fabric, the network of NVSwitches.

    Attributes:
        state: The state of its registration (``nvmlGpuFabricState_t``): ``FABRIC_COMPLETED``, …
        status: The error of its registration (``nvmlReturn_t``); 0 until the registration is completed.
        health: Its faults, as NVML's bit mask; 0 before the registration is completed, or if the driver does not report
            faults.
        clique: ``clusterUUID.cliqueID`` of the multi-node fabric that the GPU has joined; empty for none.
    """

    state: int = 0
    status: int = 0
    health: int = 0
    clique: str = ""


class Sample(NamedTuple):
    """The work of one process on a GPU.

    Attributes:
        pid: The process.
        at_us: The time, in microseconds since the epoch.
        percent: The highest of four values: the percentages of time in which the process used multiprocessors, memory,
            encoders and decoders.
    """

    pid: int
    at_us: int
    percent: int


class NvmlError(DriverError):
    """NVML refused a query.

    Attributes:
        query: Name of the function.
        code: NVML's return value.
        said: The library's message.
    """

    reason = "NvmlError"

    def __init__(self, query: str, code: int, said: str) -> None:
        super().__init__(f"{query}: {said} ({code})")
        self.query = query
        self.code = code
        self.said = said


class Nvml(Protocol):
    """The queries to an open library. Every method raises ``NvmlError`` if NVML does not answer."""

    def driver_version(self) -> str:
        """Return the driver's version: ``580.95.05``."""

    def cuda_version(self) -> str:
        """Return the newest CUDA version that the driver supports: ``13.0``."""

    def count(self) -> int:
        """Return the number of GPUs that NVML knows, including GPUs that do not answer."""

    def gpu(self, index: int) -> Handle:
        """Return NVML's handle of a GPU, for further queries, by NVML's index of the GPU."""

    def device(self, uuid: str) -> Handle:
        """Return NVML's handle of the GPU with this uuid.

        If this process has not stored the handle, each GPU is asked for its uuid.
        """

    def uuid(self, gpu: Handle) -> str:
        """Return the uuid of a GPU or MIG device: ``GPU-`` or ``MIG-`` and a lower-case UUID."""

    def minor(self, gpu: Handle) -> int:
        """Return the N of a GPU's ``/dev/nvidiaN``; NVML calls N the minor number."""

    def bus_id(self, gpu: Handle) -> str:
        """Return a GPU's bus id in the form of /sys: ``0000:06:00.0``."""

    def numa_nodes(self, gpu: Handle) -> tuple[int, ...]:
        """Return the NUMA nodes that are nearest to a GPU: ``NUMA Affinity`` of ``nvidia-smi topo -m``.

        ``nvmlDeviceGetNumaNodeId`` is not used: for a Grace GPU it is the node of the GPU's own memory, which has no
        CPUs.
        """

    def product(self, gpu: Handle) -> str:
        """Return the name of the product.

        For a MIG device the name ends with the profile: ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``.
        """

    def compute_capability(self, gpu: Handle) -> tuple[int, int]:
        """Return the major and minor number of a GPU's compute capability."""

    def memory_mib(self, gpu: Handle) -> int:
        """Return a GPU's total memory in MiB, as ``nvidia-smi`` prints it."""

    def power_watts(self, gpu: Handle) -> int:
        """Return the product's default power limit in watts; an administrator can set another limit."""

    def persistent(self, gpu: Handle) -> bool:
        """Return whether persistence mode is on.

        With this mode, the GPU stays initialised while no process has it open.
        """

    def pcie_link(self, gpu: Handle) -> tuple[int, int]:
        """Return generation and lanes of the best PCIe link that a GPU and its slot support."""

    def link_count(self, gpu: Handle) -> int:
        """Return the number of NVLinks that a GPU has, up or down."""

    def link_active(self, gpu: Handle, link: int) -> bool:
        """Return whether one NVLink of a GPU is up."""

    def links_active(self, gpu: Handle, count: int) -> tuple[bool | NvmlError, ...]:
        """Return for each of the first ``count`` NVLinks whether it is up, or the error.

        NVML is called once for all links, which works from Hopper on.
        """

    def link_remote_type(self, gpu: Handle, link: int) -> int:
        """Return the type of device at an NVLink's other end: ``REMOTE_GPU``, … (``nvmlIntNvLinkDeviceType_t``)."""

    def link_remote(self, gpu: Handle, link: int) -> str:
        """Return the bus id of the device at the other end of an NVLink, in the form of /sys."""

    def link_mbps(self, gpu: Handle, link: int) -> int:
        """Return an NVLink's signalling rate in MB/s, one direction."""

    def c2c_lanes(self, gpu: Handle) -> int:
        """Return the number of C2C lanes between a GPU and its own CPU (Grace), up or down."""

    def c2c_gbps(self, gpu: Handle, lanes: int) -> float:
        """Return the bandwidth between a GPU and its own CPU (Grace) in one direction, in GB/s.

        Args:
            gpu: The GPU's handle.
            lanes: The number of C2C lanes. Only active lanes count.
        """

    def ancestor(self, a: Handle, b: Handle) -> PathType:
        """Return the type of the PCIe path between two GPUs, as ``nvidia-smi topo -m`` prints it."""

    def nvlink_p2p(self, a: Handle, b: Handle) -> bool:
        """Return whether two GPUs can access each other's memory over NVLink."""

    def fabric(self, gpu: Handle) -> Fabric:
        """Return the state of a GPU in its NVLink fabric, the network of NVSwitches."""

    def uncorrected_errors(self, gpu: Handle) -> int:
        """Return the number of uncorrected memory errors of a GPU since the driver was loaded."""

    def row_remaps(self, gpu: Handle) -> tuple[bool, bool]:
        """Return whether memory rows will be remapped at the next reset, and whether a remapping has failed."""

    def recovery_action(self, gpu: Handle) -> int:
        """Return the recovery action that the driver requests (``nvmlDeviceGpuRecoveryAction_t``); 0 for no action."""

    def slow_reasons(self, gpu: Handle) -> int:
        """Return the reasons why a GPU's clocks are low now, as NVML's bit mask (``nvmlClocksEventReason…``)."""

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        """Return whether a GPU's MIG mode is on, and whether it will be on after the next reset."""

    def mig_slots(self, gpu: Handle) -> int:
        """Return the maximum number of MIG devices of a GPU."""

    def mig_device(self, gpu: Handle, slot: int) -> Handle:
        """Return NVML's handle of the MIG device in a slot; the error of an empty slot is ``NOT_FOUND``."""

    def mig_ids(self, device: Handle) -> tuple[int, int]:
        """Return the numbers of a MIG device's GPU instance and compute instance."""

    def mig_profiles(self, gpu: Handle, on: bool) -> tuple[MigProfile, ...]:
        """Return the profiles of MIG instances that a GPU can have, the smallest first; empty without MIG.

        ``on`` says whether the GPU's MIG mode is on. The answer is stored and used again as long as the mode stays the
        same.
        """

    def mig_placement(self, gpu: Handle, instance: int) -> tuple[int, int]:
        """Return the profile's id and the first memory slice of a GPU instance, by the instance's number."""

    def processes(self, gpu: Handle) -> tuple[int, ...]:
        """Return the ids of processes that compute on a GPU, as far as this process may see them."""

    def instances(self, gpu: Handle) -> frozenset[int]:
        """Return the numbers of GPU instances on which processes compute; empty if MIG mode is off."""

    def utilization(self, gpu: Handle) -> int:
        """Return the percentage of time in which a GPU worked, in the last second or sixth of a second.

        The product decides which of the two. The error in MIG mode is ``NOT_SUPPORTED``.
        """

    def samples(self, gpu: Handle, since_us: int) -> tuple[Sample, ...]:
        """Return the work of processes on a GPU since a given time, as far back as the driver remembers.

        Processes that did nothing can be missing. The error in MIG mode is ``NOT_SUPPORTED``.
        """
