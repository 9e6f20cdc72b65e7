"""The sections ``tenants`` and ``queue``: which tenants share the cluster, their caps, and the order of the queue."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from dradriver.api.policies.fields import (
    MOST_CAPS,
    MOST_DAYS,
    MOST_NAMES,
    MOST_TENANTS,
    CapGpus,
    Days,
    Gpus,
    GraceSeconds,
    Hours,
    LabelKey,
    LabelValue,
    Minutes,
    Namespace,
    PerMinute,
    Priority,
    PriorityClassName,
    Product,
    Seconds,
    Section,
    TenantName,
    TenantWeight,
)

RESERVED_TENANT: Final = "other"  # the label under which ``kube.labelled_metrics.Amounts`` adds up the smaller ones


class Cap(Section, frozen=True, omit_defaults=True):
    """A limit of the GPUs that a tenant may have at the same time.

    Attributes:
        gpus: The number of GPUs. A fraction of a GPU counts as a fraction: half a GPU counts 0.5.
        products: The full product names or globs that are counted together; all products if left out.
    """

    gpus: CapGpus
    products: Annotated[
        tuple[Product, ...], Meta(min_length=1, max_length=64, description="a list with one product or more")
    ] = ()


class Tenant(Section, frozen=True):
    """A tenant: some namespaces that share the cluster with other tenants.

    Attributes:
        namespaces: Their names.
        namespace_labels: Labels of further namespaces. A namespace must have all of them. ``namespaces`` takes
            precedence.
        weight: Its part of the GPUs that all tenants request, relative to the other weights.
        highest_priority: The highest priority that counts for its pods; higher ones count as this one. None for no
            limit.
        cap: Limits of the GPUs that it may have at the same time; each limit must be kept.
        partition: Its workloads are placed only on these GPUs; None for any GPUs.
        exclusive: Whether other tenants' workloads must not use its partition.
        scheduler_placed: Whether pods of a tenant with a partition may have GPUs that kube-scheduler alone chooses. If
            not, the chart's admission policy refuses them (``partitionspolicy.yaml``).
        admission: ``kueue``: Kueue decides the order and the amount, and the driver only the place. Empty: the driver
            decides all of it.
    """

    namespaces: Annotated[
        tuple[Namespace, ...],
        Meta(min_length=1, max_length=MOST_NAMES, description="a list with one namespace or more"),
    ] = ()
    namespace_labels: Annotated[
        dict[LabelKey, LabelValue], Meta(min_length=1, max_length=32, description="labels that the namespaces have")
    ] = {}
    weight: TenantWeight = 1.0
    highest_priority: Priority | None = None
    cap: Annotated[
        tuple[Cap, ...],
        Meta(min_length=1, max_length=MOST_CAPS, description="a list of caps, as [{gpus: 16}]"),
    ] = ()
    partition: Gpus | None = None
    exclusive: bool = False
    scheduler_placed: Literal["refuse", "allow"] = "refuse"
    admission: Literal["", "kueue"] = ""


class Reservation(Section, frozen=True):
    """When GPUs are reserved for a waiting workload, and the limits of the cost.

    Attributes:
        after_minutes: How long the workload waits without a place before GPUs are reserved for it; 0 for no
            reservations.
        idle_minutes: How long the reserved GPUs may be idle, on average per GPU.
        short_minutes: It can be unknown when the pods on reserved GPUs end. Until it is known, other pods may still
            start on reserved GPUs if they end within this time.
        moves: How often a reservation moves to other GPUs after its GPUs were idle for ``idle_minutes``. Then it ends.
    """

    after_minutes: Minutes = 30.0
    idle_minutes: Annotated[float, Meta(ge=1, le=10_000)] = 60.0
    short_minutes: Minutes = 5.0
    moves: Annotated[int, Meta(ge=0, le=16)] = 1


class Preemption(Section, frozen=True):
    """Whether workloads of lower priority are preempted for higher priority, and the limits.

    A workload is a single pod, or all pods of a gang.

    Attributes:
        enabled: Whether preemption is on.
        min_run_minutes: How long a workload must have run before it can be preempted.
        workloads_per_minute: How many workloads can be preempted within a minute, in the whole cluster.
        back_off_minutes: How long the replacement of a preempted workload cannot be preempted.
        margin_seconds: How long the GPUs are kept for the preempting workload in addition to the longest grace period
            of the victims.
        longest_grace_seconds: The longest grace period of a victim. A workload with a longer grace period is never
            preempted. The controller does not wait for a terminating pod that has more time left than this.
        unpreemptable_classes: PriorityClasses whose pods are never preempted.
        unpreemptable_tenants: Tenants whose pods are never preempted.
    """

    enabled: bool = False
    min_run_minutes: Minutes = 10.0
    workloads_per_minute: PerMinute = 10
    back_off_minutes: Minutes = 30.0
    margin_seconds: Seconds = 30.0
    longest_grace_seconds: GraceSeconds = 3600.0
    unpreemptable_classes: Annotated[
        tuple[PriorityClassName, ...], Meta(max_length=MOST_NAMES, description="a list of names of PriorityClasses")
    ] = ()
    unpreemptable_tenants: Annotated[
        tuple[TenantName, ...], Meta(max_length=MOST_TENANTS, description="a list of names of tenants")
    ] = ()


class Queue(Section, frozen=True):
    """How the workloads that wait for GPUs are ordered.

    Attributes:
        reservation: When GPUs are reserved for a workload that has waited long while others were placed.
        half_life_hours: After how many hours used GPU time counts half.
        ahead_minutes: For how many minutes in the future the GPUs that a tenant has now count as already used.
        keep_days: For how many days GPU time is kept, hour by hour.
        preemption: Whether workloads are preempted for workloads that wait.
    """

    half_life_hours: Hours = 168.0
    ahead_minutes: Minutes = 10.0
    keep_days: Days = MOST_DAYS
    reservation: Reservation = Reservation()
    preemption: Preemption = Preemption()
