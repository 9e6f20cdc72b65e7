from __future__ import annotations

import copy
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.node.discovery.simulated_machine import without
from dradriver.node.publishing import pool
from dradriver.topology.machine import Machine
from tests.fakes.node import NODE, Object, machine


def wanted(of: Machine | None = None, node_uid: str = "node-uid") -> list[Object]:
    return resource_slices.build(of or machine(), node=NODE, node_uid=node_uid)


def stored(obj: Object, generation: int, version: str = "7", **metadata: Any) -> Object:
    """The slice as the API server gives it back."""
    kept = copy.deepcopy(obj)
    kept["metadata"] |= {"resourceVersion": version, "uid": "slice-uid", "generation": 3, **metadata}
    kept["spec"]["pool"]["generation"] = generation
    return kept


def test_an_empty_cluster_gets_the_first_generation() -> None:
    todo = pool.writes(wanted(), [], tolerated={})
    assert [(o["metadata"]["name"], o["spec"]["pool"]["generation"]) for o in todo.create] == [
        (resource_slices.slice_name(0, NODE), 1)
    ]
    assert (todo.update, todo.delete, todo.generation) == ([], [], 1)


def test_what_is_right_already_is_not_written() -> None:
    todo = pool.writes(wanted(), [stored(wanted()[0], 4)], tolerated={})
    assert (todo.create, todo.update, todo.delete, todo.generation) == ([], [], [], 4)


def test_amounts_are_compared_by_what_they_are_worth() -> None:
    found = stored(wanted()[0], 4)
    for device in found["spec"]["devices"]:
        value = device["capacity"]["memory"]["value"]
        assert value.endswith("Mi")
        device["capacity"]["memory"]["value"] = f"{int(value[:-2]) * 1024}Ki"  # the API server rewrites quantities
    assert pool.writes(wanted(), [found], tolerated={}).update == []
    found["spec"]["devices"][0]["capacity"]["memory"]["value"] = "1Gi"
    assert len(pool.writes(wanted(), [found], tolerated={}).update) == 1


@pytest.mark.parametrize("change", ["attribute", "device", "order", "annotation", "owner", "count", "extra"])
def test_every_change_of_content_is_put_right_with_a_new_generation(change: str) -> None:
    found = stored(wanted()[0], 4)
    spec, metadata = found["spec"], found["metadata"]
    match change:
        case "attribute":
            spec["devices"][3]["attributes"]["minor"]["int"] = (
                0 if spec["devices"][3]["attributes"]["minor"]["int"] else 9
            )
        case "device":
            del spec["devices"][0]
        case "order":
            spec["devices"].reverse()
        case "annotation":
            del metadata["annotations"][names.MACHINE]
        case "owner":
            metadata["ownerReferences"] = []
        case "count":
            spec["pool"]["resourceSliceCount"] = 2
        case "extra":
            spec["devices"][0]["attributes"]["foreign"] = {"bool": False}
    todo = pool.writes(wanted(), [found], tolerated={})
    assert todo.generation == 5
    (update,) = todo.update
    assert update["metadata"]["resourceVersion"] == "7"
    assert update["spec"] == stored(wanted()[0], 5)["spec"]


def test_a_lost_gpu_is_a_change_of_content() -> None:
    todo = pool.writes(wanted(without(machine(), {"2"})), [stored(wanted()[0], 1)], tolerated={})
    assert (todo.generation, len(todo.update[0]["spec"]["devices"])) == (2, 7)


def test_a_deleted_slice_comes_back_in_its_old_generation() -> None:
    assert pool.writes(wanted(), [], least_generation=6, tolerated={}).create[0]["spec"]["pool"]["generation"] == 6


def test_slices_that_do_not_belong_to_the_pool_are_deleted_and_outdone() -> None:
    strange = stored(wanted()[0], 9, "11", name="00001-gpu.topology-node-a")
    todo = pool.writes(wanted(), [stored(wanted()[0], 4), strange], tolerated={})
    assert todo.delete == [("00001-gpu.topology-node-a", "11")]
    assert [o["spec"]["pool"]["generation"] for o in todo.update] == [9]
    older = stored(wanted()[0], 2, "11", name="00001-gpu.topology-node-a")
    todo = pool.writes(wanted(), [stored(wanted()[0], 4), older], tolerated={})
    assert (len(todo.delete), todo.update) == (1, [])


