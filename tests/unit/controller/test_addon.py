"""NVIDIA's driver hands out the GPUs, and this one chooses them: by uuid, whatever their names become."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes import nvidia
from tests.fakes.addoncluster import SLICE, AddOnCluster
from tests.fakes.control_plane.devices import pinned
from tests.kept import entries

pytestmark = pytest.mark.usefixtures("addon")

QUADS = ([0, 1, 2, 3], [4, 5, 6, 7])


def uuid(cluster: AddOnCluster, index: int, node: str = "a") -> str:
    return cluster.machines[node].gpus[index].uuid


def free(cluster: AddOnCluster, node: str = "a") -> list[int]:
    """What the allocator may choose from, by the machine's numbers."""
    inventory = cluster.worker.picture.inventory
    devices = {number: (node, uuid.lower()) for number, uuid in inventory.uuids(node).items()}
    return [n for n, device in devices.items() if inventory.usable(device, None) and not inventory.holders(device)]


async def test_a_pod_gets_an_nvlink_quad_by_a_claim_of_their_class_that_is_pinned_to_their_uuids() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.pod("p", wishes={"policy": "nvlink"})
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    node, gpus = cluster.gpus("p")
    assert (node, gpus in QUADS) == ("a", True)
    assert sorted(cluster.given("p")) == [f"gpu-{cluster.machines['a'].gpus[index].minor}" for index in gpus]
    assert cluster.note("p", "level") == "nvlink"
    assert cluster.note("p", "allocated") == ",".join(uuid(cluster, index) for index in gpus)
    claim = cluster.claim("p")
    assert claim is not None
    (entry,) = claim["spec"]["devices"]["config"]
    assert entry["opaque"]["driver"] == names.DRIVER, "theirs would be decoded, and refused, by their driver"


async def test_pods_without_our_words_keep_what_their_claims_hold() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.foreign("theirs", "a", "gpu-0", "gpu-5")
    await cluster.settle()
    assert free(cluster) == [1, 2, 3, 4, 6, 7]
    cluster.remove(RESOURCE_CLAIMS, "theirs", "default")
    await cluster.settle()
    assert free(cluster) == list(range(8))


async def test_a_claim_that_was_seen_before_the_slices_holds_its_gpus_once_they_come() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.foreign("theirs", "a", "gpu-2")
    cluster.deliver(RESOURCE_CLAIMS)
    await cluster.settle()
    assert free(cluster) == [0, 1, 3, 4, 5, 6, 7]


async def test_when_minors_shift_a_claim_keeps_its_gpu_and_the_name_that_it_was_given() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.foreign("theirs", "a", "gpu-3")
    await cluster.settle()
    # GPU 0 is lost: all after it move down by one.
    cluster.shift("a", {index: index - 1 for index in range(1, 8)})
    await cluster.settle()
    # 3 is what the pod runs on; gpu-3 is 4 now, and the scheduler gives that name to nobody.
    assert free(cluster) == [1, 2, 5, 6, 7]
    # A second shift: what was gpu-3 in between is nobody's any more.
    cluster.shift("a", {index: index for index in range(8)})
    await cluster.settle()
    assert free(cluster) == [0, 1, 2, 4, 5, 6, 7]


async def test_our_own_claims_are_known_by_their_pins_after_a_restart_in_the_middle_of_a_shift() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.pod("p", 2, wishes={"policy": "nvlink"})
    await cluster.settle()
    cluster.schedule()
    before = cluster.gpus("p")[1]
    lost = next(index for index in range(8) if index not in before)
    left = [index for index in range(8) if index != lost]
    cluster.shift("a", {index: minor for minor, index in enumerate(left)})
    cluster.restart()
    await cluster.settle()
    named = {f"gpu-{minor}": index for minor, index in enumerate(left)}
    out = {*before, lost, *(named[name] for name in cluster.given("p") if name in named)}
    assert free(cluster) == [index for index in range(8) if index not in out]


