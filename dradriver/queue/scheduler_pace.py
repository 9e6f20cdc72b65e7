"""How many pods may wait for a scheduler: as many as it can bind well before their tentative placements end."""

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
    """What a pod waits for once its gate is removed.

    Attributes:
        scheduler: The name of its scheduler, as its author wrote it: any text.
        is_open: Whether the pod is confined to no node, so that it costs the scheduler more.
    """

    scheduler: str
    is_open: bool = False


class Line(NamedTuple):
    """Pods that count together.

    Attributes:
        scheduler: Their scheduler; None for all schedulers that are not known.
        whose: Their namespace; of schedulers that are not known, their tenant.
        is_open: Whether they are confined to no node.
    """

    scheduler: str | None
    whose: str
    is_open: bool = False

    @property
    def is_unknown(self) -> bool:
        """Whether nobody has seen the scheduler allocate a claim."""
        return self.scheduler is _UNKNOWN


class _Silence:
    """How often in a row pods were not bound in time, and until when no other one is tried after the last."""

    __slots__ = ("not_before", "times")

    def __init__(self) -> None:
        self.times = 0
        self.not_before = 0.0


class Pace:
    """Pods that were lifted and that their scheduler has said nothing of yet.

    kube-scheduler with its default client limits binds 12 pods with claims a second. A thousand promises made at once
    would mostly end before it came to them.

    They are counted by scheduler and namespace, so silent pods hold up no others. All schedulers that nobody has seen
    allocate a claim yet count as one for each tenant: a name that nothing answers to costs its author one try at a
    time, with a pause after each that grows.
    """

    def __init__(self, tenant: Callable[[str], str] = lambda _: "") -> None:
        """Begin with no pod; ``tenant`` returns the tenant of a namespace, empty if there are no tenants."""
        self._tenant = tenant
        self._known: dict[str, None] = dict.fromkeys(_DEFAULT)  # schedulers that allocate claims
        self._waiting: dict[Line, dict[Key, None]] = {}  # by line: pods that its scheduler has said nothing of yet
        self._line: dict[Key, Line] = {}  # by such a pod: its line
        self._silence: collections.OrderedDict[Line, _Silence] = collections.OrderedDict()  # by line; the latest last
        self._bound: collections.OrderedDict[Line, collections.deque[float]] = collections.OrderedDict()  # latest last

    def line(self, namespace: str, waits: Waits) -> Line:
        """Return the line in which a namespace's pods wait for a scheduler."""
        if waits.scheduler in self._known:
            return Line(waits.scheduler, namespace, waits.is_open)
        return Line(_UNKNOWN, self._tenant(namespace) or namespace)

    def room(self, line: Line, now: float) -> bool:
        """Return whether another pod's gate may be removed for the scheduler of a line."""
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
        """Note that a pod's gate was removed and the pod waits for its scheduler."""
        if key not in self._line:
            line = self._line[key] = self.line(key[0], waits)
            self._waiting.setdefault(line, {})[key] = None

    def allocates(self, scheduler: str) -> None:
        """Note that a scheduler allocated a claim and bound its pod."""
        if scheduler not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(name for name in self._known if name not in _DEFAULT)]
            self._known[scheduler] = None

    def answered(self, key: Key, now: float, *, bound: bool) -> None:
        """Note that a pod was bound, or waits for its scheduler no more."""
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
        """Note that a workload's pods were not bound in time; those that wait for no scheduler count for nothing.

        Returns until when no other one of their lines is tried.
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
        """Remove a pod from those that wait for a scheduler. Returns its line; None if it was in none."""
        line = self._line.pop(key, None)
        if line is not None:
            del self._waiting[line][key]
            if not self._waiting[line]:
                del self._waiting[line]
        return line
