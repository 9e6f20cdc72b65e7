"""AdmissionReview v1: reading the API server's question and writing the answer."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dradriver.errors import DriverError

MOST_BYTES: Final = 8 << 20  # a review holds two objects of at most 3 MiB (apiserver's MaxRequestBodyBytes)
MOST_WARNING: Final = 256  # characters; the API server cuts off longer ones (admission/v1 AdmissionResponse)
MOST_MESSAGE: Final = 2048

_API_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"


class ReviewError(DriverError):
    """The body is no AdmissionReview. There is no uid to answer to, so the caller gets a plain HTTP 400."""

    reason = "BadReview"


class Kind(msgspec.Struct, frozen=True):
    """The kind of the object in question."""

    kind: str = ""


class User(msgspec.Struct, frozen=True):
    """Who asks."""

    username: str = ""


class Request(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The question. ``object`` and ``old_object`` are plain decoded JSON: nothing in them may be lost."""

    uid: str
    operation: str
    kind: Kind = Kind()
    sub_resource: str | None = None
    namespace: str = ""
    name: str = ""
    user_info: User = User()
    object: Any = None
    old_object: Any = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: Request


def decode(body: bytes) -> Request:
    """Return the request of a review.

    Raises:
        ReviewError: The body is not an AdmissionReview of ``admission.k8s.io/v1`` with a request.
    """
    try:
        review = msgspec.json.decode(body, type=_Review)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"the body is no {_KIND}: {error}") from None
    if (review.api_version, review.kind) != (_API_VERSION, _KIND):
        raise ReviewError(
            f"the body is a {review.kind[:64]!r} of {review.api_version[:64]!r}; send an {_KIND} of {_API_VERSION}"
        )
    return review.request


def allow(request: Request, *, patch: Sequence[dict[str, Any]] = (), warnings: Sequence[str] = ()) -> bytes:
    """Return the answer that lets the object in, changed by a JSON Patch where there is one."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if patch:
        encoded = base64.b64encode(msgspec.json.encode(patch)).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}
    if warnings:
        response["warnings"] = [shorten(warning, MOST_WARNING) for warning in warnings]
    return _encode(response)


def deny(request: Request, message: str, *, code: int = 400, reason: str = "BadRequest") -> bytes:
    """Return the answer that refuses the object; people read ``message`` after "denied the request:"."""
    status = {"status": "Failure", "code": code, "reason": reason, "message": shorten(message, MOST_MESSAGE)}
    return _encode({"uid": request.uid, "allowed": False, "status": status})


def shorten(text: str, most: int) -> str:
    """Return the text on one line, cut to so many characters."""
    line = "".join(character if character.isprintable() else "?" for character in text)
    return line if len(line) <= most else line[: most - 1] + "…"


def _encode(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": _API_VERSION, "kind": _KIND, "response": response})
