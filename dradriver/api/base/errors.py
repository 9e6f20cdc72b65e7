"""Errors about words: annotations, opaque configuration, quantities."""

from dradriver.errors import DriverError
from dradriver.reason import Cause, Reason


class WordError(DriverError):
    """A word in an object is unknown, malformed or contradicts another; the message names it and what is allowed."""

    reason = "BadRequest"

    @property
    def why(self) -> Reason:
        """Return the message of an error about a word as the reason why a pod waits."""
        return Reason(Cause.POD, str(self))
