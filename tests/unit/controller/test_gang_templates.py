"""A pod that comes to a gang which runs by templates: it has its own, and the others what their claims say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.nic_pods import NEAREST, a_cluster, addresses, given, gpus, pod, run, template, wanted


def member(cluster: GpuCluster, name: str, template: str = "t", *, near: bool = False) -> None:
    words = {"near_nic": "required"} if near else {}
    pod(cluster, name, template, gang="g", gang_size="3", **words)


async def running(
    cluster: GpuCluster, members: dict[str, str], *, near: bool = False
) -> dict[str, tuple[str, list[int]]]:
    """Start a gang of pods with these templates. Returns where each is."""
    for name, by in members.items():
        member(cluster, name, by, near=near)
    for _ in range(2):
        await run(cluster)
    assert all(cluster.get_pod(name)["spec"].get("nodeName") for name in members)
    return {name: cluster.gpus(name) for name in members}


async def lose(cluster: GpuCluster, name: str) -> None:
    cluster.remove(PODS, name, "default")
    cluster.collect()
    await cluster.settle()
    assert cluster.claim(name) is None


@pytest.mark.slow
@pytest.mark.parametrize("is_new_controller", [False, True], ids=["", "new controller"])
@pytest.mark.parametrize("with_nics", [False, True], ids=["", "nics"])
async def test_a_lost_pod_is_placed_again_where_it_was(with_nics: bool, is_new_controller: bool) -> None:
    cluster = a_cluster("a", "b")
    template(cluster, gpus(count=2), *([wanted("nic", 2)] if with_nics else []))
    before = await running(cluster, dict.fromkeys("pqr", "t"), near=with_nics)
    await lose(cluster, "q")
    if is_new_controller:
        cluster.restart()
    member(cluster, "q", near=with_nics)
    await run(cluster)
    assert cluster.get_pod("q")["spec"].get("nodeName") == before["q"][0], cluster.note("q", "reason")
    assert cluster.gpus("q") == before["q"]
    if with_nics:
        assert addresses(cluster, "q") == [NEAREST[gpu] for gpu in before["q"][1]]
        assert len(given(cluster, "q")) == 2


@pytest.mark.parametrize("lost", ["p", "q"])
@pytest.mark.parametrize("is_new_controller", [False, True], ids=["", "new controller"])
async def test_so_is_one_of_either_role_whose_templates_differ(lost: str, is_new_controller: bool) -> None:
    cluster = a_cluster("a", "b")
    template(cluster, gpus(count=4), wanted("nic", 4), name="leads")
    template(cluster, gpus("first"), gpus("second"), name="works")
    by = {"p": "leads", "q": "works", "r": "works"}
    before = await running(cluster, by)
    await lose(cluster, lost)
    if is_new_controller:
        cluster.restart()
    member(cluster, lost, by[lost])
    await run(cluster)
    assert cluster.get_pod(lost)["spec"].get("nodeName"), cluster.note(lost, "reason")
    assert cluster.gpus(lost) == before[lost]


def _another(cluster: GpuCluster) -> None:
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "leads", "default")
    template(cluster, gpus(count=1), wanted("nic", 1), name="leads")


def _gone(cluster: GpuCluster) -> None:
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "leads", "default")


def _unreadable(cluster: GpuCluster) -> None:
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "leads", "default")
    template(cluster, gpus(device_class="example.com"), name="leads")


@pytest.mark.slow
@pytest.mark.parametrize("change", [_another, _gone, _unreadable])
@pytest.mark.parametrize("is_new_controller", [False, True], ids=["", "new controller"])
async def test_what_became_of_the_templates_of_those_that_run_is_all_one(
    change: Callable[[GpuCluster], None], is_new_controller: bool
) -> None:
    cluster = a_cluster("a", "b")
    template(cluster, gpus(count=4), wanted("nic", 4), name="leads")
    template(cluster, gpus(count=2), wanted("nic", 2), name="works")
    await running(cluster, {"p": "leads", "q": "leads", "r": "leads"})
    await lose(cluster, "q")
    change(cluster)
    if is_new_controller:
        cluster.restart()
    member(cluster, "q", "works", near=True)
    await run(cluster)
    assert cluster.get_pod("q")["spec"].get("nodeName"), cluster.note("q", "reason")
    assert len(cluster.gpus("q")[1]) == len(given(cluster, "q")) == 2


async def test_its_own_template_it_waits_for() -> None:
    cluster = a_cluster("a", "b")
    template(cluster, gpus(count=2))
    before = await running(cluster, dict.fromkeys("pqr", "t"))
    await lose(cluster, "q")
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "t", "default")
    member(cluster, "q")
    await run(cluster)
    assert cluster.claim("q") is None
    assert cluster.note("q", "reason") == (
        "Waiting for ResourceClaimTemplate 't', which does not exist. Create it in the pod's namespace."
    )
    template(cluster, gpus(count=2))
    await run(cluster)
    assert cluster.gpus("q") == before["q"]


async def test_one_comes_late_next_to_one_that_has_just_been_promised_its_place() -> None:
    cluster = a_cluster("a", "b")
    template(cluster, gpus(count=2), wanted("nic", 2))
    await running(cluster, dict.fromkeys("pqr", "t"))
    for name in "qr":
        await lose(cluster, name)
    for name in "qr":
        member(cluster, name)
    await run(cluster)
    taken = [cluster.gpus(name) for name in "pqr"]
    assert len({(node, gpu) for node, chosen in taken for gpu in chosen}) == 6
    assert all(len(given(cluster, name)) == 2 for name in "pqr")
