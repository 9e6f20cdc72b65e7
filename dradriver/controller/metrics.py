"""What the controller counts."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from dradriver.allocator.request import Level
from dradriver.controller.withdraw_reasons import WithdrawReason
from dradriver.kube.labels import Amounts, Labelled

PART: Final = "part"
PLACEMENTS: Final = Labelled(
    Counter,
    "gpu_topology_placements_total",
    "Pods whose gate was lifted, by the level their GPUs reach; part for parts of GPUs.",
    level=[*(level.value for level in Level), PART],
)
WAITING: Final = Gauge(
    "gpu_topology_waiting_pods", "Pods that wait for a place; those of a gang, which wait together, count as one."
)
_WHO: Final = "a tenant of the policies file, or namespace/NAME of a namespace that is none's"
TENANT_GPUS: Final = Amounts(
    "gpu_topology_tenant_gpus",
    "GPUs that claims of each tenant hold, parts as fractions, once a minute; none in a replica that stands by.",
    most=100,
    tenant=_WHO,
)
TENANT_USAGE: Final = Amounts(
    "gpu_topology_tenant_gpu_hours",
    "GPU-hours that each tenant has used, decayed, once a minute; none in a replica that stands by.",
    most=100,
    tenant=_WHO,
)
TENANT_CAP: Final = Amounts(
    "gpu_topology_tenant_cap_gpus",
    "GPUs of all products together that each tenant with such a cap may have; none in a replica that stands by.",
    most=100,
    tenant="a tenant of the policies file",
)
SEVERAL_TENANTS: Final = Gauge(
    "gpu_topology_namespaces_of_several_tenants",
    "Namespaces that several tenants of the policies file claim by their labels; the first of them has it.",
)
RESERVED: Final = Gauge(
    "gpu_topology_reserved_gpus", "GPUs that are reserved for pods that wait; 0 in a replica that stands by."
)
RESERVED_IDLE: Final = Counter(
    "gpu_topology_reserved_idle_gpu_seconds_total", "GPU-seconds that reserved GPUs have stood idle."
)
ASIDE: Final = Gauge(
    "gpu_topology_nodes_without_tables", "Nodes that nothing is placed on until their kind of machine is assessed."
)
BARRIER: Final = Gauge(
    "gpu_topology_gang_barrier",
    "1 where seats keep pods of gangs from being bound before all have their places; 0 in a replica that stands by.",
)
DURATION: Final = Histogram(
    "gpu_topology_placement_duration_seconds",
    "From taking a gated pod up to its gate being lifted, in the attempt that succeeded.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
WITHDRAWALS: Final = Labelled(
    Counter,
    "gpu_topology_promises_withdrawn_total",
    "Claims that were taken back before the scheduler gave them GPUs, by cause.",
    cause=[cause.value for cause in WithdrawReason],
)
GANGS: Final = Labelled(
    Gauge,
    "gpu_topology_gangs",
    "Gangs that have living pods, by whether they have started.",
    state=("waiting", "started"),
)
GANG_START: Final = Histogram(
    "gpu_topology_gang_start_duration_seconds",
    "From the last pod of a gang being there to its start: all have their seats, or without seats one is bound.",
    buckets=(0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200, 43200),
)
GIVEN_BACK: Final = Labelled(
    Counter,
    "gpu_topology_gangs_given_back_total",
    "Times that claims of a gang that had not started were taken back together, by cause.",
    cause=[cause.value for cause in WithdrawReason],
)
IDLE_ENDED: Final = Counter(
    "gpu_topology_idle_ended_pods_total", "Pods that were ended because their GPUs did nothing."
)
PREEMPTIONS: Final = Counter(
    "gpu_topology_preemptions_total", "Places that were promised to pods or gangs for whom others had to end."
)
PREEMPTED_UNITS: Final = Counter(
    "gpu_topology_preempted_units_total", "Pods alone, and gangs, that had to end for others of higher priority."
)
PREEMPTED_PODS: Final = Counter(
    "gpu_topology_preempted_pods_total", "Pods that were evicted for others; those of suspended owners go by these."
)
PREEMPTION_REFUSALS: Final = Counter(
    "gpu_topology_preemption_refusals_total",
    "Times that a disruption budget, or an owner that may not be suspended, kept a pod or a gang from ending.",
)
DIFFERENCES: Final = Labelled(
    Counter,
    "gpu_topology_audit_differences_total",
    "Entries of the controller's books that were not what the API server shows, and were put right: an error in it.",
    book=("claims", "pods", "nodes", "slices", "claimants", "holders", "usage", "free", "gpu time", "shares"),
)
