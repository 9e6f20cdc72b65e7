"""Errors of requests to the API server.

An ERROR event is a message of a watch: the server reports an error in the place of a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dradriver.errors import DriverError
from dradriver.kube import codec


class ConfigError(DriverError):
    """The address or credentials of the API server cannot be read.

    The message names the file or variable and the fix.
    """

    reason = "BadServerConfig"


class Unreachable(DriverError):  # noqa: N818 - a state of the world, as callers read it
    """The API server gave no usable answer: no connection, no answer in time, or an answer that is not from Kubernetes.

    Attributes:
        timed_out: Whether the server accepted the request and did not answer in time, perhaps because of a slow
            webhook.
        absent: Whether no server was there: the connection was refused or closed. A load balancer without a server does
            this, too. A retry then puts no load on a server.
    """

    reason = "ApiServerUnreachable"

    def __init__(self, message: str, *, timed_out: bool = False, absent: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        self.absent = absent


class Silent(Unreachable):
    """A stream began, and then delivered nothing for too long."""

    reason = "ApiServerSilent"


class ApiError(DriverError):
    """The API server refused a request.

    Attributes:
        status: HTTP status, or the code of an ERROR event.
        api_reason: The Status object's reason, such as ``AlreadyExists``; empty if the answer was no Status, or one
            without a reason.
        message: The Status object's message.
        details: The Status object's details.
        retry_after_s: The time to wait that the server asked for, in seconds; None if it asked for none.
        request: The request's method and path; empty for an ERROR event.
        is_status: Whether the answer was a Status object, and not a proxy's page.
    """

    reason = "ApiError"

    def __init__(
        self,
        status: int,
        api_reason: str = "",
        message: str = "",
        details: Mapping[str, Any] | None = None,
        *,
        retry_after_s: float | None = None,
        request: str = "",
        is_status: bool = False,
    ) -> None:
        self.status = status
        self.api_reason = api_reason
        self.message = message
        self.details = dict(details or {})
        self.retry_after_s = retry_after_s
        self.request = request
        self.is_status = is_status or bool(api_reason)
        super().__init__(": ".join(part for part in (request, f"{status} {api_reason}".strip(), message) if part))

    @property
    def not_found(self) -> bool:
        """Return whether the object, its namespace or its kind does not exist."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Return whether another writer changed the object first.

        The caller should read the object again, then write.
        """
        return self.status == 409 and not self.already_exists

    @property
    def already_exists(self) -> bool:
        """Return whether an object of that name exists already."""
        return self.status == 409 and self.api_reason == "AlreadyExists"

    @property
    def forbidden(self) -> bool:
        """Return whether RBAC or admission forbids the request."""
        return self.status == 403

    @property
    def invalid(self) -> bool:
        """Return whether validation refused the object, or a test in a JSON Patch failed."""
        return self.status == 422

    @property
    def gone(self) -> bool:
        """Return whether the API server cannot serve the resource version of the request.

        The caller should list again without a version. These errors say this: 410 Gone and Expired, and 504 Timeout
        whose cause says that the server has not reached that version yet.
        """
        if self.status == 410 or self.api_reason in ("Gone", "Expired"):
            return True
        causes = self.details.get("causes")
        return isinstance(causes, list) and any(
            isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge" for cause in causes
        )


class Unreadable(ApiError):  # noqa: N818 - what the object is
    """The API server answered with an object that cannot be decoded.

    The fault is in the object, not in the server.
    """

    reason = "Unreadable"


class _Status(msgspec.Struct):
    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: dict[str, Any] | None = None


def from_status(
    body: bytes | msgspec.Raw, *, status: int = 0, retry_after: str | None = None, request: str = ""
) -> ApiError:
    """Return the error for a failed request or an ERROR event.

    Code, reason, message and details are those of the Status object in the body. If the body is no Status object, its
    first 200 bytes are the message.

    Args:
        body: The body of the answer, or the object of an ERROR event.
        status: The HTTP status; 0 for the code in the Status object.
        retry_after: The Retry-After header. Only seconds are understood, which is what the API server sends.
        request: Method and path of the request, for the message.
    """
    status_object: _Status
    try:
        status_object = codec.decode(body, _Status)
    except codec.BadJson:  # a proxy's page
        status_object = _Status(message=bytes(body)[:200].decode(errors="replace"))

    # The server names the wait in the header or in the Status object. A proxy may send a date instead of seconds.
    retry_after_text = (
        retry_after if retry_after is not None else (status_object.details or {}).get("retryAfterSeconds")
    )
    try:
        retry_after_s = None if retry_after_text is None else max(0.0, float(retry_after_text))
    except (TypeError, ValueError):
        retry_after_s = None
    return ApiError(
        status or status_object.code or 500,
        status_object.reason,
        status_object.message,
        status_object.details,
        retry_after_s=retry_after_s,
        request=request,
        is_status=status_object.kind == "Status",  # False for a proxy's page
    )


def asked_s(error: Exception | None, longest_s: float) -> float:
    """Return for how many seconds the API server asked to wait (Retry-After), at most ``longest_s``.

    The result is 0 if the error does not ask for a wait.
    """
    asked = error.retry_after_s if isinstance(error, ApiError) else None
    return min(asked or 0.0, longest_s)
