"""What ``gputopo explain`` knows of a pod. All text in it is safe to print.

In JSON and YAML it stands as it is here; docs/troubleshooting.md describes it, and it only ever grows.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Fact(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Owner(_Fact, frozen=True):
    """A claim that holds GPUs, or parts of them.

    Attributes:
        namespace: Its namespace.
        claim: Its name.
        pods: Names of the pods that may use it; of a promise, the pod that waits for it.
        promised: Whether the scheduler has not allocated it yet.
        since: When the claim was created, as Kubernetes writes times.
        gpus: The machine's own numbers of those of its GPUs that are spoken of.
        words: All that in words.
    """

    namespace: str
    claim: str
    pods: tuple[str, ...]
    promised: bool
    since: str
    gpus: tuple[int, ...]
    words: str


class Help(_Fact, frozen=True):
    """A set on one node that would do, and who holds what is not free of it.

    Attributes:
        node: The node.
        gpus: The set, by the machine's own numbers; empty where parts of GPUs are wanted.
        owners: Who would have to end; nobody where the set is free.
        causes: What else keeps the pod from the set: why its node is left out, for whom its GPUs are reserved.
        busbw_gbps: Predicted all-reduce bus bandwidth of the set; 0 of fewer than two GPUs.
    """

    node: str
    gpus: tuple[int, ...] = ()
    owners: tuple[Owner, ...] = ()
    causes: tuple[str, ...] = ()
    busbw_gbps: float = 0.0


class Room(_Fact, frozen=True):
    """What is free on a node that would take the pod.

    Attributes:
        node: The node.
        product: Its GPUs' product.
        gpus: How many it has.
        free: The machine's own numbers of the free ones, of the kind that is wanted.
        largest: The largest free set that is as the pod requires, of no more GPUs than it wants.
    """

    node: str
    product: str
    gpus: int
    free: tuple[int, ...]
    largest: int


class Free(_Fact, frozen=True):
    """What is free.

    Attributes:
        nodes: How many nodes have GPUs.
        eligible: How many of them would take the pod, whatever is free of their GPUs.
        gpus: How many GPUs of the wanted kind are free on these.
        best: Those with the largest free sets.
    """

    nodes: int
    eligible: int
    gpus: int
    best: tuple[Room, ...]


class Turn(_Fact, frozen=True):
    """Where a pod stands among all that wait for a place.

    Attributes:
        position: From 1.
        waiting: How many wait.
        alike: How many of those before it ask for the same.
        before: The last few before it, by their names (``workload_names``).
        tenant: Whose it is; empty where the policies file names no tenants.
        priority: The priority that counts.
        share: What its tenant has had beside what its weight says, 1 for just that; None without tenants.
        reserved: Which GPUs are reserved for it; empty for none.
    """

    position: int
    waiting: int
    alike: int
    before: tuple[str, ...]
    tenant: str = ""
    priority: int = 0
    share: float | None = None
    reserved: str = ""


class Place(_Fact, frozen=True):
    """What a pod has, or is promised.

    Attributes:
        node: The node.
        gpus: The machine's own numbers.
        uuids: The GPUs.
        parts: Of parts of GPUs, what each is.
        level: The ring's worst step; empty of parts.
        busbw_gbps: Predicted all-reduce bus bandwidth; 0 of fewer than two GPUs.
        bandwidth_gbps: The ring's weakest step; 0 where it is not known.
        score: 0-100; None of parts.
        fallback: What was preferred and not had.
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


class Static(_Fact, frozen=True):
    """What a pod's claim is made by that the scheduler alone places, and how far that is.

    Attributes:
        template: The ResourceClaimTemplate, which the controller makes.
        there: Whether it is there; None where that may not be read.
        claim: The claim that Kubernetes made by it; empty where it has not yet.
        allocated: Whether the scheduler has filled it.
    """

    template: str
    there: bool | None
    claim: str
    allocated: bool


