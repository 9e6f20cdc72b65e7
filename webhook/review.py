"""AdmissionReview v1: reading the API server's question and writing the answer."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from dradriver.api.base.jsonpatch import Patch
from dradriver.errors import DriverError

MOST_WARNINGS: Final = 8
MOST_WARNING: Final = 256  # characters; the API server cuts off longer ones (admission/v1 AdmissionResponse)
MOST_MESSAGE: Final = 2048
MOST_DETAILS: Final = 8192  # characters of all details of a refusal

_API_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"
_PIECE: Final = 1 << 16  # bytes: a large body is never held as text as a whole


class ReviewError(DriverError):
    """The body of a request is not an AdmissionReview.

    Without a review there is no uid to answer to, so the server answers with a plain HTTP 400.
    """

    reason = "BadReview"


class GroupVersionKind(msgspec.Struct, frozen=True, gc=False):
    """The kind of the reviewed object, with its API group and version."""

    kind: str = ""


class User(msgspec.Struct, frozen=True, gc=False):
    """The user who sent the request."""

    username: str = ""


class Request(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """The request of an admission review.

    ``object`` and ``old_object`` stay JSON. The function for their kind decodes them later.
    """

    uid: str
    operation: str
    kind: GroupVersionKind = GroupVersionKind()
    sub_resource: str | None = None
    namespace: str = ""
    name: str = ""
    user_info: User = User()
    object: Raw = Raw(b"null")
    old_object: Raw = Raw(b"null")


class _Review(msgspec.Struct, rename="camel", gc=False):
    api_version: str
    kind: str
    request: Request


_DECODER: Final = msgspec.json.Decoder(_Review)
_ENCODER: Final = msgspec.json.Encoder()


def decode(body: bytes) -> Request:
    """Return the request of an admission review's body.

    Raises:
        ReviewError: The body is not an AdmissionReview of ``admission.k8s.io/v1`` with a request.
    """
    try:
        _check_text(body)
        review = _DECODER.decode(body)
    except (ValueError, RecursionError) as error:
        raise ReviewError(f"The body is not an {_KIND}: {error}.") from None
    if (review.api_version, review.kind) != (_API_VERSION, _KIND):
        raise ReviewError(
            f"The body is a {review.kind[:64]!r} of {review.api_version[:64]!r}. Send an {_KIND} of {_API_VERSION}."
        )
    return review.request


def _check_text(body: bytes) -> None:
    """Raise unless the body of a review is UTF-8.

    The JSON decoder does not check text that it skips. Such text could be copied into a patch.

    Raises:
        UnicodeDecodeError: The body is not UTF-8.
    """
    if body.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(body), _PIECE):
        decoder.decode(body[at : at + _PIECE])
    decoder.decode(b"", final=True)


def allow(request: Request, *, patch: Patch | None = None, warnings: Sequence[str] = ()) -> bytes:
    """Return the answer to a review that allows the object.

    It has at most ``MOST_WARNINGS`` warnings. If there are more, the last line says how many are left out.

    Args:
        request: The request.
        patch: The changes of the object; None for no change.
        warnings: Warnings for the user.
    """
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_ENCODER.encode(patch.ops)).decode()
    if warnings:
        if len(warnings) > MOST_WARNINGS:
            kept = warnings[: MOST_WARNINGS - 1]
            warnings = [*kept, f"There are {len(warnings) - len(kept)} more warnings."]
        response["warnings"] = [shorten(warning, MOST_WARNING) for warning in warnings]
    return _encode(response)


def deny(
    request: Request,
    message: str,
    *,
    details: Sequence[str] = (),
    code: int = 400,
    reason: str = "BadRequest",
) -> bytes:
    """Return the answer to a review that refuses the object.

    Args:
        request: The request.
        message: The reason. Users see it after "denied the request:".
        details: More lines, which follow the message. If they have more than ``MOST_DETAILS`` characters, the last line
            says how many are left out.
        code: The HTTP status code.
        reason: The reason of the Status, in CamelCase.
    """
    lines, free = [shorten(message, MOST_MESSAGE)], MOST_DETAILS
    for number, detail in enumerate(details):
        line = shorten(detail, MOST_MESSAGE)
        free -= len(line)
        if free < 0:
            lines.append(f"{len(details) - number} more are left out.")
            break
        lines.append(line)
    status = {"status": "Failure", "code": code, "reason": reason, "message": "\n".join(lines)}
    return _encode({"uid": request.uid, "allowed": False, "status": status})


def failure(code: int, message: str) -> bytes:
    """Return a Kubernetes ``Status``, as JSON, for a request that could not be read as a review.

    The API server shows its message to the user.

    Args:
        code: The HTTP status code.
        message: The message.
    """
    status = {"status": "Failure", "code": code, "message": message}
    return _ENCODER.encode({"apiVersion": "v1", "kind": "Status"} | status)


def shorten(text: str, most: int) -> str:
    """Return a text on one line, cut to ``most`` characters."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


def _encode(response: dict[str, Any]) -> bytes:
    return _ENCODER.encode({"apiVersion": _API_VERSION, "kind": _KIND, "response": response})
