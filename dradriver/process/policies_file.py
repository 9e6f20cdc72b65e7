"""Follows the policies file of a process: reads it again whenever its content changes.

The file has the administrator's settings: how GPUs are offered, quotas, queues and so on. If a new file is bad, or the
file is removed, the last good policies stay in force. If the file is bad at the start, the policies are ``UNKNOWN``.
Code that reads ``UNKNOWN`` policies changes nothing that depends on them. The defaults would be wrong in this case:
they might allocate a GPU as a whole that is shared now. Without a file at the start, the defaults are in force.

The policies in force are those that the process uses now. ``trouble`` is the text that says why a newer file is not
used.
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
    "gpu_topology_policies_valid", "0 while the policies file is invalid or missing, so that it is not in force."
)
DIGEST: Final = Gauge(
    "gpu_topology_policies_digest",
    "A number computed from the policies file in force. Processes with the same file have the same number; 0: no file.",
)


class PoliciesFile(Followed):
    """Follows the policies file (the administrator's settings) while ``run`` runs.

    Attributes:
        in_force: The policies that the process uses now.
        trouble: Why the present content of the file is not in force; None if it is.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        on_change: Callable[[Policies], None] | None = None,
        on_trouble: Callable[[str], Awaitable[None]] | None = None,
        on_recovery: Callable[[Policies], Awaitable[None]] | None = None,
    ) -> None:
        """Read the file for the first time.

        Args:
            path: The file; None to use the defaults for ever.
            on_change: Called with the new policies each time that new policies come into force, but not for the first
                policies.
            on_trouble: Called while ``run`` runs, with each new ``trouble``.
            on_recovery: Called while ``run`` runs, with the policies in force, when ``trouble`` becomes None again.
                After several calls of ``on_trouble`` in a row, it is called once.
        """
        super().__init__(*([path] if path is not None else []), what="policies")
        self.in_force = UNKNOWN
        self.trouble: str | None = None
        self._path = path
        self._on_change: Callable[[Policies], None] | None = None
        self._on_trouble = on_trouble
        self._on_recovery = on_recovery
        self._reported_trouble: str | None = None
        self.step()  # takes the file's content: ``take`` sets ``in_force`` or ``trouble``
        self._on_change = on_change  # only now, because it must not be called for the first policies

    @property
    def source(self) -> str:
        """Return the name of the policies file, for messages."""
        return str(self._path)

    async def first_read(self) -> None:
        """Wait until the first policies are in force.

        This class returns at once, because ``__init__`` has read the file. A subclass with another source waits for the
        source.
        """

    async def read_again(self) -> None:
        """Read the newest policies now; return when they are in force.

        A subclass with another source than the file waits for it.
        """
        self.step()

    def step(self) -> None:
        """Read the policies file, and use its content if it has changed.

        If the file was removed or is unreadable, ``trouble`` says so, and the last good policies stay in force. If
        there never was a file, the defaults are in force, without ``trouble``.
        """
        try:
            super().step()
        except FileNotFoundError:
            self._taken = None
            if self.in_force is DEFAULTS or (self.in_force is UNKNOWN and self.trouble is None):
                self.in_force, self.trouble = DEFAULTS, None
                self._set_metrics()
            else:
                self._refuse(f"{self.source} does not exist any more.")
        except OSError as error:
            self._taken = None
            self._refuse(f"{self.source} cannot be read: {error}.")

    def take(self, contents: tuple[bytes, ...]) -> None:
        """Use new content of the policies file from now on.

        If the content is bad, the last good policies stay in force, and ``trouble`` says why. ``contents`` has one
        item, the file's bytes.
        """
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
            self._refuse(error.by_key(self.source))
            return
        except Exception as error:  # a bug in reading it must not end every process that has the file
            logger.exception("%s cannot be read because of an internal error.", self.source)
            self._refuse(f"{self._path.name} cannot be read because of an internal error: {error}")
            return
        self.in_force, self.trouble = policies, None
        self._set_metrics()
        logger.info("%s is in force, digest %s", self.source, policies.fingerprint)
        for note in notes(policies):
            logger.info("%s: %s", self._path.name, note)
        if self._on_change is not None:
            self._on_change(policies)

    async def look(self) -> None:
        """Read the policies file once (``step``), and report when a problem begins or ends."""
        self.step()
        if self.trouble == self._reported_trouble:
            return
        self._reported_trouble = self.trouble
        if self.trouble is None:
            if self._on_recovery is not None:
                await self._on_recovery(self.in_force)
        elif self._on_trouble is not None:
            await self._on_trouble(self.trouble)

    def _refuse(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        self.trouble = trouble
        self._set_metrics()
        kept = (
            "No valid policies file was read before, so its policies are unknown"
            if self.in_force is UNKNOWN
            else "The last valid policies stay in force"
        )
        logger.error("The policies file is invalid: %s. %s.", trouble.removesuffix("."), kept)

    def _set_metrics(self) -> None:
        VALID.set(self.trouble is None)
        DIGEST.set(self.in_force.digest)
