"""The base class of every error that this project raises on purpose."""


class DriverError(Exception):
    """Something went wrong that a person can act on.

    The message says what is wrong, where, and what to write or do instead. ``reason`` is a CamelCase word that is safe
    as a metric label or an event's reason: it never holds text from a user.
    """

    reason = "DriverError"
