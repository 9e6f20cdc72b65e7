"""How many promises may wait for a scheduler: as many as it can bind well before they end."""

from __future__ import annotations

import collections
from typing import Final

from dradriver.api.claims.pins import Key

LEAST: Final = 128
OPEN: Final = "/open"  # ends the name under which pods that are not confined to nodes wait for their scheduler
MOST_OPEN: Final = 8  # of these in one namespace: the scheduler looks at all nodes for each, 0.2 ms a node
WINDOW_S: Final = 10.0  # over which a scheduler's speed is taken
AHEAD_S: Final = 15.0  # of its work that may wait for it


class Pace:
    """Pods that were lifted and that their scheduler has said nothing of yet, by scheduler.

    kube-scheduler with its default client limits binds 12 pods with claims a second. A thousand promises made at once
    would mostly end before it came to them.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[Key, None]] = {}  # by scheduler: pods that it has said nothing of yet
        self._scheduler: dict[Key, str] = {}  # by such a pod: its scheduler
        self._bound: collections.OrderedDict[str, collections.deque[float]] = collections.OrderedDict()  # latest last

    def room(self, scheduler: str, now: float) -> bool:
        """Return whether another pod's gate may be removed for a scheduler."""
        waiting = len(self._waiting.get(scheduler, ()))
        if scheduler.endswith(OPEN):
            return waiting < MOST_OPEN
        if waiting < LEAST:
            return True
        bound = self._bound.get(scheduler, collections.deque())
        while bound and bound[0] < now - WINDOW_S:
            bound.popleft()
        return waiting < len(bound) / WINDOW_S * AHEAD_S

    def lifted(self, key: Key, scheduler: str) -> None:
        """Note that a pod's gate was removed and the pod waits for its scheduler."""
        self._scheduler[key] = scheduler
        self._waiting.setdefault(scheduler, {})[key] = None

    def answered(self, key: Key, now: float, *, bound: bool) -> None:
        """Note that a pod was bound, or waits for its scheduler no more."""
        scheduler = self._scheduler.pop(key, None)
        if scheduler is None:
            return
        del self._waiting[scheduler][key]
        if not self._waiting[scheduler]:
            del self._waiting[scheduler]
        if bound:
            self._bound.setdefault(scheduler, collections.deque(maxlen=10_000)).append(now)
            self._bound.move_to_end(scheduler)
            while not (times := next(iter(self._bound.values()))) or times[-1] < now - WINDOW_S:
                self._bound.popitem(last=False)
