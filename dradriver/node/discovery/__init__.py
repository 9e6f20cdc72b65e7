"""Reading the machine: one way to ask, one module for each way to find out."""

from __future__ import annotations

from typing import Protocol

from dradriver.topology.machine import Machine


class Discovery(Protocol):
    """A way to read this node's machine."""

    @property
    def host_path(self) -> str | None:
        """What stands behind every GPU's device node; None for the node itself."""

    def read(self) -> Machine:
        """Return the machine as it is now; a GPU that does not answer is left out.

        Raises:
            DriverError: The machine cannot be read.
        """
