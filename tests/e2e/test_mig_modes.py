"""MIG slices where two GPUs of a node have them: one made on demand, one published placement by placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.topology.machine import Gpu
from dradriver.topology.profiles import load
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, claim_template, eventually, pod, pod_of_template, told_why
from tests.e2e.parts import published_again

Object = dict[str, Any]

NODE = deploy.SLICED[0]
DYNAMIC, PLACEMENTS = 5, 7
RULES = [
    {"nodes": [NODE], "numbers": [DYNAMIC], "mig": "dynamic"},
    {"nodes": [NODE], "numbers": [PLACEMENTS], "mig": "placements"},
]
WORDS = {names.POLICY: "best-effort"}
EVERY_GPU = 8


@pytest.fixture(scope="module", autouse=True)
def both_modes(driver: Cluster) -> Iterator[None]:
    with published_again(driver, NODE, RULES):
        yield


def gpu(number: int) -> Gpu:
    return load(deploy.MACHINES[NODE], seed=NODE).gpus[number]


def sliced(name: str, profile: str) -> Object:
    return pod(name, gpus=1, words={names.MIG_PROFILE: profile}, node=NODE)


def places(namespace: Namespace, *pods: str) -> dict[str, tuple[str, str]]:
    """Return the GPU of each pod's slice, and the slice."""
    notes = {name: namespace.get("pod", name)["metadata"]["annotations"] for name in pods}
    return {name: (found[names.ALLOCATED], found[names.PART]) for name, found in notes.items()}


def test_every_placement_is_a_device_of_the_same_counters(driver: Cluster) -> None:
    slices = driver.api.objects("resourceslices")
    own = [piece["spec"] for piece in slices if piece["spec"].get("nodeName") == NODE]
    of = gpu(PLACEMENTS)
    devices = [d for spec in own for d in spec.get("devices", ()) if d["name"].startswith(of.uuid.lower())]
    placements = Counter(
        (d["attributes"]["profile"]["string"], d["attributes"]["placement"]["int"])
        for d in devices
        if "profile" in d["attributes"]
    )
    assert placements == Counter((profile.name, start) for profile in of.profiles for start in profile.starts)
    assert len(devices) == placements.total() + 1, "and the whole GPU"
    assert {c["counterSet"] for d in devices for c in d["consumesCounters"]} == {of.uuid.lower()}
    assert [s["name"] for spec in own for s in spec.get("sharedCounters", ())] == [of.uuid.lower()]


def test_a_slice_and_the_whole_gpu_exclude_each_other_by_what_is_published(namespace: Namespace) -> None:
    """Claims that are nobody's but the scheduler's: it keeps them apart by the counters alone."""
    uuid = gpu(PLACEMENTS).uuid
    attributes = f'device.attributes["{names.DRIVER}"]'
    profile = f'{attributes}.?profile.orValue("") == "3g.40gb"'
    amounts = {names.CAPACITY_MEMORY_SLICES: "4", names.CAPACITY_COMPUTE_SLICES: "3"}
    asked = {
        "slice": (names.MIG_CLASS, f'{attributes}.?parentUUID.orValue("") == "{uuid}" && {profile}', amounts),
        "whole": (names.DEVICE_CLASS, f'{attributes}.?uuid.orValue("") == "{uuid}"', None),
    }
    for name, (device_class, selector, requests) in asked.items():
        namespace.apply(claim_template(name, device_class, requests, selector))
    namespace.apply(pod_of_template("slice", "slice", node=NODE), pod_of_template("other-slice", "slice", node=NODE))
    namespace.wait_running("slice", "other-slice")

    namespace.apply(pod_of_template("whole", "whole", node=NODE))
    unschedulable(namespace, "whole")
    namespace.delete("slice", "other-slice")
    namespace.wait_running("whole")

    namespace.apply(pod_of_template("slice", "slice", node=NODE))
    unschedulable(namespace, "slice")
    namespace.delete("whole")
    namespace.wait_running("slice")


def unschedulable(namespace: Namespace, name: str) -> None:
    namespace.kubectl("wait", "--for=jsonpath={.status.conditions[0].reason}=Unschedulable", f"pod/{name}")


def test_a_second_large_slice_goes_to_another_gpu(namespace: Namespace) -> None:
    namespace.apply(sliced("small", "1g.10gb"))
    namespace.wait_running("small")
    namespace.apply(sliced("large", "3g.40gb"))
    namespace.wait_running("large")
    namespace.apply(sliced("other", "3g.40gb"))
    namespace.wait_running("other")
    found = places(namespace, "small", "large", "other")

    assert found["small"][0] == found["large"][0], "a GPU in use by slices comes before an empty one"
    assert found["other"][0] != found["small"][0], "beside 1g and 3g there is no room for another 3g"
    namespace.apply(sliced("last", "3g.40gb"))
    namespace.wait_running("last")
    assert places(namespace, "last")["last"][0] == found["other"][0]
    namespace.apply(sliced("more", "3g.40gb"))
    told_why(namespace, "more")
    namespace.delete("large")
    namespace.wait_running("more")


def test_both_gpus_are_filled_and_given_whole_again(namespace: Namespace) -> None:
    uuids = {gpu(number).uuid: number for number in (DYNAMIC, PLACEMENTS)}
    slices = [f"slice-{number:02}" for number in range(14)]
    namespace.apply(*(sliced(name, "1g.10gb") for name in slices))
    namespace.wait_running(*slices)
    found = places(namespace, *slices)
    assert sorted(found.values()) == sorted((uuid, f"1g.10gb@{start}") for uuid in uuids for start in range(7))

    for name, (uuid, _) in found.items():
        if uuids[uuid] == PLACEMENTS:
            required = namespace.get("pod", name)["spec"]["affinity"]["nodeAffinity"]
            (term,) = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            assert [field["values"] for field in term["matchFields"]] == [[NODE]], (
                "the scheduler pays for each such node"
            )
    namespace.apply(sliced("more", "1g.10gb"), pod("node", gpus=EVERY_GPU, words=WORDS, node=NODE))
    told_why(namespace, "more")
    told_why(namespace, "node")
    namespace.delete("more", *slices)
    namespace.wait_running("node")
    namespace.apply(sliced("late", "7g.80gb"))
    told_why(namespace, "late")
    namespace.delete("node")
    namespace.wait_running("late")
    eventually("the slice has its device nodes", lambda: len(namespace.devices("late")) > 1)
