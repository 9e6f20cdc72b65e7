"""Units of the queue: the pods that get their places together, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Sequence
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
    """A pod of a workload: what it asks for, and what is remembered of it.

    Attributes:
        key: Namespace and name.
        pod: The pod as it was last looked at.
        template: The template of its claim, as it was then.
        volumes: Where its volumes are, as far as that was known then.
        unknown: Which of its rules only the scheduler can evaluate, as it was then; None for none.
        has: How many GPUs each request of its claim has, where it keeps that; else empty.
        joins: The uid of the claim of others that it wants to share; empty where it wants one of its own.
        memory: What is remembered of it; ``observe`` writes it, and who deletes its claim.
        may_nominate: Whether the server has not refused to have CPU kept for it while it is gated.
        near: The gang whose others it is to be near; empty for a pod alone.
    """

    def __init__(
        self, pod: Pod, template: Template | None = None, volumes: Where = (), unknown: Reason | None = None
    ) -> None:
        """Take in a pod; what it asks for is read when somebody wants to know."""
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
        """Return the uid of the pending pod."""
        return self.pod.metadata.uid

    @property
    def wish(self) -> PlacementRequest:
        """Return what the pending pod requests, parsed once.

        Raises:
            WordError: That cannot be read.
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
        """Whether the pending pod is not confined to a few nodes."""
        return open_reason(self.pod, self.unknown) != ""

    @property
    def scheduler(self) -> Waits:
        """Return which scheduler the pending pod waits for once its gate is removed."""
        return Waits(self.pod.spec.scheduler_name, self.is_open)

    @property
    def kind(self) -> Kind:
        """The kind of what it asks for; of those that want to share a claim, which finds a place or not, that claim's.

        Raises:
            WordError: What it wishes cannot be read.
        """
        request, ask, where, alone, rules, nics, reserved = self.wish.kind
        gang = f"{self.key[0]}/{self.near}" if self.near else ""
        return request, ask, self.joins or gang or where, alone, rules, nics, reserved

    def update(
        self, pod: Pod, template: Template | None = None, volumes: Where = (), unknown: Reason | None = None
    ) -> bool:
        """Store a newer state of the pending pod. Return whether its request may have changed."""
        old, self.pod = self.pod, pod
        if template is not self.template or volumes != self.volumes or unknown != self.unknown:
            self.template, self.volumes, self.unknown, self._wish = template, volumes, unknown, None
            return True
        if pod.metadata.resource_version == old.metadata.resource_version:
            return False
        self._wish = None
        return _requested(pod) != _requested(old)


def _requested(pod: Pod) -> tuple[object, ...]:
    """Return the fields of a pod that its placement request is read from and that can change."""
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
    """Return the lowest priority of these pods: one important pod does not make its gang important."""
    lowest = min(member.pod.spec.priority or 0 for member in members)
    return lowest if highest is None else min(lowest, highest)


