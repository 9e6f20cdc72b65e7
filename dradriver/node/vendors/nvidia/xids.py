"""The effect of each XID: whether the GPU gets a taint, a warning or nothing.

The source is NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column "Immediate
Action":

* If the action is to restart the program, or nothing, the GPU works as before, and gets no taint.
* XID 109 also counts as an XID without a taint, as in NVIDIA's device plugin (internal/rm/health.go). If the GPU does
  stop after it, newer drivers report that separately.
* An XID that is not in the list taints the GPU, and its repair is unknown.

The XIDs 144 to 150 are errors of a Blackwell GPU's NVLinks. The catalog ("Decoding NVLink 5 Xids") distinguishes the
component that failed and the kind of failure. Nearly all errors that the driver calls "Nonfatal" need no action. If the
driver requests an action, it reports XID 154. The line is ``145, [pid=…, name=…, ]RLW_REMAP Nonfatal XC0 i0 Link 09
(0x00000004 …)`` (leptonai/gpud, pull request 1174).
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
    """The identity of an XID: its number, and whether the driver calls it "Nonfatal"."""

    number: int
    nonfatal: bool


def read(number: int, text: str) -> Xid:
    """Return the XID for a number and the driver's text after the number.

    The text may contain the name of a process, which a user chooses. So the word "Nonfatal" in this name does not make
    an XID harmless that the driver calls "Fatal".
    """
    words = text.split()
    return Xid(number, number in _NVLINK5 and "Nonfatal" in words and "Fatal" not in words)


def severity(xid: Xid, said: Mapping[str, XidWord]) -> XidWord:
    """Return an XID's effect on its GPU: ``taint``, ``warn`` or ``ignore``.

    Args:
        xid: The XID.
        said: The administrator's settings for XIDs, by number. They take precedence.
    """
    number = xid.number
    own = said.get(str(number))
    if own is not None:
        return own
    if xid.nonfatal:
        return "warn"
    return "ignore" if number in _IGNORED else "warn" if number in _WARNED else "taint"


def recovery(number: int) -> str:
    """Return the repair that an XID requires; empty if it is unknown."""
    return _RECOVERIES.get(number, "")
