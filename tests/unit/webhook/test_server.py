"""The HTTPS endpoints: reviews in, reviews out, and what is no review."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import aiohttp
import pytest
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import RawTestServer, TestClient, make_mocked_request
from prometheus_client import REGISTRY

from dradriver.api.base import names
from dradriver.api.claims import opaque_config
from tests.fakes.admission import CONTROLLER, body, defaulted, pod
from webhook import review, server, tls
from webhook.admission import POLICIES_PATH, Admission

Http = TestClient[web.BaseRequest, None]
UUID = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    client: Http
    async with TestClient(RawTestServer(endpoint().handle)) as client:
        yield client


def endpoint(*, wait_s: float = 4.0) -> server.Endpoint:
    return server.Endpoint(Admission(controller_user=CONTROLLER), wait_s=wait_s)


async def post(http: Http, path: str, sent: object) -> dict[str, Any]:
    async with http.post(path, json=sent) as answer:
        assert answer.status == 200, await answer.text()
        made: dict[str, Any] = await answer.json()
    assert (made["apiVersion"], made["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert made["response"]["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
    return dict(made["response"])


async def test_a_patch_is_base64_of_a_json_patch(http: Http) -> None:
    response = await post(http, "/mutate-pods", body(defaulted(pod(2, annotations={names.POLICY: "nvlink"}))))
    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    paths = [operation["path"] for operation in json.loads(base64.b64decode(response["patch"]))]
    assert "/metadata/annotations/gpu.topology~1request" in paths


async def test_an_untouched_object_has_no_patch(http: Http) -> None:
    assert set(await post(http, "/mutate-pods", body(defaulted(pod(2))))) == {"uid", "allowed"}


async def test_a_refusal_is_an_answer_with_code_and_message(http: Http) -> None:
    response = await post(http, "/mutate-pods", body(defaulted(pod(2, annotations={names.POLICY: "x"}))))
    assert response["allowed"] is False
    assert response["status"]["code"] == 400
    assert names.POLICY in response["status"]["message"]


async def test_a_dry_run_gets_the_same_answer(http: Http) -> None:
    sent = body(defaulted(pod(2, annotations={names.POLICY: "nvlink"})), dryRun=True)
    assert "patch" in await post(http, "/mutate-pods", sent)


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (b"", "The body is not an AdmissionReview"),
        (b"{", "The body is not an AdmissionReview"),
        (b"\xff\xfe", "The body is not an AdmissionReview"),
        (b'{"request":"\\ud800"}', "The body is not an AdmissionReview"),
        (b"[]", "The body is not an AdmissionReview"),
        (b"[" * 100_000, "The body is not an AdmissionReview"),
        (b'{"apiVersion":"v1","kind":"Pod","request":{"uid":"","operation":""}}', "admission.k8s.io/v1"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', "request"),
    ],
    ids=["empty", "cut", "no text", "half a character", "list", "deep", "other kind", "no request"],
)
async def test_what_is_no_review_gets_400(http: Http, sent: bytes, part: str) -> None:
    async with http.post("/mutate-pods", data=sent) as answer:
        assert answer.status == 400
        assert part in await answer.text()


async def test_an_object_that_is_nested_too_deeply_gets_400(http: Http) -> None:
    sent = defaulted(pod(2, annotations={names.POLICY: "nvlink"}))
    sent["spec"]["x"] = "deep"
    text = json.dumps(body(sent)).replace('"deep"', "[" * 100_000 + "]" * 100_000)
    async with http.post("/mutate-pods", data=text) as answer:
        assert answer.status == 400
        assert "recursion" in await answer.text()


@pytest.mark.parametrize("size", [server.MOST_BYTES + 1, server.SMALL + 1, 10])
async def test_a_body_over_the_bound_is_refused_however_it_is_sent(http: Http, size: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(-(-size // 65536)):
            yield b" " * 65536

    expected = 413 if size > server.MOST_BYTES else 400
    async with http.post("/mutate-pods", data=io.BytesIO(b" " * size)) as answer:
        assert answer.status == expected
    async with http.post("/mutate-pods", data=chunks()) as answer:
        assert answer.status == expected


async def test_a_body_over_the_bound_is_answered_with_a_status_that_says_what_to_do(http: Http) -> None:
    """The API server shows users the message of a Status, and nothing of another body."""
    async with http.post("/mutate-pods", data=io.BytesIO(b" " * (server.MOST_BYTES + 1))) as answer:
        status = await answer.json()
    assert (status["kind"], status["apiVersion"], status["status"], status["code"]) == ("Status", "v1", "Failure", 413)
    assert status["message"].startswith(
        f"The old and the new object have {server.MOST_BYTES + 1} bytes of JSON together"
    )
    assert "Make the object smaller" in status["message"]


async def test_only_known_paths_are_posted_to(http: Http) -> None:
    async with http.post("/mutate", data=b"{}") as answer:
        assert answer.status == 404
        assert "/mutate-pods" in await answer.text()
    async with http.get("/mutate-pods") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")


async def held(port: int, size: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection whose body is announced and begun, but never ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /mutate-pods HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b" " * 1000)
    await writer.drain()
    return reader, writer


@pytest.mark.slow
async def test_large_bodies_that_never_end_do_not_keep_small_ones_waiting_and_are_refused_in_time() -> None:
    """They hold all bytes that there are for large bodies; more large ones wait for a turn, and in vain."""
    sent = body(defaulted(pod(2, annotations={names.POLICY: "nvlink"})))
    handler = endpoint(wait_s=2.0).handle  # not less: the last body has to come in time
    async with (
        server.serve(handler, port=0, context=None, host="127.0.0.1") as port,
        aiohttp.ClientSession() as session,
    ):
        hostile = [await held(port, server.MOST_BYTES) for _ in range(16)]
        async with session.post(f"http://127.0.0.1:{port}/mutate-pods", json=sent) as answer:
            assert answer.status == 200
        for reader, writer in hostile:
            status = await reader.readline()
            assert status.startswith(b"HTTP/1.1 429")
            writer.close()
        # What they held is free again.
        padded = json.dumps(body(defaulted(pod(2)), padding="x" * server.SMALL))
        async with session.post(f"http://127.0.0.1:{port}/mutate-pods", data=padded) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/mutate-pods", body(defaulted(pod(2)), padding="x" * server.SMALL)),
        (POLICIES_PATH, body({"data": {"policies.yaml": "weights: {}"}}, kind="ConfigMap")),
    ],
    ids=["large", "policies"],
)
async def test_other_work_is_done_between_two_answers_that_take_long(path: str, sent: dict[str, Any]) -> None:
    done = []

    class Recording(Admission):
        def answer(self, path: str, body: bytes) -> bytes:
            done.append("answer")
            asyncio.get_running_loop().call_soon(done.append, "other")
            return super().answer(path, body)

    handle = server.Endpoint(Recording(controller_user=CONTROLLER)).handle
    text = json.dumps(sent).encode()

    def request() -> web.BaseRequest:
        content = aiohttp.StreamReader(mock.create_autospec(BaseProtocol), 1 << 16)
        content.feed_data(text)
        content.feed_eof()
        return make_mocked_request("POST", path, {"Content-Length": str(len(text))}, payload=content)

    answers = await asyncio.gather(*(handle(request()) for _ in range(3)))
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert done[:5] == ["answer", "other"] * 2 + ["answer"]


async def test_a_compressed_body_is_not_unpacked() -> None:
    packed = gzip.compress(json.dumps(body(defaulted(pod(2)))).encode())
    async with (
        server.serve(endpoint().handle, port=0, context=None, host="127.0.0.1") as port,
        aiohttp.ClientSession() as session,
    ):
        url, headers = f"http://127.0.0.1:{port}/mutate-pods", {"Content-Encoding": "gzip"}
        async with session.post(url, data=packed, headers=headers) as answer:
            assert answer.status == 400


@pytest.mark.parametrize("broken", [None, [], "pod", {"metadata": {}}, {"metadata": {"labels": []}, "spec": {}}])
async def test_an_object_that_is_no_pod_is_refused(http: Http, broken: object) -> None:
    response = await post(http, "/mutate-pods", body(broken))
    assert response["allowed"] is False
    assert "The object is not a valid Pod" in response["status"]["message"]


def claim(*entries: object, template: bool = False) -> dict[str, Any]:
    spec: dict[str, Any] = {"devices": {"requests": [{"name": "c0"}], "config": list(entries)}}
    kind = "ResourceClaimTemplate" if template else "ResourceClaim"
    return {"kind": kind, "metadata": {"name": "c"}, "spec": {"spec": spec} if template else spec}


def opaque(parameters: object, *, driver: str = names.DRIVER) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": parameters}}


GOOD = opaque_config.make(order={"c0": [UUID]}, keep_env=["NCCL_ALGO"])


@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (GOOD | {"colour": "red"}, "colour"),
        (GOOD | {"apiVersion": "gpu.topology/v9"}, "Write apiVersion: gpu.topology/v1alpha1"),
        (GOOD | {"order": {"c0": ["GPU 1"]}}, "'GPU 1'"),
        (None, "object"),
        (GOOD | {"order": {"c1": [UUID]}}, "order: the claim has no request 'c1'"),
        (GOOD | {"mig": {"c0/a": {"profile": "1g.10gb"}}}, "mig: the claim has no request 'c0/a'"),
    ],
    ids=["unknown field", "version", "uuid", "nothing", "order of no request", "slice of no request"],
)
async def test_a_bad_configuration_is_refused_with_its_path(http: Http, template: bool, bad: object, part: str) -> None:
    sent = claim(opaque(GOOD), opaque({"a": 1}, driver="gpu.nvidia.com"), opaque(bad), template=template)
    response = await post(http, "/validate-claims", body(sent, kind=sent["kind"]))
    assert response["allowed"] is False
    path = "spec.spec.devices" if template else "spec.devices"
    assert response["status"]["message"].startswith(f"{path}.config[2].opaque.parameters: ")
    assert part in response["status"]["message"]


@pytest.mark.parametrize("template", [False, True])
async def test_good_configurations_and_those_of_others_pass(http: Http, template: bool) -> None:
    sent = claim(opaque(GOOD), opaque("x", driver="gpu.nvidia.com"), {"requests": ["c0"]}, template=template)
    assert (await post(http, "/validate-claims", body(sent, kind=sent["kind"])))["allowed"] is True
    assert (await post(http, "/validate-claims", body({"spec": {}}, kind="ResourceClaim")))["allowed"] is True


async def test_a_claim_that_was_let_in_before_can_lose_its_finalizers(http: Http) -> None:
    old = claim(opaque({"colour": "red"}))
    new = old | {"metadata": {"name": "c", "finalizers": []}}
    assert (await post(http, "/validate-claims", body(new, old=old, kind="ResourceClaim")))["allowed"] is True
    changed = claim(opaque({"colour": "blue"}))
    assert (await post(http, "/validate-claims", body(changed, old=old, kind="ResourceClaim")))["allowed"] is False


def counted(operation: str, result: str) -> float:
    labels = {"operation": operation, "result": result}
    return REGISTRY.get_sample_value("gpu_topology_admission_requests_total", labels) or 0.0


async def test_requests_are_counted_without_words_of_tenants(http: Http) -> None:
    cases = [
        ("CREATE", "patched", body(defaulted(pod(2, annotations={names.POLICY: "nvlink"})))),
        ("CREATE", "denied", body(defaulted(pod(2, annotations={names.POLICY: "no"})))),
        ("CREATE", "allowed", body(defaulted(pod(2)))),
        ("other", "allowed", body(defaulted(pod(2)), operation="a-tenants-word")),
    ]
    for operation, result, sent in cases:
        before = counted(operation, result)
        await post(http, "/mutate-pods", sent)
        assert counted(operation, result) == before + 1
    assert REGISTRY.get_sample_value("gpu_topology_admission_request_duration_seconds_count", {"operation": "CREATE"})


async def test_tls_1_1_is_not_spoken() -> None:
    assert tls.server_context().minimum_version == ssl.TLSVersion.TLSv1_2


async def test_the_server_without_a_certificate_refuses_handshakes() -> None:
    trust_all = ssl.create_default_context()
    trust_all.check_hostname, trust_all.verify_mode = False, ssl.CERT_NONE
    async with (
        server.serve(endpoint().handle, port=0, context=tls.server_context(), host="127.0.0.1") as port,
        aiohttp.ClientSession() as session,
    ):
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.post(f"https://127.0.0.1:{port}/mutate-pods", ssl=trust_all)


def test_text_for_people_stays_on_one_line_and_within_bounds() -> None:
    assert review.shorten("a\nb\x1b[31mc\u202e", 100) == "a?b?[31mc?"
    assert review.shorten("x" * 10, 5) == "xxxx…"
