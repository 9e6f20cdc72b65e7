"""NICs of other drivers in a pod's claim: the free ones nearest to its GPUs are pinned, others' words stay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import yaml

from dradriver.api.base import names
from dradriver.api.policies.policy_sections import Nics
from dradriver.controller.placing.reservable import Reservable
from dradriver.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_SLICES
from dradriver.queue.pending import Member, PendingWorkload
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.nic_pods import (
    NEAREST,
    ODD,
    RDMA,
    a_cluster,
    addresses,
    asked,
    given,
    gpus,
    pod,
    run,
    template,
    wanted,
)
from tests.fakes.nics import DRANET, DRANET_CLASS, SRIOV
from tests.paths import REPO

Object = dict[str, Any]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
async def test_each_gpu_gets_the_nic_at_its_switch(count: int) -> None:
    cluster = a_cluster()
    template(cluster, gpus(count=count), wanted("nic", count))
    pod(cluster)
    await run(cluster)
    _, chosen = cluster.gpus("p")
    assert addresses(cluster) == [NEAREST[gpu] for gpu in chosen]
    assert given(cluster) == sorted(f"pci-{one.replace(':', '-').replace('.', '-')}" for one in addresses(cluster))
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"


async def test_requests_of_one_each_get_the_nics_of_their_gpus() -> None:
    cluster = a_cluster()
    template(cluster, gpus("gpu-0"), wanted("nic-0"), gpus("gpu-1"), wanted("nic-1"))
    pod(cluster)
    await run(cluster)
    claim = cluster.claim("p")
    assert claim is not None
    (own,) = [one for one in claim["spec"]["devices"]["config"] if one["opaque"]["driver"] == names.DRIVER]
    machine = cluster.machines["a"]
    number = {gpu.uuid: gpu.index for gpu in machine.gpus}
    for at in (0, 1):
        (uuid,) = own["opaque"]["parameters"]["order"][f"gpu-{at}"]
        assert addresses(cluster, request=f"nic-{at}") == [NEAREST[number[uuid]]]


async def test_what_the_author_says_stays_and_the_pin_stands_first() -> None:
    cluster = a_cluster()
    opaque = {"opaque": {"driver": DRANET, "parameters": {"interface": {"mtu": 9000}}}, "requests": ["nic"]}
    alike = {"requests": ["nic"], "matchAttribute": "dra.net/numaNode"}
    own = wanted("nic", 2, RDMA, tolerations=[{"key": "k", "operator": "Exists"}])
    template(cluster, gpus(count=2), own, config=[opaque], constraints=[alike])
    pod(cluster)
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    devices = claim["spec"]["devices"]
    first, *others = asked(cluster)["nic"]["selectors"]
    assert others == own["exactly"]["selectors"]
    assert first["cel"]["expression"].startswith('device.attributes["dra.net"].?pciAddress.orValue("") in ["0000:')
    assert asked(cluster)["nic"] | {"selectors": others} == own["exactly"]
    assert devices["config"][0] == opaque
    assert devices["constraints"] == [alike]


async def test_two_pods_never_get_one_nic_and_a_third_waits_with_the_reason_until_one_is_free() -> None:
    cluster = a_cluster()
    template(cluster, gpus(count=2), wanted("nic", 4))
    for name in ("p", "q", "r"):
        pod(cluster, name)
    await cluster.settle()  # both are promised before the scheduler has given either anything
    both = addresses(cluster, "p") + addresses(cluster, "q")
    assert len(set(both)) == 8
    assert cluster.claim("r") is None
    assert cluster.note("r", "reason") == (
        "Waiting for 4 NICs of class dranet.net: no eligible node has enough free NICs for its free GPUs."
    )
    cluster.schedule()
    await cluster.settle()
    assert given(cluster, "p")
    _end(cluster, "p")
    await run(cluster)
    assert sorted(addresses(cluster, "r")) == sorted(set(NEAREST.values()) - set(addresses(cluster, "q")))


def _end(cluster: GpuCluster, name: str) -> None:
    cluster.remove(PODS, name, "default")
    cluster.collect()


async def test_on_a_machine_whose_nics_share_no_root_with_gpus_they_are_chosen_by_numa_node() -> None:
    cluster = a_cluster(profile="gb200-nvl72-tray")  # no NIC says its root, as in GB300's slices
    template(cluster, gpus(count=2), wanted("nic", 2, RDMA))
    pod(cluster, required="same-numa", near_nic="required")
    await run(cluster)
    _, chosen = cluster.gpus("p")
    numa = {gpu.index: gpu.numa for gpu in cluster.machines["a"].gpus}
    of_nic = {nic.pci: nic.numa for nic in cluster.machines["a"].nics}
    assert {of_nic[one] for one in addresses(cluster)} == {numa[gpu] for gpu in chosen}
    assert len(given(cluster)) == 2


ROOTS = {"0000:03:00.0": "pci0000:00", "0002:03:00.0": "pci0002:00"}


async def test_a_constraint_that_no_devices_meet_is_told_and_not_waited_for() -> None:
    cluster = a_cluster(profile="gb200-nvl72-tray")
    machine = cluster.machines["a"]
    cluster.put(RESOURCE_SLICES, nics.published("a", nics.of_machine(machine, ROOTS)))
    alike = {"requests": ["gpu", "nic"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
    template(cluster, gpus(), wanted(), constraints=[alike])
    pod(cluster)
    await cluster.settle()
    assert cluster.claim("p") is None
    assert cluster.note("p", "reason") == (
        "Waiting for 1 NIC of class dranet.net: no NIC of any node has the same resource.kubernetes.io/pcieRoot as a "
        "GPU. Remove this constraint from the template. The driver chooses the NICs nearest to the GPUs anyway."
    )


async def test_pins_agree_with_constraints_that_can_be_met() -> None:
    cluster = a_cluster()
    machine = cluster.machines["a"]
    root = {gpu.index: gpu.pcie_root or "" for gpu in machine.gpus}
    # Only what hangs from the root of GPU 6 says so: by nearness alone it would not be the first choice.
    cluster.put(RESOURCE_SLICES, nics.published("a", nics.of_machine(machine, {NEAREST[6]: root[6]})))
    alike = {"requests": ["gpu", "nic"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
    template(cluster, gpus(), wanted(), constraints=[alike])
    pod(cluster)
    await run(cluster)
    assert cluster.gpus("p")[1] == [6]
    assert addresses(cluster) == [NEAREST[6]]


async def test_only_nics_that_an_author_and_the_class_would_have_are_chosen() -> None:
    cluster = a_cluster()
    devices = nics.of_machine(cluster.machines["a"])
    for each in devices[:6]:
        each["attributes"]["dra.net/rdma"] = {"bool": False}
    del devices[6]["attributes"]["dra.net/rdma"]  # a selector on it fails: such a NIC is none of these
    cluster.put(RESOURCE_SLICES, nics.published("a", devices))
    template(cluster, gpus(), wanted("nic", 1, RDMA))
    pod(cluster)
    await run(cluster)
    assert addresses(cluster) == [NEAREST[7]]
    cluster.put(DEVICE_CLASSES, nics.device_class(DRANET_CLASS, DRANET, RDMA))
    template(cluster, gpus(), wanted("nic", 1), name="u")
    pod(cluster, "q", "u")
    await run(cluster)
    assert cluster.claim("q") is None
    assert "1 NIC of class dranet.net: no" in (cluster.note("q", "reason") or "")


async def test_the_example_gets_what_it_says() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100")
    cluster.put(RESOURCE_SLICES, nics.published("a", nics.of_machine(cluster.machines["a"])))
    device_class, content, example = yaml.safe_load_all((REPO / "examples" / "beside" / "dranet.yaml").read_text())
    cluster.put(DEVICE_CLASSES, device_class)
    template(cluster, *content["spec"]["spec"]["devices"]["requests"])
    words = {key.removeprefix(names.PREFIX): text for key, text in example["metadata"]["annotations"].items()}
    pod(cluster, **{key.replace("-", "_"): text for key, text in words.items()})
    await cluster.settle()
    assert addresses(cluster) == [NEAREST[gpu] for gpu in cluster.gpus("p")[1]]
    assert cluster.note("p", "level") == "nvlink"


async def test_a_request_that_cannot_be_read_is_left_to_the_scheduler_and_the_others_are_pinned() -> None:
    cluster = a_cluster()
    every = {"name": "all", "exactly": {"deviceClassName": DRANET_CLASS, "allocationMode": "All"}}
    template(cluster, gpus(), wanted("odd", 1, ODD), wanted("nic"), every)
    pod(cluster)
    await cluster.settle()
    assert asked(cluster)["odd"] == wanted("odd", 1, ODD)["exactly"]
    assert asked(cluster)["all"] == every["exactly"]
    assert len(addresses(cluster)) == 1
    template(cluster, gpus(), wanted("odd", 1, ODD), name="u")
    pod(cluster, "q", "u", near_nic="required")
    await cluster.settle()
    assert cluster.claim("q") is None
    assert (
        "gpu.topology/near-nic: required: the driver cannot choose the NICs of request 'odd': only kube-scheduler can "
        "evaluate the selector" in (cluster.note("q", "reason") or "")
    )


async def test_near_nic_required_takes_gpus_whose_nics_are_free_and_refuses_nodes_without() -> None:
    cluster = a_cluster()
    machine = cluster.machines["a"]
    devices = nics.of_machine(machine)
    cluster.put(RESOURCE_SLICES, nics.published("a", [devices[2], devices[5], devices[6]]))
    template(cluster, gpus(count=2), wanted("nic", 2))
    pod(cluster, near_nic="required")
    await run(cluster)
    (_, chosen), got = cluster.gpus("p"), addresses(cluster)
    assert got == [NEAREST[gpu] for gpu in chosen]
    assert set(chosen) < {2, 5, 6}
    pod(cluster, "q", near_nic="required")
    template(cluster, gpus(), wanted(), name="u")
    pod(cluster, "r", "u", near_nic="required")
    await run(cluster)
    assert cluster.claim("q") is None
    assert set(cluster.gpus("r")[1]) == {2, 5, 6} - set(chosen)
    assert "no eligible node has enough free NICs" in (cluster.note("q", "reason") or "")


async def test_near_nic_preferred_goes_where_nics_are_near_and_stays_where_none_are() -> None:
    cluster = a_cluster("a", "b")
    far = [nics.device(f"0000:f{at}:00.0", number=at, numa=None) for at in range(2)]
    cluster.put(RESOURCE_SLICES, nics.published("a", far))
    template(cluster, gpus(), wanted())
    pod(cluster, "plain")
    await run(cluster)
    assert cluster.gpus("plain")[0] == "a", "the first by name, where nothing is said"
    pod(cluster, "near", near_nic="preferred")
    await run(cluster)
    assert cluster.gpus("near")[0] == "b"
    cluster.remove(RESOURCE_SLICES, "b-dra.net")
    pod(cluster, "any", near_nic="preferred")
    await run(cluster)
    assert cluster.gpus("any")[0] == "a"


async def test_virtual_functions_are_near_what_their_card_is_near_and_of_different_cards() -> None:
    cluster = a_cluster()
    functions = [
        nics.function(f"{NEAREST[gpu][:-1]}{1 + number}", NEAREST[gpu], number)
        for gpu in NEAREST
        for number in range(2)
    ]
    cluster.put(RESOURCE_SLICES, nics.published("a", functions, driver=SRIOV))
    template(cluster, gpus(count=2), wanted("nic", 2, device_class=SRIOV))
    pod(cluster)
    await run(cluster)
    _, chosen = cluster.gpus("p")
    (pin,) = [one["cel"]["expression"] for one in asked(cluster)["nic"]["selectors"]]
    listed = json.dumps([f"{NEAREST[gpu][:-1]}1" for gpu in chosen])
    assert pin == f'device.attributes["resource.kubernetes.io"].?pciBusID.orValue("") in {listed}'
    assert len(given(cluster, driver=SRIOV)) == 2


async def test_an_event_says_which_nics_a_pod_got_and_which_requests_had_no_choice() -> None:
    cluster = a_cluster()
    said: list[str] = []

    async def record(_: object, text: str) -> None:
        said.append(text)

    cluster.record_placed = record
    cluster.restart()
    template(cluster, gpus(), wanted("odd", 1, ODD), wanted("nic"))
    pod(cluster)
    await cluster.settle()
    task = asyncio.create_task(cluster.worker.placed.run())
    while not said:
        await asyncio.sleep(1)
    task.cancel()
    (text,) = said
    (address,) = addresses(cluster)
    assert f" It gets NIC {address}. The NICs of request 'odd' are left to the scheduler: only" in text


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_policies_file_says_which_classes_are_of_nics(order: Sequence[int]) -> None:
    cluster = a_cluster()
    cluster.put(DEVICE_CLASSES, nics.device_class("rails"))
    template(cluster, gpus(), wanted(device_class="rails"))

    def classes() -> None:
        cluster.worker.picture.nic_classes_changed(Nics(classes={"rails": "dranet"}).every)

    for step in order:
        if step == 0:
            classes()
        else:
            pod(cluster)
            await cluster.settle()
            if order[0] == 1:
                told = cluster.note("p", "reason") or ""
                assert "nor a NIC class of the policies file (nics.classes)" in told
    await cluster.settle()
    assert len(addresses(cluster)) == 1


async def test_a_class_that_is_not_there_is_waited_for() -> None:
    cluster = a_cluster()
    cluster.remove(DEVICE_CLASSES, DRANET_CLASS)
    template(cluster, gpus(), wanted())
    pod(cluster)
    await cluster.settle()
    assert cluster.note("p", "reason") == "Waiting for DeviceClass 'dranet.net', which does not exist. Create it."
    cluster.put(DEVICE_CLASSES, nics.device_class())
    await run(cluster)
    assert given(cluster)


async def test_no_gpus_are_reserved_for_a_pod_that_waits_for_nics() -> None:
    cluster = a_cluster()
    template(cluster, gpus(), wanted("nic", 9))
    pod(cluster)
    cluster.pod("plain", 9)
    await cluster.settle()
    reservable = Reservable(cluster.worker.picture, lambda: 0.0)
    pods, picture = cluster.worker.picture.pods, cluster.worker.picture
    of = {name: PendingWorkload(Member(one, picture.templates.of(one))) for (_, name), one in pods.items()}
    assert {name: reservable.is_for(workload) for name, workload in of.items()} == {"p": False, "plain": True}


async def test_no_slice_of_nics_is_wanted_before_a_pod_asks_for_some() -> None:
    cluster = a_cluster()
    cluster.pod("plain", 4)
    await cluster.settle()
    assert not cluster.worker.picture.nics.asked
    template(cluster, gpus(), wanted())
    pod(cluster)
    await cluster.settle()
    assert cluster.worker.picture.nics.asked


async def test_without_a_request_for_nics_gpus_have_one_near_them_in_use_or_not() -> None:
    cluster = GpuCluster()
    cluster.node("a", "a100-x4-mesh")
    cluster.node("b", "a100-x4-mesh")
    machine = cluster.machines["a"]
    way = type(machine.paths[0][0])
    ways = tuple(tuple(way(step) for step in (5, 5, 5, 1)) for _ in machine.nics)
    cluster.publish("a", msgspec.structs.replace(machine, nic_paths=ways))
    cluster.pod("plain", 2)
    cluster.pod("some", 2, wishes={"near-nic": "preferred"})
    cluster.pod("all", 2, wishes={"near-nic": "required"})
    cluster.pod("none", 2, wishes={"near-nic": "required"})
    cluster.pod("one", 1, wishes={"near-nic": "required"})
    await cluster.settle()
    assert cluster.gpus("plain")[0] == "a"
    assert cluster.gpus("some")[0] == "b"
    assert cluster.gpus("all")[0] == "b"
    assert cluster.claim("none") is None
    assert "2 GPUs with a NIC near each GPU: no" in (cluster.note("none", "reason") or "")
    assert cluster.claim("one") is None, "the only such GPU of the node is the first pod's"
