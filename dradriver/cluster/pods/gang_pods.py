"""The pods of each gang: which of our pods start together, by their annotations and their owners'."""

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
    """The membership of one pod in a gang, as the pod says it.

    Attributes:
        gang: The gang's key: the namespace, and a name that no pod has.
        member: The pod's identity in the gang, by its owner.
        wants: The gang annotations that its author wrote; None for none.
        maker: The uid of the pod's controller; empty if it has none.
        blocks: Whether kube-scheduler tries no other pod of its PodGroup, because this one has a scheduling gate.
    """

    gang: Key
    member: Member
    wants: Gang | None
    maker: str = ""
    blocks: bool = False


class _Failed(NamedTuple):
    """A pod that failed: what made it, which index it was, and how often that had failed before."""

    maker: str
    rank: Rank
    failures: int


def _failed(pod: Pod, of: Membership) -> _Failed | None:
    """Return a pod that failed of a Job that tries each index again by itself (KEP-3850); None for any other."""
    failures = values.natural(pod.metadata.annotations.get(_FAILURES, ""))
    if failures is None or of.member.rank is None or not of.maker:
        return None
    return _Failed(of.maker, of.member.rank, failures)


class Gangs:
    """All gangs: their living pods, and which have begun to run.

    A gang has started once one of its living pods is bound, or was told to go: until then its pods get their places
    together or not at all, and from then on each that comes later gets one near the others.
    """

    def __init__(self) -> None:
        """Begin with none."""
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
        """Give the keys of all gangs; they may change meanwhile."""
        return iter([gang for gang in self._pods if gang not in self._none])

    def pod_changed(self, key: Key, pod: Pod | None, may_start: Callable[[Pod], bool]) -> tuple[Key, ...]:
        """Update the gangs by the new state of a pod.

        Args:
            key: The pod's namespace and name.
            pod: The pod; None once it is deleted.
            may_start: Returns whether the gang barrier device in the pod's claim lets it start. It is called for living
                pods of gangs only.

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
        """Remember that a pod of a gang ended well, or failed; one that was deleted before is not remembered."""
        if pod.status.phase == "Succeeded":
            self._done[key] = membership.gang, membership.maker
            self._count_done(membership.gang, membership.maker, 1)
        elif pod.status.phase == "Failed" and (failed := _failed(pod, membership)) is not None:
            self._failed.setdefault(membership.gang, {})[key] = failed
            self._failed_in[key] = membership.gang

    def other_changed(self, key: Key, group: str) -> tuple[Key, ...]:
        """Note which PodGroup a pod without GPUs belongs to; empty for none.

        Returns the gangs that have to be looked at again for it.
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
        """Return how many pods without GPUs a PodGroup of a gang has, given its namespace and name."""
        return self._others_of[group]

    def done(self, gang: Key) -> int:
        """Return how many pods of a gang have ended well that what made its living ones made: they need no place."""
        if (done := self._done_of.get(gang)) is None:
            return 0
        makers = {self._of[pod].maker for pod in self.pods(gang)}
        return sum(count for maker, count in done.items() if maker in makers and maker)

    def failed(self, gang: Key, retries: int | None) -> int:
        """Return for how many indexes of a gang no pod comes any more, since they were tried so often again and failed.

        Args:
            gang: The gang.
            retries: ``backoffLimitPerIndex`` of the Jobs that make its pods; None for none.
        """
        if retries is None or (pods := self._failed.get(gang)) is None:
            return 0
        makers = {self._of[pod].maker for pod in self.pods(gang)}
        return len({(one.maker, one.rank) for one in pods.values() if one.maker in makers and one.failures >= retries})

    def said(self, gang: Key) -> Membership:
        """Return what the pods of a gang request for it.

        All pods say the same, or the first pod that says anything counts.
        """
        memberships = [self._of[pod] for pod in self.pods(gang)]
        return next((membership for membership in memberships if membership.wants is not None), memberships[0])

    def of(self, pod: Key) -> Membership | None:
        """Return what a living pod says of its gang; None for a pod without a gang."""
        found = self._of.get(pod)
        return None if found is None or found.gang in self._none else found

    def rank(self, pod: Key) -> Rank | None:
        """Return the rank of a living pod in its gang; None if nothing says."""
        found = self.of(pod)
        return None if found is None else found.member.rank

    def pods(self, gang: Key) -> tuple[Key, ...]:
        """Return the living pods of a gang, in the order in which they were first seen."""
        return tuple(self._pods.get(gang, ()))

    def started(self, gang: Key) -> bool:
        """Return whether a gang has begun to run."""
        return bool(self._running.get(gang))

    def gathers(self, pod: Key) -> bool:
        """Return whether a pod is of a gang that has not started."""
        found = self.of(pod)
        return found is not None and not self.started(found.gang)

    def running(self, gang: Key) -> int:
        """Return how many living pods of a gang are bound, or had their gates removed."""
        return len(self._running.get(gang, ()))

    def counts(self) -> tuple[int, int]:
        """Return how many gangs have not started, and how many have."""
        started = sum(bool(pods) and gang not in self._none for gang, pods in self._running.items())
        return len(self._pods) - len(self._none) - started, started

    def is_asleep(self, gang: Key) -> bool:
        """Return whether kube-scheduler has to be woken by the release of all places of a gang that has not started.

        It lost a pod in one of two ways after which the scheduler (1.37.2) does not try others again that could start:

        * The scheduler deleted a pod that waited at the gang barrier, for one of higher priority, which stays pending.
          A pod that is bound wakes others when it goes, one that is not bound does not. A released place does
          (handleBindingCycleError of schedule_one.go).
        * A gated pod of a PodGroup was deleted. The scheduler tries none of a group while one has a gate, and not when
          that goes (deletePodGroupMember of scheduling_queue.go). A claim that is made again wakes them.

        ``woken`` ends it. A controller that starts later does not know it, and releases the places at their deadline.
        """
        return gang in self._asleep

    def woken(self, gang: Key) -> None:
        """Note that a gang has no places any more."""
        self._asleep.discard(gang)

    def dissolve(self, gang: Key) -> tuple[Key, ...]:
        """Note that the owner of pods makes no gang. Returns the pods, which are placed one by one."""
        self._none.add(gang)
        return self.pods(gang)

    def waits(self, pod: Key) -> Reason | None:
        """Return why a pod that asks for a gang is in none, so that it stays at its gate; None for any other."""
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
        """Forget that a pod of this name failed, if it did."""
        if (gang := self._failed_in.pop(key, None)) is None:
            return
        del self._failed[gang][key]
        if not self._failed[gang]:
            del self._failed[gang]

    def _count_done(self, gang: Key, maker: str, more: int) -> None:
        """Add to the number of pods of a gang and a maker that ended well; ``more`` is 1 or -1."""
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
