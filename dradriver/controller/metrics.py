"""What the controller counts."""

from __future__ import annotations

import functools
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from dradriver.allocator.request import Level
from dradriver.cluster.derived.gpu_states import STATES
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.kube.labelled_metrics import Amounts, Labelled, Spans, Totals
from dradriver.reason import Cause

PART: Final = "part"
ALONE: Final = "single"  # in place of a level: one GPU talks to nobody
_SIZES: Final = (1, 2, 4, 8, 16)
_GPUS: Final = (*map(str, _SIZES), "more")
_SETS: Final = _GPUS[1:]
PRODUCTS: Final = 32
_NAMESPACES: Final = 100
_NODES: Final = 100
_PRODUCT: Final = "of GPUs, as machines name them"
_NAMESPACE: Final = "of claims"
_KIND: Final = "whole, share, slice"
_BY_SIZE: Final = f"{', '.join(_GPUS)}: as many GPUs or the next larger of these numbers; {PART} for parts of GPUs"


def size(gpus: int) -> str:
    """Return a metric's label for a number of GPUs: the next of 1, 2, 4, 8 and 16, or ``more``."""
    return next((word for one, word in zip(_SIZES, _GPUS, strict=False) if gpus <= one), _GPUS[-1])


PLACEMENTS: Final = Labelled(
    Counter,
    "gpu_topology_placements_total",
    "Pods whose gate was lifted, by the level their GPUs reach, and by how many; part for parts of GPUs.",
    level=[*(level.value for level in Level), PART],
    gpus=(*_GPUS, PART),
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
    "Predicted bandwidth of placed sets, in percent of the best that such a machine has for as many GPUs.",
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
    "From a pod's creation to its being bound, of pods that the controller chose GPUs for.",
    most=_NAMESPACES,
    buckets=(1, 2, 5, 15, 60, 300, 900, 3600, 14400, 43200, 172800),
    namespace="the pod's",
    gpus=_BY_SIZE,
)
PROMISES_KEPT: Final = Counter(
    "gpu_topology_promises_kept_total", "Claims that the scheduler gave the GPUs that were chosen for them."
)
LEADER: Final = Gauge("gpu_topology_controller_leads", "1 in the replica that leads, 0 in one that stands by.")
_COUNTED: Final = "every half minute; none in a replica that stands by."
GPUS: Final = Amounts(
    "gpu_topology_gpus",
    f"GPUs by product and what becomes of them (docs/monitoring.md), {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
    state=", ".join(STATES),
)
HELD: Final = Amounts(
    "gpu_topology_gpus_held",
    f"GPUs that claims have been given, parts as fractions, {_COUNTED}",
    most=_NAMESPACES,
    namespace=_NAMESPACE,
    product=_PRODUCT,
    kind=_KIND,
)
GPU_SECONDS: Final = Totals(
    "gpu_topology_gpu_seconds_total",
    "GPU-seconds that claims have had, parts as fractions; counted on by whoever leads.",
    most=_NAMESPACES,
    namespace=_NAMESPACE,
    product=_PRODUCT,
    kind=_KIND,
)
PART_GPUS: Final = Amounts(
    "gpu_topology_gpus_in_parts",
    f"GPUs that have shares or MIG slices on them, {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
    kind="share, slice",
)
PART_USED: Final = Amounts(
    "gpu_topology_gpus_in_parts_used",
    f"How many GPUs the shares and MIG slices come to that claims have been given, {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
    kind="share, slice",
)
PRICES: Final = Amounts(
    "gpu_topology_gpu_price_per_hour",
    f"What an hour of a GPU costs by the policies file, {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
    currency="as the policies file says, empty where it does not",
)
AGENT_GONE: Final = Amounts(
    "gpu_topology_agent_gone_devices",
    f"Devices that claims hold on a node that publishes no ResourceSlice of this driver any more, {_COUNTED}",
    most=_NODES,
    node="of the devices",
)
FREE_SETS: Final = Amounts(
    "gpu_topology_free_sets",
    f"Sets of free GPUs that are there at once, each size for itself, {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
    gpus="1, 2, 4, 8, 16",
    level=f"the worst step of their rings, {', '.join(level.value for level in Level)}; {ALONE} of 1 GPU",
)
FREE_WHOLE: Final = Amounts(
    "gpu_topology_gpus_free_whole",
    f"GPUs that may be had whole now, on nodes that take new pods, {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
)
FRAGMENTED: Final = Amounts(
    "gpu_topology_gpus_fragmented",
    f"Those of them that are in no free set of 8, or of as many as their machine has where these are fewer, {_COUNTED}",
    most=PRODUCTS,
    product=_PRODUCT,
)
LARGEST_GANG: Final = Amounts(
    "gpu_topology_largest_gang_pods",
    f"Pods of the largest gang that fits within one domain of a level of the network, {_COUNTED}",
    most=8,
    level="of the network, as configured; cluster for all nodes",
    gpus="of each pod: 8, or as many as the largest machine has",
)
WAITING_FOR: Final = Labelled(
    Gauge,
    "gpu_topology_waiting_pods_by_cause",
    f"Pods that wait, by what keeps them (docs/monitoring.md), {_COUNTED}",
    cause=[cause.value for cause in Cause],
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
    book=("claims", "pods", "nodes", "slices", "claimants", "holders", "NICs", "usage", "free", "gpu time", "shares"),
)
