"""Waiting workloads: the pods that get their places together, and what the controller remembers of them.

The dispatcher creates them.

A *place* is a node and GPUs for one pod. A *member* is a pod of a workload. The *request* of a pod is what it needs:
GPUs, CPU, nodes and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims.claim_templates import Template
from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.pod_demands import Where, longest
from dradriver.queue.backoffs import Failures
from dradriver.queue.memory import GangMemory, PodMemory
from dradriver.queue.placement_request import Kind, Kinds, PlacementRequest, open_reason, read_wish
from dradriver.queue.scheduler_pace import Waits
from dradriver.reason import Reason

IN_TURN: Final = 2  # times that a gang is tried in vain and is as old as before


class Member:
    """A pod of a waiting workload: its request, and what the controller remembers of it.

    Attributes:
        key: Namespace and name.
        pod: The pod as it was last processed.
        template: The ResourceClaimTemplate of its claim at that time; None without one.
        volumes: Where its volumes can be reached, as far as it was known at that time.
        unknown: The pod's rules that only the scheduler can evaluate, at that time; None without such rules.
        has: If GPUs are kept for the pod, the number of GPUs for each request of its claim. Else empty.
        joins: The uid of another pod's claim that the pod wants to share; empty if it wants a claim of its own.
        memory: What is remembered of the pod. ``observe`` writes it, and the code that deletes the pod's claim.
        may_nominate: Whether the controller may set ``nominatedNodeName``, which makes the scheduler keep CPU for a
            gated pod. False once the API server has refused this write.
        near: The name of the running gang near whose pods this pod should be placed; empty for a single pod.
    """

    def __init__(
        self, pod: Pod, template: Template | None = None, volumes: Where = (), unknown: Reason | None = None
    ) -> None:
        """Make a member of a pod. Its request is parsed when it is first read.

        The arguments are the attributes.
        """
        self.key: Key = (pod.metadata.namespace, pod.metadata.name)
        self.pod = pod
        self.template = template
        self.volumes = volumes
        self.unknown = unknown
        self.has: Sequence[int] = ()
        self.joins = ""
        self.near = ""
        self.may_nominate = True
        self.memory = PodMemory()
        self._wish: PlacementRequest | WordError | None = None  # the request, or why it is bad; None until it is read

    @property
    def uid(self) -> str:
        """Return the uid of the waiting pod."""
        return self.pod.metadata.uid

    @property
    def wish(self) -> PlacementRequest:
        """Return the request of the waiting pod, which is parsed at the first call.

        Raises:
            WordError: The request cannot be read.
        """
        if self._wish is None:
            try:
                self._wish = read_wish(self.pod, self.template, self.volumes, self.has, self.unknown)
            except WordError as error:
                self._wish = error
        if isinstance(self._wish, WordError):
            raise self._wish
        return self._wish

    @property
    def is_open(self) -> bool:
        """Return whether the scheduler may place this pod on many nodes.

        Then the scheduler needs more time for the pod.
        """
        return open_reason(self.pod, self.unknown) != ""

    @property
    def scheduler(self) -> Waits:
        """Return the scheduler that must bind the pod when its gate is removed.

        The result also says whether the scheduler may place the pod on many nodes.
        """
        return Waits(self.pod.spec.scheduler_name, self.is_open)

    @property
    def kind(self) -> Kind:
        """Return the key of the pod's equivalence class.

        Pods with the same key find a place together or not at all. For a pod that shares a claim, the key contains the
        claim.

        Raises:
            WordError: The request cannot be read.
        """
        request, ask, where, alone, rules, nics, reserved = self.wish.kind
        gang = f"{self.key[0]}/{self.near}" if self.near else ""
        return request, ask, self.joins or gang or where, alone, rules, nics, reserved

    def update(
        self, pod: Pod, template: Template | None = None, volumes: Where = (), unknown: Reason | None = None
    ) -> bool:
        """Store a newer state of the waiting pod. Return whether its request may have changed.

        The arguments are the attributes of ``Member``.
        """
        old, self.pod = self.pod, pod
        if template is not self.template or volumes != self.volumes or unknown != self.unknown:
            self.template, self.volumes, self.unknown, self._wish = template, volumes, unknown, None
            return True
        if pod.metadata.resource_version == old.metadata.resource_version:
            return False
        self._wish = None
        return _requested(pod) != _requested(old)


def _requested(pod: Pod) -> tuple[object, ...]:
    """Return the fields of a pod that can change and that affect its placement request."""
    spec = pod.spec
    return (
        pod.metadata.annotations.get(names.REQUEST),
        pod.metadata.labels,
        spec.node_name,
        spec.node_selector,
        spec.affinity,
        spec.tolerations,
        spec.scheduling_gates,
    )


def _priority(members: Sequence[Member], highest: int | None) -> int:
    """Return the lowest priority of a workload's pods, at most ``highest``.

    ``highest`` is the tenant's limit; None for no limit. The lowest counts, so that one important pod does not raise
    the priority of its gang.
    """
    lowest = min(member.pod.spec.priority or 0 for member in members)
    return lowest if highest is None else min(lowest, highest)


class PendingWorkload:
    """Pods that get their places together or not at all: a gang, or a single pod.

    Attributes:
        key: The namespace and name of a single pod, or of the gang.
        members: The pods; those of a gang in the order of their ranks.
        order: The position among the workloads of its tenant. The highest priority is first, then the workload that was
            complete first. A workload whose placement failed can move back (``fall_back``).
        busy: The number of writers that work on the workload. While it is not 0, no other part of the controller may
            change the workload's objects.
        unsure: Whether the API server's answer to the creation of a claim was lost. Then the controller first reads
            from the server whether the claim exists.
        failures: The failures of the workload and its back-off.
        look_again_at: For a gang, the time before which it is not processed again, by the loop's clock. A gang need not
            be processed for each event.
        wanting: The members of a gang that need a place now. Each other member has a place, or cannot get one yet.
        least: How many members of ``wanting`` must get a place so that the gang can start.
        memory: What is remembered of a gang; ``observe_gang`` writes it.
        reserved: If GPUs are reserved for the workload, its name in the reservation; else empty. With a reservation it
            can find a place when other workloads of its equivalence class do not.
    """

    def __init__(self, *members: Member, key: Key | None = None, highest: int | None = None) -> None:
        """Make a workload of at least one pod.

        Args:
            members: Its pods.
            key: The key of the gang; None for a single pod.
            highest: The highest priority that counts for its tenant; None if there is no limit.
        """
        self.members = members
        self.key = members[0].key if key is None else key
        since, uid = min((member.pod.metadata.creation_timestamp or "", member.uid) for member in members)
        self.order = -_priority(members, highest), since, uid
        self.busy = 0
        self.unsure = False
        self.failures = Failures()
        self.look_again_at = 0.0
        self.wanting: frozenset[Member] = frozenset()
        self.least = 1
        self.memory = GangMemory()
        self.reserved = ""
        self._is_whole = key is None
        self._was_held = False  # whether gates of others held it at the last look
        self._was_let_in = False  # whether the last of these gates has been removed since
        self._tries_in_vain = 0  # searches that found no place
        self._no_place_since: float | None = None  # since when there is no place; None if there may be one

    @property
    def lead(self) -> Member:
        """Return the first pod of the workload: a gang's lowest rank, or the only pod."""
        return self.members[0]

    @property
    def is_gang(self) -> bool:
        """Return whether the workload is a gang that has not started.

        When a gang has started, each of its waiting pods is a workload by itself.
        """
        return self.key != self.members[0].key

    @property
    def asking(self) -> tuple[Member, ...]:
        """Return the pods that need a place now.

        These are the pods in ``wanting``, or all pods if ``wanting`` is empty.
        """
        return tuple(member for member in self.members if member in self.wanting) or self.members

    @property
    def kinds(self) -> Kinds:
        """Return the key of the workload's equivalence class: the different requests of its pods.

        Raises:
            WordError: A request cannot be read.
        """
        if self.reserved:
            return tuple(dict.fromkeys((*member.kind[:-1], self.reserved) for member in self.asking))
        return tuple(dict.fromkeys(member.kind for member in self.asking))

    @property
    def lasts_s(self) -> int:
        """Return how many seconds the workload can run at most; 0 without a declared end.

        Raises:
            WordError: A request cannot be read.
        """
        return longest(member.wish.ask.lasts_s for member in self.asking)

    @property
    def who(self) -> str:
        """Return the name of the workload in records that the next leader also reads.

        The text consists of namespace, name and, for a single pod, the uid.
        """
        return "/".join((*self.key, "" if self.is_gang else self.lead.uid))

    @property
    def is_open(self) -> bool:
        """Return whether the workload is a single pod that the scheduler may place on many nodes."""
        return not self.is_gang and self.lead.is_open

    @property
    def schedulers(self) -> tuple[Waits, ...]:
        """Return the schedulers that must bind the pods in ``asking``; see ``Member.scheduler``."""
        return tuple(dict.fromkeys(member.scheduler for member in self.asking))

    def trust(self, highest: int | None) -> None:
        """Set the highest priority that counts for the workload: its tenant's limit; None for no limit.

        Call it while the workload is not in the queue.
        """
        self.order = -_priority(self.members, highest), *self.order[1:]

    def let_in(self, now: str) -> None:
        """Move the workload to the end of the queue if Kueue has just admitted it.

        Kueue admits pods by removing its gate from them. If Kueue admits the object that creates the pods instead, the
        pods have no such gate, and the workload keeps its position. Call this while the workload is not in the queue.

        Args:
            now: A text for the present time that can be compared with creation times of pods. It must be later than in
                any earlier call.
        """
        held = any(member.pod.held for member in self.members)
        if self._was_held and not held:
            self._was_let_in, self.order = True, (self.order[0], now, self.order[2])
        self._was_held = held

    def want(self, members: Iterable[Member], least: int) -> bool:
        """Set which members need a place now.

        Return whether the workload is a gang that had too few pods before. If it had too few, its position in the queue
        now follows from the creation time of the pod that made it complete.

        Args:
            members: The members that need a place.
            least: How many of them must get a place so that the gang can start.
        """
        self.wanting, self.least = frozenset(members), least
        if self._is_whole:
            return False
        self._is_whole = True
        if self._was_let_in:
            return True
        entries = sorted((member.pod.metadata.creation_timestamp or "", member.uid) for member in self.members)
        self.order = self.order[0], *entries[min(least, len(entries)) - 1]
        return True

    def fall_back(self, newest: str) -> None:
        """Move the workload behind all workloads that wait now, because its tentative placement failed.

        Otherwise a few old workloads whose placements always fail could take turns and keep GPUs from all others.

        A gang keeps its position at its first two failures, and moves from the third on. Behind all others it would
        rarely find so many free GPUs again. Meanwhile its back-off lets other workloads go first.

        Args:
            newest: When the newest pod was created.
        """
        self._tries_in_vain += 1
        if self._tries_in_vain > IN_TURN or not self.is_gang:
            priority, since, _ = self.order
            self.order = priority, max(since, newest), f"~{self.lead.uid}"

    def looks_since(self, now: float) -> float:
        """Record that the workload has no place now. Return since when it has had none.

        Both times are those of the event loop's clock, seconds.
        """
        if self._no_place_since is None:
            self._no_place_since = now
        return self._no_place_since

    def finds_place(self) -> None:
        """Record that there is a place for the workload.

        The next call of ``looks_since`` then begins a new wait.
        """
        self._no_place_since = None

    def forgive(self, now: float) -> None:
        """Forget earlier failures of the workload, because it requests something else now."""
        self.failures.forgive(now)
        for member in self.members:
            member.memory = member.memory.forgiven()
        self._no_place_since = None