class Happening(_Fact, frozen=True):
    """Something that happened to the pod or its claim.

    Attributes:
        time: When, last.
        about: ``pod``, or ``claim`` with its name.
        reason: In one word.
        message: For people.
        count: How often.
        source: Who says so.
    """

    time: str
    about: str
    reason: str
    message: str
    count: int = 1
    source: str = ""


class Subject(_Fact, frozen=True):
    """What the pod itself says.

    Attributes:
        namespace: Its namespace.
        pod: Its name.
        state: ``foreign`` (the driver does not place it), ``static`` (it waits for the scheduler, which alone places
            it), ``waits``, ``promised`` (its gate is lifted, the scheduler has not bound it yet, and nothing says that
            the promise has ended), ``placed`` or ``finished``.
        wish: What it asks for, in words; empty where nothing says.
        request: The same as the webhook noted it; None where it is foreign or damaged.
        created: When.
        node: Where it is bound.
        said: What the controller last wrote on it of why it waits.
        lacks: Of a foreign pod, what would make it ours.
        refused: What the scheduler says of a pod that it finds no room for; empty where it has not said so.
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
    """How many pods of a gang some part of the network holds now.

    Attributes:
        level: The level of the network.
        pods: How many pods.
        domain: The part of it that holds most; empty where that is the whole cluster, or none.
    """

    level: str
    pods: int
    domain: str


class GangPod(_Fact, frozen=True):
    """A living pod of a gang.

    Attributes:
        pod: Its name.
        state: ``gated``, ``planned`` (its claim is there), ``lifted``, ``seated``, ``told`` that it may be bound, or
            ``bound``.
        node: Where it is, or is to be; empty while that is open.
        rank_hint: Its place in the plan; None without one.
    """

    pod: str
    state: str
    node: str = ""
    rank_hint: int | None = None


class Gang(_Fact, frozen=True):
    """The gang that a pod is of.

    Attributes:
        name: What its author called it, or the name of what made it.
        made_by: The kind of that; ``gang`` where its author named it.
        state: ``gathering``, ``waiting``, ``planned``, ``lifted``, ``seated``, ``started`` or ``given back``, as
            docs/gangs.md has them; ``unknown`` while nothing tells its size.
        here: How many of its pods live.
        least: With how few it may start; None while nothing tells its size.
        most: How many it has; None while nothing tells its size.
        seated: How many have a place that the scheduler keeps for them.
        bound: How many are bound.
        nodes: The nodes of its plan, or of the one that it would get, in the order of the ranks.
        reach: What holds these together; empty without a plan.
        busbw_gbps: Predicted for all of them together; 0 where that is not known.
        rank_hint: The asked pod's place in it; None without one.
        pods: Its pods in the order of their ranks.
        room: How many pods like this one each level of the network holds now; of a gang that waits.
        helps: What would make a place for all of it: of each way what would have to end, node by node.
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


class Verdict(_Fact, frozen=True):
    """What the controller would make of the pod now, from the cluster as it was read.

    Attributes:
        reason: Why it waits, or what it waits for.
        nearest: What is nearest to what it wants.
        gang: The gang that it is of; None for a pod alone.
        place: What it has, is promised, or would get in its turn.
        static: What the claim of a static pod that waits is made by.
        free: What is free, for a pod that wants whole GPUs and has none.
        helps: What would make a place, the least that would have to end first.
        better: Of a pod with a place that is not the best: the sets that would be.
        turn: Its place in the queue.
        happened: What happened so far, oldest first.
        unread: What could not be read, and so is not considered.
    """

    reason: str = ""
    nearest: str = ""
    gang: Gang | None = None
    place: Place | None = None
    static: Static | None = None
    free: Free | None = None
    helps: tuple[Help, ...] = ()
    better: tuple[Help, ...] = ()
    turn: Turn | None = None
    happened: tuple[Happening, ...] = ()
    unread: tuple[str, ...] = ()
