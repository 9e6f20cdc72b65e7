"""Errors of readers and profiles."""

from dradriver.errors import DriverError


class TopologyError(DriverError):
    """A machine's description cannot be used.

    The message names the place and what is allowed there.
    """

    reason = "BadTopology"
