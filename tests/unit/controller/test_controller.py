"""The controller as it runs: reflectors over HTTP, one worker, and a standby that takes over."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.allocating_driver import NVIDIA, OURS, bound, current_ledger
from dradriver.controller.controller import Controller
from dradriver.controller.main import LEASE, Options, main, parse, serve
from dradriver.controller.writing import gang_barrier_slice
from dradriver.kube.client import Client
from dradriver.kube.resources import DEVICE_CLASSES, LEASES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.addoncluster import AddOnCluster
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster, claim_of

pytestmark = pytest.mark.real_time  # the election has a thread and a loop of its own


class Running:
    """A cluster whose store is served over HTTP."""

    def __init__(self, api: FakeApiServer, cluster: GpuCluster) -> None:
        self.api = api
        self.cluster = cluster
        self._news = asyncio.Event()
        api.store.listeners.append(lambda _: self._news.set())

    async def until(self, holds: Callable[[], Any]) -> None:
        """Wait until a condition on the server's objects holds."""
        async with asyncio.timeout(50):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def is_lifted(self, pod: str) -> bool:
        return not self.cluster.get_pod(pod)["spec"]["schedulingGates"]

    @contextlib.asynccontextmanager
    async def controller(self) -> AsyncIterator[Controller]:
        async with Client(self.api.config, user_agent="test") as client, asyncio.TaskGroup() as tasks:
            controller = Controller(client)
            running = [tasks.create_task(controller.watch()), tasks.create_task(controller.work())]
            yield controller
            for task in running:
                task.cancel()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with FakeApiServer() as api:
        cluster = GpuCluster()
        cluster.store = api.store
        yield Running(api, cluster)


async def test_pods_are_placed_wait_and_are_placed_when_another_goes(running: Running) -> None:
    cluster = running.cluster
    cluster.node("a")
    async with running.controller() as controller:
        assert not controller.ready()
        cluster.pod("one", wishes={"policy": "nvlink"})
        cluster.pod("two", wishes={"policy": "nvlink"})
        cluster.pod("three", wishes={"policy": "nvlink"})
        await running.until(lambda: cluster.note("three", "reason"))
        assert controller.ready()
        assert running.is_lifted("one")
        assert running.is_lifted("two")
        cluster.schedule()
        cluster.remove(PODS, "one", "default")
        cluster.collect()
        await running.until(lambda: running.is_lifted("three"))
        assert cluster.note("three", "reason") is None
        assert sorted(gpu for pod in ("two", "three") for gpu in cluster.gpus(pod)[1]) == list(range(8))


async def test_a_replica_that_leads_says_so_even_if_its_figures_fail(running: Running) -> None:
    cluster = running.cluster
    cluster.node("a")
    cluster.pod("p")
    async with running.controller() as controller:
        controller.worker.picture.inventory.pools = lambda: 1 // 0  # type: ignore[assignment, return-value]
        await running.until(lambda: running.is_lifted("p"))
        assert REGISTRY.get_sample_value("gpu_topology_controller_leads") == 1
    assert REGISTRY.get_sample_value("gpu_topology_controller_leads") == 0


async def test_a_standby_ends_what_a_killed_leader_began(running: Running) -> None:
    cluster = running.cluster
    cluster.node("a")
    cluster.pod("p")
    never = running.api.fail(method="PATCH", path="/pods/p$", mode="hold", until=asyncio.Event())
    async with running.controller():
        await running.until(lambda: cluster.claim("p"))
    before = cluster.claim("p")
    assert not running.is_lifted("p")
    never.stop()
    async with running.controller():
        await running.until(lambda: running.is_lifted("p"))
    assert cluster.claim("p") == before


async def test_a_server_that_fails_for_a_moment_delays_a_placement_and_no_more(running: Running) -> None:
    cluster = running.cluster
    cluster.node("a")
    cluster.pod("p")
    running.api.fail(method="POST", path="/resourceclaims$", status=503, reason="ServiceUnavailable")
    async with running.controller():
        await running.until(lambda: running.is_lifted("p"))
    assert len(cluster.all(RESOURCE_CLAIMS)) == 1


async def test_a_patch_of_a_pod_that_changed_is_refused_by_its_test_and_made_again(running: Running) -> None:
    cluster = running.cluster
    cluster.node("a")
    cluster.pod("p")
    release = asyncio.Event()
    running.api.fail(method="PATCH", path="/pods/p$", mode="hold", until=release)
    async with running.controller():
        await running.until(lambda: cluster.claim("p"))
        pod = cluster.get_pod("p")
        pod["metadata"]["annotations"]["example.com/note"] = "new"
        cluster.put(PODS, pod)
        release.set()
        await running.until(lambda: running.is_lifted("p"))
    assert cluster.get_pod("p")["metadata"]["annotations"]["example.com/note"] == "new"
    assert cluster.note("p", "allocated")


