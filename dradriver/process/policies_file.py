"""The policies in force in a process: read from a file at its start, and again whenever that file's content changes.

The last good file stays in force when a bad one comes, or when the file goes. A process that starts with a bad one does
not fall back on the defaults, by which it might hand out whole what is shared now: then they are ``UNKNOWN``, and
whoever asks leaves alone what he cannot know. Without a file from the start the defaults are what is meant.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from prometheus_client import Gauge

from dradriver.api.policies.policy_sections import DEFAULTS, UNKNOWN, Policies
from dradriver.process.replaced_files import Followed

logger = logging.getLogger(__name__)

VALID: Final = Gauge(
    "gpu_topology_policies_valid", "0 while the policies file is bad or gone, so that it is not in force."
)
DIGEST: Final = Gauge(
    "gpu_topology_policies_digest",
    "A number of the policies file in force: the same wherever the same is in force; 0 without a file.",
)


class PoliciesFile(Followed):
    """Follows the file while ``run`` runs.

    Attributes:
        in_force: What counts now.
        trouble: Why the file as it is now does not count; None where it does.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        on_change: Callable[[Policies], None] | None = None,
        on_trouble: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Read the file for the first time.

        Args:
            path: The file; None for the defaults, for good.
            on_change: Called with other policies that came into force; not for the first ones.
            on_trouble: Called while ``run`` runs, with each new ``trouble``.
        """
        super().__init__(*([path] if path is not None else []), what="policies")
        self.in_force = UNKNOWN
        self.trouble: str | None = None
        self._path = path
        self._on_change: Callable[[Policies], None] | None = None
        self._on_trouble = on_trouble
        self._reported_trouble: str | None = None
        self.step()  # takes the file's content: ``take`` sets ``in_force`` or ``trouble``
        self._on_change = on_change  # only now, because it must not be called for the first policies

    @property
    def source(self) -> str:
        """Return the name of the policies file, for messages."""
        return str(self._path)

    async def first_read(self) -> None:
        """Return once the policies in force are those of the source that counts; a file was read at the start."""

    async def read_again(self) -> None:
        """Return once the policies in force are the source's newest."""
        self.step()

    def step(self) -> None:
        """Take the content of the policies file if it was not taken yet."""
        try:
            super().step()
        except FileNotFoundError:
            self._taken = None
            if self.in_force is DEFAULTS or (self.in_force is UNKNOWN and self.trouble is None):
                self.in_force, self.trouble = DEFAULTS, None
                self._set_metrics()
            else:
                self._refuse(f"{self.source} is gone")
        except OSError as error:
            self._taken = None
            self._refuse(f"{self.source} cannot be read: {error}")

    def take(self, contents: tuple[bytes, ...]) -> None:
        """Put the content of the policies file into force, if it is good."""
        if self._path is None:
            self.in_force = DEFAULTS
            self._set_metrics()
            return
        from dradriver.api.policies.policies_reader import (
            PoliciesError,
            notes,
            read,
        )  # imported here: it loads the YAML package, which a process without a file does not need

        # The last good policies stay in force if these are bad.
        try:
            policies = read(contents[0], source=self._path.name)
        except PoliciesError as error:
            self._refuse(str(error))
            return
        except Exception as error:  # a bug in reading it must not end every process that has the file
            logger.exception("%s: an error in this program", self.source)
            self._refuse(f"{self._path.name} cannot be read: an error in this program: {error}")
            return
        self.in_force, self.trouble = policies, None
        self._set_metrics()
        logger.info("%s is in force, digest %s", self.source, policies.fingerprint)
        for note in notes(policies):
            logger.info("%s: %s", self._path.name, note)
        if self._on_change is not None:
            self._on_change(policies)

    async def look(self) -> None:
        """Take the content of the policies file, and tell of new trouble."""
        self.step()
        if self.trouble != self._reported_trouble:
            self._reported_trouble = self.trouble
            if self.trouble is not None and self._on_trouble is not None:
                await self._on_trouble(self.trouble)

    def _refuse(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        self.trouble = trouble
        self._set_metrics()
        kept = (
            "none was good before: what it says is not known" if self.in_force is UNKNOWN else "the last good one stays"
        )
        logger.error("policies are not valid, %s: %s", kept, trouble)

    def _set_metrics(self) -> None:
        VALID.set(self.trouble is None)
        DIGEST.set(self.in_force.digest)
