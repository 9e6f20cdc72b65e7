"""What was changed on hardware: the second of the node's two ledgers.

An entry is written as an intent before the change, and as done after it: whatever an agent dies at, the next one knows
all that may have to be undone. No change outlives a boot (MIG instances are gone, as are the servers of shares), so an
entry of another boot is dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from dradriver.node.records import Records

VERSION: Final = 1
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")  # the host's, in every container


class Made(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of hardware.

    Attributes:
        owner: Uid of the claim that it is for.
        number: Which of the claim's devices.
        boot: Id of the boot in which it is.
        kind: The kind of device.
        device: The device's name, as it was allocated.
        uuid: Identity of the GPU that is changed.
        share_id: What tells it from others of the same device; None where nobody else can have that.
        wanted: What the kind has to know to make it, and to find what it made.
        done: What the kind noted of the change; None as long as it is an intent.
    """

    owner: str
    number: int
    boot: str
    kind: str
    device: str
    uuid: str
    share_id: str | None = None
    wanted: dict[str, Any] = {}
    done: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """Its name in the ledger."""
        return f"{self.owner}.{self.number}"


class MadeLedger(Records[Made]):
    """The folder of changes. The caller holds the node's lock around every method."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Made, version=VERSION, key=lambda made: made.key)

    def of(self, owner: str) -> list[Made]:
        """Return the changes for a claim, in the order in which they were intended.

        Raises:
            OSError: The folder cannot be read.
        """
        return sorted((e.value for e in self.read().values() if e.value.owner == owner), key=lambda made: made.number)


def boot_id(path: Path = BOOT_ID) -> str:
    """Return what tells this boot of the machine from any other.

    Raises:
        OSError: The kernel does not say.
    """
    return path.read_text().strip()
