"""The pods of each gang: which pods start together, by their own annotations and their owners' annotations.

The *gang barrier* is a device in each pod's claim: it keeps the pods unbound until the whole gang can start. A pod's
*rank* is its order in the gang.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import gang_of_pod, gang_owners
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.gangs.gang_owners import Alone, Member, Rank
from dradriver.api.pod import resolved
from dradriver.api.vocabulary import values
from dradriver.reason import Cause, Reason

_GANG: Final = "gang/"  # no pod's name has a slash
_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"  # of the index of a pod, before it was made


class Membership(msgspec.Struct, frozen=True):
    """The membership of one pod in a gang, according to the pod.

    Attributes:
        gang: The gang's key: the namespace, and a name that no pod has.
        member: What follows from the pod's owner, such as the gang's size and the pod's rank.
        wants: The gang annotations that its author wrote; None without any.
        maker: The uid of the pod's controlling owner, such as a Job; empty if it has none.
        blocks: Whether the pod stops its PodGroup: kube-scheduler tries no pod of a group while one has a scheduling
            gate.
    """

    gang: Key
    member: Member
    wants: Gang | None
    maker: str = ""
    blocks: bool = False


class _Failed(NamedTuple):
    """A failed pod: its Job's uid, its index there, earlier failures of this index."""

    maker: str
    rank: Rank
    failures: int


def _failed(pod: Pod, of: Membership) -> _Failed | None:
    """Return the failure of a pod whose Job retries each index by itself (KEP-3850); else None.

    ``of`` is the pod's membership of its gang.
    """
    failures = values.natural(pod.metadata.annotations.get(_FAILURES, ""))
    if failures is None or of.member.rank is None or not of.maker:
        return None
    return _Failed(of.maker, of.member.rank, failures)


