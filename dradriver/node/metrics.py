"""The node agent's metrics."""

from __future__ import annotations

import functools
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from dradriver.api.base.errors import WordError
from dradriver.api.slices.slice_features import FIELDS
from dradriver.kube.labelled_metrics import Amounts, Labelled, Names, Totals
from dradriver.node import errors
from dradriver.node.faults import KINDS

OK: Final = "ok"
CANCELLED: Final = "Cancelled"  # the kubelet gave up
UNKNOWN: Final = "Unknown"  # no error of ours
_ERRORS: Final = (
    errors.ClaimError,
    errors.NotYetError,
    errors.DeviceBusyError,
    errors.OccupiedError,
    errors.DeviceMissingError,
    errors.HardwareError,
    errors.SetupError,
    WordError,
)

REGISTERED: Final = Gauge("gpu_topology_node_registered", "1 while the kubelet has the plugin registered.")
GPUS: Final = Gauge("gpu_topology_node_gpus", "GPUs that the last discovery found.")
DRIVER_ANSWERS: Final = Gauge(
    "gpu_topology_node_driver_answers", "0 while the GPUs' driver hangs, or fails again and again."
)
FAULTS: Final = Labelled(Gauge, "gpu_topology_node_faults", "GPUs that have a fault of this kind now.", kind=KINDS)
FAULT_INFO: Final = Names(
    "gpu_topology_gpu_fault_info",
    "Which GPUs have which faults now. gpu_topology_device_info has the pods that use each uuid.",
    most=256,
    uuid="the GPU's",
    node="the node's name",
    kind="as of gpu_topology_node_faults",
)
NUMBER_INFO: Final = Names(
    "gpu_topology_gpu_number_info",
    "The number of each GPU (of its slot), and the index that the driver's own tools use now.",
    most=128,
    uuid="the GPU's",
    node="the node's name",
    number="the GPU's number, which stays",
    index="the driver's number (NVML's index), which may change when the driver is loaded",
)
DEVICES_PUBLISHED: Final = Gauge("gpu_topology_node_devices_published", "Devices in this node's slices.")
WITHHELD: Final = Gauge(
    "gpu_topology_node_unpublished",
    "1 while no GPU is published: another driver allocates them, or they are partitioned or of two vendors.",
)
SLICE_WRITES: Final = Labelled(
    Counter, "gpu_topology_node_slice_writes_total", "Writes of ResourceSlices.", verb=("create", "update", "delete")
)
SERVER_LACKS: Final = Labelled(
    Gauge,
    "gpu_topology_node_server_lacks",
    "1 if the API server drops the fields of ResourceSlices that this feature needs.",
    what=tuple(FIELDS),
)
MIG_OFF: Final = Gauge(
    "gpu_topology_node_mig_off",
    "GPUs that the policies file divides by MIG, but that stay whole until a reset turns MIG mode on.",
)
CLAIMS_PREPARED: Final = Gauge("gpu_topology_node_claims_prepared", "Claims that are prepared now.")
DEVICE_INFO: Final = Names(
    "gpu_topology_device_info",
    "Which pods have a GPU, or fractions of it, prepared: 1 for each container.",
    most=1024,
    uuid="the GPU's",
    node="the node's name",
    namespace="the claim's",
    pod="the pod's name, empty where no pod has reserved the claim yet",
    container="the container's name in claims that the controller wrote, else empty",
    claim="the claim's name",
)
CHECKPOINT_CORRUPT: Final = Counter(
    "gpu_topology_node_checkpoint_corrupt_total", "Damaged checkpoint files that were renamed."
)
CHECKPOINT_NEWER: Final = Counter(
    "gpu_topology_node_checkpoint_newer_total", "Checkpoint files of a newer agent that were renamed."
)
CHECKPOINT_REBUILT: Final = Counter(
    "gpu_topology_node_checkpoint_rebuilt_total",
    "Claims whose checkpoint entry was restored from the API and the CDI file.",
)
ORPHANS: Final = Counter(
    "gpu_topology_node_orphans_total", "Prepared claims that were released because no pod uses them."
)
STATUS_LOST: Final = Counter(
    "gpu_topology_node_claim_status_lost_total", "Prepared claims whose status was not written."
)
GPUS_HELD: Final = Gauge(
    "gpu_topology_node_gpus_unaccounted",
    "GPUs that get no new pods, because processes that belong to no claim use them.",
)
_NAMESPACE: Final = "namespace of claims"
GPUS_BUSY: Final = Amounts(
    "gpu_topology_node_gpus_busy",
    "Utilization of allocated GPUs, as last measured. A GPU of 50 % counts as 0.5. GPUs that report none are left out.",
    most=64,
    namespace=_NAMESPACE,
)
GPUS_IDLE: Final = Amounts(
    "gpu_topology_node_gpus_idle",
    "Allocated GPUs that have been idle for five minutes or longer. Each claim on a shared GPU counts as an equal "
    "fraction.",
    most=64,
    namespace=_NAMESPACE,
)
GPUS_UNREAD: Final = Gauge(
    "gpu_topology_node_gpus_unread", "Allocated GPUs for which the GPU driver reports no utilization."
)
_NIC: Final = "the RDMA device's name"
_PORT: Final = "the port's number"
NIC_PORTS: Final = Labelled(
    Gauge,
    "gpu_topology_node_nic_ports",
    "Ports of RDMA devices, without virtual functions, by state. off: the port is switched off. away: "
    "it has no interface here.",
    state=("active", "down", "off", "away", "other"),
)
NIC_RATE: Final = Amounts(
    "gpu_topology_nic_port_rate_gbps",
    "Rate of a port in GB/s, in one direction. It is 0 if the port is not active.",
    most=64,
    nic=_NIC,
    port=_PORT,
)
NIC_FAULT_INFO: Final = Names(
    "gpu_topology_nic_fault_info",
    "Which faults ports of network cards have now, compared with their siblings (same kind) and by the last hour.",
    most=256,
    nic=_NIC,
    port=_PORT,
    node="the node's name",
    kind="down, slow, gid (no RoCE v2 GID with an IPv4 address), firmware (not the version of its siblings), "
    "flapping (its link went down again and again), errors (counters grow that a bad cable makes grow)",
)
NIC_ERRORS: Final = Totals(
    "gpu_topology_nic_port_errors_total",
    "By how much an error counter of a port grew while the agent looked.",
    most=64,
    nic=_NIC,
    port=_PORT,
    counter="the file's name in counters or hw_counters",
)
GPUDIRECT: Final = Labelled(
    Gauge,
    "gpu_topology_node_gpudirect",
    "Whether RDMA devices reach the GPUs' memory: 1 for the answer that holds. Without RDMA devices all are 0.",
    answer=("yes", "likely", "no"),
)
CALLS: Final = Labelled(
    functools.partial(Histogram, buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)),
    "gpu_topology_node_call_duration_seconds",
    "Time to prepare or unprepare one claim. The label result is ok or the error's reason.",
    call=("prepare", "unprepare"),
    result=(OK, CANCELLED, UNKNOWN, *(error.reason for error in _ERRORS)),
)