class PendingWorkload:
    """Pods that get their places together or not at all; a single one is a workload of its own.

    Attributes:
        key: Who it is: of a single pod its namespace and name, else the gang's.
        members: Its pods, of a gang in the order of their ranks.
        order: Units of one tenant are served in this order: the highest priority first, then who was whole first. One
            that is tried in vain keeps its turn (``fall_back``).
        busy: How many writers are at work on it: while there are any nobody else may act on it.
        unsure: Whether the answer to a creation of a claim was lost: the server must be asked first.
        failures: How it has failed.
        look_again_at: When it may be looked at again, by the loop's clock: nobody need look at a gang for each event.
        wanting: Those of a gang that want a place now, beside those that have one.
        least: With how few of them a gang may begin.
        memory: What is remembered of a gang; ``observe_gang`` writes it.
        reserved: Who it is to a reservation that is for it: it may find a place where others of its kind do not.
    """

    def __init__(self, *members: Member, key: Key | None = None, highest: int | None = None) -> None:
        """Make a workload of at least one pod.

        Args:
            members: Its pods.
            key: The key of the gang; None for a single pod.
            highest: The highest priority that counts for its tenant; None for any.
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
        """Return the first pod of the pending workload."""
        return self.members[0]

    @property
    def is_gang(self) -> bool:
        """Return whether the pending workload is a gang that has not started; later each pod is a workload itself."""
        return self.key != self.members[0].key

    @property
    def asking(self) -> tuple[Member, ...]:
        """Return the pods of the pending workload that want a place now, as ``wanting`` says; else all."""
        return tuple(member for member in self.members if member in self.wanting) or self.members

    @property
    def kinds(self) -> Kinds:
        """What workloads share that find a place or do not: all that their pods ask for.

        Raises:
            WordError: What it wishes cannot be read.
        """
        if self.reserved:
            return tuple(dict.fromkeys((*member.kind[:-1], self.reserved) for member in self.asking))
        return tuple(dict.fromkeys(member.kind for member in self.asking))

    @property
    def lasts_s(self) -> int:
        """Return how long the pending workload keeps its GPUs at most, in seconds; 0 for a workload without end.

        Raises:
            WordError: What it wishes cannot be read.
        """
        return longest(member.wish.ask.lasts_s for member in self.asking)

    @property
    def who(self) -> str:
        """Return the name of a pending workload to every leader: a pod's namespace, name and uid; no uid for a gang."""
        return "/".join((*self.key, "" if self.is_gang else self.lead.uid))

    @property
    def is_open(self) -> bool:
        """Whether the pending workload is a single pod that is not confined to a few nodes."""
        return not self.is_gang and self.lead.is_open

    @property
    def schedulers(self) -> tuple[Waits, ...]:
        """Return who is to bind those pods of the pending workload that want a place, as ``Member.scheduler``."""
        return tuple(dict.fromkeys(member.scheduler for member in self.asking))

    def trust(self, highest: int | None) -> None:
        """Let no priority of the pending workload above this count; call it while the workload is not in the queue."""
        self.order = -_priority(self.members, highest), *self.order[1:]

    def let_in(self, now: str) -> None:
        """Note whether gates of others hold the pending workload: its turn counts from when the last one was removed.

        That is when Kueue let it in. Whom it lets in as an object that makes pods has none before. Call it while the
        workload is not in the queue.

        Args:
            now: What stands for this moment among the times at which pods were created, later than any before it.
        """
        held = any(member.pod.held for member in self.members)
        if self._was_held and not held:
            self._was_let_in, self.order = True, (self.order[0], now, self.order[2])
        self._was_held = held

    def whole(self, least: int) -> bool:
        """Note that a pending gang has as many pods as it may begin with: its turn is for good that of the last.

        Returns whether it was not known before.
        """
        if self._is_whole:
            return False
        self._is_whole = True
        if self._was_let_in:
            return True
        entries = sorted((member.pod.metadata.creation_timestamp or "", member.uid) for member in self.members)
        self.order = self.order[0], *entries[min(least, len(entries)) - 1]
        return True

    def fall_back(self, newest: str) -> None:
        """Note that the pending workload was tried in vain: it is served after all who have waited until now.

        Else a few old workloads without any place would take turns, and keep what they hold from all others. But a gang
        keeps its position the first two times: others go first while it backs off. Behind all of them it would seldom
        find as many GPUs again.

        Args:
            newest: When the newest pod was created.
        """
        self._tries_in_vain += 1
        if self._tries_in_vain > IN_TURN or not self.is_gang:
            priority, since, _ = self.order
            self.order = priority, max(since, newest), f"~{self.lead.uid}"

    def looks_since(self, now: float) -> float:
        """Note that there is no place for the pending workload now. Returns since when it has looked for one."""
        if self._no_place_since is None:
            self._no_place_since = now
        return self._no_place_since

    def finds_place(self) -> None:
        """Note that there is a place for the pending workload."""
        self._no_place_since = None

    def forgive(self, now: float) -> None:
        """Forget earlier failures of the pending workload: it requests something else now."""
        self.failures.forgive(now)
        for member in self.members:
            member.memory = member.memory.forgiven()
        self._no_place_since = None
