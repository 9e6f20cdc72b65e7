"""The server's store was put back to an older state: what a read of everything shows is the truth, as it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from dradriver.api.base.pods import Pod
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records.pod_records import Foreign
from dradriver.controller.controller import Controller
from dradriver.kube.client import Client
from dradriver.kube.reflector import SILENCE_S, Change
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.control_plane.devices import result
from tests.fakes.gpucluster import GpuCluster, claim_of

LEFT_S = SILENCE_S + 5.0  # a watch from a version that the server has not is left after this


@contextlib.asynccontextmanager
async def controlled(api: FakeApiServer) -> AsyncIterator[Controller]:
    async with Client(api.config, user_agent="test") as client, asyncio.TaskGroup() as tasks:
        controller = Controller(client)
        running = [tasks.create_task(controller.watch()), tasks.create_task(controller.work())]
        yield controller
        for task in running:
            task.cancel()


def held(picture: Picture, cluster: GpuCluster, node: str) -> set[int]:
    return {gpu.index for gpu in cluster.machines[node].gpus} - picture.inventory.fleet.free(node)


async def test_a_claim_that_was_given_another_gpu_since_shows_the_one_that_it_has() -> None:
    async with FakeApiServer() as api:
        cluster = GpuCluster()
        cluster.store = api.store
        cluster.node("a")
        cluster.rival("theirs", "a", [0])
        async with controlled(api) as controller:
            picture = controller.worker.picture
            await asyncio.sleep(1)
            put_back = api.store.backup()
            for number in range(5):  # versions go on
                cluster.rival(f"more{number}", "a", [7])
            claim = cluster.find(RESOURCE_CLAIMS, "theirs", "default")
            assert claim is not None
            uuid = cluster.machines["a"].gpus[3].uuid
            cluster.put(
                RESOURCE_CLAIMS, claim | {"status": {"allocation": {"devices": {"results": [result("a", uuid)]}}}}
            )
            await asyncio.sleep(1)
            assert held(picture, cluster, "a") == {3, 7}
            put_back()
            api.disconnect()
            await asyncio.sleep(LEFT_S)
            assert held(picture, cluster, "a") == {0}


async def test_a_choice_of_ours_that_is_undone_is_made_again() -> None:
    async with FakeApiServer() as api:
        cluster = GpuCluster()
        cluster.store = api.store
        cluster.node("a")
        cluster.pod("p", 4)
        put_back = api.store.backup()
        async with controlled(api) as controller:
            await asyncio.sleep(2)
            assert not cluster.get_pod("p")["spec"]["schedulingGates"]
            cluster.schedule()
            await asyncio.sleep(1)
            put_back()
            api.disconnect()
            await asyncio.sleep(LEFT_S)
            assert (
                controller.worker.picture.pods["default", "p"].metadata.uid == cluster.get_pod("p")["metadata"]["uid"]
            )
            assert not cluster.get_pod("p")["spec"]["schedulingGates"], "it was lifted again"
            assert cluster.claim("p") is not None


async def test_a_read_that_began_before_our_write_was_answered_takes_nothing_back() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 4)
    cluster.deliver()
    picture = cluster.worker.picture
    gated = picture.pods["default", "p"]
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(1)
    await cluster.worker.rest()
    claim = picture.claims["default", claim_of("p")]
    lifted = picture.pods["default", "p"]
    assert not lifted.gated

    earlier: Change[Pod | Foreign] = Change(("default", "p"), gated, gated, began)
    picture.pod_changed(earlier)
    assert picture.pods["default", "p"] is lifted
    assert picture.claims[claim.key] is claim
    later: Change[Pod | Foreign] = Change(("default", "p"), gated, gated, asyncio.get_running_loop().time() + 1)
    picture.pod_changed(later)
    assert picture.pods["default", "p"] is gated


async def test_a_claim_that_went_and_is_there_again_is_known() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 4)
    cluster.deliver()
    await cluster.worker.rest()
    cluster.deliver()
    picture = cluster.worker.picture
    claim = picture.claims["default", claim_of("p")]
    picture.claim_changed(Change(claim.key, claim, None))
    assert not picture.inventory.holds.of(claim.key)
    picture.claim_changed(Change(claim.key, None, claim, 5.0))
    picture.assume_claim(claim)
    assert len(picture.inventory.holds.of(claim.key)) == 4
    assert cluster.find(PODS, "p", "default") is not None
