"""What is excused: nobody can keep a promise while the server is away, or just after being killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dradriver.kube.client import ApiError
from dradriver.kube.resources import CONFIG_MAPS, PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Key
from tests.fakes.control_plane.jobs import JOBS
from tests.fakes.storeclient import Call
from tests.simulator.cast import claim_of
from tests.simulator.faults import server_trouble

OWN_BACKOFF_S: Final = 40.0  # after a pod's own write failed, for that pod
OWNER_BACKOFF_S: Final = 65.0  # the same of what made its pods: its longest pause is a minute
ALL_BACKOFF_S: Final = 12.0  # after the server as a whole was in trouble, for all


class Health:
    """Until when the controller as a whole, and single pods, are excused for being late.

    Attributes:
        together: Pods, and the claim itself, by each pod that shares it, and those of a gang: they wait for each other.
        not_stored: By replica, when the server last refused to store what the next leader must know.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all = 0.0
        self._pods: dict[Key, float] = {}
        self.together: dict[Key, list[Key]] = {}
        self.not_stored: dict[int, float] = {}

    def trouble(self, for_s: float) -> None:
        """Excuse everything for so long."""
        self._all = max(self._all, self._clock() + for_s)

    def excuse(self, pod: Key, for_s: float) -> None:
        """Excuse what concerns one pod for so long."""
        self._pods[pod] = max(self._pods.get(pod, 0.0), self._clock() + for_s)

    def since(self, pod: Key | None = None) -> float:
        """Return since when, or from when on, nothing excuses any more: of a pod and those it shares a claim with."""
        if pod is None:
            return self._all
        return max(self._all, *(self._pods.get(key, 0.0) for key in (pod, *self.together.get(pod, ()))))

    def failed(self, call: Call, error: Exception) -> None:
        """Excuse what a request's failure explains."""
        answer = error if isinstance(error, ApiError) else None
        if call.plural in (PODS.plural, RESOURCE_CLAIMS.plural) and call.name:
            self.excuse(pod_of(call), OWN_BACKOFF_S)
        if call.plural == JOBS.plural and call.name:
            self.excuse(call.key, OWNER_BACKOFF_S)
        if call.plural == CONFIG_MAPS.plural and call.writes:
            self.not_stored[call.replica] = self._clock()
        if answer is None or server_trouble(answer):
            retry_after_s = (answer.retry_after_s if answer is not None else None) or 0.0
            self.trouble(ALL_BACKOFF_S + retry_after_s)


def pod_of(call: Call) -> Key:
    """Return the pod that a request is about: claims are named after theirs."""
    if call.plural == RESOURCE_CLAIMS.plural:
        return call.namespace, call.name.removeprefix(claim_of(""))
    return call.key
