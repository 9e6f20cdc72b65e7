"""What a failed write says of the server, of the moment and of the object, and whose turn it costs."""

from __future__ import annotations

import asyncio

import pytest

from dradriver.controller.writing.write_outcome import Outcome, outcome
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Unreachable
from dradriver.kube.errors import from_status
from dradriver.kube.resources import RESOURCE_CLAIMS
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.troubles import WEBHOOK, refuse, working

# Texts of Kubernetes 1.36.3: ErrorToAPIStatus, InterpretCreateError, ToStatusErr, ErrCallingWebhook, the eviction's
# createTooManyRequestsError, tooManyRequests of the filters and the quota's evaluator.
ETCD = ApiError(500, "", "etcdserver: request timed out")
CREATE = "POST /apis/resource.k8s.io/v1/namespaces/n/resourceclaims"
REFUSED = 'resourceclaims.resource.k8s.io "gpus-atm5ajvojl" is forbidden: '
EXCEEDED = "exceeded quota: cap, requested: count/claims=4, used: count/claims=0, limited: count/claims=2"
POLICY = "ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no"
QUOTA_HELP = "End pods of the namespace, or raise the ResourceQuota."
OTHER_HELP = "Change the pod, or the policy, webhook or right that this text names."
EVICT = "POST /api/v1/namespaces/n/pods/p/eviction"
QUOTA = ApiError(
    409,
    "Conflict",
    'Operation cannot be fulfilled on resourcequotas "gpus": the object has been modified; please apply your changes '
    "to the latest version and try again",
    request=CREATE,
)
SEVERAL = b'{"kind": "Status", "code": 500, "message": "This pod has more than one PodDisruptionBudget"}'
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ApiError(429, "", "Too many requests, please try again later."), Outcome.SERVER),
        (ApiError(503, "ServiceUnavailable", "the server is currently unable"), Outcome.SERVER),
        (ApiError(401, "Unauthorized", "Unauthorized"), Outcome.SERVER),
        (ETCD, Outcome.SERVER),
        (ApiError(500, "", "context deadline exceeded"), Outcome.SERVER),
        (ApiError(500, "", "etcdserver: leader changed"), Outcome.SERVER),
        (ApiError(500, "InternalError", "Internal error occurred: etcdserver: request timed out"), Outcome.SERVER),
        (ApiError(500, "ServerTimeout", "The create operation could not be completed at this time"), Outcome.SERVER),
        (ApiError(502, "", "<html>Bad Gateway"), Outcome.SERVER),
        (Unreachable("POST: connection refused"), Outcome.SERVER),
        (Unreachable("POST: timeout", timed_out=True), Outcome.MOMENT),
        (ApiError(504, "Timeout", "Timeout: request did not complete within requested timeout"), Outcome.MOMENT),
        (ApiError(500, "InternalError", "Internal error occurred: remove operation does not apply"), Outcome.MOMENT),
        (QUOTA, Outcome.MOMENT),
        (ApiError(429, "TooManyRequests", 'admission webhook "x" denied the request: no'), Outcome.OBJECT),
        (ApiError(500, "InternalError", WEBHOOK), Outcome.OBJECT),
        (
            ApiError(500, "InternalError", 'failed calling webhook "x": context deadline exceeded'),
            Outcome.OBJECT,
        ),
        (ApiError(403, "Forbidden", "exceeded quota"), Outcome.OBJECT),
        (ApiError(422, "Invalid", "no"), Outcome.OBJECT),
        (DriverError("anything"), Outcome.OBJECT),
    ],
)
def test_what_a_failure_says_something_about(error: DriverError, says: Outcome) -> None:
    assert outcome(error) is says


@pytest.mark.parametrize(
    ("request_", "reason", "says"),
    [
        (EVICT, "TooManyRequests", Outcome.MOMENT),
        (EVICT, "", Outcome.SERVER),
        (CREATE, "TooManyRequests", Outcome.SERVER),
    ],
)
def test_a_budget_that_refuses_an_eviction_is_no_trouble_of_the_servers(
    request_: str, reason: str, says: Outcome
) -> None:
    error = ApiError(429, reason, BUDGET if reason else "Too many requests, please try again later.", request=request_)
    assert outcome(error) is says


