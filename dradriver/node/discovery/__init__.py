"""Reading the machine: one way to ask, one module for each way to find out."""

from __future__ import annotations

from typing import Protocol

from dradriver.topology.machine import Machine


class Discovery(Protocol):
    """A way to read this node's machine."""

    @property
    def host_path(self) -> str | None:
        """What stands behind every GPU's device node; None where NVIDIA's own CDI specification brings the nodes."""

    @property
    def slow(self) -> bool:
        """Whether reading takes long or can hang, so that it is done beside the event loop."""

    def read(self) -> Machine:
        """Return the machine as it is now; a GPU that does not answer is left out.

        Raises:
            RestartError: This process cannot read it any more, another can.
            DriverError: The machine cannot be read.
        """
