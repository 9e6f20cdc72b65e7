"""How GPUs were handed out last, for an agent that starts when nothing is published.

The kubelet deletes a node's slices when it starts, and 30 s after the agent is gone. A GPU that waited for its claims
to be handed out otherwise would not wait then, and claims that a reboot leaves would have something of another form.
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
    """A file of a few kilobytes with the mode of each GPU."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Mode] = {}  # the modes in the file, by the GPU's uuid

    def read(self) -> dict[str, Mode]:
        """Return the remembered modes of GPUs, by uuid, without those that cannot be read."""
        try:
            entries = msgspec.json.decode(self._path.read_bytes(), type=dict[str, msgspec.Raw])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
            logger.warning("as what GPUs were handed out is not known: %s: %s", self._path, error)
            return {}
        self._known = {}
        for uuid, entry in entries.items():
            try:
                self._known[uuid] = msgspec.json.decode(entry, type=Mode)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:  # a newer agent's word
                logger.warning("as what GPU %s was handed out is not known: %s: %s", uuid, self._path, error)
        return dict(self._known)

    def write(self, modes: Mapping[str, Mode]) -> None:
        """Write the GPUs' modes into the file; what cannot be written now is tried again at the next call."""
        if modes == self._known:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write(self._path, msgspec.json.encode(modes))
        except OSError as error:
            logger.warning("as what GPUs are handed out is not written: %s", error)
            return
        self._known = dict(modes)
