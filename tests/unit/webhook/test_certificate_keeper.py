"""Self-managed certificates against an API server: replicas, rotation, upgrades, failures."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509

from dradriver.kube.client import Client
from dradriver.kube.errors import ApiError
from dradriver.kube.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS
from tests.fakes.admission import CONTROLLER, body, defaulted, pod
from tests.fakes.apiserver import FakeApiServer
from tests.unit.webhook.test_certificates import HOSTS, START, served, trusts
from webhook import certificate_keeper, certificates, mounted_certificate, server, tls
from webhook.admission import Admission

DAY = datetime.timedelta(days=1)
MINUTE = datetime.timedelta(minutes=1)


class Clock:
    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> datetime.datetime:
        return self.time


class Replica:
    """One replica's keeper and the context that its server serves with."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self.context = tls.server_context()
        self.keeper = certificate_keeper.Keeper(
            client,
            namespace="gpu",
            secret="certificates",
            service="hook",
            configurations=certificate_keeper.configurations(mutating="hooks", validating="checks"),
            context=self.context,
            now=clock,
        )


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as api:
        install(api)
        yield api


@pytest.fixture
async def client(api: FakeApiServer) -> AsyncIterator[Client]:
    async with Client(api.config, user_agent="test") as client:
        yield client


def install(api: FakeApiServer) -> None:
    for resource, name in ((MUTATING_WEBHOOKS, "hooks"), (VALIDATING_WEBHOOKS, "checks")):
        hooks = [
            {"name": f"{n}.gpu.topology", "clientConfig": {"service": {"name": "hook", "namespace": "gpu"}}}
            for n in ("a", "b")
        ]
        api.put(resource, {"metadata": {"name": name}, "webhooks": hooks})


async def test_the_secret_goes_with_the_configuration_and_is_not_made_after_it(
    api: FakeApiServer, client: Client
) -> None:
    replica = Replica(client, Clock())
    await replica.keeper.step()
    configuration = await client.get(MUTATING_WEBHOOKS, "hooks")
    (owner,) = (await client.get(SECRETS, "certificates", namespace="gpu"))["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "name": "hooks",
        "uid": configuration["metadata"]["uid"],
    }
    await client.delete(MUTATING_WEBHOOKS, "hooks")
    await client.delete(SECRETS, "certificates", namespace="gpu")
    with pytest.raises(ApiError):
        await replica.keeper.step()
    with pytest.raises(ApiError) as error:
        await client.get(SECRETS, "certificates", namespace="gpu")
    assert error.value.not_found


def published(api: FakeApiServer) -> str:
    """Return the authorities that the API server trusts: those of all webhooks, which must agree."""
    found = {
        hook["clientConfig"].get("caBundle", "")
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
        for configuration in api.all(resource)
        for hook in configuration["webhooks"]
    }
    (bundle,) = found
    return base64.b64decode(bundle).decode()