async def test_a_promise_whose_gpu_got_a_name_that_is_taken_is_made_again_elsewhere() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.foreign("theirs", "a", "gpu-0")
    await cluster.settle()
    cluster.pod("p", 4)
    await cluster.settle()
    promised = cluster.gpus("p")[1]
    assert 0 not in promised
    # One of the promised GPUs is called gpu-0 now, which is allocated: the pod could wait for ever.
    victim = promised[0]
    swapped = {0: victim, victim: 0}
    cluster.shift("a", {index: swapped.get(index, index) for index in range(8)})
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    now = cluster.gpus("p")[1]
    assert not {0, victim} & set(now)
    assert len(cluster.given("p")) == 4


async def test_only_gpus_that_both_know_are_chosen() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    machine = cluster.machines["a"]
    strange = msgspec.structs.replace(machine.gpus[0], uuid="GPU-00000000-1111-2222-3333-444444444444", minor=9)
    cluster.offer("a", [*nvidia.whole(machine, without=(6, 7)), nvidia.gpu(strange, 9)])
    cluster.pod("p", 8)
    await cluster.settle()
    assert free(cluster) == [0, 1, 2, 3, 4, 5]
    assert cluster.claim("p") is None
    assert cluster.note("p", "reason")


async def test_a_tainted_gpu_and_one_that_claims_share_are_not_chosen() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    devices = nvidia.whole(cluster.machines["a"])
    by_name = {device["name"]: device for device in devices}
    # XID 79; and XID 13, which is no more than a note.
    for name, taints in nvidia.RECORDED["hgx-h100, NVMLDeviceHealthCheck"].items():
        by_name[name]["taints"] = taints
    shared = nvidia.RECORDED["hgx-h100, ConsumableShares"]
    by_name[shared["name"]] |= shared
    cluster.offer("a", devices)
    await cluster.settle()
    assert free(cluster) == [1, 3, 4, 5, 6, 7]


async def test_a_gpu_in_mig_mode_is_not_whole_and_one_with_a_mig_claim_is_not_free() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    gpus = cluster.machines["a"].gpus
    # 0 in MIG mode; 1 may be had whole or in instances that their driver makes (DynamicMIG).
    devices = [
        *nvidia.whole(cluster.machines["a"], without=(0,)),
        *(nvidia.mig(gpus[0], 0, start=start) for start in range(3)),
        *(nvidia.mig(gpus[1], 1, start=start) for start in range(3)),
    ]
    cluster.offer("a", devices)
    await cluster.settle()
    assert free(cluster) == [1, 2, 3, 4, 5, 6, 7]
    cluster.foreign("theirs", "a", "gpu-1-mig-1g10gb-19-2")
    await cluster.settle()
    assert free(cluster) == [2, 3, 4, 5, 6, 7]


async def test_gpus_that_may_be_had_in_parts_are_chosen_whole_and_a_lost_one_takes_nothing_from_claims() -> None:
    cluster = AddOnCluster()
    cluster.node("a", profile="hgx-h100")
    for _ in cluster.offer_parts("a", {index: index for index in range(8)}):
        pass
    cluster.foreign("whole", "a", "gpu-4")
    cluster.foreign("part", "a", "gpu-6-mig-1g10gb-19-2")
    await cluster.settle()
    assert free(cluster) == [0, 1, 2, 3, 5, 7]
    # GPU 2 is lost: several slices change, so it is a new generation, and until it is whole nothing is given.
    for _ in cluster.offer_parts("a", {i: i if i < 2 else i - 1 for i in range(8) if i != 2}, generation=2):
        await cluster.settle()
        assert not set(free(cluster)) & {2, 4, 6}
    # Held are 4 and 6, and 5 and 7, which have their names now.
    assert free(cluster) == [0, 1, 3]
    cluster.pod("p", 2)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert len(cluster.given("p")) == 2
    assert set(cluster.gpus("p")[1]) <= {0, 1, 3}


async def test_a_gpu_that_is_passed_through_to_a_virtual_machine_is_not_free() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    machine = cluster.machines["a"]
    cluster.offer("a", [*nvidia.whole(machine), nvidia.vfio(machine.gpus[4], 4)])
    cluster.foreign("vm", "a", "gpu-vfio-4")
    await cluster.settle()
    assert free(cluster) == [0, 1, 2, 3, 5, 6, 7]


