"""The metrics of the controller."""

from __future__ import annotations

import functools
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from dradriver.allocator.request import Level
from dradriver.cluster.derived.gpu_states import STATES
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.kube.labelled_metrics import Amounts, Labelled, Spans, Totals
from dradriver.reason import Cause

FRACTION: Final = "fraction"
ALONE: Final = "single"  # in place of a level: one GPU has no link to another one
_SIZES: Final = (1, 2, 4, 8, 16)
_GPUS: Final = (*map(str, _SIZES), "more")
_SETS: Final = _GPUS[1:]
PRODUCTS: Final = 32
_NAMESPACES: Final = 100
_NODES: Final = 100
_PRODUCT: Final = "of GPUs, as machines name them"
_NAMESPACE: Final = "of claims"
_KIND: Final = "whole, share, slice"
_BY_SIZE: Final = (
    f"{', '.join(_GPUS)}: the number of GPUs, or the next larger one in this list; {FRACTION} for shares and MIG slices"
)


def size(gpus: int) -> str:
    """Return the metric label for a number of GPUs: ``4`` for 3 or 4 GPUs.

    The label is the smallest of 1, 2, 4, 8 and 16 that is at least ``gpus``; above 16, it is ``more``.
    """
    return next((word for one, word in zip(_SIZES, _GPUS, strict=False) if gpus <= one), _GPUS[-1])


