"""The types of the facts that ``gputopo explain`` shows about a pod. All text in them is safe to print.

In JSON and YAML some fields have other names (``rename``). docs/tasks/cluster.md describes the format. Later releases
only add fields.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Fact(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Owner(_Fact, frozen=True, rename={"promised": "tentative", "words": "text"}):
    """A claim that has GPUs, or fractions of them.

    Attributes:
        namespace: Its namespace.
        claim: Its name.
        pods: Names of the pods that may use it; for a tentative placement, the pod that waits for it.
        workloads: The gangs and owners of these pods (``workload_names``). They replace a pod that ends.
        promised: Whether the scheduler has not allocated it yet (a tentative placement).
        since: When the claim was created, as Kubernetes writes times.
        gpus: The numbers on the node of its GPUs that belong to the shown set.
        words: All of this in words.
    """

    namespace: str
    claim: str
    pods: tuple[str, ...]
    promised: bool
    since: str
    gpus: tuple[int, ...]
    words: str
    workloads: tuple[str, ...] = ()


class Help(_Fact, frozen=True):
    """A set of GPUs on one node that would suit the pod, and the claims that use GPUs of the set.

    Attributes:
        node: The node.
        gpus: The set, by the GPUs' numbers on the node; empty if fractions of GPUs are requested.
        owners: The claims that would have to end; empty if the set is free.
        causes: What else keeps the pod from the set: why its node is left out, for whom its GPUs are reserved.
        busbw_gbps: Predicted all-reduce bus bandwidth of the set, GB/s; 0 for fewer than two GPUs.
    """

    node: str
    gpus: tuple[int, ...] = ()
    owners: tuple[Owner, ...] = ()
    causes: tuple[str, ...] = ()
    busbw_gbps: float = 0.0


class Room(_Fact, frozen=True):
    """A node that can take the pod, and its free GPUs.

    Attributes:
        node: The node.
        product: The product of its GPUs.
        gpus: The number of its GPUs.
        free: The numbers on the node of the free GPUs that match the request.
        largest: The largest free set that meets the requirements, with at most as many GPUs as requested.
    """

    node: str
    product: str
    gpus: int
    free: tuple[int, ...]
    largest: int


class Free(_Fact, frozen=True):
    """The free GPUs of the cluster that match the request.

    Attributes:
        nodes: Number of nodes with GPUs.
        eligible: Number of these nodes that fit the pod, not counting GPUs.
        could_have: Number of the eligible nodes that would have the requested set if all their GPUs were free.
        requested_set: The requested set in words.
        gpus: Number of free GPUs on the eligible nodes that match the request.
        best: The nodes with the largest free sets.
    """

    nodes: int
    eligible: int
    could_have: int
    requested_set: str
    gpus: int
    best: tuple[Room, ...]


class Turn(_Fact, frozen=True, rename={"share": "fair_share_use"}):
    """The position of a pod in the queue.

    Attributes:
        position: The position, from 1.
        waiting: Number of workloads in the queue.
        alike: Number of workloads before it with the same request.
        before: The last few workloads before it, by their names (``workload_names``).
        tenant: Its tenant; empty if the policies file names no tenants.
        priority: Its priority in the queue: the lowest of its pods, limited by the tenant's highest priority.
        share: The GPU time of its tenant relative to the tenant's weight, 1 for exactly its share; None without
            tenants.
        reserved: The GPUs that are reserved for it, in words; empty for none.
    """

    position: int
    waiting: int
    alike: int
    before: tuple[str, ...]
    tenant: str = ""
    priority: int = 0
    share: float | None = None
    reserved: str = ""


class Place(_Fact, frozen=True, rename={"parts": "fractions"}):
    """The place that a pod has, is tentatively given, or would get.

    Attributes:
        node: The node.
        gpus: The numbers of the GPUs on the node.
        uuids: The UUIDs of the GPUs.
        parts: For fractions of GPUs, a description of each fraction.
        level: The level of the worst link in the ring that NCCL forms of the GPUs; empty for fractions.
        busbw_gbps: Predicted all-reduce bus bandwidth, GB/s; 0 for fewer than two GPUs.
        bandwidth_gbps: The line rate of that worst link, GB/s; 0 if it is not known.
        score: 0-100; None for fractions.
        fallback: The preferences that are not met.
        unhealthy: The GPUs of the place that have a fault (``gputopo health``), by their numbers on the node.
    """

    node: str
    gpus: tuple[int, ...]
    uuids: tuple[str, ...]
    parts: tuple[str, ...] = ()
    level: str = ""
    busbw_gbps: float = 0.0
    bandwidth_gbps: float = 0.0
    score: int | None = None
    fallback: tuple[str, ...] = ()
    unhealthy: tuple[int, ...] = ()


class UnhealthyPod(_Fact, frozen=True):
    """A pod that has GPUs with a fault (``gputopo health``).

    Attributes:
        pod: Its name.
        node: The node of its GPUs.
        gpus: The GPUs that have a fault, by their numbers on the node.
    """

    pod: str
    node: str
    gpus: tuple[int, ...]


class Static(_Fact, frozen=True, rename={"there": "exists"}):
    """The ResourceClaimTemplate and claim of a pod that the scheduler alone places.

    Attributes:
        template: The name of the ResourceClaimTemplate, which the controller creates.
        there: Whether the template exists; None if the user may not read templates.
        claim: The claim that Kubernetes created from the template; empty if it does not exist yet.
        allocated: Whether the scheduler has allocated the claim.
    """

    template: str
    there: bool | None
    claim: str
    allocated: bool


class Happening(_Fact, frozen=True):
    """An event in the history of the pod or its claim.

    Attributes:
        time: The last time that it happened.
        about: ``pod``, or ``claim`` with its name.
        reason: The reason, in one word.
        message: The message for people.
        count: How often it happened.
        source: The component that reported it.
    """

    time: str
    about: str
    reason: str
    message: str
    count: int = 1
    source: str = ""


class Subject(
    _Fact,
    frozen=True,
    rename={"wish": "request_text", "said": "recorded_reason", "lacks": "missing", "refused": "scheduler_message"},
):
    """The facts on the pod object itself.

    Attributes:
        namespace: Its namespace.
        pod: Its name.
        state: ``foreign`` (the driver does not place it), ``static`` (it waits for the scheduler, which alone places
            it), ``waits``, ``tentative`` (its gate is removed, the scheduler has not bound it yet, and its tentative
            placement has not ended), ``placed``, ``deleting`` (it is being deleted) or ``finished``.
        wish: Its request in words; empty if it cannot be read.
        request: The request as the webhook wrote it on the pod; None if the pod is foreign or the annotation damaged.
        created: When it was created.
        node: The node that it is bound to.
        said: The reason for waiting that the controller last wrote on the pod.
        lacks: For a pod that the driver does not place (``foreign``), what it would need so that the driver places it.
        refused: The scheduler's message that it finds no room for the pod; empty without one.
    """

    namespace: str
    pod: str
    state: str
    wish: str
    request: Any
    created: str
    node: str
    said: str
    lacks: tuple[str, ...]
    refused: str = ""


class GangRoom(_Fact, frozen=True):
    """The number of pods of a gang that one network level has room for now.

    Attributes:
        level: The level of the network.
        pods: Number of pods.
        domain: The network domain with room for most pods; empty if that is the whole cluster, or there is no room.
    """

    level: str
    pods: int
    domain: str


class GangPod(_Fact, frozen=True):
    """A pod of a gang that has not ended.

    Attributes:
        pod: Its name.
        state: ``gated``, ``planned`` (its claim exists), ``ungated``, ``allocated`` (the gang barrier keeps it from
            being bound), ``starting`` (the barrier is open), or ``bound``.
        node: Its node, or the node planned for it; empty if there is none yet.
        rank_hint: Its position in the plan; None without a plan.
    """

    pod: str
    state: str
    node: str = ""
    rank_hint: int | None = None


class Gang(
    _Fact,
    frozen=True,
    rename={
        "here": "existing_pods",
        "least": "min_pods",
        "most": "max_pods",
        "seated": "allocated_pods",
        "bound": "bound_pods",
        "reach": "network_level",
        "helps": "would_help",
    },
):
    """The gang that a pod belongs to.

    Attributes:
        name: The author's name for it, or the name of the object that created its pods.
        made_by: The kind of that object; ``gang`` if the author named the gang.
        state: ``gathering``, ``waiting``, ``planned``, ``ungated``, ``allocated``, ``started`` or ``released``, as
            docs/tasks/gangs.md has them; ``unknown`` while its size is not known.
        here: Number of its pods that have not ended.
        least: The smallest number of pods that can start; None while its size is not known.
        most: The number of all its pods; None while its size is not known.
        seated: Number of its pods that have a place which the scheduler keeps for them (gang barrier).
        bound: Number of its pods that are bound.
        nodes: The nodes of its plan, or of the plan that it would get, in the order of the ranks.
        reach: The network level or domain that holds these nodes; empty without a plan.
        busbw_gbps: Predicted all-reduce bus bandwidth over all its pods, GB/s; 0 if it is not known.
        rank_hint: The explained pod's position in the plan; None without a plan.
        pods: Its pods in the order of their ranks.
        room: For a gang that waits, how many pods like the explained one each network level has room for now.
        helps: Ways to make a place for the whole gang; each lists, node by node, the pods that would have to end.
    """

    name: str
    made_by: str
    state: str
    here: int
    least: int | None = None
    most: int | None = None
    seated: int = 0
    bound: int = 0
    nodes: tuple[str, ...] = ()
    reach: str = ""
    busbw_gbps: float = 0.0
    rank_hint: int | None = None
    pods: tuple[GangPod, ...] = ()
    room: tuple[GangRoom, ...] = ()
    helps: tuple[tuple[Help, ...], ...] = ()


class Verdict(
    _Fact,
    frozen=True,
    rename={
        "turn": "queue",
        "happened": "events",
        "helps": "would_help",
        "better": "better_sets",
        "better_free": "better_set_free",
    },
):
    """The controller's decision about the pod now, from the cluster as it was read.

    Attributes:
        reason: Why it waits, or what it waits for.
        nearest: The possible placement that is nearest to the request, in words.
        gang: Its gang; None for a pod without a gang.
        place: The place that it has, is tentatively given, or would get at its position in the queue.
        static: The template and claim of a static pod that waits.
        free: The free GPUs, for a pod that requests whole GPUs and has none.
        helps: Sets that the pod could get if other pods ended. The set with the fewest such pods is first.
        better: For a pod whose place is not the best: the better sets.
        better_free: Whether one of them is free now; None if no better sets were looked for.
        quota_help: What would help a workload that a cap of its tenant or the API server refuses, or that a higher cap
            would give a place now, in words.
        turn: Its position in the queue.
        same_name: The name of a gang that is called like the pod, in the form that ``explain`` takes; empty for none.
        unhealthy_pods: The other pods of the named owner or gang that have unhealthy GPUs.
        happened: Its history, oldest first.
        unread: Messages about objects that could not be read, so that they are not considered.
    """

    reason: str = ""
    nearest: str = ""
    gang: Gang | None = None
    place: Place | None = None
    static: Static | None = None
    free: Free | None = None
    helps: tuple[Help, ...] = ()
    better: tuple[Help, ...] = ()
    better_free: bool | None = None
    quota_help: str = ""
    turn: Turn | None = None
    same_name: str = ""
    unhealthy_pods: tuple[UnhealthyPod, ...] = ()
    happened: tuple[Happening, ...] = ()
    unread: tuple[str, ...] = ()
