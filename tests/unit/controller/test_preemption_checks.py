"""What is asked before each pod is told to end for another: whether that one needs it still."""

from __future__ import annotations

from typing import Any

from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, Resource
from tests.fakes.gpucluster import claim_of
from tests.fakes.preempting import contested


async def test_no_pod_is_told_to_end_for_a_claim_that_the_server_does_not_have_any_more() -> None:
    cluster = await contested(("low", 8, 0))
    patch = cluster.client.patch

    async def lift(resource: Resource, name: str, body: Any, **options: Any) -> Any:
        answer = await patch(resource, name, body, **options)
        if cluster.get_pod("me")["spec"]["schedulingGates"] == []:
            cluster.remove(RESOURCE_CLAIMS, claim_of("me"), "default")
        return answer

    cluster.client.patch = lift  # type: ignore[method-assign]
    cluster.pod("me", 8, priority=10)
    cluster.deliver()
    await cluster.worker.rest()  # no reflector shows meanwhile that the claim is gone
    assert cluster.get_pod("me")["spec"]["schedulingGates"] == []
    claim = cluster.claim("me")
    assert claim is None or "deletionTimestamp" in claim["metadata"]
    assert cluster.evicted() == []


async def test_no_other_pod_is_told_to_end_once_the_preemptor_is_gone() -> None:
    cluster = await contested(("one", 4, 0), ("two", 4, 0))

    def end(key: tuple[str, str]) -> None:
        cluster.end(key)
        cluster.remove(PODS, "me", "default")
        cluster.deliver(PODS)

    cluster.client.ends = end
    cluster.pod("me", 8, priority=10)
    for _ in range(2):
        cluster.deliver()
        await cluster.worker.rest()
    assert len(cluster.evicted()) == 1
    await cluster.settle()
    assert len(cluster.evicted()) == 1
