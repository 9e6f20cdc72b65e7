"""The process: its command line, what it imports, and all its parts together."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import NVIDIA, OURS, Ledger
from dradriver.kube.resources import MUTATING_WEBHOOKS
from tests.fakes.admission import body, defaulted, pod
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.ports import kept_port
from tests.paths import REPO
from tests.unit.webhook.test_certificates import HOSTS
from webhook import __main__ as program
from webhook import certificates

BASE = ["--namespace=gpu", "--service=hook", "--controller-user=system:serviceaccount:gpu:controller"]


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    with kept_port() as port, kept_port() as health:
        yield port, health


async def heard(url: str, *, context: ssl.SSLContext | None = None, sent: object = None) -> str:
    """Return the answer once there is one that is a success."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(50):
        while True:
            try:
                method = "GET" if sent is None else "POST"
                async with session.request(
                    method, url, ssl=context or True, server_hostname=HOSTS[0] if context else None, json=sent
                ) as answer:
                    if answer.status == 200:
                        return await answer.text()
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0)


def kubeconfig(path: Path, url: str) -> Path:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(json.dumps(config))
    return path


async def test_the_whole_process_serves_with_certificates_of_its_own(tmp_path: Path, ports: tuple[int, int]) -> None:
    hook = {"name": "a.gpu.topology", "clientConfig": {}}
    port, health = ports
    async with FakeApiServer() as api:
        api.put(MUTATING_WEBHOOKS, {"metadata": {"name": "hooks"}, "webhooks": [hook]})
        config = kubeconfig(tmp_path / "config", api.config.url)
        arguments = [*BASE, "--secret=s", "--mutating-configuration=hooks", f"--kubeconfig={config}"]
        options = program.parse([*arguments, f"--port={port}", f"--health-port={health}"])
        async with asyncio.TaskGroup() as group:
            process = group.create_task(program.serve(options))
            await heard(f"http://127.0.0.1:{health}/readyz")
            (configuration,) = api.all(MUTATING_WEBHOOKS)
            bundle = configuration["webhooks"][0]["clientConfig"]["caBundle"]
            context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
            sent = body(defaulted(pod(2, annotations={names.POLICY: "nvlink"})))
            answer = await heard(f"https://127.0.0.1:{port}/mutate-pods", context=context, sent=sent)
            assert json.loads(answer)["response"]["patchType"] == "JSONPatch"
            assert "gpu_topology_admission_requests_total" in await heard(f"http://127.0.0.1:{health}/metrics")
            process.cancel()


@pytest.mark.parametrize("ledger", [OURS, NVIDIA], ids=lambda ledger: ledger.driver)
async def test_the_whole_process_serves_with_mounted_certificates(
    tmp_path: Path, ports: tuple[int, int], ledger: Ledger
) -> None:
    bundle = certificates.renew(None, now=datetime.datetime.now(datetime.UTC), hosts=HOSTS)
    (tmp_path / "tls.crt").write_text(bundle.certificate)
    (tmp_path / "tls.key").write_text(bundle.key)
    port, health = ports
    arguments = [
        *BASE,
        "--certificates=mounted",
        f"--certificate-dir={tmp_path}",
        f"--allocating-driver={ledger.driver}",
    ]
    options = program.parse([*arguments, f"--port={port}", f"--health-port={health}"])
    async with asyncio.TaskGroup() as group:
        process = group.create_task(program.serve(options))
        await heard(f"http://127.0.0.1:{health}/readyz")
        context = ssl.create_default_context(cadata=bundle.authorities)
        sent = body(defaulted(pod(2, annotations={names.WHEN_FULL: "hand-over"})))  # not of another driver's GPUs
        answer = await heard(f"https://127.0.0.1:{port}/mutate-pods", context=context, sent=sent)
        assert json.loads(answer)["response"]["allowed"] is (ledger is OURS)
        process.cancel()


def test_mounted_certificates_need_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main([*BASE, "--certificates=mounted"])
    assert "--certificate-dir" in capsys.readouterr().err


@pytest.mark.slow
def test_the_server_imports_nothing_heavy() -> None:
    script = (
        "import sys, webhook.__main__, webhook.server, webhook.admission, webhook.mounted_certificate; print(sorted("
        "{'numpy', 'kubernetes', 'cryptography', 'grpc', 'yaml', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
