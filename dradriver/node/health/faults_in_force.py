"""The faults of GPUs that are in force.

A fault comes into force when it was seen for long enough, and is over when it was gone for long enough. While it is in
force, the agent reports it: as a taint of the GPU, in Events or in metrics.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from dradriver.api.slices import resource_slices
from dradriver.event import Event
from dradriver.node import metrics
from dradriver.node.faults import KINDS, Fault, Faults
from dradriver.node.repairs import located

logger = logging.getLogger(__name__)

CALM_S: Final = 3600.0  # after which a fault that comes again is not the same one that flutters
MOST_S: Final = 1800.0  # that a fault has to be gone, however often it came and went
_FIRST_S: Final = 15.0
_MOST_TAINTS: Final = 4  # of a device in Kubernetes 1.34, resource/v1 types.go; 16 from 1.35


class Standing(msgspec.Struct, frozen=True):
    """A fault that is in force, and when it came into force, in seconds since 1970."""

    fault: Fault
    since: float


class _Seen(msgspec.Struct):
    fault: Fault
    first_s: float
    last_s: float
    leaves_s: float  # how long it must be gone
    since: float | None = None  # when it came into force


class Record:
    """The faults of this node's GPUs. Several independent sources report to it.

    Sources are, for example, the readings of the GPUs and the kernel's log.

    A fault in force keeps its text and its time, even if later reports differ. Otherwise a number in the text that
    changes would cause a new write of the slice. A fault that comes again within an hour ends later: it must be gone
    for four times as long as was needed the last time, but for no longer than 30 minutes.

    Attributes:
        changed: An ``event.Event`` that occurs when a fault came into force or is over.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Create an empty record.

        Args:
            clock: Returns seconds that never go back.
            wall: Returns seconds since 1970.
        """
        self.changed: Event[[]] = Event()
        self._clock = clock
        self._wall = wall
        self._sources: dict[str, dict[tuple[str, str], Fault]] = {}
        self._seen: dict[tuple[str, str], _Seen] = {}  # by uuid and kind
        self._over: dict[tuple[str, str], tuple[float, float]] = {}  # when, and how long it had to be gone

    def tell(self, source: str, faults: Faults) -> None:
        """Update the faults in force with what a source sees now.

        A source must call this method regularly, because a fault must be seen, or be gone, for a while. A fault that a
        source does not name any more is gone for this source.

        Args:
            source: Name of the source, such as "driver".
            faults: All faults that the source sees now, by the GPU's uuid.
        """
        self._sources[source] = {(uuid, fault.kind): fault for uuid, some in faults.items() for fault in some}
        now, wall = self._clock(), self._wall()

        # 1. By uuid and kind, what some source sees. The first source's words count.
        present: dict[tuple[str, str], Fault] = {}
        for seen in self._sources.values():
            for key, fault in seen.items():
                present.setdefault(key, fault)

        # 2. Faults that have been seen for long enough come into force.
        changed = False
        for key, fault in present.items():
            known = self._seen.setdefault(key, _Seen(fault, now, now, self._leaves_s(key, now)))
            known.last_s = now
            if known.since is None:
                known.fault = fault
                if now - known.first_s >= KINDS[fault.kind].comes_s:
                    uuid, _ = key
                    self._comes(uuid, known, wall)
                    changed = True

        # 3. Faults that have been gone for long enough end. Others that were never in force are forgotten at once.
        for key, known in list(self._seen.items()):
            if key in present or (known.since is not None and now - known.last_s < known.leaves_s):
                continue
            del self._seen[key]
            if known.since is not None:
                self._over[key] = now, known.leaves_s
                changed = True
                uuid, _ = key
                logger.info("GPU %s: no more: %s", uuid, known.fault.said)
        if changed:
            self._tell()

    def _leaves_s(self, at: tuple[str, str], now: float) -> float:
        usual_s = KINDS[at[1]].leaves_s
        when, before_s = self._over.get(at, (-CALM_S, 0.0))
        if now - when >= CALM_S:
            return usual_s
        return max(usual_s, min(4 * max(before_s, _FIRST_S), MOST_S))

    def adopt(self, published: Collection[tuple[str, str]]) -> None:
        """Let faults that are seen now be in force at once if an earlier agent has published their taints.

        Otherwise the restart of the agent would remove these taints until the faults were seen for long enough.

        Args:
            published: Pairs of a device name and the key of its taint.
        """
        changed = False
        for (uuid, _), known in self._seen.items():
            if known.since is None and (resource_slices.device_name(uuid), known.fault.key) in published:
                self._comes(uuid, known, self._wall())
                changed = True
        if changed:
            self._tell()

    def _comes(self, uuid: str, known: _Seen, wall: float) -> None:
        known.since = wall
        fault_text, advice = known.fault.said, located(known.fault.advice, uuid=uuid)
        logger.warning("GPU %s: %s. %s", uuid, fault_text, advice)

    def _tell(self) -> None:
        counts = Counter(kind for (_, kind), seen in self._seen.items() if seen.since is not None)
        for kind in KINDS:
            metrics.FAULTS.labels(kind).set(counts[kind])
        self.changed()

    def standing(self) -> dict[str, tuple[Standing, ...]]:
        """Return the faults in force by uuid.

        The faults that keep pods off the GPU come first.
        """
        by_uuid: dict[str, list[Standing]] = {}
        for (uuid, _), known in sorted(self._seen.items()):
            if known.since is not None:
                by_uuid.setdefault(uuid, []).append(Standing(known.fault, known.since))
        return {
            uuid: tuple(sorted(some, key=lambda entry: entry.fault.effect == "None")) for uuid, some in by_uuid.items()
        }

    def taints(self) -> dict[str, list[dict[str, Any]]]:
        """Return the faults in force as taints of devices, by the GPU's uuid.

        A GPU has at most four taints, the limit of Kubernetes 1.34. Kinds of faults that never become a taint are left
        out (``FaultKind.is_taint``).
        """
        by_uuid = {
            uuid: [entry for entry in some if KINDS[entry.fault.kind].is_taint]
            for uuid, some in self.standing().items()
        }
        return {uuid: [_taint(entry) for entry in some[:_MOST_TAINTS]] for uuid, some in by_uuid.items() if some}


def _taint(standing: Standing) -> dict[str, Any]:
    added = datetime.datetime.fromtimestamp(int(standing.since), datetime.UTC)
    taint = {"key": standing.fault.key, "effect": standing.fault.effect, "timeAdded": f"{added:%Y-%m-%dT%H:%M:%SZ}"}
    return taint | ({"value": standing.fault.value} if standing.fault.value else {})
