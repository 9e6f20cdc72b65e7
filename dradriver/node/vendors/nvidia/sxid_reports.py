"""SXids, the reports of errors of NVSwitches, from the kernel's log (NVIDIA "Fabric Manager User Guide", appendix D).

A line is ``nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up``. Lines with ``Severity``
or ``Data`` in the place of ``Fatal`` are details of the line before.

A switch joins all GPUs of a server: work of any of them can hang or go wrong after a fatal error, until all GPUs and
switches are reset or the driver is loaded anew. After an error that is not fatal the switch goes on as before.
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
    """An SXid of a switch.

    Attributes:
        fatal: Whether the driver called it fatal.
        last_s: When it came last, seconds of the log's clock.
        text: The line, for people.
        reset: Bus ids of the GPUs that were reset since.
    """

    fatal: bool
    last_s: float
    text: str
    reset: set[str] = msgspec.field(default_factory=set)


class SxidReports:
    """The SXids in the kernel's log."""

    def __init__(
        self, *, words: Callable[[], Mapping[str, XidWord]], clock: Callable[[], float], warned_s: float
    ) -> None:
        """Know of none yet.

        Args:
            words: Gives what an administrator says of SXids, by number.
            clock: The kernel log's.
            warned_s: How long one that only warns is told of.
        """
        self._words = words
        self._clock = clock
        self._warned_s = warned_s
        self._reports: dict[
            tuple[str, str], _Report
        ] = {}  # by switch and number, in the order in which they came first

    def take(self, text: str, at_s: float) -> None:
        """Take one record of the kernel's log, which may report an SXid; ``at_s`` is of the log's clock."""
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
        """Forget all SXids: the driver was loaded again, which resets the switches."""
        self._reports.clear()

    def reset(self, busids: Iterable[str]) -> None:
        """Note that GPUs were reset, and with them maybe their SXids."""
        gpus = frozenset(busids)
        for report in self._reports.values():
            report.reset |= gpus

    def faults(self, gpus: Collection[str]) -> tuple[Fault, ...]:
        """Return the faults by SXids that each of these GPUs, by bus id, has for its switches.

        The first that taints, and the first that warns. A fatal one is over when all of the GPUs were reset.
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
