"""What goes wrong with a request: refused, lost on the way back, hung, or the last thing that its sender did."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from dradriver.kube.client import ApiError
from dradriver.kube.resources import RESOURCE_CLAIMS
from tests.fakes.control_plane.jobs import JOBS
from tests.fakes.storeclient import Call

WEBHOOK: Final = 'Internal error occurred: failed calling webhook "check.tenant.example.com": Post "https://x": EOF'

Refusal = tuple[int, str, str, float | None]
"""Status, reason, message, Retry-After."""

ETCD: Final[Refusal] = (500, "InternalError", "etcdserver: request timed out", None)
QUOTA_CONFLICT: Final[Refusal] = (
    409,
    "Conflict",
    'Operation cannot be fulfilled on resourcequotas "gpus": the object has been modified; please apply your changes '
    "to the latest version and try again",
    None,
)
UNPERMITTED: Final[Refusal] = (403, "Forbidden", 'User "controller" cannot patch resource', None)
REFUSALS: Final[tuple[Refusal, ...]] = (
    (400, "BadRequest", "the request is bad", None),
    (401, "Unauthorized", "Unauthorized", None),
    (403, "Forbidden", "claims is forbidden: exceeded quota: gpus, requested: count/resourceclaims=1", None),
    (404, "NotFound", "not found", None),
    (409, "Conflict", "Operation cannot be fulfilled: the object has been modified", None),
    (409, "AlreadyExists", "the object already exists", None),
    (410, "Gone", "the object is gone", None),
    (422, "Invalid", "denied by a policy of somebody's", None),
    (429, "TooManyRequests", "too many requests, please try again later", 2.0),
    (500, "InternalError", WEBHOOK, None),
    ETCD,
    (503, "ServiceUnavailable", "apiserver is shutting down", None),
    (504, "Timeout", "request did not complete within the requested timeout", None),
)
OTHER_WAYS: Final = ("lost", "timeout", "hang", "kill-before", "kill-after")

How = Literal["well", "refused", "lost", "timeout", "hang", "kill-before", "kill-after"]


def gist(call: Call) -> str:
    """Return what is written, in short: the devices of a claim, the operations of a patch, or all that there is."""
    if call.verb == "create" and call.plural == RESOURCE_CLAIMS.plural:
        requests = call.body["spec"].get("devices", {}).get("requests", ())
        selectors = [selector for r in requests for selector in r.get("exactly", {}).get("selectors", ())]
        texts = [selector["cel"]["expression"] for selector in selectors]
        return " ".join(text[text.rindex("[") :] for text in texts) or "no device in particular"
    if isinstance(call.body, list):
        ops = [(op["op"], op["path"].rpartition("/")[2].replace("~1", "/"), op.get("value")) for op in call.body]
        return ", ".join(f"{op} {last} {value!r:.60}" for op, last, value in ops)
    return str(call.body.get("metadata", call.body) if call.body else "")


@dataclass(slots=True)
class Fate:
    """What becomes of a request: how long it takes to the server and back, and what goes wrong."""

    how: How = "well"
    there_s: float = 0.002
    back_s: float = 0.002
    error: ApiError | None = None
    done: bool = True  # whether a request that is lost, or timed out, was done all the same

    @property
    def label(self) -> str:
        if self.error is not None:
            webhook = " webhook" if self.error.message == WEBHOOK else ""
            return f"{self.error.status} {self.error.api_reason}{webhook}"
        return self.how if self.how == "well" or self.how.startswith("kill") else f"{self.how} done={self.done}"


class Storm(NamedTuple):
    """Requests that are refused with one answer for a while; nothing said of them means any."""

    begin: float
    end: float
    rng: random.Random
    rate: float
    refusal: Refusal
    verb: str = ""
    plural: str = ""
    namespace: str = ""

    def meets(self, call: Call, now: float) -> bool:
        """Return whether it meets a request, as chance has it."""
        about = ((self.verb, call.verb), (self.plural, call.plural), (self.namespace, call.namespace))
        return (
            self.begin <= now < self.end and all(own in ("", of) for own, of in about) and self.rng.random() < self.rate
        )


@dataclass
class Plan:
    """The faults of one seed.

    Attributes:
        rate: How often a write goes wrong while faults last.
        planned: What goes wrong with which write, counted over all controllers, once.
        refusing: Namespaces where every write of a kind is refused, for ever, with what.
        unpermitted: Namespaces and kinds that no controller may write, for ever; nothing else there is in trouble.
        owners: What goes wrong with the first writes to Jobs, of those that are not ``well``.
        denied: Names of objects that may not be created while faults last, and with what that is refused.
        hanging: Names of objects whose writes hang.
        storms: What is refused for a while, beside these.
        spared: Namespaces that meet nothing but these.
        heavy: How long it takes to read an object of a namespace.
        until: When faults end, but for ``refusing`` and ``storms``.
        slow: How often a request, or its answer, takes up to 2 s.
    """

    rng: random.Random
    rate: float = 0.0
    planned: dict[int, str | int] = field(default_factory=dict)
    refusing: dict[tuple[str, str], int] = field(default_factory=dict)
    unpermitted: set[tuple[str, str]] = field(default_factory=set)
    owners: list[How] = field(default_factory=list)
    denied: dict[str, int] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    storms: list[Storm] = field(default_factory=list)
    spared: set[str] = field(default_factory=set)
    heavy: dict[str, float] = field(default_factory=dict)
    until: float = 0.0
    slow: float = 0.02
    met: dict[tuple[str, str], int] = field(default_factory=dict)
    _writes: int = 0

    def fate(self, call: Call, now: float) -> Fate:
        """Return what becomes of a request that is sent now."""
        fate = Fate(there_s=self._latency_s(now), back_s=self._latency_s(now))
        if not call.writes:
            if call.verb == "get":
                fate.back_s += self.heavy.get(call.namespace, 0.0)
            return fate
        self._writes += 1
        if (refusal := self.refusing.get((call.namespace, call.plural))) is not None:
            self._refuse(fate, REFUSALS[refusal])
        elif (call.namespace, call.plural) in self.unpermitted:
            self._refuse(fate, UNPERMITTED)
        elif call.plural == JOBS.plural and self.owners:
            fate.how, fate.done = self.owners.pop(), self.rng.random() < 0.7
        elif (storm := next((one for one in self.storms if one.meets(call, now)), None)) is not None:
            self._refuse(fate, storm.refusal)
        elif now < self.until and call.verb == "create" and call.name in self.denied:
            self._refuse(fate, REFUSALS[self.denied[call.name]])
        elif now < self.until and call.namespace not in self.spared:
            if call.name in self.hanging:
                fate.how, fate.done = self.rng.choice(("hang", "timeout")), self.rng.random() < 0.3
            else:
                kind = self.planned.pop(self._writes, None)
                if kind is None and self.rng.random() < self.rate:
                    kind = self.kind()
                if isinstance(kind, int) and REFUSALS[kind][0] == 404 and call.verb == "delete":
                    pass  # no server says that what is there is not there to be deleted
                elif isinstance(kind, int):
                    self._refuse(fate, REFUSALS[kind])
                elif kind is not None:
                    fate.how, fate.done = kind, self.rng.random() < 0.7  # type: ignore[assignment]
        if fate.how != "well":
            what = (f"{call.verb} {call.plural}", fate.label)
            self.met[what] = self.met.get(what, 0) + 1
        return fate

    def kind(self) -> str | int:
        """Return a fault, each as often: the number of a refusal, or the name of another way."""
        number = self.rng.randrange(len(REFUSALS) + len(OTHER_WAYS))
        return number if number < len(REFUSALS) else OTHER_WAYS[number - len(REFUSALS)]

    def _refuse(self, fate: Fate, refusal: Refusal) -> None:
        status, reason, message, retry_after_s = refusal
        fate.how = "refused"
        fate.error = ApiError(status, reason, message, retry_after_s=retry_after_s)

    def _latency_s(self, now: float) -> float:
        if now < self.until and self.rng.random() < self.slow:
            return self.rng.uniform(0.05, 2.0)
        return self.rng.uniform(0.0005, 0.006)


def server_trouble(error: ApiError) -> bool:
    """Return whether a refusal says that the server is in trouble, and not one object."""
    return error.message != WEBHOOK and (error.status in (401, 408, 429) or error.status >= 500)
