"""Errors about text in objects: annotations, opaque configuration, quantities."""

from dradriver.errors import DriverError
from dradriver.reason import Cause, Reason


class WordError(DriverError):
    """A value in an object is unknown, malformed or contradicts another value.

    The message names the value, and the values that are allowed.
    """

    reason = "BadRequest"

    @property
    def why(self) -> Reason:
        """Return the message of the error as the reason why a pod waits."""
        return Reason(Cause.POD, str(self))
