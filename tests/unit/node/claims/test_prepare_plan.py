from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.api.base.errors import WordError
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.prepare_plan import plan
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.devices.whole_gpus import Whole
from dradriver.node.errors import ClaimError, DeviceMissingError
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from tests.fakes.node import (
    BOOT,
    NODE,
    claim,
    container_env,
    device,
    device_manager,
    machine,
    parameters,
    result,
    typed,
    uuid,
)


def planned(**claim_of: Any) -> PreparedClaim:
    return plan(typed(claim("c", **claim_of)), machine(), device_manager(), container_env(), node=NODE, boot=BOOT).claim


def paths(done: PreparedClaim) -> list[str]:
    return [node.path for device in done.devices for node in device.edits.nodes]


def test_devices_come_in_the_allocations_order_with_their_own_nodes() -> None:
    done = planned(gpus={"b": [5, 4], "a": [0]})
    assert [(d.request, d.uuid) for d in done.devices] == [("b", uuid(5)), ("b", uuid(4)), ("a", uuid(0))]
    assert paths(done) == ["/dev/nvidia5", "/dev/nvidia4", "/dev/nvidia0"]
    assert (done.uid, done.namespace, done.name) == ("uid-c", "default", "c")


def test_the_device_node_is_the_gpus_minor_number_not_its_index() -> None:
    gpu = msgspec.structs.replace(machine().gpus[0], minor=42)
    odd = msgspec.structs.replace(machine(), gpus=(gpu, *machine().gpus[1:]))
    assert paths(plan(typed(claim("c", [0])), odd, device_manager(), container_env(), node=NODE, boot=BOOT).claim) == [
        "/dev/nvidia42"
    ]


def test_on_real_hardware_a_device_is_that_of_nvidias_own_specification(tmp_path: Path) -> None:
    real = DeviceManager([Whole(Hardware(host_root=tmp_path).edits)])
    done = plan(typed(claim("c", [0])), machine(), real, container_env(), node=NODE, boot=BOOT).claim
    assert (done.devices[0].edits.nodes, done.devices[0].edits.cdi) == ((), (f"gpu.topology/gpu={uuid(0)}",))


def test_a_subrequest_is_answered_under_its_request() -> None:
    done = planned(results=[result("gpus/nvlink", device(0)), result("gpus/nvlink", device(1))])
    assert {d.request for d in done.devices} == {"gpus"}
    assert [bool(d.edits.env) for d in done.devices] == [True, False]


def test_other_drivers_results_are_none_of_ours() -> None:
    nic = {"request": "nic", "driver": "nic.example.com", "pool": "elsewhere", "device": "nic0"}
    assert [d.uuid for d in planned(results=[nic, result("gpu", device(1))]).devices] == [uuid(1)]
    assert planned(results=[nic]).devices == ()


def test_a_claim_that_is_not_allocated_is_refused() -> None:
    bare = claim("c")
    del bare["status"]
    with pytest.raises(ClaimError, match="not allocated"):
        plan(typed(bare), machine(), device_manager(), container_env(), node=NODE, boot=BOOT)


def test_a_device_that_is_not_here_may_come_back_but_one_of_another_node_never_will() -> None:
    with pytest.raises(DeviceMissingError, match=f"gpu-none is not on node {NODE} now"):
        planned(results=[result("gpu", "gpu-none")])
    with pytest.raises(ClaimError, match="is in pool node-b, not on this node, node-a") as caught:
        planned(results=[result("gpu", device(0), pool="node-b")])
    assert not isinstance(caught.value, DeviceMissingError)


def test_share_ids_are_kept() -> None:
    assert planned(results=[result("gpu", device(0), shareID="s-1")]).devices[0].share_id == "s-1"


def test_access_for_an_administrator_owns_nothing() -> None:
    assert [d.admin for d in planned(results=[result("gpu", device(0), adminAccess=True)]).devices] == [True]


def env(config: list[dict[str, Any]], gpus: dict[str, list[int]] | None = None) -> dict[str, tuple[str, ...]]:
    return told(planned(gpus=gpus or {"gpu": [0, 3, 2, 1]}, config=config))


