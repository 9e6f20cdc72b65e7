"""The sections ``tenants`` and ``queue``: who shares the cluster, how much each may have, and in which order."""

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
    """How many GPUs a tenant may have at a time.

    Attributes:
        gpus: So many, parts as fractions.
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
        namespace_labels: Labels of further ones, which have all of these; a name says more than labels.
        weight: Its part of the GPUs that all tenants request, relative to the other weights.
        highest_priority: More than this no priority of its pods counts; None for any.
        cap: How many GPUs it may have at a time; each of these is a bound of its own.
        partition: The GPUs that its workloads are placed on, and on no others; None for any.
        exclusive: Whether other tenants' workloads are kept out.
        scheduler_placed: Whether pods of a tenant with a partition may have GPUs that kube-scheduler alone chooses; the
            chart's admission policy refuses them (``partitionspolicy.yaml``).
        admission: ``kueue``: who is next and how much it may have Kueue says, and this file only where; empty: this
            file says all of it.
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
    """When GPUs are reserved for one that waits, and what that may cost.

    Attributes:
        after_minutes: For how long it is blocked before; 0 for no reservations.
        idle_minutes: For how long its GPUs may stand idle for it, each of them on average.
        short_minutes: How soon those are gone that may run there while nobody knows when others will be.
        moves: How often it moves to other GPUs when it has cost as much as it may.
    """

    after_minutes: Minutes = 30.0
    idle_minutes: Annotated[float, Meta(ge=1, le=10_000)] = 60.0
    short_minutes: Minutes = 5.0
    moves: Annotated[int, Meta(ge=0, le=16)] = 1


class Preemption(Section, frozen=True):
    """Whether those of lower priority have to end for those of higher priority, and within which bounds.

    A workload is a pod by itself, or all of a gang.

    Attributes:
        enabled: Whether at all.
        min_run_minutes: For how long a workload has run at least before it may have to end.
        units_per_minute: How many workloads may have to end within a minute, in all of the cluster.
        back_off_minutes: For how long what replaces a workload that had to end is spared after that.
        margin_seconds: How much longer than the longest grace of those that end their GPUs are kept for whom they end.
        longest_grace_seconds: The longest time that a victim may take to end. A workload with a longer grace never has
            to end, and a pod that is ending already is not waited for while more than this is left to it.
        unpreemptable_classes: PriorityClasses whose pods never have to end.
        unpreemptable_tenants: Tenants whose pods never have to.
    """

    enabled: bool = False
    min_run_minutes: Minutes = 10.0
    units_per_minute: PerMinute = 10
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
    """How those who wait for GPUs are put in order.

    Attributes:
        reservation: The GPU reservation for workloads that others overtake.
        half_life_hours: After how long GPU time that was used counts half.
        ahead_minutes: For how long what a tenant has now counts as if it were used already.
        keep_days: For how long GPU time is kept, hour by hour.
        preemption: Whether others end for them.
    """

    half_life_hours: Hours = 168.0
    ahead_minutes: Minutes = 10.0
    keep_days: Days = MOST_DAYS
    reservation: Reservation = Reservation()
    preemption: Preemption = Preemption()
