"""Faults of ports that show only over the last hour: the link goes down again and again, or errors grow.

One reading shows neither fault. And a single change is no fault: one or two lost links may be a switch that restarts,
and a burst of errors may be a cable that was moved.

Sources of the limits:

* NVIDIA recommends to investigate two lost links a day ("InfiniBand Cluster Bring-up Procedure", UFM Telemetry).
* NVIDIA treats more than 120 symbol errors an hour as a breach of the InfiniBand specification's bit error rate
  (NVSentinel, NIC Health Monitor, ``symbol_error_fatal``).
* On links that correct errors, only errors that could not be corrected count as symbol errors (ibdiagnet's manual).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from dradriver.node.nics.ports import NicState, Port
from dradriver.node.nics.troubles import ERRORS, FLAPPING, At, Trouble

HOUR_S: Final = 3600.0
LOSSES: Final = 3
"""Losses of its link within an hour from which on a port is ``flapping``."""
GROWN: Mapping[str, int] = MappingProxyType({"symbol_error": 120, "port_rcv_errors": 120, "link_error_recovery": 10})
"""By how much a counter grows within an hour, from which on a port has ``errors``: those that a bad cable makes grow.

``port_xmit_discards`` is congestion, ``excessive_buffer_overrun_errors`` flow control. ``local_link_integrity_errors``
is full at 15 (``PORT_PMA_ATTR``, drivers/infiniband/core/sysfs.c), and symbol errors grow with it.
"""
SPREAD: Final = 10  # readings that found it grown: a burst is no bad cable
_DOWNED: Final = "link_downed"
_LEFT: Final = 0.5  # of a bound: what is about it begins and ends once
_CURE: Final = "reseat the cable and the transceiver, clean optical connectors, or replace them"
_CURES: Final = {FLAPPING: f"{_CURE}. The switch's log shows whether its port is the cause", ERRORS: _CURE}


class _Step(NamedTuple):
    """The changes of a port between two readings.

    The fields are the time, whether the link went down, and the growth of error counters.
    """

    when: float
    lost: bool
    grown: Mapping[str, int]


class History:
    """The changes of ports within the last hour, by reading.

    A port is compared only if it was on the host in both readings. So it does not count as a lost link if a pod takes
    the card or an administrator switches it off. Virtual and scalable functions are ignored.
    """

    def __init__(self) -> None:
        """Create an empty history."""
        self._last: Mapping[At, Port] = {}
        self._steps: dict[At, deque[_Step]] = {}
        self._troubles: dict[tuple[At, str], Trouble] = {}

    def add(self, nics: Sequence[NicState], now_s: float) -> tuple[Trouble, ...]:
        """Add a reading to the ports' history, and return the faults of ports.

        The text of a fault stays as it was at the start. A fault ends if the last hour has less than half of the lost
        links or errors that start a fault, or if the port is switched off.

        Args:
            nics: The reading.
            now_s: The time of the reading, of a clock that never goes back.
        """
        # 1. Compare each port with the last reading, and keep what was lost or grew. ``away``: a pod has the card.
        ports_now = {At(nic.name, port.number): port for nic in nics if not nic.function for port in nic.ports}
        for at, port in ports_now.items():
            if port.off:
                self._steps.pop(at, None)
            elif not port.away and (before := self._last.get(at)) is not None:
                step = _step(before, port, now_s)
                if step.lost or step.grown:
                    self._steps.setdefault(at, deque()).append(step)
        self._last = {at: port for at, port in ports_now.items() if not (port.off or port.away)}

        # 2. Judge the steps of the last hour. A trouble that goes on keeps its first words, and less is enough for it.
        troubles: dict[tuple[At, str], Trouble] = {}
        for at, steps in self._steps.items():
            while steps and steps[0].when <= now_s - HOUR_S:
                steps.popleft()
            for trouble_kind, judge in ((FLAPPING, _losses), (ERRORS, _errors)):
                known_trouble = self._troubles.get((at, trouble_kind))
                reason = judge(at, steps, now_s, _LEFT if known_trouble else 1.0)
                if reason:
                    troubles[at, trouble_kind] = known_trouble or Trouble(
                        at, trouble_kind, reason, _CURES[trouble_kind]
                    )
        self._steps = {at: steps for at, steps in self._steps.items() if steps}
        self._troubles = troubles
        return tuple(troubles.values())


def _step(before: Port, port: Port, now_s: float) -> _Step:
    grown = {
        counter: port.errors[counter] - before.errors[counter]
        for counter in (_DOWNED, *GROWN)
        if port.errors.get(counter, 0) > before.errors.get(counter, math.inf)  # one that starts anew has not grown
    }
    return _Step(now_s, lost=before.up and bool(port.state) and not port.up, grown=grown)


def _losses(at: At, steps: Iterable[_Step], now_s: float, share: float) -> str:
    found = [step for step in steps if step.lost or _DOWNED in step.grown]
    # Some devices do not count, a counter is full at 255, and what lies between two readings is not seen.
    times = max(sum(step.lost for step in found), sum(step.grown.get(_DOWNED, 0) for step in found))
    if times < share * LOSSES:
        return ""
    return f"port {at.port} of {at.nic} lost its link {times} times {_within(found, now_s)}"


def _errors(at: At, steps: Iterable[_Step], now_s: float, share: float) -> str:
    told = []
    for counter, most in GROWN.items():
        found = [step for step in steps if counter in step.grown]
        total = sum(step.grown[counter] for step in found)
        if total >= share * most and len(found) >= share * SPREAD:
            told.append(f"{counter} by {total} {_within(found, now_s)}")
    return f"errors of port {at.port} of {at.nic} grow: {', '.join(told)}" if told else ""


def _within(steps: Sequence[_Step], now_s: float) -> str:
    return f"within {max(1, math.ceil((now_s - steps[0].when) / 60))} min"
