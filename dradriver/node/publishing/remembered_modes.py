"""Records in a file how each GPU is published (its mode: whole, shared or sliced).

An agent that starts while nothing is published reads the file. The kubelet deletes a node's slices when it starts, and
30 s after the agent disappeared. Then only this file knows the modes. Without it, a GPU that waits for a change of its
mode would change at once. And a claim that survives a reboot could get another device, for example a whole GPU for a
share.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dradriver.api.policies.gpu_modes import Mode
from dradriver.node import atomic_files

logger = logging.getLogger(__name__)


class Remembered:
    """The file that records how each GPU is published (its mode); a few kilobytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Mode] = {}  # the modes in the file, by the GPU's uuid

    def read(self) -> dict[str, Mode]:
        """Return from the file how each GPU was published (its mode), by uuid.

        Entries that cannot be read are left out.
        """
        try:
            entries = msgspec.json.decode(self._path.read_bytes(), type=dict[str, msgspec.Raw])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
            logger.warning(
                "The file with the modes of GPUs (whole, shared or MIG) cannot be read: %s: %s", self._path, error
            )
            return {}
        self._known = {}
        for uuid, entry in entries.items():
            try:
                self._known[uuid] = msgspec.json.decode(entry, type=Mode)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:  # a newer agent's word
                logger.warning(
                    "The mode of GPU %s (whole, shared or MIG) cannot be read: %s: %s", uuid, self._path, error
                )
        return dict(self._known)

    def write(self, modes: Mapping[str, Mode]) -> None:
        """Write into the file how each GPU is published (``modes``, by uuid).

        A failed write is tried again at the next call.
        """
        if modes == self._known:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write(self._path, msgspec.json.encode(modes))
        except OSError as error:
            logger.warning("The file with the modes of GPUs (whole, shared or MIG) cannot be written: %s", error)
            return
        self._known = dict(modes)
