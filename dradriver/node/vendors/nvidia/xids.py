"""What each XID means for who gets the GPU next.

By NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column "Immediate Action": where
that is to restart the program, or nothing, the GPU is as good as before. 109 is among them as in NVIDIA's device plugin
(internal/rm/health.go); of a GPU that it does stop, newer drivers say so themselves. One that is not listed taints, and
nobody knows what it asks for.

Of 144 to 150, the errors of a Blackwell's NVLinks, the catalog ("Decoding NVLink 5 Xids") goes by what failed and how:
nearly all that the driver calls "Nonfatal" are left to it, and where it wants more it says so by 154. Its line is
``145, [pid=…, name=…, ]RLW_REMAP Nonfatal XC0 i0 Link 09 (0x00000004 …)`` (leptonai/gpud, pull request 1174).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dradriver.api.policies.fields import XidWord

RECOVERY_CHANGED: Final = 154  # the driver says what it wants done from now on
_NVLINK5: Final = range(144, 151)

# Exceptions of engines that a program drives, page faults, what is cleaned up behind a program, test messages; memory
# rows that were remapped (63), which has a taint of its own while one waits.
_IGNORED: Final = frozenset(
    {8, 11, 13, 14, 25, 31, *range(37, 42), 43, 44, 45, 60, 63, 66, 67, 68, 69, 70, 71, 72, 75, 76, 77, 80}
    | {*range(82, 87), 88, 89, *range(96, 110), *range(126, 136), 137, 139, 141, 152, 153, 160, 161, 162}
)

# Work goes on, and somebody should look: trouble on PCIe, many corrected errors, worn InfoROM, an error that was
# contained (reset when convenient), corrected errors of a link to the CPU, no spare parts left, power smoothing.
_WARNED: Final = frozenset({32, 92, 93, 94, 121, 157, 163, 164, 165})

_RECOVERIES: Final = dict.fromkeys(
    (46, 48, 62, 64, 74, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158), "a reset of the GPU"
) | {79: "a reboot of the node", 94: "a reset of the GPU when that is convenient", 151: "a reboot of the node"}


class Xid(NamedTuple):
    """What an XID is: its number, and whether the driver calls it no matter of life and death."""

    number: int
    nonfatal: bool


def read(number: int, text: str) -> Xid:
    """Return the XID of a number with the driver's words after it. A process's name among them makes none harmless."""
    words = text.split()
    return Xid(number, number in _NVLINK5 and "Nonfatal" in words and "Fatal" not in words)


def severity(xid: Xid, said: Mapping[str, XidWord]) -> XidWord:
    """Return the severity of an XID: what becomes of a GPU with it.

    Args:
        xid: What it is.
        said: What an administrator says of some, by number.
    """
    number = xid.number
    own = said.get(str(number))
    if own is not None:
        return own
    if xid.nonfatal:
        return "warn"
    return "ignore" if number in _IGNORED else "warn" if number in _WARNED else "taint"


def recovery(number: int) -> str:
    """Return the recovery that an XID asks for; empty if it is not known."""
    return _RECOVERIES.get(number, "")