async def test_other_drivers_slices_and_claims_are_none_of_ours(running: Running) -> None:
    cluster = running.cluster
    cluster.node("a")
    uuids = [gpu.uuid.lower() for gpu in cluster.machines["a"].gpus]
    results = [{"request": "r", "driver": "other.example.com", "pool": "a", "device": uuid} for uuid in uuids]
    theirs = {
        "metadata": {"name": "x", "namespace": "default"},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    cluster.put(RESOURCE_CLAIMS, theirs)
    cluster.pod("p", 8)
    async with running.controller():
        await running.until(lambda: running.is_lifted("p"))
    claim = cluster.find(RESOURCE_CLAIMS, claim_of("p"), "default")
    assert claim is not None
    assert claim["metadata"]["labels"] == {names.LABEL: names.LABEL_PLACED}


def options_of(api: FakeApiServer, folder: Path, *more: str) -> Options:
    """Return a process's options for a server, with its kubeconfig in a folder."""
    kubeconfig = folder / "config"
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": api.config.url}}],
        "users": [{"name": "u", "user": {}}],
    }
    kubeconfig.write_text(json.dumps(config))
    return parse(["--namespace=system", "--identity=me", "--health-port=0", f"--kubeconfig={kubeconfig}", *more])


@pytest.mark.slow
async def test_the_process_places_pods_while_it_leads_and_gives_the_lease_back(
    running: Running, tmp_path: Path
) -> None:
    options = options_of(running.api, tmp_path)
    running.cluster.node("a")
    running.cluster.pod("p")
    async with asyncio.TaskGroup() as tasks:
        process = tasks.create_task(serve(options))
        await running.until(lambda: running.is_lifted("p"))
        lease = running.api.find(LEASES, LEASE, "system")
        assert lease is not None
        assert lease["spec"]["holderIdentity"] == "me"
        process.cancel()
    lease = running.api.find(LEASES, LEASE, "system")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""


async def test_a_leader_publishes_the_seats_and_follows_the_charts_class(running: Running) -> None:
    cluster = running.cluster
    published = functools.partial(cluster.find, RESOURCE_SLICES, gang_barrier_device.SLICE)
    cluster.put(DEVICE_CLASSES, {"metadata": {"name": gang_barrier_device.CLASS}})
    cluster.node("a")
    async with running.controller():
        cluster.pod("p")
        await running.until(lambda: running.is_lifted("p"))
        await running.until(published)
        cluster.remove(RESOURCE_SLICES, gang_barrier_device.SLICE)
        cluster.put(
            DEVICE_CLASSES, {"metadata": {"name": gang_barrier_device.CLASS, "labels": {"helm.sh/chart": "next"}}}
        )
        await running.until(published)


async def test_only_gangs_wait_until_a_new_leader_knows_of_seats(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_barrier_slice, "FIRST_LOOK_S", 60.0)
    cluster, answers = running.cluster, asyncio.Event()
    cluster.put(DEVICE_CLASSES, {"metadata": {"name": gang_barrier_device.CLASS}})
    running.api.fail(method="GET", path=f"/deviceclasses/{gang_barrier_device.CLASS}$", mode="hold", until=answers)
    cluster.node("a")
    gang(cluster, 2, gpus=2)
    cluster.pod("single")
    async with running.controller():
        await running.until(lambda: running.is_lifted("single"))
        assert cluster.claim("train-0") is None
        answers.set()
        await running.until(lambda: running.is_lifted("train-0") and running.is_lifted("train-1"))
    for pod in ("train-0", "train-1"):
        claim = cluster.claim(pod)
        assert claim is not None
        assert gang_barrier_device.CLASS in str(claim["spec"])


async def test_gangs_of_a_leader_that_cannot_find_out_of_seats_go_without_after_a_while(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_barrier_slice, "FIRST_LOOK_S", 0.1)
    cluster = running.cluster
    running.api.fail(
        method="GET", path=f"/deviceclasses/{gang_barrier_device.CLASS}$", mode="hold", until=asyncio.Event()
    )
    cluster.node("a")
    gang(cluster, 2, gpus=2)
    async with running.controller():
        await running.until(lambda: running.is_lifted("train-0") and running.is_lifted("train-1"))


async def test_the_process_hands_out_the_devices_that_its_option_names(tmp_path: Path) -> None:
    async with FakeApiServer() as api:
        with bound(NVIDIA):
            cluster = AddOnCluster()
        cluster.store = api.store
        running = Running(api, cluster)
        cluster.node("a")
        cluster.foreign("theirs", "a", "gpu-0")
        cluster.pod("p", wishes={"policy": "nvlink"})
        async with asyncio.TaskGroup() as tasks:
            process = tasks.create_task(serve(options_of(api, tmp_path, "--allocating-driver=gpu.nvidia.com")))
            await running.until(lambda: running.is_lifted("p"))
            process.cancel()
        assert cluster.gpus("p") == ("a", [4, 5, 6, 7])
        claim = cluster.claim("p")
        assert cluster.find(RESOURCE_SLICES, gang_barrier_device.SLICE) is None, (
            "another driver's claims can have no seat of ours"
        )
    assert claim is not None
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == NVIDIA.device_class
    assert current_ledger() is OURS, "it was the process's own"


def test_times_of_the_election_that_cannot_work_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--namespace", "n", "--identity", "i", "--renew-deadline", "20"])
    assert "must grow in this order" in capsys.readouterr().err


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for flag in (
        "namespace",
        "identity",
        "health-port",
        "kubeconfig",
        "lease-duration",
        "renew-deadline",
        "retry-period",
    ):
        assert f"--{flag}" in told