def test_all_slices_of_a_pool_have_one_generation() -> None:
    (first,), (second,) = wanted(), wanted()
    second["metadata"]["name"] = "00001-x"
    changed = stored(second, 4)
    changed["spec"]["devices"].pop()
    todo = pool.writes([first, second], [stored(first, 4), changed], tolerated={})
    assert [o["spec"]["pool"]["generation"] for o in todo.update] == [5, 5]


def test_a_difference_the_server_insists_on_is_not_fought() -> None:
    found = stored(wanted()[0], 4)
    del found["spec"]["devices"][0]["attributes"]["nic"]
    refused = pool.differences(wanted()[0], found)
    assert refused == {"spec.devices[0].attributes.nic"}
    name = found["metadata"]["name"]
    assert pool.writes(wanted(), [found], tolerated={name: refused}).update == []
    del found["spec"]["devices"][0]["attributes"]["type"]
    assert len(pool.writes(wanted(), [found], tolerated={name: refused}).update) == 1


def test_zero_and_false_are_not_nothing() -> None:
    found = stored(wanted()[0], 4)
    zero = next(d for d in found["spec"]["devices"] if d["attributes"]["index"] == {"int": 0})
    zero["attributes"]["index"] = {}
    assert len(pool.differences(wanted()[0], found)) == 1


def test_what_others_wrote_into_the_metadata_stays() -> None:
    found = stored(wanted()[0], 4, labels={"team": "a"})
    found["metadata"]["annotations"]["example.com/note"] = "x"
    del found["spec"]["devices"][0]
    (update,) = pool.writes(wanted(), [found], tolerated={}).update
    assert update["metadata"]["labels"] == {"team": "a"}
    assert update["metadata"]["annotations"].keys() == {"example.com/note", names.MACHINE}


def test_nothing_wanted_deletes_everything() -> None:
    todo = pool.writes([], [stored(wanted()[0], 4)], tolerated={})
    assert (todo.create, todo.update, [name for name, _ in todo.delete]) == (
        [],
        [],
        [resource_slices.slice_name(0, NODE)],
    )


def with_parts(*, counter: str, default: str, least: str, **taint: str) -> dict[str, Any]:
    """A slice as partitionable and shareable devices with a fault have it."""
    obj = wanted()[0]
    device = obj["spec"]["devices"][0]
    device["capacity"]["cores"] = {
        "value": "100",
        "requestPolicy": {"default": default, "validRange": {"min": least, "step": "1"}},
    }
    device["consumesCounters"] = [{"counterSet": "gpu", "counters": {"memory": {"value": counter}}}]
    device["taints"] = [{"key": "gpu.topology/xid", "effect": "NoSchedule", **taint}]
    obj["spec"]["sharedCounters"] = [{"name": "gpu", "counters": {"memory": {"value": counter}}}]
    return obj


def test_amounts_are_compared_by_amount_everywhere_and_a_defaulted_time_is_no_difference() -> None:
    ours = with_parts(counter="81920Mi", default="100", least="1000m")
    theirs = with_parts(counter="80Gi", default="100", least="1", timeAdded="2026-01-01T00:00:00Z")
    assert pool.differences(ours, theirs) == frozenset()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"counter": "81921Mi"}, "counters.memory.value"),
        ({"counter": "80000000001u"}, "counters.memory.value"),
        ({"default": "99"}, "requestPolicy.default"),
        ({"least": "2"}, "validRange.min"),
        ({"value": "79"}, "taints[0].value"),
    ],
)
def test_the_smallest_difference_of_them_is_one(change: dict[str, str], where: str) -> None:
    same = {"counter": "80000000u", "default": "100", "least": "1"} if "u" in change.get("counter", "") else {}
    base = {"counter": "80Gi", "default": "100", "least": "1"} | same
    found = pool.differences(with_parts(**base), with_parts(**(base | change)))
    assert found
    assert all(where in path for path in found)


def test_a_time_of_ours_that_the_server_changed_is_a_difference() -> None:
    ours = with_parts(counter="1", default="1", least="1", timeAdded="2026-01-01T00:00:00Z")
    theirs = with_parts(counter="1", default="1", least="1", timeAdded="2026-01-02T00:00:00Z")
    assert pool.differences(ours, theirs) == {"spec.devices[0].taints[0].timeAdded"}
