"""Errors about words: annotations, opaque configuration, quantities."""

from dradriver.errors import DriverError


class WordError(DriverError):
    """A word in an object is unknown, malformed or contradicts another; the message names it and what is allowed."""

    reason = "BadRequest"