@pytest.mark.parametrize(
    ("body", "request_", "says"),
    [
        (SEVERAL, EVICT, Outcome.OBJECT),
        (SEVERAL, CREATE, Outcome.SERVER),
        (b"upstream failed", EVICT, Outcome.SERVER),
        (b'{"kind": "Status", "code": 500, "message": "etcdserver: request timed out"}', EVICT, Outcome.SERVER),
    ],
)
def test_a_pod_that_cannot_be_evicted_is_no_trouble_of_the_servers(body: bytes, request_: str, says: Outcome) -> None:
    assert outcome(from_status(body, status=500, request=request_)) is says


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [ETCD, QUOTA, ApiError(500, "InternalError", "Internal error occurred: no such patch")]
)
async def test_what_says_nothing_of_a_pod_costs_it_no_turn(error: ApiError) -> None:
    cluster = GpuCluster(promise_s=300, unschedulable_s=5)
    cluster.node("a")
    for number in range(24):
        cluster.pod(f"p{number:02d}", 1)
    cluster.client.refuse["create"] = [error] * 8
    async with working(cluster):
        await asyncio.sleep(20)
        cluster.node("b")
        await asyncio.sleep(20)
        placed = sorted(claim["metadata"]["name"] for claim in cluster.all(RESOURCE_CLAIMS))
        assert placed == [f"gpus-p{number:02d}" for number in range(16)], "not those behind them"


async def test_etcd_in_trouble_pauses_all_and_the_oldest_are_first_once_it_is_over() -> None:
    cluster = GpuCluster(promise_s=300, unschedulable_s=5)
    for name in "abcd":
        cluster.node(name)
    for number in range(24):
        cluster.pod(f"p{number:02d}", 8)
    down, calls = True, 0

    def answer() -> None:
        nonlocal calls
        calls += 1
        if down:
            raise ETCD

    refuse(cluster, "default", answer, verbs=("get", "create", "patch"))
    async with working(cluster):
        await asyncio.sleep(10)
        assert calls <= 80, "pauses grow"
        down = False
        await asyncio.sleep(30)
        placed = sorted(claim["metadata"]["name"] for claim in cluster.all(RESOURCE_CLAIMS))
        assert placed == [f"gpus-p{number:02d}" for number in range(4)]


@pytest.mark.parametrize(
    ("error", "says", "helps"),
    [
        (ApiError(403, "Forbidden", REFUSED + EXCEEDED), EXCEEDED, QUOTA_HELP),
        (ApiError(403, "Forbidden", REFUSED + POLICY), POLICY, OTHER_HELP),
        (ApiError(422, "Invalid", POLICY + "."), POLICY, OTHER_HELP),
        (
            ApiError(422, "Invalid", 'ResourceClaim.resource.k8s.io "gpus-a" is invalid: spec: Required value'),
            "spec: Required value",
            OTHER_HELP,
        ),
        (
            ApiError(403, "Forbidden", 'resourceclaims.resource.k8s.io is forbidden: User "x" cannot create resource'),
            'User "x" cannot create resource',
            OTHER_HELP,
        ),
        (
            ApiError(400, "BadRequest", 'admission webhook "x" denied the request: two\nlines\x1b[31m'),
            'admission webhook "x" denied the request: two lines [31m',
            OTHER_HELP,
        ),
        (ApiError(500, "InternalError", WEBHOOK), WEBHOOK, OTHER_HELP),
        (ApiError(403), "403", OTHER_HELP),
    ],
)
async def test_a_pod_whose_claim_is_refused_says_so_in_a_sentence_with_a_remedy(
    error: ApiError, says: str, helps: str
) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    cluster.client.refuse["create"] = [error]
    await cluster.settle()
    assert cluster.note("p", "reason") == f"The API server refuses the pod's claim: {says}. {helps}"


async def test_a_long_text_of_the_server_leaves_room_for_the_remedy() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", REFUSED + EXCEEDED + "," * 5000)]
    await cluster.settle()
    reason = cluster.note("p", "reason") or ""
    assert len(reason) <= 1024
    assert reason.endswith(f",... {QUOTA_HELP}")


async def test_a_pod_whose_gate_may_not_be_removed_says_so() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    denied = 'admission webhook "x" denied the request: no'
    cluster.client.refuse["patch"] = [ApiError(400, "BadRequest", denied)]
    await cluster.settle()
    assert cluster.note("p", "reason") == f"The API server refuses a write for the pod: {denied}. {OTHER_HELP}"