async def test_nothing_is_placed_on_a_node_that_only_one_of_the_two_describes() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.node("b")
    cluster.remove(RESOURCE_SLICES, SLICE.format("a"))
    for piece in cluster.all(RESOURCE_SLICES):
        if piece["spec"]["driver"] == names.DRIVER and piece["spec"]["nodeName"] == "b":
            cluster.remove(RESOURCE_SLICES, piece["metadata"]["name"])
    cluster.pod("p", 2)
    await cluster.settle()
    assert cluster.claim("p") is None
    assert cluster.note("p", "reason") == "No node offers GPUs of this driver."
    cluster.publish("a", cluster.machines["a"])
    await cluster.settle()
    assert cluster.gpus("p")[0] == "a"


async def test_while_their_pool_is_not_whole_its_old_names_count_and_nothing_is_given() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.foreign("theirs", "a", "gpu-3")
    await cluster.settle()
    half = nvidia.slices("a", nvidia.whole(cluster.machines["a"])[:4], generation=2, count=2)
    cluster.put(RESOURCE_SLICES, half)
    cluster.pod("p", 2)
    await cluster.settle()
    assert cluster.claim("p") is None
    rest = nvidia.slices("a", nvidia.whole(cluster.machines["a"])[4:], generation=2, count=2, index=1)
    cluster.put(RESOURCE_SLICES, rest)
    await cluster.settle()
    assert 3 not in cluster.gpus("p")[1]


async def test_monitoring_takes_nothing_and_other_drivers_devices_are_no_gpus_of_pods() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    results = [
        {"request": "all", "driver": nvidia.DRIVER, "pool": "a", "device": "gpu-1", "adminAccess": True},
        {"request": "nic", "driver": "dra.net", "pool": "a", "device": "gpu-2"},
    ]
    claim = {"metadata": {"name": "m", "namespace": "default"}, "spec": {}, "status": {}}
    cluster.put(RESOURCE_CLAIMS, claim | {"status": {"allocation": {"devices": {"results": results}}}})
    await cluster.settle()
    assert free(cluster) == list(range(8))


async def test_a_share_and_a_mig_slice_are_not_to_be_had() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.pod("p", 1, wishes={"share": "0.5"})
    await cluster.settle()
    assert cluster.claim("p") is None
    assert cluster.note("p", "reason")


async def test_a_pod_of_before_the_add_on_that_would_be_handed_over_waits() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    cluster.foreign("theirs", "a", "gpu-0")
    cluster.pod("p", 8, wishes={"when-full": "hand-over"})
    await cluster.settle()
    assert cluster.claim("p") is None
    assert cluster.get_pod("p")["spec"]["schedulingGates"] == [{"name": names.GATE}]
    assert cluster.note("p", "reason")


async def test_the_pins_of_two_pods_never_meet() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    for number in range(4):
        cluster.pod(f"p{number}", 2)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    claims = [cluster.claim(f"p{number}") for number in range(4)]
    every = [each for claim in claims if claim is not None for each in pinned(claim)]
    assert len(every) == len(set(every)) == 8
    assert len({name for number in range(4) for name in cluster.given(f"p{number}")}) == 8


@pytest.mark.slow
async def test_of_nodes_that_came_and_went_nothing_is_kept() -> None:
    cluster = AddOnCluster()
    kept = list[int]()
    for number in range(10):
        node = f"n{number}"
        cluster.node(node)
        cluster.foreign(f"theirs-{number}", node, "gpu-3")
        await cluster.settle()
        cluster.remove(NODES, node)
        for piece in cluster.all(RESOURCE_SLICES):
            cluster.remove(RESOURCE_SLICES, piece["metadata"]["name"])
        cluster.deliver()
        cluster.remove(RESOURCE_CLAIMS, f"theirs-{number}", "default")
        await cluster.settle()
        kept.append(entries(cluster.worker.picture))
    assert set(kept) == {kept[0]}