PLACEMENTS: Final = Labelled(
    Counter,
    "gpu_topology_placements_total",
    "Pods whose scheduling gate was removed, by the slowest link and the number of their GPUs, or fraction.",
    level=[*(level.value for level in Level), FRACTION],
    gpus=(*_GPUS, FRACTION),
)
PREFERENCES: Final = Labelled(
    Counter,
    "gpu_topology_placement_preferences_total",
    "Placed pods that prefer something, by what they got: their first preference, a later one, or anything.",
    got=("first", "next", "anything"),
)
ACROSS_NUMA: Final = Labelled(
    Counter,
    "gpu_topology_placements_across_numa_total",
    "Placed pods of two GPUs and more whose GPUs are on several NUMA nodes.",
    gpus=_SETS,
)
SCORES: Final = Labelled(
    functools.partial(Histogram, buckets=(10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)),
    "gpu_topology_placement_score_percent",
    "Predicted bandwidth of placed sets, in percent of the best set of the same size on a machine of this kind.",
    gpus=_SETS,
)
BUSBW: Final = Labelled(
    functools.partial(Histogram, buckets=(5, 10, 20, 40, 80, 120, 160, 240, 360, 480, 720)),
    "gpu_topology_placement_busbw_gbps",
    "All-reduce bus bandwidth that is predicted for placed sets, in GB/s, where it can be.",
    gpus=_SETS,
)
WAITED: Final = Spans(
    "gpu_topology_pod_wait_duration_seconds",
    "Time from the creation of a pod to its binding, for pods whose GPUs the controller chose.",
    most=_NAMESPACES,
    buckets=(1, 2, 5, 15, 60, 300, 900, 3600, 14400, 43200, 172800),
    namespace="the pod's",
    gpus=_BY_SIZE,
)
PROMISES_KEPT: Final = Counter(
    "gpu_topology_tentative_placements_kept_total",
    "Claims for which the scheduler allocated the GPUs of the tentative placement.",
)
LEADER: Final = Gauge("gpu_topology_controller_leads", "1 in the replica that leads, 0 in each other replica.")
_COUNTED: Final = "Counted every 30 s. Only the leading replica has values."
GPUS: Final = Amounts(
    "gpu_topology_gpus",
    f"GPUs by product and state. {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
    state=", ".join(STATES),
)
HELD: Final = Amounts(
    "gpu_topology_gpus_allocated",
    f"GPUs that are allocated to claims, shares and MIG slices as fractions. {_COUNTED}",
    most=_NAMESPACES,
    namespace=_NAMESPACE,
    product=_PRODUCT,
    kind=_KIND,
)
GPU_SECONDS: Final = Totals(
    "gpu_topology_gpu_seconds_total",
    "GPU-seconds of claims. Shares and MIG slices count as fractions. Each new leader continues the count.",
    most=_NAMESPACES,
    namespace=_NAMESPACE,
    product=_PRODUCT,
    kind=_KIND,
)
PART_GPUS: Final = Amounts(
    "gpu_topology_gpus_in_fractions",
    f"GPUs that have shares or MIG slices on them. {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
    kind="share, slice",
)
PART_USED: Final = Amounts(
    "gpu_topology_gpus_in_fractions_used",
    f"How many GPUs the allocated shares and MIG slices amount to. {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
    kind="share, slice",
)
PRICES: Final = Amounts(
    "gpu_topology_gpu_price_per_hour",
    f"What an hour of a GPU costs by the policies file. {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
    currency="as in the policies file, or empty",
)
AGENT_GONE: Final = Amounts(
    "gpu_topology_agent_gone_devices",
    f"Devices allocated to claims on a node that no longer publishes a ResourceSlice of this driver. {_COUNTED}",
    most=_NODES,
    node="of the devices",
)
FREE_SETS: Final = Amounts(
    "gpu_topology_free_sets",
    f"Sets of free GPUs without common GPUs, counted for each size as if it were the only one. {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
    gpus="1, 2, 4, 8, 16",
    level=f"the slowest link of their rings, {', '.join(level.value for level in Level)}; {ALONE} for 1 GPU",
)
FREE_WHOLE: Final = Amounts(
    "gpu_topology_gpus_free_whole",
    f"GPUs that are free as whole GPUs, on nodes that take new pods. {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
)
FRAGMENTED: Final = Amounts(
    "gpu_topology_gpus_fragmented",
    f"Free whole GPUs in no free set of 8. On a smaller machine, its largest size in free_sets counts. {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
)
LARGEST_GANG: Final = Amounts(
    "gpu_topology_largest_gang_pods",
    f"Pods of the largest gang that fits within one domain of a level of the network. {_COUNTED}",
    most=8,
    level="of the network, as configured; cluster for all nodes",
    gpus="of each pod: 8, or as many as the largest machine has",
)
WAITING_FOR: Final = Labelled(
    Gauge,
    "gpu_topology_waiting_pods_by_cause",
    f"Pods that wait, by what keeps them. {_COUNTED}",
    cause=[cause.value for cause in Cause],
)
OLDEST_WAITING: Final = Gauge(
    "gpu_topology_oldest_waiting_pod_timestamp_seconds",
    "When the pod was created that waits longest, as Unix time. It is 0 if no pod waits. Pods that were handed over to "
    f"kube-scheduler do not count. {_COUNTED}",
)
WAITING: Final = Gauge(
    "gpu_topology_waiting_pods", "Pods that wait for GPUs. The pods of a gang, which wait together, count as one."
)
_WHO: Final = "a tenant of the policies file, or namespace/NAME of a namespace without a tenant"
TENANT_GPUS: Final = Amounts(
    "gpu_topology_tenant_gpus",
    "Allocated GPUs of each tenant, fractions included, counted once a minute. Only the leading replica has values.",
    most=100,
    tenant=_WHO,
)
TENANT_USAGE: Final = Amounts(
    "gpu_topology_tenant_gpu_hours",
    "GPU-hours that each tenant has used, measured once a minute. Older hours count less. A replica that stands by "
    "has none.",
    most=100,
    tenant=_WHO,
)
TENANT_CAP: Final = Amounts(
    "gpu_topology_tenant_cap_gpus",
    "The cap of each tenant on GPUs of all products together. Only the leading replica has values.",
    most=100,
    tenant="a tenant of the policies file",
)
SEVERAL_TENANTS: Final = Gauge(
    "gpu_topology_namespaces_of_several_tenants",
    "Namespaces that several tenants of the policies file claim by their labels. The first of these tenants has the "
    "namespace.",
)
RESERVED: Final = Gauge(
    "gpu_topology_reserved_gpus",
    "GPUs that are reserved for waiting pods. Only the leading replica has values above 0.",
)
RESERVED_IDLE: Final = Counter(
    "gpu_topology_reserved_idle_gpu_seconds_total", "GPU-seconds for which reserved GPUs were idle."
)
ASIDE: Final = Gauge(
    "gpu_topology_nodes_without_tables",
    "Nodes that get no pods until the controller has computed the tables of their machine type.",
)
BARRIER: Final = Gauge(
    "gpu_topology_gang_barrier",
    "1 if gang barrier devices keep the pods of a gang unbound until all are placed. 0 in replicas that do not lead.",
)
DURATION: Final = Histogram(
    "gpu_topology_placement_duration_seconds",
    "Time from the start of the attempt that succeeded to the removal of the pod's scheduling gate.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
WITHDRAWALS: Final = Labelled(
    Counter,
    "gpu_topology_tentative_placements_revoked_total",
    "Tentative placements of claims that were revoked before the scheduler allocated the GPUs, by cause.",
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
    "Time from the creation of a gang's last pod until all its pods have GPUs, or until one is bound if no barrier is.",
    buckets=(0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200, 43200),
)
GIVEN_BACK: Final = Labelled(
    Counter,
    "gpu_topology_gangs_released_total",
    "Times that the claims of a gang that had not started were released together, by cause.",
    cause=[cause.value for cause in WithdrawReason],
)
IDLE_ENDED: Final = Counter(
    "gpu_topology_idle_ended_pods_total", "Pods that were ended because their GPUs did nothing."
)
PREEMPTIONS: Final = Counter(
    "gpu_topology_preemptions_total", "Tentative placements of pods or gangs for which others had to end."
)
PREEMPTED_UNITS: Final = Counter(
    "gpu_topology_preempted_workloads_total",
    "Workloads (single pods and gangs) that had to end for others of higher priority.",
)
PREEMPTED_PODS: Final = Counter(
    "gpu_topology_preempted_pods_total",
    "Pods that were evicted for other pods. Pods that end because their owner was suspended do not count.",
)
PREEMPTION_REFUSALS: Final = Counter(
    "gpu_topology_preemption_refusals_total",
    "Times that a disruption budget, or an owner that may not be suspended, kept a pod or a gang from ending.",
)
DIFFERENCES: Final = Labelled(
    Counter,
    "gpu_topology_audit_differences_total",
    "Entries of the controller's accounting that differed from the API server, by a bug, and were corrected.",
    record=(
        "claims",
        "pods",
        "nodes",
        "slices",
        "claim users",
        "allocations",
        "NICs",
        "usage",
        "free",
        "gpu time",
        "shares",
    ),
)
