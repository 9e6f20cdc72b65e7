"""XIDs, the error reports of NVIDIA's driver, from the kernel's log (NVIDIA "XID Errors"), and SXids of switches.

An XID has one of three effects on its GPU (``xids``):

* taint: new pods do not get the GPU.
* warn: the XID is reported, and new pods still get the GPU.
* ignore: the XID has no effect.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from dradriver.api.policies.fields import XidWord
from dradriver.node.faults import Fault
from dradriver.node.vendors.nvidia import xids
from dradriver.node.vendors.nvidia.sxid_reports import SxidReports
from dradriver.node.vendors.nvidia.xids import RECOVERY_CHANGED, Xid

WARNED_S: Final = 3600.0  # after an XID that only warns
SOUND_S: Final = 60.0  # after an XID, before the driver's word that all is well is about the time after it
_XID: Final = re.compile(
    r"NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})[^)]{0,32}\): (\d{1,5})\b([^\n]{0,200})"
)
_ACTION: Final = re.compile(r"recovery action changed from .{0,60} to 0x([0-9a-f]{1,4}) \(([A-Za-z0-9 ]{1,40})\)")
_LOADED: Final = "NVRM: loading NVIDIA UNIX"
_MOST_GPUS: Final = 1024
_MOST_XIDS: Final = 32  # of one GPU
_WORDS: Final[tuple[XidWord, ...]] = ("taint", "warn", "ignore")  # the worst first


class _Noted(msgspec.Struct, frozen=True):
    """The last report of an XID for a GPU: its time and the repair.

    The time is in seconds of the monotonic clock. The repair is empty if unknown.
    """

    last_s: float
    asks: str


class XidReports:
    """The XIDs (errors that NVIDIA's driver reports) in the kernel's log that are not over."""

    def __init__(
        self,
        *,
        words: Callable[[], Mapping[str, XidWord]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the arguments; no XID is known yet.

        Args:
            words: Returns the administrator's settings for XIDs, by number: taint, warn or ignore.
            clock: Returns seconds of the kernel log's clock: since the boot, without time in suspend.
        """
        self._words = words
        self._clock = clock
        self._switches = SxidReports(words=words, clock=clock, warned_s=WARNED_S)
        self._noted: dict[str, dict[Xid, _Noted]] = {}  # by bus id or uuid, in the order in which they came first

    def sound(self, busids: Collection[str], said_s: float) -> None:
        """Forget old XIDs of GPUs of which the driver says that they need no action.

        Args:
            busids: Bus ids of these GPUs.
            said_s: When the driver said so, in seconds of the log's clock. XIDs that are newer, or less than 60 s
                older, stay.
        """
        for busid in busids:
            for xid, noted in list(self._noted.get(busid, {}).items()):
                if said_s - noted.last_s >= SOUND_S:
                    del self._noted[busid][xid]

    def reset(self, busids: Iterable[str]) -> None:
        """Forget all XIDs of these GPUs (bus ids), because the GPUs were reset after the reports."""
        gpus = list(busids)
        for busid in gpus:
            self._noted.pop(busid, None)
        self._switches.reset(gpus)

    def move(self, name: str, to: str) -> None:
        """Move the XIDs of a GPU to another name: a bus id or a uuid."""
        if (some := self._noted.pop(name, None)) is not None:
            self._noted[to] = some | self._noted.get(to, {})

    def faults(self, uuids: Mapping[str, str], switched: Collection[str] = ()) -> dict[str, tuple[Fault, ...]]:
        """Return the faults that XIDs and SXids cause, by the GPU's uuid.

        For each GPU, at most two XIDs are faults: the first that taints, and the first that warns. The same is true for
        SXids.

        Args:
            uuids: The GPUs' uuids by the names under which reports are stored.
            switched: Uuids of the GPUs that are connected to NVSwitches; empty if this is unknown. If empty, all GPUs
                count as connected.
        """
        # A GPU that is not at its bus id any more, whose reports have its uuid as their name, has left its switches.
        joined = {name: uuid for name, uuid in uuids.items() if name != uuid and (not switched or uuid in switched)}
        by_uuid = dict.fromkeys(joined.values(), faults) if (faults := self._switches.faults(joined)) else {}
        for busid, some in self._noted.items():
            first: dict[str, Fault] = {}
            for xid, word in self._in_force(some).items():
                if word == "ignore":
                    continue
                kind, asks = "xid" if word == "taint" else "xid-warning", some[xid].asks
                said = f"XID {xid.number} in the kernel's log{', which asks for ' if asks else ''}{asks}"
                first.setdefault(kind, Fault(kind, str(xid.number), said))
            if first and busid in uuids:
                by_uuid[uuids[busid]] = (*first.values(), *by_uuid.get(uuids[busid], ()))
        return by_uuid

    def _in_force(self, some: Mapping[Xid, _Noted]) -> dict[Xid, XidWord]:
        """Return the present effect of each XID of a GPU: taint, warn or ignore.

        ``some`` has the time of the last report of each of the GPU's XIDs. An XID that only warns becomes ``ignore``
        some time after its last report.
        """
        words, now = self._words(), self._clock()
        severities = {xid: xids.severity(xid, words) for xid in some}
        over = {xid for xid, word in severities.items() if word == "warn" and now - some[xid].last_s >= WARNED_S}
        return {xid: "ignore" if xid in over else word for xid, word in severities.items()}

    def take(self, text: str, at_s: float) -> None:
        """Process one record of the kernel's log, which may report an XID.

        ``at_s`` is the time of the record by the log's clock.
        """
        if text.startswith(_LOADED):
            self._noted.clear()  # another driver, or the same one started anew
            self._switches.loaded()
            return
        self._switches.take(text, at_s)
        match = _XID.match(text)
        if match is None:
            return
        busid, number = f"{int(match[1], 16):04x}:{match[2].lower()}:{match[3].lower()}.0", int(match[4])
        asks = xids.recovery(number)
        if number == RECOVERY_CHANGED and (action := _ACTION.search(match[5])) is not None:
            if int(action[1], 16) == 0:
                self._noted.pop(busid, None)  # nothing needs to be done any more, the driver says
                return
            asks = action[2]
        if busid not in self._noted and len(self._noted) >= _MOST_GPUS:
            return
        noted_xids = self._noted.setdefault(busid, {})
        noted_xids[xids.read(number, match[5])] = _Noted(at_s, asks)
        if len(noted_xids) > _MOST_XIDS:
            word = self._in_force(noted_xids)
            _, *later = noted_xids  # the first is what the taint says
            del noted_xids[max(later, key=lambda xid: (_WORDS.index(word[xid]), -noted_xids[xid].last_s))]
