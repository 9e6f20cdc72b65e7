"""What `helm test` runs, against an API server that is as it may be found."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.allocating_driver import NVIDIA, OURS, Ledger
from dradriver.kube.resources import RESOURCE_SLICES
from tests.fakes.admission import admit
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.chart import CHART
from tests.paths import REPO

DENIED = 'admission webhook "claims.gpu.topology" denied the request: NotOurs: no kind of ours'
FAILED = 'failed calling webhook "claims.gpu.topology": x509: certificate signed by unknown authority'


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("smoke", CHART / "files/smoke.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SMOKE = load()


def published(api: FakeApiServer) -> None:
    api.put(RESOURCE_SLICES, gang_barrier_device.resource_slice())
    for node in ("a", "b"):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        api.put(
            RESOURCE_SLICES,
            {"metadata": {"name": f"s-{node}"}, "spec": {"driver": names.DRIVER, "nodeName": node, "pool": pool}},
        )


async def run(api: FakeApiServer, *, reviewed: bool = True) -> str:
    """What it ends with; empty where all is well."""
    try:
        await SMOKE.main(api.config, reviewed=reviewed)
    except SystemExit as end:
        return str(end)
    return ""


async def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeApiServer() as api:
        published(api)
        api.fail(method="POST", path="resourceclaims", status=403, reason="Forbidden", message=DENIED)
        assert await run(api) == ""
    said = capsys.readouterr().out
    assert "the GPUs of 2 nodes are published" in said
    assert "trusts its certificate" in said


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (FAILED, "does not get an answer of the webhook: failed calling"),
        ("no right", "no right"),
        ("", "asked no webhook"),
    ],
)
async def test_a_webhook_that_is_not_asked_or_not_trusted(message: str, told: str) -> None:
    async with FakeApiServer() as api:
        published(api)
        if message:
            api.fail(method="POST", path="resourceclaims", status=500, reason="InternalError", message=message)
        assert told in await run(api)


async def test_no_gpus_but_the_seat_of_gangs() -> None:
    async with FakeApiServer() as api:
        api.put(RESOURCE_SLICES, gang_barrier_device.resource_slice())
        assert "no node has published its GPUs" in await run(api)


async def test_a_namespace_that_is_excluded_is_not_asked_about() -> None:
    async with FakeApiServer() as api:
        published(api)
        assert await run(api, reviewed=False) == ""


@pytest.mark.parametrize("ledger", [OURS, NVIDIA], ids=lambda one: one.driver)
def test_the_webhook_refuses_its_claim(ledger: Ledger) -> None:
    claim: dict[str, Any] = SMOKE.CLAIM
    verdict = admit(claim, kind="ResourceClaim", path="/validate-claims", ledger=ledger)
    assert not verdict.allowed
    assert f"name: {SMOKE.WEBHOOK}\n" in (CHART / "templates/webhook/configuration.yaml").read_text("utf-8")


@pytest.mark.slow
def test_outside_of_a_pod_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", (CHART / "files/smoke.py").read_text("utf-8"), "reviewed"],
        env={"PYTHONPATH": str(REPO)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "this process is not in a pod" in done.stderr
