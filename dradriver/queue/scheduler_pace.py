"""Limits how many pods wait for a scheduler at a time.

The limit is the number of pods that the scheduler can bind well before their tentative placements end. A pod waits for
its scheduler from the removal of its scheduling gate until it is bound. A *line* is the pods that wait for one
scheduler and have one limit. A scheduler is *unknown* until it was seen allocating a claim. ``write_lanes`` calls this
module before gates are removed.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from dradriver.api.claims.pins import Key
from dradriver.kube.backoff import wait_s

LEAST: Final = 128
LEAST_OF_SILENT: Final = 8  # of a namespace whose pods a scheduler that is known leaves alone
OF_UNKNOWN: Final = 1
# Of these in one namespace: the scheduler looks at all nodes for each, 0.2 ms a node. A gang is placed whole while
# fewer wait, so seven pods and one gang can wait at the same time.
MOST_OPEN: Final = 8
WINDOW_S: Final = 10.0  # over which a scheduler's speed is taken
AHEAD_S: Final = 15.0  # of its work that may wait for it
FIRST_PAUSE_S: Final = 5.0  # after a pod that no known scheduler bound in time
LONGEST_PAUSE_S: Final = 120.0
_MOST_KNOWN: Final = 1_000
_DEFAULT: Final = frozenset(("", "default-scheduler"))
_UNKNOWN: Final = None  # stands for all schedulers that are not known


class Waits(NamedTuple):
    """The scheduler that must bind a pod after its gate is removed.

    Attributes:
        scheduler: The scheduler's name, as the pod's author wrote it. It can be any text.
        is_open: Whether the scheduler may place the pod on many nodes. This costs the scheduler more time.
    """

    scheduler: str
    is_open: bool = False


class Line(NamedTuple):
    """The pods that wait for one scheduler and are counted together.

    Attributes:
        scheduler: Their scheduler; None for all unknown schedulers.
        whose: Their namespace; for unknown schedulers their tenant.
        is_open: Whether the scheduler may place them on many nodes.
    """

    scheduler: str | None
    whose: str
    is_open: bool = False

    @property
    def is_unknown(self) -> bool:
        """Return whether the line's scheduler is unknown: it was never seen allocating a claim.

        Then only one pod of the line is tried at a time.
        """
        return self.scheduler is _UNKNOWN


class _Silence:
    """How often a scheduler has not bound pods of one line in time, and the pause.

    ``times`` counts this; each pod that the scheduler binds halves the number. If the scheduler is unknown, no other
    pod of the line loses its gate before ``not_before``, in seconds of the event loop's clock.
    """

    __slots__ = ("not_before", "times")

    def __init__(self) -> None:
        self.times = 0
        self.not_before = 0.0


class Pace:
    """The pods that wait for their scheduler, and how many more may wait.

    kube-scheduler with its default client limits binds 12 pods with claims a second. If a thousand pods got tentative
    placements at once, most of these would end before the scheduler came to the pods.

    The pods of one known scheduler and one namespace are counted together, in a ``Line``. So pods whose scheduler does
    not answer do not delay other pods. The pods of one tenant with unknown schedulers are counted together, too. Only
    one of them is tried at a time, with a growing pause after each. So a scheduler that does not exist costs little.
    """

    def __init__(self, tenant: Callable[[str], str] = lambda _: "") -> None:
        """Make an object without pods.

        ``tenant`` returns the tenant of a namespace, empty if there are no tenants.
        """
        self._tenant = tenant
        self._known: dict[str, None] = dict.fromkeys(_DEFAULT)  # schedulers that allocate claims
        self._waiting: dict[Line, dict[Key, None]] = {}  # by line: pods that its scheduler has said nothing of yet
        self._line: dict[Key, Line] = {}  # by such a pod: its line
        self._silence: collections.OrderedDict[Line, _Silence] = collections.OrderedDict()  # by line; the latest last
        self._bound: collections.OrderedDict[Line, collections.deque[float]] = collections.OrderedDict()  # latest last

    def line(self, namespace: str, waits: Waits) -> Line:
        """Return the line in which pods of a namespace with this scheduler are counted.

        A line is the pods that wait for one scheduler and have one limit.
        """
        if waits.scheduler in self._known:
            return Line(waits.scheduler, namespace, waits.is_open)
        return Line(_UNKNOWN, self._tenant(namespace) or namespace)

    def room(self, line: Line, now: float) -> bool:
        """Return whether one more pod of this line may wait for its scheduler.

        False if as many pods wait as the scheduler can bind in time. For an unknown scheduler: False while another pod
        waits, and during the pause after it.
        """
        waiting, silence = len(self._waiting.get(line, ())), self._silence.get(line)
        if line.is_unknown:
            return waiting < OF_UNKNOWN and (silence is None or now >= silence.not_before)
        if line.is_open:
            return waiting < MOST_OPEN
        if waiting < max(LEAST >> (0 if silence is None else silence.times), LEAST_OF_SILENT):
            return True
        bound = self._bound.get(line, collections.deque())
        while bound and bound[0] < now - WINDOW_S:
            bound.popleft()
        return waiting < len(bound) / WINDOW_S * AHEAD_S

    def lifted(self, key: Key, waits: Waits) -> None:
        """Record that a pod's scheduling gate was removed: the pod now waits for its scheduler.

        Args:
            key: The pod.
            waits: The scheduler, and whether it may place the pod on many nodes.
        """
        if key not in self._line:
            line = self._line[key] = self.line(key[0], waits)
            self._waiting.setdefault(line, {})[key] = None

    def allocates(self, scheduler: str) -> None:
        """Record a scheduler as known, because it allocated a claim."""
        if scheduler not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(name for name in self._known if name not in _DEFAULT)]
            self._known[scheduler] = None

    def answered(self, key: Key, now: float, *, bound: bool) -> None:
        """Record that a pod does not wait for its scheduler any more, bound or not.

        Args:
            key: The pod.
            now: The time, seconds of the event loop's clock.
            bound: Whether the scheduler bound the pod; else the wait ended for another reason.
        """
        line = self._drop(key)
        if line is None or not bound:
            return
        self._bound.setdefault(line, collections.deque(maxlen=10_000)).append(now)
        self._bound.move_to_end(line)
        while not (times := next(iter(self._bound.values()))) or times[-1] < now - WINDOW_S:
            self._bound.popitem(last=False)
        if (silence := self._silence.get(line)) is not None:
            silence.times //= 2
            if not silence.times:
                del self._silence[line]

    def silent(self, keys: Iterable[Key], now: float) -> float:
        """Record that a workload's pods were not bound in time; return when a pause ends.

        Only lines of unknown schedulers pause. A line is the pods that wait for one scheduler and have one limit.
        Without a pause the result is ``now``. Pods in ``keys`` that wait for no scheduler are ignored.
        """
        until = now
        for line in {line for key in keys if (line := self._drop(key)) is not None}:
            silence = self._silence.setdefault(line, _Silence())
            self._silence.move_to_end(line)
            if len(self._silence) > _MOST_KNOWN:
                self._silence.popitem(last=False)
            if line.is_unknown:
                pause_s = wait_s(silence.times, first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
                silence.not_before = now + pause_s
                until = max(until, silence.not_before)
            silence.times += 1
        return until

    def _drop(self, key: Key) -> Line | None:
        """Remove a pod from those that wait for a scheduler, and return its line.

        A line is the pods that wait for one scheduler and have one limit. None if the pod did not wait.
        """
        line = self._line.pop(key, None)
        if line is not None:
            del self._waiting[line][key]
            if not self._waiting[line]:
                del self._waiting[line]
        return line
