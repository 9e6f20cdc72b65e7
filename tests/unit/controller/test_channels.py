"""Pods with a channel of one of NVIDIA's ComputeDomains: one a node, one domain a node, a gang in one NVLink fabric."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.api.base.allocating_driver import NVIDIA, bound
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.kube.reflector import Change
from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.topology.network_levels import FABRIC
from tests.fakes import domains
from tests.fakes.addoncluster import AddOnCluster
from tests.fakes.gpucluster import GpuCluster, claim_of

TRAY = "gb200-nvl72-tray"
DOMAIN = "8f1c2d7e-52c4-4b0e-9f0e-0d6c3a0b7a11"


def cluster(*nodes: str, clique: str = "u.1", channels: bool = True) -> GpuCluster:
    """Return a cluster of trays of four GPUs in a fabric, and the template of a domain."""
    made = GpuCluster()
    add(made, *nodes, clique=clique, channels=channels)
    made.put(RESOURCE_CLAIM_TEMPLATES, domains.template("t", DOMAIN))
    return made


def add(made: GpuCluster, *nodes: str, clique: str, channels: bool = True) -> None:
    for node in nodes:
        made.node(node, TRAY, labels={domains.CLIQUE: clique} if clique else {})
        if channels:
            made.put(RESOURCE_SLICES, domains.resource_slice(node))


def pod(made: GpuCluster, name: str, gpus: int = 4, *, template: str = "t", **changes: Any) -> None:
    """Create a pod with words of ours and their claim beside it."""
    own = {"name": "gpu-topology", "resourceClaimName": claim_of(name)}
    made.pod(name, gpus, resourceClaims=[own, domains.entry(template)], **changes)


def gang(made: GpuCluster, size: int, gpus: int = 4, **wishes: str) -> list[str]:
    pods = [f"w-{number}" for number in range(size)]
    for name in pods:
        pod(made, name, gpus, wishes={"gang": "w", "gang-size": str(size), **wishes})
    return pods


def placed(made: GpuCluster, name: str) -> str | None:
    """Return the node that a pod is promised, or has."""
    return None if made.claim(name) is None else made.gpus(name)[0]


def give(made: GpuCluster, name: str, node: str) -> None:
    """Let the scheduler have given a pod's own claim its node's channel."""
    made.put(RESOURCE_CLAIMS, domains.claim(f"{name}-channel-x", node, pod=made.get_pod(name)))


async def test_a_pod_goes_where_the_channel_is_free_and_its_claim_stays_as_it_is() -> None:
    made = cluster("a", "b")
    made.put(RESOURCE_CLAIMS, domains.claim("theirs", "a"))
    pod(made, "p", 1)
    await made.settle()
    assert placed(made, "p") == "b"
    spec = made.get_pod("p")["spec"]
    assert domains.entry("t") in spec["resourceClaims"]
    claim = made.claim("p")
    assert claim is not None
    assert domains.DRIVER not in str(claim["spec"])
    assert not spec.get("schedulingGates")


async def test_the_reason_names_the_claim_that_has_the_channel() -> None:
    made = cluster("a")
    made.put(RESOURCE_CLAIMS, domains.claim("theirs", "a"))
    pod(made, "p", 1)
    await made.settle()
    assert placed(made, "p") is None
    assert "its channel is taken by claim default/theirs" in (made.note("p", "reason") or "")

    made.remove(RESOURCE_CLAIMS, "theirs", "default")
    await made.settle()
    assert placed(made, "p") == "a"


async def test_only_the_first_channel_counts_and_no_daemon() -> None:
    made = cluster("a")
    made.put(RESOURCE_CLAIMS, domains.claim("daemon", "a", device="daemon-0"))
    pod(made, "p", 1)
    await made.settle()
    assert placed(made, "p") == "a"


async def test_pods_that_are_promised_a_node_take_its_channel_before_any_claim_of_theirs_is_there() -> None:
    made = cluster("a", "b")
    for name in ("p", "q", "r"):
        pod(made, name, 1)
    await made.settle()
    assert sorted(filter(None, (placed(made, name) for name in ("p", "q", "r")))) == ["a", "b"]
    waiting = next(name for name in ("p", "q", "r") if placed(made, name) is None)
    assert "its channel is taken by pod default/" in (made.note(waiting, "reason") or "")


async def test_the_same_after_a_restart_also_where_templates_are_seen_last() -> None:
    made = cluster("a", "b")
    pod(made, "p", 1)
    await made.settle()
    made.restart()
    pod(made, "q", 1)
    made.sources = (
        *(one for one in made.sources if one.resource is not RESOURCE_CLAIM_TEMPLATES),
        *(one for one in made.sources if one.resource is RESOURCE_CLAIM_TEMPLATES),
    )
    await made.settle()
    assert {placed(made, "p"), placed(made, "q")} == {"a", "b"}


async def test_the_channel_of_a_bound_pod_is_counted_right_whenever_its_template_is_seen() -> None:
    made = cluster("a")
    pod(made, "first")
    await made.settle()
    made.schedule()
    give(made, "first", "a")
    await made.settle()
    assert made.get_pod("first")["spec"]["nodeName"] == "a"
    made.restart()
    made.deliver(PODS, RESOURCE_CLAIMS)
    made.deliver()
    assert await made.audit() == 0
    made.remove(RESOURCE_CLAIM_TEMPLATES, "t", "default")  # its ComputeDomain is deleted, and the pod still runs
    made.deliver()
    assert await made.audit() == 0


async def test_pods_without_such_a_claim_need_no_channel() -> None:
    made = cluster("a")
    made.put(RESOURCE_CLAIMS, domains.claim("theirs", "a"))
    made.pod("p", 4)
    await made.settle()
    assert placed(made, "p") == "a"


async def test_a_node_without_a_channel_is_left_out() -> None:
    made = cluster("a", channels=False)
    pod(made, "p", 1)
    await made.settle()
    assert placed(made, "p") is None
    assert "without a channel of multi-node NVLink" in (made.note("p", "reason") or "")
    made.put(RESOURCE_SLICES, domains.resource_slice("a", "daemon"))
    await made.settle()
    assert placed(made, "p") is None
    made.put(RESOURCE_SLICES, domains.resource_slice("a"))
    await made.settle()
    assert placed(made, "p") == "a"


async def test_a_node_that_is_labelled_for_another_domain_is_left_out() -> None:
    made = cluster("a", "b")
    made.node("a", None, labels={domains.CLIQUE: "u.1", domains.LABEL: "another"})
    made.node("b", None, labels={domains.CLIQUE: "u.1", domains.LABEL: DOMAIN})
    pod(made, "p", 1)
    pod(made, "q", 1)
    await made.settle()
    assert (placed(made, "p"), placed(made, "q")) == ("b", None)
    reason = made.note("q", "reason") or ""
    assert "labelled for another ComputeDomain" in reason
    assert "its channel is taken by pod default/p" in reason

    made.node("a", None, labels={domains.CLIQUE: "u.1"})
    await made.settle()
    assert placed(made, "q") == "a"


async def test_what_a_pod_was_given_itself_keeps_nothing_from_it() -> None:
    made = cluster("a")
    pod(made, "p", 4)
    await made.settle()
    give(made, "p", "a")  # the scheduler writes claim after claim, and the leader changes between the two
    made.restart()
    await made.settle()
    assert placed(made, "p") == "a"
    picture = made.worker.picture
    free = picture.channels.free(DOMAIN, ("default", "p"))
    assert free[picture.nodes.row("a")]
    assert not picture.channels.free(DOMAIN, ("default", "q"))[picture.nodes.row("a")]


async def test_a_pod_waits_at_its_gate_for_a_template_that_is_not_there_yet() -> None:
    made = cluster("a")
    made.put(RESOURCE_CLAIMS, domains.claim("theirs", "a"))
    pod(made, "p", 1, template="late")
    await made.settle()
    assert placed(made, "p") is None
    assert "Waiting for ResourceClaimTemplate 'late', which does not exist" in (made.note("p", "reason") or "")
    made.put(RESOURCE_CLAIM_TEMPLATES, domains.template("late", DOMAIN))
    await made.settle()
    assert placed(made, "p") is None
    assert "its channel is taken" in (made.note("p", "reason") or "")
    add(made, "b", clique="u.1")
    await made.settle()
    assert placed(made, "p") == "b"


async def test_a_gang_stays_in_one_fabric_with_one_pod_a_node() -> None:
    made = cluster("a1", "a2", clique="u.1")
    add(made, "b1", "b2", "b3", clique="u.2")
    pods = gang(made, 3, 1)
    await made.settle()
    assert {placed(made, name) for name in pods} == {"b1", "b2", "b3"}
    assert made.note("w-0", "gang-reach") == FABRIC


async def test_a_gang_waits_for_one_fabric_and_says_so() -> None:
    made = cluster("a1", "a2", clique="u.1")
    add(made, "b1", "b2", "b3", clique="u.2")
    made.put(RESOURCE_CLAIMS, domains.claim("theirs", "b3"))
    pods = gang(made, 3)
    await made.settle()
    assert {placed(made, name) for name in pods} == {None}
    reason = made.note("w-0", "reason") or ""
    assert "in one NVLink fabric" in reason
    assert "its channel is taken by claim default/theirs" in reason
    made.remove(RESOURCE_CLAIMS, "theirs", "default")
    await made.settle()
    assert {placed(made, name) for name in pods} == {"b1", "b2", "b3"}


async def test_a_gang_of_no_domain_takes_several_fabrics_where_one_does_not_hold_it() -> None:
    made = cluster("a1", "a2", clique="u.1")
    add(made, "b1", "b2", clique="u.2")
    for number in range(3):
        made.pod(f"g-{number}", 4, wishes={"gang": "g", "gang-size": "3"})
    await made.settle()
    assert len({placed(made, f"g-{number}") for number in range(3)} - {None}) == 3


@pytest.mark.parametrize("near", ["leaf", "preferred leaf"])
async def test_a_wider_level_of_the_network_does_not_loosen_the_fabric(near: str) -> None:
    made = GpuCluster()
    made.put(RESOURCE_CLAIM_TEMPLATES, domains.template("t", DOMAIN))
    for node, clique in (("a1", "u.1"), ("a2", "u.1"), ("b1", "u.2")):
        leaf = {"network.topology.nvidia.com/leaf": "l1"}
        made.node(node, TRAY, labels={domains.CLIQUE: clique} | leaf)
        made.put(RESOURCE_SLICES, domains.resource_slice(node))
    made.put(RESOURCE_CLAIMS, domains.claim("theirs", "a2"))
    pods = gang(made, 2, near=near)
    await made.settle()
    assert {placed(made, name) for name in pods} == {None}
    made.remove(RESOURCE_CLAIMS, "theirs", "default")
    await made.settle()
    assert {placed(made, name) for name in pods} == {"a1", "a2"}


async def test_the_fabric_counts_also_where_the_levels_of_the_network_are_configured() -> None:
    made = GpuCluster()
    made.put(RESOURCE_CLAIM_TEMPLATES, domains.template("t", DOMAIN))
    for node, clique in (("a1", "u.1"), ("b1", "u.2"), ("b2", "u.2")):
        made.node(node, TRAY, labels={domains.CLIQUE: clique, "example.com/row": "r"})
        made.put(RESOURCE_SLICES, domains.resource_slice(node))
    made.worker.picture.levels_changed(["example.com/row"], {})
    pods = gang(made, 2)
    await made.settle()
    assert {placed(made, name) for name in pods} == {"b1", "b2"}


async def test_where_there_is_no_fabric_none_is_asked_for() -> None:
    made = GpuCluster()
    made.put(RESOURCE_CLAIM_TEMPLATES, domains.template("t", DOMAIN))
    for node in "ab":
        made.node(node, "dgx-h100")
        made.put(RESOURCE_SLICES, domains.resource_slice(node))
    pods = gang(made, 2)
    await made.settle()
    assert {placed(made, name) for name in pods} == {"a", "b"}


async def test_a_pod_that_is_made_again_stays_in_its_gangs_fabric() -> None:
    made = cluster("a1", "a2", clique="u.1")
    add(made, "b1", clique="u.2")
    pods = gang(made, 2)
    await made.settle()
    made.schedule()
    await made.settle()
    assert {placed(made, name) for name in pods} == {"a1", "a2"}
    give(made, "w-0", str(placed(made, "w-0")))
    await made.settle()
    lost = "w-1"
    node = placed(made, lost)
    made.put(RESOURCE_CLAIMS, domains.claim("theirs", str(node)))
    made.remove(PODS, lost, "default")
    made.collect()
    pod(made, lost, wishes={"gang": "w", "gang-size": "2"})
    await made.settle()
    assert placed(made, lost) is None, "the only other free channel is in another fabric"
    made.remove(RESOURCE_CLAIMS, "theirs", "default")
    await made.settle()
    assert placed(made, lost) == node


async def test_the_audit_finds_a_slice_that_was_not_taken_in() -> None:
    made = cluster("a")
    picture = made.worker.picture
    await made.settle()
    name = domains.resource_slice("a")["metadata"]["name"]
    picture.channels.slice_changed(Change(("", name), picture.channels.slice_of(name), None))
    assert await made.audit() == 1
    assert picture.nodes.channels()[picture.nodes.row("a")]


async def test_the_audit_finds_the_channel_of_a_claim_that_an_error_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cluster("a")
    picture = made.worker.picture
    await made.settle()
    with monkeypatch.context() as broken:
        broken.setattr(Picture, "held", lambda *_: 1 / 0)
        made.put(RESOURCE_CLAIMS, domains.claim("theirs", "a"))
        with pytest.raises(ZeroDivisionError):
            made.deliver()
    assert await made.audit() == 1
    assert not picture.nodes.channels()[picture.nodes.row("a")]
    assert await made.audit() == 0


async def test_the_audit_finds_a_claim_with_a_channel_whose_end_was_not_taken_in() -> None:
    made = cluster("a")
    picture = made.worker.picture
    made.put(RESOURCE_CLAIMS, domains.claim("theirs", "a"))
    await made.settle()
    made.remove(RESOURCE_CLAIMS, "theirs", "default")
    made.skip(RESOURCE_CLAIMS)
    assert await made.audit() == 1
    assert picture.nodes.channels()[picture.nodes.row("a")]


async def test_next_to_nvidias_driver_of_gpus_it_is_the_same() -> None:
    with bound(NVIDIA):
        made = AddOnCluster()
        add(made, "a", "b", clique="u.1")
        made.put(RESOURCE_CLAIM_TEMPLATES, domains.template("t", DOMAIN, mode="All"))
        made.put(RESOURCE_CLAIMS, domains.claim("theirs", "a"))
        pod(made, "p", 4)
        await made.settle()
        assert placed(made, "p") == "b"
        made.remove(RESOURCE_CLAIMS, "theirs", "default")
        pod(made, "q", 4)
        await made.settle()
        assert placed(made, "q") == "a"
