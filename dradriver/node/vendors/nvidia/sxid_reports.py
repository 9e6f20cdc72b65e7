"""SXids, the reports of errors of NVSwitches, from the kernel's log (NVIDIA "Fabric Manager User Guide", appendix D).

A line is ``nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up``. Lines with ``Severity``
or ``Data`` in the place of ``Fatal`` are details of the line before.

A switch is connected to all GPUs of a server. After a fatal error, work on any of these GPUs can hang or be wrong. This
lasts until all GPUs and switches are reset or the driver is loaded again. After an error that is not fatal the switch
works as before.

An SXid has one of three effects on the GPUs of its switch:

* taint: new pods do not get the GPUs.
* warn: the SXid is reported, and new pods still get the GPUs.
* ignore: the SXid has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from dradriver.api.policies.fields import XidWord
from dradriver.node.faults import Fault

_SXID: Final = re.compile(
    r"nvidia-(nvswitch\d{1,3}): SXid \(PCI:([0-9a-fA-F:.]{8,16})\): (\d{1,5}), (Fatal|Non-fatal)\b,?([^\n]{0,200})"
)
_MOST: Final = 256  # of all switches
_MOST_SAID: Final = 100


class _Report(msgspec.Struct):
    """An SXid of a switch: an error of an NVSwitch that NVIDIA's driver reported.

    Attributes:
        fatal: Whether the driver called the SXid fatal.
        last_s: Time of the last report, in seconds of the log's clock.
        text: The line, for people.
        reset: Bus ids of the GPUs that were reset since the last report.
    """

    fatal: bool
    last_s: float
    text: str
    reset: set[str] = msgspec.field(default_factory=set)


class SxidReports:
    """The SXids (errors of NVSwitches) in the kernel's log that are not over."""

    def __init__(
        self, *, words: Callable[[], Mapping[str, XidWord]], clock: Callable[[], float], warned_s: float
    ) -> None:
        """Store the arguments; no SXid is known yet.

        Args:
            words: Returns the administrator's settings for SXids, by number: taint, warn or ignore.
            clock: Returns seconds of the kernel log's clock.
            warned_s: Seconds for which an SXid that only warns is reported.
        """
        self._words = words
        self._clock = clock
        self._warned_s = warned_s
        self._reports: dict[
            tuple[str, str], _Report
        ] = {}  # by switch and number, in the order in which they came first

    def take(self, text: str, at_s: float) -> None:
        """Process one record of the kernel's log, which may report an SXid (an NVSwitch's error).

        ``at_s`` is the time of the record, in seconds of the log's clock.
        """
        line = _SXID.match(text)
        if line is None:
            return
        switch, busid, number, word, more = line.groups()
        what = "".join(filter(str.isprintable, more)).strip()[:_MOST_SAID]
        described = (
            f"{word.lower()} SXid {number} of {switch} ({busid.lower()}) in the kernel's log: {what or 'no words'}"
        )
        before = self._reports.get((switch, number))
        if before is None and len(self._reports) >= _MOST:
            return
        fatal = word == "Fatal" or (before is not None and before.fatal)
        self._reports[switch, number] = _Report(fatal, at_s, before.text if before and before.fatal else described)

    def loaded(self) -> None:
        """Forget all SXids, because the driver was loaded again, which resets the switches."""
        self._reports.clear()

    def reset(self, busids: Iterable[str]) -> None:
        """Store that these GPUs (bus ids) were reset.

        An SXid is over when all GPUs of its switch were reset.
        """
        gpus = frozenset(busids)
        for report in self._reports.values():
            report.reset |= gpus

    def faults(self, gpus: Collection[str]) -> tuple[Fault, ...]:
        """Return the faults that SXids (errors of NVSwitches) cause on each of these GPUs.

        There are at most two faults: the first SXid that taints, and the first that warns. An SXid that taints is over
        when all of the GPUs were reset. An SXid that warns is over some time after its last report. ``gpus`` are the
        bus ids of the GPUs that are connected to the switches.
        """
        words, now = self._words(), self._clock()
        first: dict[str, Fault] = {}
        for (_, number), report in self._reports.items():
            word = words.get(number, "taint" if report.fatal else "warn")
            is_over = report.reset.issuperset(gpus) if word == "taint" else now - report.last_s >= self._warned_s
            if word == "ignore" or is_over:
                continue
            kind = "sxid" if word == "taint" else "sxid-warning"
            first.setdefault(kind, Fault(kind, number, report.text))
        return tuple(first.values())
