"""Classifies failed writes by their cause: the server, the moment (a retry can help), or the written object.

It also writes and reads the reason of a pod after a refused write.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from dradriver.counted import shortened
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Unreachable
from dradriver.kube.resources import RESOURCE_CLAIMS
from dradriver.reason import Cause, Reason, sentences

# What would help after a refusal, at the end of a reason.
_QUOTA_HELP: Final = "End pods of the namespace, or raise the ResourceQuota."
_OTHER_HELP: Final = "Change the pod, or the policy, webhook or right that this text names."
_REFUSES: Final = "The API server refuses "
_LONGEST: Final = 700  # characters of the server's text, so that the whole reason fits into the annotation
_MOST_READ: Final = 4096
# How the server's texts about an object begin (``NewForbidden`` and ``NewInvalid`` of k8s.io/apimachinery 1.36).
_OBJECT: Final = re.compile(r'^\S+( "[^"]*")? is (forbidden|invalid): ')

# What etcd's client says reaches clients as the API server got it: 500 without a reason (responsewriters/status.go of
# k8s.io/apiserver 1.36), or as an InternalError.
_STORAGE: Final = ("etcdserver:", "context deadline exceeded", "rpc error:")


class MovedOnError(DriverError):
    """The object of a write has changed since the decision about it.

    A reflector will show the change. Then the pod is processed again.
    """

    reason = "MovedOn"


class CrowdedError(DriverError):
    """The server could not create a claim, because others kept changing the namespace's quota."""

    reason = "Crowded"


class PausedError(DriverError):
    """The server wants a pause between several writes of one workload.

    The finished writes stay. The others are made later.
    """

    reason = "Paused"


class UnsureError(DriverError):
    """The answer to a claim's creation was lost, so the claim may exist."""

    reason = "AnswerLost"


class RefusedError(DriverError):
    """A gang cannot be restarted, or pods cannot be evicted.

    The text says why, and what helps.

    Attributes:
        retry_after_s: For how many seconds the server wants no other request; None if it did not say.
        pods: Uids of the pods that caused the refusal; empty if the cause is not in certain pods.
    """

    reason = "NotPermitted"
    retry_after_s: float | None = None
    pods: frozenset[str] = frozenset()


class Outcome(enum.Enum):
    """The cause of a failed write: the server, the moment, or the object."""

    SERVER = enum.auto()  # the server is in trouble, or has had enough of us: all pause, nobody loses a turn
    MOMENT = enum.auto()  # something came in between: the write is tried again after a pause, in its turn
    OBJECT = (
        enum.auto()
    )  # the write was refused for what it is: it backs off and falls behind, a gang after a few times


def outcome(error: DriverError) -> Outcome:
    """Return the cause of a failed write, by its verb, its object and the answer.

    ``SERVER`` pauses the writes for all pods. The other two causes pause only the writes for this pod. An error of a
    webhook must not stop other pods, so it is never ``SERVER``. Three errors can come from a webhook
    (mutating/dispatcher.go of k8s.io/apiserver 1.36):

    * The message names the webhook: ``OBJECT``.
    * 500 with the reason InternalError, because the patch of a webhook cannot be applied: ``MOMENT``.
    * 504, because several webhooks together took too long: ``MOMENT``.
    """
    if isinstance(error, Unreachable):
        return Outcome.MOMENT if error.timed_out else Outcome.SERVER
    if not isinstance(error, ApiError) or "webhook" in error.message or "denied" in error.message:
        return Outcome.OBJECT
    is_storage = any(text in error.message for text in _STORAGE)
    match error.status:
        # A pod that several PodDisruptionBudgets select cannot be evicted: 500 without a reason
        # (pkg/registry/core/pod/storage/eviction.go of Kubernetes 1.36).
        case 500 if error.request.endswith("/eviction") and error.is_status and not (error.api_reason or is_storage):
            return Outcome.OBJECT
        case 429 if error.request.endswith("/eviction") and error.api_reason:
            return Outcome.MOMENT  # from a disruption budget: a rate limit answers without a Status object
        case 401 | 429 | 503:
            return Outcome.SERVER
        case 504:
            return Outcome.MOMENT
        case status if status >= 500:
            return Outcome.SERVER if is_storage or error.api_reason != "InternalError" else Outcome.MOMENT
        case 409:
            return Outcome.MOMENT  # if it was a creation, another creation has changed the quota
        case _:
            return Outcome.OBJECT


def reason_of(error: ApiError | Unreachable, *, is_gang: bool) -> Reason:
    """Return the reason of a pod, or of a gang's pods, after a failed write.

    A refusal is a sentence with the server's text and what would help. Only the text shows that a quota refused
    (``plugin/pkg/admission/resourcequota/controller.go`` of Kubernetes 1.36).
    """
    if not isinstance(error, ApiError) or outcome(error) is not Outcome.OBJECT:
        return Reason(Cause.POD, error.message if isinstance(error, ApiError) and error.message else str(error))
    is_quota = error.forbidden and "exceeded quota" in error.message
    if not (error.request.startswith("POST ") and error.request.endswith(f"/{RESOURCE_CLAIMS.plural}")):
        refused = f"a write for the {'gang' if is_gang else 'pod'}"
    elif is_gang:
        refused = "a claim of the gang"
    else:
        refused = "the pod's claim"
    helps = _QUOTA_HELP if is_quota else _OTHER_HELP
    why = f"{_REFUSES}{refused}: {_server_text(error)}"
    return Reason(Cause.CAP if is_quota else Cause.POD, sentences(why, helps))


def _server_text(error: ApiError) -> str:
    """Return a refusal's text shortened, on one line, without the object's name in front.

    No object has the name of a claim that was not created, so it would only mislead.
    """
    text = error.message or f"{error.status} {error.api_reason}"
    text = "".join(character if character.isprintable() else " " for character in text[:_MOST_READ])
    return shortened(_OBJECT.sub("", " ".join(text.split())), _LONGEST)


def refusal_in(reason: str) -> tuple[str, str]:
    """Return the refusal in a pod's recorded reason, and what would help.

    Both texts are empty if the reason is no refusal.
    """
    for helps in (_QUOTA_HELP, _OTHER_HELP):
        if reason.startswith(_REFUSES) and reason.endswith(helps):
            return reason.removesuffix(helps).rstrip(), helps
    return "", ""