async def test_a_first_start_makes_the_secret_and_the_ca_bundle(api: FakeApiServer, client: Client) -> None:
    replica = Replica(client, Clock())
    assert not replica.keeper.ready()
    await replica.keeper.step()
    assert replica.keeper.ready()
    trusts(published(api), served(replica.context), now=START)
    secret = api.find(SECRETS, "certificates", "gpu")
    assert secret is not None
    assert set(secret["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}


async def test_a_second_run_writes_nothing(api: FakeApiServer, client: Client) -> None:
    replica = Replica(client, Clock())
    await replica.keeper.step()
    before = len(api.requests)
    await replica.keeper.step()
    assert {request.method for request in api.requests[before:]} == {"GET"}


async def test_replicas_that_start_at_once_share_one_authority(api: FakeApiServer, client: Client) -> None:
    replicas = [Replica(client, Clock()) for _ in range(3)]
    await asyncio.gather(*(replica.keeper.step() for replica in replicas))
    created = [request for request in api.requests if request.method == "POST"]
    assert len(created) > 1, "they did not race"
    assert len({served(replica.context) for replica in replicas}) == 1
    trusts(published(api), served(replicas[0].context), now=START)


async def test_replicas_that_renew_at_once_share_one_authority(api: FakeApiServer, client: Client) -> None:
    clock = Clock()
    replicas = [Replica(client, clock) for _ in range(3)]
    for time in (START, START + 245 * DAY, START + 245 * DAY + 10 * MINUTE):
        clock.time = time
        await asyncio.gather(*(replica.keeper.step() for replica in replicas))
        assert len({served(replica.context) for replica in replicas}) == 1
    assert published(api).count("BEGIN CERTIFICATE") == 2


async def test_a_ca_bundle_that_an_upgrade_reset_is_healed(api: FakeApiServer, client: Client) -> None:
    replica = Replica(client, Clock())
    await replica.keeper.step()
    before = published(api)
    install(api)
    assert published(api) == ""
    await replica.keeper.step()
    assert published(api) == before


async def test_only_the_ca_bundle_is_patched(api: FakeApiServer, client: Client) -> None:
    await Replica(client, Clock()).keeper.step()
    patches = [operation for request in api.requests if request.method == "PATCH" for operation in request.body]
    assert patches
    for operation in patches:
        assert operation["op"] == "test" or operation["path"].endswith("/clientConfig/caBundle")


async def test_nothing_new_is_served_that_is_not_published(api: FakeApiServer, client: Client) -> None:
    clock = Clock()
    replica = Replica(client, clock)
    for days in (0, 240, 5):
        clock.time += days * DAY
        await replica.keeper.step()
    old = served(replica.context)
    clock.time += 10 * MINUTE
    install(api)
    fault = api.fail(method="PATCH", status=403, reason="Forbidden", times=1e9)
    with pytest.raises(ApiError):
        await replica.keeper.step()
    assert served(replica.context) == old
    secret = api.find(SECRETS, "certificates", "gpu")
    assert secret is not None
    bundle = certificates.from_data(secret["data"])
    assert bundle is not None
    assert bundle.certificate == old, "no replica may be led to serve it either"
    fault.stop()
    await replica.keeper.step()
    assert served(replica.context) != old
    trusts(published(api), served(replica.context), now=clock.time)


async def test_a_missing_configuration_is_waited_for(api: FakeApiServer, client: Client) -> None:
    api.remove(MUTATING_WEBHOOKS, "hooks")
    replica = Replica(client, Clock())
    with pytest.raises(ApiError):
        await replica.keeper.step()
    assert not replica.keeper.ready()
    install(api)
    await replica.keeper.step()
    assert replica.keeper.ready()


async def test_a_damaged_secret_is_repaired(api: FakeApiServer, client: Client) -> None:
    replica = Replica(client, Clock())
    await replica.keeper.step()
    secret = api.find(SECRETS, "certificates", "gpu")
    assert secret is not None
    damages: list[dict[str, str]] = [{}, secret["data"] | {"ca.crt": base64.b64encode(b"nonsense").decode()}]
    for damaged in damages:
        api.put(SECRETS, secret | {"data": damaged | {"kept": "eA=="}})
        await replica.keeper.step()
        trusts(published(api), served(replica.context), now=START)
        stored = api.find(SECRETS, "certificates", "gpu")
        assert stored is not None
        assert stored["data"]["kept"] == "eA=="


async def test_readiness_ends_with_the_certificate(api: FakeApiServer, client: Client) -> None:
    clock = Clock()
    replica = Replica(client, clock)
    await replica.keeper.step()
    clock.time += 31 * DAY
    assert not replica.keeper.ready()
    await replica.keeper.step()
    assert replica.keeper.ready()


@pytest.mark.looptime
async def test_an_outage_is_logged_once_and_survived(
    api: FakeApiServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    fault = api.fail(status=503, reason="ServiceUnavailable", times=1e9)
    replica = Replica(client, Clock())
    async with asyncio.timeout(60):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(22):
                await replica.keeper.run()
        assert fault.hits >= 3
        assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1
        fault.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(6):
                await replica.keeper.run()
    assert replica.keeper.ready()


@pytest.mark.slow
async def test_no_request_fails_while_certificates_rotate(api: FakeApiServer, client: Client) -> None:
    """More than a year, two replicas that take turns, and a caller after each change who trusts the caBundle then."""
    clock = Clock()
    replicas = [Replica(client, clock) for _ in range(2)]
    handler = server.Endpoint(Admission(controller_user=CONTROLLER)).handle
    sent = body(defaulted(pod(1)))
    shown: set[tuple[str, ...]] = set()
    async with contextlib.AsyncExitStack() as stack:
        ports = [
            await stack.enter_async_context(server.serve(handler, port=0, context=r.context, host="127.0.0.1"))
            for r in replicas
        ]
        kept = await stack.enter_async_context(aiohttp.ClientSession())
        for replica in replicas:
            await replica.keeper.step()

        async def call_both() -> None:
            known = published(api)
            state = (known, *(served(replica.context) for replica in replicas))
            if state in shown:
                return
            shown.add(state)
            context = ssl.create_default_context(cadata=known)
            context.verify_flags |= 0x200000  # X509_V_FLAG_NO_CHECK_TIME: the clock is ours, ``trusts`` checks it
            async with aiohttp.ClientSession() as fresh:
                for session, port in ((fresh, ports[0]), (fresh, ports[1]), (kept, ports[0])):
                    url = f"https://127.0.0.1:{port}/mutate-pods"
                    async with session.post(url, json=sent, ssl=context, server_hostname=HOSTS[0]) as answer:
                        assert (await answer.json())["response"]["allowed"] is True
            for replica in replicas:
                trusts(known, served(replica.context), now=clock.time)

        for day in range(0, 400, 21):
            for minutes in (0, 3, 8):
                clock.time = START + day * DAY + minutes * MINUTE
                for replica in replicas if day % 2 else reversed(replicas):
                    await replica.keeper.step()
                    await call_both()
    assert len(shown) > 30
    assert len(x509.load_pem_x509_certificates(published(api).encode())) == 1


async def test_mounted_files_are_served_again_when_they_change(tmp_path: Path) -> None:
    first = certificates.renew(None, now=START, hosts=HOSTS)
    second = certificates.renew(None, now=START, hosts=HOSTS)
    context = tls.server_context()
    files = mounted_certificate.Mounted(tmp_path, context=context)
    with pytest.raises(FileNotFoundError):
        files.step()
    assert not files.ready()
    (tmp_path / "tls.crt").write_text(first.certificate)
    (tmp_path / "tls.key").write_text(first.key)
    files.step()
    assert files.ready()
    assert served(context) == first.certificate
    (tmp_path / "tls.crt").write_text(second.certificate)
    with pytest.raises(ssl.SSLError):
        files.step()
    assert served(context) == first.certificate, "a pair of two versions is left for the next look"
    (tmp_path / "tls.key").write_text(second.key)
    files.step()
    assert served(context) == second.certificate


@pytest.mark.looptime
async def test_mounted_files_that_are_missing_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = mounted_certificate.Mounted(tmp_path, context=tls.server_context())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(35):
            await files.run()
    assert len(caplog.records) == 1