def told(done: PreparedClaim) -> dict[str, tuple[str, ...]]:
    return {device.request: device.edits.env for device in done.devices if done.first(device)}


VOID = "NVIDIA_VISIBLE_DEVICES=void"


def test_without_our_order_nothing_is_said_about_order() -> None:
    assert env([]) == {"gpu": (VOID,)}
    assert env([parameters()]) == {"gpu": (VOID,)}


def test_a_rank_order_that_is_not_pci_order_becomes_the_containers_own_integers() -> None:
    order = [uuid(3), uuid(0), uuid(1), uuid(2)]
    assert env([parameters({"gpu": order})]) == {
        "gpu": (VOID, "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=3,0,1,2")
    }
    assert env([parameters({"gpu": [uuid(7), uuid(5)]})], {"gpu": [5, 7]})["gpu"][2] == "CUDA_VISIBLE_DEVICES=1,0"


def test_a_rank_order_that_is_pci_order_needs_no_words() -> None:
    assert env([parameters({"gpu": [uuid(i) for i in range(4)]})]) == {"gpu": (VOID,)}


def test_an_order_of_other_gpus_than_those_allocated_is_left_out() -> None:
    assert env([parameters({"gpu": [uuid(4), uuid(5), uuid(6), uuid(7)]})]) == {"gpu": (VOID,)}
    assert env([parameters({"gpu": [uuid(3)]})]) == {"gpu": (VOID,)}


def test_each_request_has_variables_of_its_own() -> None:
    order = {"a": [uuid(1), uuid(0)], "b": [uuid(2), uuid(3)]}
    found = env([parameters(order)], {"a": [0, 1], "b": [2, 3]})
    assert found == {"a": (VOID, "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=1,0"), "b": (VOID,)}


@pytest.mark.parametrize("kept", ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"])
def test_what_the_author_set_is_not_replaced_and_half_an_order_does_not_count(kept: str) -> None:
    assert env([parameters({"gpu": [uuid(3), uuid(0), uuid(1), uuid(2)]}, [kept])]) == {"gpu": (VOID,)}


def test_the_authors_own_visible_devices_stay() -> None:
    assert env([parameters(keep_env=["NVIDIA_VISIBLE_DEVICES"])]) == {"gpu": ()}


def test_a_claims_configuration_wins_over_its_classs_and_the_last_wins() -> None:
    keep = parameters(keep_env=["NVIDIA_VISIBLE_DEVICES"])
    assert env([keep, parameters(source="FromClass")]) == {"gpu": ()}
    assert env([parameters(keep_env=["NVIDIA_VISIBLE_DEVICES"], source="FromClass"), parameters()]) == {"gpu": (VOID,)}
    assert env([parameters(), keep]) == {"gpu": ()}
    assert env([parameters(keep_env=["NVIDIA_VISIBLE_DEVICES"], source="FromClass")]) == {"gpu": ()}


def test_a_configuration_counts_for_its_requests_only() -> None:
    keep = parameters(keep_env=["NVIDIA_VISIBLE_DEVICES"], requests=["a"])
    assert env([keep], {"a": [0], "b": [1]}) == {"a": (), "b": (VOID,)}
    sub = parameters(keep_env=["NVIDIA_VISIBLE_DEVICES"], requests=["a/best"])
    results = [result("a/best", device(0)), result("b/best", device(1))]
    assert told(planned(results=results, config=[sub])) == {"a": (), "b": (VOID,)}


def test_other_drivers_configuration_is_not_read() -> None:
    other = {"source": "FromClaim", "opaque": {"driver": "nic.example.com", "parameters": {"what": "ever"}}}
    assert env([other]) == {"gpu": (VOID,)}


def test_a_configuration_of_ours_that_cannot_be_read_is_said() -> None:
    bad = parameters()
    bad["opaque"]["parameters"]["ordre"] = {}
    with pytest.raises(WordError, match="ordre"):
        env([bad])
