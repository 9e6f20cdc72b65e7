"""What a tenant's cap keeps from its pods: they wait, hold up nobody, and are placed once the tenant has less."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable
from unittest.mock import patch

import pytest

from dradriver.allocator.request import Amount, NoPlaceError
from dradriver.api.claims.pins import Key
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Cap, Tenant
from dradriver.cluster.pods.gpu_time import GpuTime
from dradriver.controller.placing import gang_plan, plan
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.queue.caps import Caps
from dradriver.queue.limits import Allowance, Limit, LimitError
from dradriver.queue.pending import PendingWorkload
from dradriver.queue.reservation_rules import Terms
from dradriver.reason import Cause
from tests.effort import sampled
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of
from tests.fakes.reserving import Reserving
from tests.fakes.troubles import working

A100 = "NVIDIA A100-SXM4-40GB"
H100 = "NVIDIA H100*"
OTHERS = Tenant(namespaces=("others",))


def capped(gpus: float, *more: Cap, namespaces: tuple[str, ...] = ("default", "dev")) -> Policies:
    return Policies(tenants={"vision": Tenant(namespaces=namespaces, cap=(Cap(gpus=gpus), *more)), "others": OTHERS})


def cluster_of(policies: Policies, **nodes: str) -> GpuCluster:
    cluster = GpuCluster()
    for name, profile in nodes.items():
        cluster.node(name, profile)
    cluster.worker.follow(policies)
    return cluster


def placed(cluster: GpuCluster, *pods: str, namespace: str = "default") -> list[str]:
    return [pod for pod in pods if cluster.find(RESOURCE_CLAIMS, claim_of(pod), namespace) is not None]


def end(cluster: GpuCluster, pod: str, namespace: str = "default") -> None:
    cluster.remove(RESOURCE_CLAIMS, claim_of(pod), namespace)
    cluster.remove(PODS, pod, namespace)


async def test_who_would_take_its_tenant_beyond_its_cap_waits_and_is_told_who_uses_it() -> None:
    cluster = cluster_of(capped(6), a="dgx1-v100")
    cluster.pod("first", 4)
    cluster.pod("nb", 1, namespace="dev")
    cluster.pod("second", 2)
    await cluster.settle()
    assert placed(cluster, "first", "second") == ["first"]
    assert cluster.note("second", "reason") == (
        'Waiting for quota: tenant "vision" may use 6 GPUs, this pod requests 2. In use: 5 (default/first 4, dev/nb 1).'
    )


async def test_what_is_left_of_released_fractions_is_not_said_to_be_in_use() -> None:
    cluster = cluster_of(capped(2), a="dgx1-v100")
    cluster.pod("large", 4)
    await cluster.settle()
    worker = cluster.worker
    caps, large = Caps(worker.tenants, worker.picture, set()), worker.workloads["default", "large"]
    assert caps.use("vision") == {}
    for gpus in (0.1, 0.2, 0.3, -0.1, -0.2, -0.3):  # which add up to 1e-16
        caps.charge("default", {A100: gpus})
    assert "to at least 4 GPUs." in caps.helps(large)


async def test_who_uses_a_cap_is_added_up_only_for_a_reason_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    cluster.pod("first", 4)
    cluster.pod("second", 2)
    await cluster.settle()
    cluster.worker.limits.regroup()  # what was added up before is forgotten
    added_up: list[GpuTime] = []
    claims = GpuTime.claims

    def counted(gpu_time: GpuTime) -> Collection[Key]:
        added_up.append(gpu_time)
        return claims(gpu_time)

    monkeypatch.setattr(GpuTime, "claims", counted)
    with pytest.raises(LimitError) as refused:
        cluster.worker.limits.allow(cluster.worker.workloads["default", "second"])
    assert not added_up
    assert "default/first 4" in str(refused.value)
    assert len(added_up) == 1


async def test_it_holds_up_no_other_of_its_kind() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    cluster.pod("first", 4)
    cluster.pod("second", 4)
    await cluster.settle()
    assert placed(cluster, "second") == []
    cluster.pod("theirs", 4, namespace="others")
    await cluster.settle()
    assert placed(cluster, "theirs", namespace="others") == ["theirs"]


async def test_who_asks_for_less_is_placed_before_it() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    cluster.pod("first", 3)
    cluster.pod("second", 2)
    cluster.pod("third", 1)
    await cluster.settle()
    assert placed(cluster, "first", "second", "third") == ["first", "third"]


async def test_it_is_placed_once_its_tenant_has_less_and_is_not_asked_about_before() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100", b="dgx1-v100")
    cluster.pod("first", 4)
    cluster.pod("second", 4)
    cluster.pod("theirs", 8, namespace="others")
    await cluster.settle()
    with patch("dradriver.controller.loop.planner.plan", wraps=plan.plan) as asked:
        cluster.remove(RESOURCE_CLAIMS, claim_of("theirs"), "others")
        cluster.remove(PODS, "theirs", "others")
        await cluster.settle()
        assert not asked.called, "what others free is nothing to it"
        end(cluster, "first")
        await cluster.settle()
        assert asked.called
    assert placed(cluster, "second") == ["second"]
    assert cluster.note("second", "reason") is None


async def test_a_file_that_raises_the_cap_places_it_and_one_that_lowers_it_takes_nothing_away() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    cluster.pod("first", 4)
    cluster.pod("second", 4)
    await cluster.settle()
    cluster.worker.follow(capped(8))
    await cluster.settle()
    assert placed(cluster, "first", "second") == ["first", "second"]
    cluster.worker.follow(capped(1))
    await cluster.settle()
    assert placed(cluster, "first", "second") == ["first", "second"]
    assert cluster.get_pod("second")["spec"]["schedulingGates"] == []


async def test_a_reason_never_has_figures_of_two_times() -> None:
    cluster = cluster_of(capped(6), a="dgx1-v100")
    cluster.pod("first", 4)
    cluster.pod("nb", 1, namespace="dev")
    cluster.pod("second", 4)
    await cluster.settle()
    assert (cluster.note("second", "reason") or "").endswith("In use: 5 (default/first 4, dev/nb 1).")
    end(cluster, "nb", "dev")
    cluster.pod("third", 3)
    await cluster.settle()
    reason = cluster.note("third", "reason") or ""
    assert re.search(r"In use: 4( \(|\.$)", reason)
    assert "dev/nb" not in reason, "it has ended"


async def test_no_priority_lifts_a_cap() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    cluster.pod("first", 4)
    await cluster.settle()
    cluster.pod("urgent", 1, priority=1_000_000)
    await cluster.settle()
    assert placed(cluster, "urgent") == []


async def test_what_others_chose_counts_too() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    cluster.rival("by-hand", "a", range(3))
    cluster.pod("p", 2)
    await cluster.settle()
    assert placed(cluster, "p") == []
    assert "may use 4 GPUs, this pod requests 2. In use: 3 (default/by-hand 3)." in (cluster.note("p", "reason") or "")


async def test_a_pod_that_may_have_other_products_gets_one_that_the_cap_leaves() -> None:
    cluster = cluster_of(capped(100, Cap(gpus=4, products=(H100,))), a="dgx-h100", b="dgx-a100")
    cluster.pod("first", 4, wishes={"product": H100})
    cluster.pod("second", 4)
    cluster.pod("third", 2, wishes={"product": H100})
    await cluster.settle()
    assert cluster.gpus("first")[0] == "a"
    assert cluster.gpus("second")[0] == "b"
    assert placed(cluster, "third") == []
    assert "may use 4 GPUs of NVIDIA H100*, this pod requests 2. In use: 4" in (cluster.note("third", "reason") or "")


H100_ALONE = Cap(gpus=4, products=(H100,))
A100_ALONE = Cap(gpus=6, products=("NVIDIA A100*",))


@pytest.mark.parametrize("in_use", [0, 4])
@pytest.mark.parametrize("pods", [1, 2])
async def test_a_cap_that_always_refuses_decides_before_one_that_is_in_use(pods: int, in_use: int) -> None:
    cluster = cluster_of(capped(6, H100_ALONE), a="dgx-h100", b="dgx-a100")
    if in_use:
        cluster.pod("first", in_use)
        await cluster.settle()
    group = {} if pods == 1 else {"gang": "train", "gang-size": "2"}
    for number in range(pods):
        cluster.pod(f"p{number}", 6 // pods, wishes={"product": H100, **group})
    await cluster.settle()
    assert cluster.note("p0", "reason") == (
        'Refused by quota: tenant "vision" may use 4 GPUs of NVIDIA H100*, '
        f"this {'pod' if pods == 1 else 'gang'} requests 6."
    )


async def test_a_cap_that_always_refuses_one_product_refuses_no_pod_that_can_get_another() -> None:
    cluster = cluster_of(capped(100, H100_ALONE, A100_ALONE), a="dgx-h100", b="dgx-a100")
    cluster.pod("first", 4, wishes={"product": "NVIDIA A100*"})
    await cluster.settle()
    cluster.pod("second", 6)
    await cluster.settle()
    assert cluster.note("second", "reason") == (
        'Waiting for quota: tenant "vision" may use 6 GPUs of NVIDIA A100*, this pod requests 6. '
        "In use: 4 (default/first 4)."
    )
    end(cluster, "first")
    await cluster.settle()
    assert placed(cluster, "second") == ["second"]


async def test_a_share_that_a_cap_refuses_on_small_gpus_waits_for_a_large_one() -> None:
    cluster = cluster_of(capped(0.3))
    for name, profile in (("a", "dgx-a100"), ("b", "dgx-h100")):
        cluster.node(name, profile, mode=Mode(shared="time-slicing"))
    share = Amount(memory_mib=16 * 1024)  # 0.4 of an A100 with 40 GB, 0.2 of an H100 with 80 GB
    cluster.pod("first", share)
    await cluster.settle()
    cluster.pod("second", share)
    await cluster.settle()
    assert (cluster.note("second", "reason") or "").startswith(
        'Waiting for quota: tenant "vision" may use 0.3 GPUs, this pod requests 0.2. In use: 0.2'
    )
    end(cluster, "first")
    await cluster.settle()
    assert placed(cluster, "second") == ["second"]


async def test_where_what_the_cap_leaves_is_full_it_is_told_both_and_gets_either() -> None:
    cluster = cluster_of(capped(100, Cap(gpus=4, products=(H100,))), a="dgx-h100", b="dgx-a100")
    cluster.rival("theirs", "b", range(8))
    cluster.worker.follow(capped(100, Cap(gpus=4, products=(H100,)), namespaces=("mine",)))
    cluster.pod("first", 4, namespace="mine", wishes={"product": H100})
    cluster.pod("second", 4, namespace="mine")
    cluster.pod("other", 4, namespace="others")
    await cluster.settle()
    pod = cluster.find(PODS, "second", "mine")
    assert pod is not None
    reason = pod["metadata"]["annotations"]["gpu.topology/reason"]
    assert "no eligible node has such a free set" in reason
    assert reason.endswith('GPUs are left out by quota: tenant "vision" may use 4 GPUs of NVIDIA H100*. In use: 4.')
    assert placed(cluster, "other", namespace="others") == ["other"], "who asks for the same is not blocked by that"
    cluster.remove(RESOURCE_CLAIMS, "theirs", "default")
    await cluster.settle()
    assert placed(cluster, "second", namespace="mine") == ["second"]


async def test_only_the_first_pod_of_a_line_is_told_what_its_tenant_uses() -> None:
    """Else each change of the use would be written to all waiting pods of the tenant."""
    cluster = cluster_of(capped(100, Cap(gpus=4, products=(H100,))), a="dgx-h100", b="dgx-a100")
    cluster.rival("theirs", "b", range(8))
    cluster.pod("small", 2, wishes={"product": H100})
    cluster.pod("smaller", 1, wishes={"product": H100})
    for name in ("first", "second", "third"):
        cluster.pod(name, 4)
    await cluster.settle()
    before = [cluster.note(name, "reason") or "" for name in ("first", "second", "third")]
    assert ["In use: 3." in text for text in before] == [True, False, False]
    end(cluster, "small")
    await cluster.settle()
    after = [cluster.note(name, "reason") or "" for name in ("first", "second", "third")]
    assert "In use: 1." in after[0]
    assert after[1:] == before[1:]


@pytest.mark.parametrize("cause", [Cause.RESERVED, Cause.CAP])
async def test_what_left_gpus_out_gives_the_reason_its_cause(cause: Cause) -> None:
    class Keeps(Limit):
        def allow(self, workload: PendingWorkload, allowance: Allowance) -> Allowance:
            return allowance._replace(
                closed=frozenset((A100,)), why=NoPlaceError("They are kept for others", cause=cause)
            )

    cluster = cluster_of(Policies(), a="dgx-a100", b="dgx-h100")
    cluster.rival("theirs", "b", range(8))
    cluster.worker.limits.put(Keeps(), in_force=True)
    cluster.pod("p", 4)
    await cluster.settle()
    assert (cluster.note("p", "reason") or "").endswith(" They are kept for others.")
    assert cluster.worker.reasons.counted()[cause] == 1


async def test_of_a_machine_with_two_products_only_those_that_the_cap_leaves_are_given() -> None:
    from msgspec.structs import replace

    from dradriver.topology import profiles

    cluster = cluster_of(capped(100, Cap(gpus=0, products=("NVIDIA Odd",))), a="dgx-a100")
    machine = profiles.load("dgx-a100", seed="a")
    mixed = replace(machine, gpus=tuple(replace(g, product="NVIDIA Odd") if g.index < 4 else g for g in machine.gpus))
    cluster.machines["a"] = mixed
    cluster.publish("a", mixed)
    cluster.pod("p", 3)
    cluster.pod("q", 2)
    await cluster.settle()
    assert set(cluster.gpus("p")[1]) < {4, 5, 6, 7}
    assert placed(cluster, "q") == [], "one of the products that it may have is left"


async def test_parts_count_by_their_part() -> None:
    cluster = cluster_of(capped(1))
    cluster.node("a", mode=Mode(shared="time-slicing"))
    for name in ("p", "q", "r"):
        cluster.pod(name, Amount(cores=40))
    await cluster.settle()
    assert placed(cluster, "p", "q", "r") == ["p", "q"]
    assert "may use 1 GPU, this pod requests 0.4. In use: 0.8" in (cluster.note("r", "reason") or "")


async def test_slices_count_by_their_part() -> None:
    cluster = cluster_of(capped(0.5))
    cluster.node("a", "dgx-h100", mode=Mode(mig="dynamic"))
    for name in ("p", "q"):
        cluster.pod(name, ("3g.40gb",))
    await cluster.settle()
    assert placed(cluster, "p", "q") == ["p"]
    assert "may use 0.5 GPUs, this pod requests 0.5. In use: 0.5" in (cluster.note("q", "reason") or "")


async def test_a_gang_counts_as_a_whole() -> None:
    cluster = cluster_of(capped(15), **dict.fromkeys("ab", "dgx1-v100"))
    pods = gang(cluster, 2)
    await cluster.settle()
    assert placed(cluster, *pods) == []
    assert "may use 15 GPUs, this gang requests 16." in (cluster.note(pods[0], "reason") or "")
    cluster.worker.follow(capped(16))
    await cluster.settle()
    assert placed(cluster, *pods) == pods


async def test_a_gang_that_may_begin_with_fewer_begins_with_as_many_as_its_cap_leaves() -> None:
    cluster = cluster_of(capped(24), **dict.fromkeys("abcd", "dgx1-v100"))
    pods = [f"train-{number}" for number in range(4)]
    for pod in pods:
        cluster.pod(pod, 8, wishes={"gang": "train", "gang-size": "2-4"})
    await cluster.settle()
    assert placed(cluster, *pods) == pods[:3]


@pytest.mark.parametrize(
    ("cap", "reason"),
    [
        (24, "Waiting for quota: {cap} 24 GPUs, this gang requests at least 16. In use: 16 (default/first 8, "),
        (12, "Refused by quota: {cap} 12 GPUs, this gang requests at least 16."),
    ],
)
async def test_a_gang_that_may_begin_with_fewer_is_refused_only_if_the_fewest_exceed_a_cap(
    cap: int, reason: str
) -> None:
    cluster = cluster_of(capped(24), **dict.fromkeys("abcd", "dgx1-v100"))
    for name in ("first", "other"):
        cluster.pod(name, 8)
    await cluster.settle()
    cluster.worker.follow(capped(cap))
    for number in range(4):
        cluster.pod(f"train-{number}", 8, wishes={"gang": "train", "gang-size": "2-4"})
    await cluster.settle()
    assert (cluster.note("train-0", "reason") or "").startswith(reason.format(cap='tenant "vision" may use'))
    if cap > 16:
        end(cluster, "other")
        await cluster.settle()
        assert len(placed(cluster, *(f"train-{number}" for number in range(4)))) == 2


async def test_two_that_are_decided_before_either_is_written_do_not_go_beyond_it_together() -> None:
    cluster = cluster_of(capped(8), **dict.fromkeys("ab", "dgx1-v100"))
    pods = [f"p{number}" for number in range(8)]
    for pod in pods:
        cluster.pod(pod, 2)
    cluster.deliver()
    await cluster.worker.turn()
    promised = cluster.worker.picture.gpu_time.now()["default"][1]
    assert promised == 8
    await cluster.settle()
    assert len(placed(cluster, *pods)) == 4


@pytest.mark.parametrize("kill_at", sampled([*range(1, 9), *range(-8, 0)]))
async def test_it_holds_for_the_next_leader_wherever_the_last_was_killed(kill_at: int) -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    pods = [f"p{number}" for number in range(6)]
    for pod in pods:
        cluster.pod(pod, 1)
    cluster.client.kill_at = kill_at
    with pytest.raises(Killed):
        await cluster.settle()
    cluster.restart()
    cluster.worker.follow(capped(4))
    await cluster.settle()
    assert len(placed(cluster, *pods)) == 4


async def test_claims_that_are_seen_before_the_nodes_they_are_on_count_by_their_products() -> None:
    cluster = cluster_of(capped(100, Cap(gpus=4, products=(H100,))), a="dgx-h100", b="dgx-a100")
    cluster.pod("first", 4, wishes={"product": "NVIDIA A100*"})
    await cluster.settle()
    cluster.restart()
    cluster.worker.follow(capped(100, Cap(gpus=4, products=(H100,))))
    cluster.deliver(RESOURCE_CLAIMS)
    cluster.pod("second", 4, wishes={"product": H100})
    await cluster.settle()
    assert placed(cluster, "second") == ["second"]


async def test_a_pod_that_comes_to_a_running_gang_has_the_lost_ones_place_and_no_more_than_its_cap() -> None:
    cluster = cluster_of(capped(16), **dict.fromkeys("abc", "dgx1-v100"))
    cluster.barrier()
    pods = gang(cluster, 2)
    for _ in range(3):
        await cluster.settle()
        cluster.schedule()
    await cluster.settle()
    assert [cluster.get_pod(pod)["spec"].get("nodeName") for pod in pods] != [None, None]
    at, _ = cluster.gpus(pods[1])
    cluster.pod("other", 1)
    end(cluster, pods[1])
    await cluster.settle()
    assert placed(cluster, "other") == [], "the lost pod's place is kept, and counts"
    cluster.pod(pods[1], 8, wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    assert cluster.gpus(pods[1])[0] == at
    cluster.pod("train-9", 8, wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    assert placed(cluster, "train-9") == []
    assert "quota: tenant" in (cluster.note("train-9", "reason") or "")


async def test_whom_a_cap_parks_is_not_handed_over_to_the_scheduler() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    cluster.pod("first", 4)
    cluster.pod("second", 4, wishes={"policy": "nvlink", "when-full": "hand-over"})
    await cluster.settle()
    assert placed(cluster, "second") == []
    assert cluster.get_pod("second")["spec"]["schedulingGates"]


async def test_whom_a_cap_parks_is_not_handed_over_with_others_of_its_kind() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    cluster.hand_over_s = 5.0
    cluster.restart()
    cluster.worker.follow(capped(4))
    cluster.rival("x", "a", range(8))
    async with working(cluster):
        for name, namespace in (("theirs", "others"), ("second", "default")):
            cluster.pod(name, 4, namespace=namespace, wishes={"policy": "nvlink", "when-full": "hand-over"})
            await asyncio.sleep(1)
        await asyncio.sleep(10)
    assert placed(cluster, "theirs", namespace="others") == ["theirs"]
    assert placed(cluster, "second") == []


async def test_who_shares_a_set_that_is_there_asks_for_nothing_more() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    for name in ("first", "second"):
        cluster.pod(name, 4, wishes={"shared-claim": "both"})
        await cluster.settle()
        cluster.schedule()
        await cluster.settle()
    assert cluster.get_pod("second")["spec"]["nodeName"] == "a"


async def test_whom_it_parked_is_told_once_the_place_is_what_lacks() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    cluster.pod("first", 4)
    cluster.pod("second", 4)
    await cluster.settle()
    cluster.rival("theirs", "a", set(range(8)) - set(cluster.gpus("first")[1]))
    claim = cluster.find(RESOURCE_CLAIMS, "theirs", "default")
    assert claim is not None
    cluster.remove(RESOURCE_CLAIMS, "theirs", "default")
    claim["metadata"]["namespace"] = "others"
    cluster.put(RESOURCE_CLAIMS, claim)
    cluster.pod("third", 4, namespace="others")
    await cluster.settle()
    assert "quota: tenant" in (cluster.note("second", "reason") or "")
    cluster.worker.follow(capped(8))
    await cluster.settle()
    assert "no eligible node has such a free set" in (cluster.note("second", "reason") or "")


def _reasons(cluster: GpuCluster, pods: Iterable[str]) -> int:
    return sum("quota: tenant" in (cluster.note(pod, "reason") or "") for pod in pods)


async def test_only_the_first_of_many_is_told_new_figures() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100")
    cluster.pod("first", 3)
    cluster.pod("small", 1)
    await cluster.settle()
    many = [f"m{number}" for number in range(10)]
    for pod in many:
        cluster.pod(pod, 2)
    await cluster.settle()
    assert _reasons(cluster, many) == 10
    before = len(cluster.client.writes)
    end(cluster, "small")
    await cluster.settle()
    assert re.search(r"In use: 3( \(|\.$)", cluster.note("m0", "reason") or "")
    assert len(cluster.client.writes) == before + 1
    with patch.object(gang_plan, "plan") as plan:
        await cluster.settle()
    assert not plan.called


async def test_a_controller_that_works_by_itself_looks_at_it_at_once() -> None:
    cluster = cluster_of(capped(4), a="dgx1-v100", b="dgx1-v100")
    cluster.pod("first", 4)
    cluster.pod("second", 4)
    async with working(cluster):
        await asyncio.sleep(1)
        assert placed(cluster, "first", "second") == ["first"]
        end(cluster, "first")
        await asyncio.sleep(0.2)
        assert placed(cluster, "second") == ["second"]


async def test_what_is_reserved_for_one_whom_its_cap_parks_is_others() -> None:
    cluster = Reserving()
    cluster.worker.follow(capped(8))
    cluster.node("a")
    await cluster.settle()
    for name in ("o0", "o1"):
        cluster.pod(name, 4, namespace="others")
    await cluster.settle()
    await cluster.start()
    cluster.pod("big", 8)
    await cluster.settle()
    await cluster.later(Terms().bounded_wait_s + 60)
    assert cluster.held
    cluster.node("b")
    await cluster.run("small", 4, nodeSelector={"kubernetes.io/hostname": "b"}, priority=1)
    await cluster.look()
    assert (cluster.runs("small"), cluster.held) == (True, ())


@pytest.mark.slow
async def test_figures_in_a_reason_are_of_the_last_minute_and_only_the_first_in_line_has_any() -> None:
    cluster = cluster_of(capped(6), a="dgx1-v100")
    cluster.pod("first", 3)
    async with working(cluster):
        await asyncio.sleep(1)
        cluster.schedule()
        for name in ("second", "third", "fourth"):
            cluster.pod(name, 4)
        await asyncio.sleep(40)
        assert cluster.note("third", "reason") == cluster.note("fourth", "reason") == (
            'Waiting for quota: tenant "vision" may use 6 GPUs, this pod requests 4.'
        )  # fmt: skip
        for number, used in enumerate((4, 5)):
            cluster.pod(f"more-{number}", 1, namespace="dev")
            await asyncio.sleep(2)
            cluster.schedule()
            await asyncio.sleep(45)
            assert f"In use: {used} " in (cluster.note("second", "reason") or "")
        writes = [name for verb, name in cluster.client.writes if verb == "patch" and name in ("third", "fourth")]
        assert len(writes) == 2, "one for each: nothing that they say has changed"
        cluster.remove(PODS, "second", "default")
        await asyncio.sleep(45)
        assert "In use: 5 " in (cluster.note("third", "reason") or "")


@pytest.mark.slow
async def test_figures_of_a_reason_are_half_a_minute_old_at_most() -> None:
    cluster = cluster_of(capped(32), a="dgx-a100", b="dgx-a100", c="dgx-a100", d="dgx-a100")
    cluster.pod("small", 1)
    await cluster.settle()
    cluster.pod("large", 32)
    used_until: dict[int, float] = {}  # by number of GPUs: when the tenant had so many last
    worst_s, clock = 0.0, asyncio.get_running_loop().time
    async with working(cluster, see_s=0.2):
        for second in range(64):
            if second % 2 == 0:
                cluster.pod(f"small-{second}", 1)
            await asyncio.sleep(1)
            used_until[int(sum(cluster.features.caps.use("vision").values()))] = clock()
            shown = re.search(r"In use: (\d+) ", cluster.note("large", "reason") or "")
            if shown is not None:
                worst_s = max(worst_s, clock() - used_until.get(int(shown[1]), 0.0))
    assert shown is not None
    assert 0 < worst_s <= 30