class Gangs:
    """All gangs: their living pods, and which gangs have started.

    A gang has started once one of its living pods is bound, or its gang barrier lets a pod start. Before that, its pods
    get their places (nodes and GPUs) together or not at all. Afterwards each new pod gets a place near the others.
    """

    def __init__(self) -> None:
        """Make a collection without gangs."""
        self._of: dict[Key, Membership] = {}  # by living pod: its membership
        self._pods: dict[Key, dict[Key, None]] = {}  # by gang: its living pods, in the order in which they were seen
        self._running: dict[Key, set[Key]] = {}  # by gang: its pods that are bound or may start
        self._done: dict[Key, tuple[Key, str]] = {}  # by pod that ended well: its gang, and its maker's uid
        self._done_of: dict[Key, collections.Counter[str]] = {}  # by gang and maker: number of pods in ``_done``
        self._failed: dict[Key, dict[Key, _Failed]] = {}  # by gang: its pods that failed
        self._failed_in: dict[Key, Key] = {}  # by failed pod: its gang
        self._others: dict[Key, Key] = {}  # by pod without GPUs: its PodGroup
        self._others_of: collections.Counter[Key] = collections.Counter()  # by PodGroup: number of pods in ``_others``
        self._asleep: set[Key] = set()  # gangs for which ``is_asleep`` returns True
        self._none: set[Key] = set()  # keys of gangs whose owner makes no gang
        self._waits: dict[Key, Reason] = {}  # why a pod that asks for a gang is in none

    def __contains__(self, gang: Key) -> bool:
        return gang in self._pods and gang not in self._none

    def __iter__(self) -> Iterator[Key]:
        """Yield the keys of all gangs. Gangs may be added or removed meanwhile."""
        return iter([gang for gang in self._pods if gang not in self._none])

    def pod_changed(self, key: Key, pod: Pod | None, may_start: Callable[[Pod], bool]) -> tuple[Key, ...]:
        """Update the gangs with the new state of a pod.

        Args:
            key: The pod's namespace and name.
            pod: The pod; None once it is deleted.
            may_start: Returns whether the gang barrier device in the pod's claim lets the pod start. It is called for
                living pods of gangs only.

        Returns:
            The gangs that the controller must look at again.
        """
        # 1. Forget how the pod of this name ended, or why it was in no gang. Whether a gang has started does not depend
        #    on that. ``_done`` has pods that ended well, and ``_count_done`` keeps their number for each gang.
        old = self._of.get(key)
        self._waits.pop(key, None)
        if key in self._done:
            self._count_done(*self._done.pop(key), -1)
        self._forget_failed(key)

        # 2. A pod that has ended, or is being deleted, is no member. The gang remembers how it ended.
        new = None if pod is None else self._read(key, pod)
        if pod is not None and new is not None and (pod.finished or pod.metadata.deletion_timestamp is not None):
            self._remember_end(key, pod, new)
            new = None
        if old is None and new is None:
            return ()

        # 3. Move it to its gang, which can be another than before. ``gangs`` and ``had_started`` have the old gang
        #    first. So their last entry is of the gang that the pod is in now, or of the one that it has just left.
        #    ``_leave`` also deletes the pod's membership.
        gangs = [membership.gang for membership in (old, new) if membership is not None]
        had_started = [self.started(gang) for gang in gangs]
        # A gang that loses a pod in one of two ways must be woken: ``is_asleep`` explains both.
        is_preempted = pod is not None and pod.preempted and not pod.spec.node_name
        if old is not None and not had_started[0] and (is_preempted or (new is None and old.blocks)):
            self._asleep.add(old.gang)
        if old is not None and (new is None or new.gang != old.gang):
            self._leave(key, old.gang)
        if pod is not None and new is not None:
            self._of[key] = new
            self._pods.setdefault(new.gang, {})[key] = None
            running = self._running.setdefault(new.gang, set())
            if pod.spec.node_name or may_start(pod):
                running.add(key)
            else:
                running.discard(key)

        # 4. Any change of a pod counts for a gang that waits. A gang that runs is not concerned by its pods' states.
        is_moved = old is None or new is None or old.gang != new.gang
        has_changed = is_moved or had_started != [self.started(gang) for gang in gangs]
        return tuple(dict.fromkeys(gangs)) if has_changed or not had_started[-1] else ()

    def _remember_end(self, key: Key, pod: Pod, membership: Membership) -> None:
        """Record that a pod of a gang succeeded or failed. A pod that was deleted before its end is not recorded."""
        if pod.status.phase == "Succeeded":
            self._done[key] = membership.gang, membership.maker
            self._count_done(membership.gang, membership.maker, 1)
        elif pod.status.phase == "Failed" and (failed := _failed(pod, membership)) is not None:
            self._failed.setdefault(membership.gang, {})[key] = failed
            self._failed_in[key] = membership.gang

    def other_changed(self, key: Key, group: str) -> tuple[Key, ...]:
        """Record which PodGroup a pod without GPUs belongs to.

        Such a pod counts towards the size of the group. ``key`` is its namespace and name; ``group`` is empty for no
        PodGroup.

        Returns:
            The gangs that the controller must look at again.
        """
        old, new = self._others.pop(key, None), (key[0], group) if group else None
        if new is not None:
            self._others[key] = new
        if old == new:
            return ()
        concerned = []
        for one, more in ((old, -1), (new, 1)):
            if one is not None:
                self._others_of[one] += more
                if not self._others_of[one]:
                    del self._others_of[one]
                concerned.append((one[0], _GANG + gang_owners.of_group_named(*one)))
        return tuple(gang for gang in concerned if gang in self)

    def others(self, group: Key) -> int:
        """Return how many pods without GPUs belong to a gang's PodGroup.

        They count towards the size of the group. ``group`` is its namespace and name.
        """
        return self._others_of[group]

    def done(self, gang: Key) -> int:
        """Return how many pods of a gang have succeeded, and need no node any more.

        A pod counts only if a living pod of the gang has the same owner, such as the same Job.
        """
        if (done := self._done_of.get(gang)) is None:
            return 0
        makers = {self._of[pod].maker for pod in self.pods(gang)}
        return sum(count for maker, count in done.items() if maker in makers and maker)

    def failed(self, gang: Key, retries: int | None) -> int:
        """Return how many pod indexes of a gang's Jobs have no retries left.

        The Jobs create no new pods for these indexes.

        Args:
            gang: The gang.
            retries: ``backoffLimitPerIndex`` of the Jobs that create its pods; None if it is not set.
        """
        if retries is None or (pods := self._failed.get(gang)) is None:
            return 0
        makers = {self._of[pod].maker for pod in self.pods(gang)}
        return len({(one.maker, one.rank) for one in pods.values() if one.maker in makers and one.failures >= retries})

    def said(self, gang: Key) -> Membership:
        """Return the membership whose annotations count for a whole gang.

        All pods of a gang should have the same gang annotations. If they differ, the annotations of the first pod that
        has any of them count.
        """
        memberships = [self._of[pod] for pod in self.pods(gang)]
        return next((membership for membership in memberships if membership.wants is not None), memberships[0])

    def of(self, pod: Key) -> Membership | None:
        """Return a living pod's membership in its gang; None for a pod without a gang."""
        found = self._of.get(pod)
        return None if found is None or found.gang in self._none else found

    def rank(self, pod: Key) -> Rank | None:
        """Return the rank of a living pod in its gang; None if it has none."""
        found = self.of(pod)
        return None if found is None else found.member.rank

    def pods(self, gang: Key) -> tuple[Key, ...]:
        """Return the living pods of a gang, in the order in which they were first seen."""
        return tuple(self._pods.get(gang, ()))

    def started(self, gang: Key) -> bool:
        """Return whether one of a gang's living pods is bound, or may start.

        A pod may start if the gang barrier, a device that keeps pods unbound, lets it.
        """
        return bool(self._running.get(gang))

    def gathers(self, pod: Key) -> bool:
        """Return whether a pod waits because its gang has not started."""
        found = self.of(pod)
        return found is not None and not self.started(found.gang)

    def running(self, gang: Key) -> int:
        """Return how many living pods of a gang are bound, or may start.

        A pod may start if the gang barrier, a device that keeps pods unbound, lets it.
        """
        return len(self._running.get(gang, ()))

    def counts(self) -> tuple[int, int]:
        """Return two numbers: of gangs that have not started, and of gangs that have started."""
        started = sum(bool(pods) and gang not in self._none for gang, pods in self._running.items())
        return len(self._pods) - len(self._none) - started, started

    def is_asleep(self, gang: Key) -> bool:
        """Return whether a gang must release its places, so that kube-scheduler retries its pods.

        A place is a node with GPUs for one pod. The gang has not started, and lost a pod in one of two ways. After such
        a loss, the scheduler (1.37.2) does not retry the other pods, even if they could start:
        * The scheduler deleted a pod that waited at the gang barrier, for a pod of higher priority, which stays
          pending. The scheduler retries pods after the deletion of a bound pod, but not of an unbound pod. It also
          retries them after a place is released (handleBindingCycleError of schedule_one.go).
        * A gated pod of a PodGroup was deleted. The scheduler tries no pod of a group while one has a gate, and does
          not retry when that pod is deleted (deletePodGroupMember of scheduling_queue.go). It retries when a claim is
          created again.

        ``woken`` resets the result to False. A controller that starts later does not know of the loss. It releases the
        places at their deadline.
        """
        return gang in self._asleep

    def woken(self, gang: Key) -> None:
        """Record that a gang has released its places to wake the scheduler.

        The scheduler then retries the gang's pods, and ``is_asleep`` is False.
        """
        self._asleep.discard(gang)

    def dissolve(self, gang: Key) -> tuple[Key, ...]:
        """Treat the pods of a gang as single pods, because their owner forms no gang.

        Returns:
            The pods. From now on each of them is placed by itself.
        """
        self._none.add(gang)
        return self.pods(gang)

    def waits(self, pod: Key) -> Reason | None:
        """Return why a pod that requests a gang is in no gang yet, so that it keeps its scheduling gate.

        None for any other pod.
        """
        return self._waits.get(pod)

    def _read(self, key: Key, pod: Pod) -> Membership | None:
        if not gang_of_pod.in_group(pod) and resolved.rare(pod.metadata.annotations).gang is msgspec.UNSET:
            return None
        try:
            noted = resolved.read(pod.metadata.annotations).gang
        except WordError:
            return None  # its own trouble, which it is told when it is looked at
        wants = None if noted is msgspec.UNSET else noted
        found = gang_of_pod.find(gang_of_pod.facts(pod), wants)
        if isinstance(found, Alone):
            if gang_of_pod.must_wait(wants, found):
                self._waits[key] = Reason(Cause.GANG, found.why)
            return None
        makers = (owner.uid for owner in pod.metadata.owner_references if owner.controller)
        blocks = bool(pod.pod_group and pod.spec.scheduling_gates)
        return Membership((key[0], _GANG + found.identity), found, wants, next(makers, ""), blocks)

    def _forget_failed(self, key: Key) -> None:
        """Forget that a pod with this namespace and name failed; nothing happens if none did."""
        if (gang := self._failed_in.pop(key, None)) is None:
            return
        del self._failed[gang][key]
        if not self._failed[gang]:
            del self._failed[gang]

    def _count_done(self, gang: Key, maker: str, more: int) -> None:
        """Add ``more`` (1 or -1) to the count of a gang's succeeded pods from one owner.

        ``maker`` is the uid of that owner, such as a Job.
        """
        counts = self._done_of.setdefault(gang, collections.Counter())
        counts[maker] += more
        if not counts[maker]:
            del counts[maker]
        if not counts:
            del self._done_of[gang]

    def _leave(self, key: Key, gang: Key) -> None:
        """Remove a pod from its gang, and the gang if this was its last pod."""
        del self._of[key]
        del self._pods[gang][key]
        self._running[gang].discard(key)
        if not self._pods[gang]:
            del self._pods[gang], self._running[gang]
            self._none.discard(gang)
            self._asleep.discard(gang)
