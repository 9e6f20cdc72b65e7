"""Passes each admission review to the function that answers it, and counts metrics.

``server.Endpoint`` calls it.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import Counter, Histogram

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.policies.policy_sections import Policies
from dradriver.kube.labelled_metrics import Labelled
from dradriver.process.policies_file import PoliciesFile
from webhook import create, desired, patch, pod_view, review, stored_policies, translate, update, validate, workloads

logger = logging.getLogger(__name__)

POLICIES_PATH: Final = "/validate-policies"
"""The path of reviews of the policies file. To read a file of the largest size takes some tenths of a second."""

OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE", "CONNECT", "other")
RESULTS: Final = ("allowed", "patched", "denied", "invalid")

REQUESTS: Final = Labelled(
    Counter,
    "gpu_topology_admission_requests_total",
    "Admission requests that the webhook answered.",
    operation=OPERATIONS,
    result=RESULTS,
)
SECONDS: Final = Labelled(
    functools.partial(Histogram, buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)),
    "gpu_topology_admission_request_duration_seconds",
    "Time from a request's body to its answer.",
    operation=OPERATIONS,
)
_COUNTERS: Final = {(o, r): REQUESTS.labels(o, r) for o in OPERATIONS for r in RESULTS}
_CLOCKS: Final = {o: SECONDS.labels(o) for o in OPERATIONS}

Answer = tuple[bytes, str]
"""The body, and the result for the metric."""

_Create = Callable[[pod_view.Pod, Policies], tuple[desired.Desired | None, list[str]]]


class Admission:
    """Answers reviews of pods, workloads, claims and the policies file.

    Args:
        controller_user: The controller's user name. The webhook does not change pods in the controller's updates.
        policies: The policies file, which defines the names of policies and workloads. Without it, the defaults apply.
        keeps_nvsentinel: Whether the controller writes NVSentinel's annotation. Then other users cannot change it.
    """

    def __init__(
        self, *, controller_user: str, policies: PoliciesFile | None = None, keeps_nvsentinel: bool = False
    ) -> None:
        self._controller_user = controller_user
        self._read_pod = functools.partial(
            pod_view.read, also_written=(names.NVSENTINEL_DEVICES,) if keeps_nvsentinel else ()
        )
        self._policies = policies or PoliciesFile()
        self._paths: dict[str, Callable[[review.Request], Answer]] = {
            "/mutate-pods": self.mutate_pod,
            "/translate-pods": functools.partial(self.mutate_pod, created=translate.translate),
            "/mutate-workloads": self.mutate_workload,
            "/validate-claims": self.validate_claim,
            POLICIES_PATH: self.validate_policies,
        }

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths that admission reviews are posted to."""
        return tuple(self._paths)

    def answer(self, path: str, body: bytes) -> bytes:
        """Return the admission answer to a review that was posted to one of the paths.

        Raises:
            ReviewError: The body is not a review.
        """
        started = time.perf_counter()
        operation, result = "other", "invalid"
        try:
            request = review.decode(body)
            operation = request.operation if request.operation in OPERATIONS else "other"
            encoded, result = self._paths[path](request)
        finally:
            _COUNTERS[operation, result].inc()
            _CLOCKS[operation].observe(time.perf_counter() - started)
        return encoded

    def mutate_pod(self, request: review.Request, *, created: _Create = create.create) -> Answer:
        """Return the admission answer to CREATE or UPDATE of a pod; other operations are allowed.

        Args:
            request: The review's request.
            created: The function that decides about a new pod, for example a different one for pods with only GPU
                limits.
        """
        # The controller's own updates (notes, gates) are right already.
        by_controller = request.operation == "UPDATE" and request.user_info.username == self._controller_user
        if request.kind.kind != "Pod" or request.sub_resource or by_controller:
            return review.allow(request), "allowed"
        policies = self._policies.in_force
        try:
            if request.operation == "CREATE":
                pod = self._read_pod(request.object)
                desired_fields, warnings = created(pod, policies)
            elif request.operation == "UPDATE":
                pod = self._read_pod(request.object)
                desired_fields, warnings = update.update(pod, self._read_pod(request.old_object), policies)
            else:
                return review.allow(request), "allowed"
            # No desired fields: the pod is not for this driver.
            pod_patch = None if desired_fields is None else patch.write(pod, desired_fields)
        except WordError as error:
            return _deny(request, error)
        return review.allow(request, patch=pod_patch, warnings=warnings), "patched" if pod_patch else "allowed"

    def mutate_workload(self, request: review.Request) -> Answer:
        """Return the admission answer to CREATE or UPDATE of a workload that creates pods.

        Other operations are allowed.
        """
        if request.sub_resource or request.operation not in ("CREATE", "UPDATE"):
            return review.allow(request), "allowed"
        try:
            made, warnings = workloads.admitted(
                request.kind.kind, request.object, request.old_object, request.namespace, self._policies.in_force
            )
        except WordError as error:
            return _deny(request, error)
        return review.allow(request, patch=made, warnings=warnings), "patched" if made else "allowed"

    def validate_claim(self, request: review.Request) -> Answer:
        """Return the admission answer to CREATE or UPDATE of a claim or claim template.

        Other operations are allowed.
        """
        if request.sub_resource or request.operation not in ("CREATE", "UPDATE"):
            return review.allow(request), "allowed"
        try:
            warnings = validate.claim(
                request.kind.kind, request.object, request.old_object, policies=self._policies.in_force
            )
        except WordError as error:
            return _deny(request, error)
        return review.allow(request, warnings=warnings), "allowed"

    def validate_policies(self, request: review.Request) -> Answer:
        """Return the admission answer to CREATE or UPDATE of the ConfigMap with the policies file.

        Other operations are allowed. The answer depends on nothing but the object.
        """
        if request.kind.kind != "ConfigMap" or request.sub_resource or request.operation not in ("CREATE", "UPDATE"):
            return review.allow(request), "allowed"
        try:
            warnings = stored_policies.check(request.object, request.old_object)
        except stored_policies.InvalidPoliciesError as error:
            return _deny(request, error, details=error.errors)
        except WordError as error:
            return _deny(request, error)
        return review.allow(request, warnings=warnings), "allowed"


def _deny(request: review.Request, error: WordError, *, details: Sequence[str] = ()) -> Answer:
    where = f"{request.namespace[:63]}/{request.name[:253] or '(generated name)'}"
    logger.info("%s", review.shorten(f"denied {request.operation} of {request.kind.kind[:63]} {where}: {error}", 2048))
    return review.deny(request, str(error), details=details), "denied"
