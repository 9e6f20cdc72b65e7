"""From slices and claims to who holds what."""

from __future__ import annotations

import copy
import unicodedata
from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Amount, Choice, Level, MigPart, PartChoice, SharePart, Whole
from dradriver.api.base import names
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod, PodClaim, PodSpec
from dradriver.api.claims import claim_builder
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.cli.cluster.cluster_view import data, nvlink_set, views
from dradriver.cluster.views.holder_names import Hold, Holder
from dradriver.cluster.views.node_views import NodeView
from dradriver.topology import machine_codec, profiles
from dradriver.topology.natural import natural
from tests.fakes.gpunodes import allocated, machine, piece, pieces, promised, read_claims, read_slices
from tests.fakes.instances import in_mig_mode

Object = dict[str, Any]


def shown(pieces: list[Object], *found: Object, only: tuple[str, ...] = ()) -> tuple[dict[str, NodeView], list[str]]:
    nodes, warnings = views(read_slices(*pieces), read_claims(*found), only=only)
    return {node.name: node for node in nodes}, warnings


def states(node: NodeView) -> list[str]:
    return [view.state for view in node.gpus]


def test_each_gpu_has_its_holders_by_the_scheduler_or_by_promise() -> None:
    nodes, warnings = shown(
        [piece("a")],
        allocated("gpus-1", "a", [0, 3], pods=["p10", "p2"]),
        promised("gpus-2", "a", [1, 2], pod="next"),
        allocated("idle", "a", [4]),
    )
    assert warnings == []
    gpus = nodes["a"].gpus
    assert gpus[0].holders == (Holder(namespace="team-a", claim="gpus-1", pods=("p2", "p10"), hold=Hold.ALLOCATED),)
    assert gpus[2].holders == (Holder(namespace="team-a", claim="gpus-2", pods=("next",), hold=Hold.TENTATIVE),)
    assert [holder.words for view in gpus for holder in view.holders] == [
        "team-a/p2, p10",
        "team-a/next (tentative)",
        "team-a/next (tentative)",
        "team-a/p2, p10",
        "team-a/idle, a claim without pod",
    ]
    assert states(nodes["a"]) == [
        "allocated",
        "tentative",
        "tentative",
        "allocated",
        "allocated",
        "free",
        "free",
        "free",
    ]
    assert nodes["a"].free == [5, 6, 7]
    assert nodes["a"].machine == machine("a")


def test_a_claim_of_many_pods_names_three() -> None:
    nodes, _ = shown([piece("a")], allocated("shared", "a", [0], pods=["a", "b", "c", "d", "e"]))
    assert nodes["a"].gpus[0].holders[0].who == "team-a/a, b, c and 2 more"


def test_monitoring_takes_nothing_and_is_marked() -> None:
    nodes, warnings = shown(
        [piece("a")],
        allocated("watch", "a", range(8), pods=["dcgm"], namespace="ops", adminAccess=True),
        allocated("gpus-1", "a", [0], pods=["p"]),
    )
    assert warnings == []
    assert [holder.words for holder in nodes["a"].gpus[0].holders] == ["team-a/p", "ops/dcgm (adminAccess)"]
    assert nodes["a"].free == [1, 2, 3, 4, 5, 6, 7]


def test_a_holder_of_a_part_says_which() -> None:
    parts = (SharePart(gpu=0, amount=Amount(25, 8192)), MigPart(gpu=1, profile="1g.10gb", start=6, size=1))
    choice = PartChoice(containers=(parts,), node="a")
    owner = Pod(
        metadata=Metadata(name="next", namespace="team-a", uid="u"),
        spec=PodSpec(resource_claims=[PodClaim(name=names.POD_CLAIM, resource_claim_name="gpus-2")]),
    )
    uuids = {"x": [machine("a").gpus[0].uuid], "y": [machine("a").gpus[1].uuid]}
    nodes, warnings = shown(
        [piece("a")],
        allocated("t", "a", [0], pods=["p"], shareID="s1", consumedCapacity={"cores": "50", "memory": "8Gi"}),
        claim_builder.pinned(owner, choice, uuids=uuids, compute={"1g.10gb": 1}),
    )
    assert warnings == []
    assert [holder.words for holder in nodes["a"].gpus[0].holders] == [
        "team-a/p (50%/8192Mi)",
        "team-a/next (tentative, 25%/8192Mi)",
    ]
    assert [holder.words for holder in nodes["a"].gpus[1].holders] == ["team-a/next (tentative, 1g.10gb@6)"]


def test_a_set_that_is_promised_is_promised_to_all_who_own_its_claim() -> None:
    choice = Choice(
        gpus=(0, 1),
        containers=((0, 1),),
        ring=(0, 1),
        busbw_gbps=1,
        bandwidth_gbps=1,
        level=Level.NODE,
        score=1,
        node="a",
    )
    owner = Pod(
        metadata=Metadata(name="trainer", namespace="team-a", uid="u"),
        spec=PodSpec(resource_claims=[PodClaim(name=names.POD_CLAIM, resource_claim_name="duo")]),
    )
    uuids = {names.SET_REQUEST: [gpu.uuid for gpu in machine("a").gpus[:2]]}
    claim = claim_builder.pinned(owner, choice, uuids=uuids, shared=Whole(containers=(2,)))
    claim["metadata"]["ownerReferences"].append(claim_builder.owner("sampler", "v"))
    nodes, warnings = shown([piece("a")], claim)
    assert warnings == []
    assert [holder.words for holder in nodes["a"].gpus[1].holders] == ["team-a/trainer, sampler (tentative)"]


def test_a_slice_that_the_node_agent_placed_is_where_the_claims_status_says() -> None:
    taken = {"memorySlices": "1", "computeSlices": "1"}
    claim = allocated("t", "a", [0], pods=["p"], shareID="s1", consumedCapacity=taken)
    unknown = allocated("u", "a", [0], pods=["q"], shareID="s2", consumedCapacity=taken)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    entry = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
    claim["status"]["devices"] = [entry | {"data": {"type": "mig", "profile": "1g.10gb", "placement": 6}}]
    nodes, warnings = shown([piece("a")], claim, unknown)
    assert warnings == []
    assert [holder.words for holder in nodes["a"].gpus[0].holders] == ["team-a/p (1g.10gb@6)", "team-a/q (share s2)"]


def test_shares_of_a_gpu_are_several_holders_and_whole_ones_are_a_warning() -> None:
    nodes, warnings = shown(
        [piece("a")],
        allocated("half", "a", [0], pods=["p"], shareID="s1"),
        allocated("other", "a", [0], pods=["q"], shareID="s2"),
        allocated("one", "a", [1], pods=["p"]),
        allocated("two", "a", [1], pods=["q"]),
    )
    assert [holder.words for holder in nodes["a"].gpus[0].holders] == ["team-a/p (share s1)", "team-a/q (share s2)"]
    device = machine("a").gpus[1].uuid.lower()
    assert warnings == [f"node a: {device} is allocated to several claims: team-a/one, team-a/two"]


@pytest.mark.parametrize("mode", [Mode(shared="time-slicing", memory_overcommit=1.5), Mode(mig="dynamic")], ids=str)
def test_who_has_all_of_a_gpu_that_could_be_shared_has_no_share_of_it(mode: Mode) -> None:
    on = profiles.load("dgx-h100", seed="a")
    uuid = on.gpus[0].uuid
    built = resource_slices.build(on, node="a", node_uid="u", modes={uuid: mode})
    (device,) = [d for one in built for d in one["spec"]["devices"] if d["name"] == resource_slices.device_name(uuid)]
    taken = {name: one["requestPolicy"]["default"] for name, one in device["capacity"].items()}
    claim = allocated("all", "a", [0], pods=["p"], profile="dgx-h100", shareID="s1", consumedCapacity=taken)
    nodes, warnings = shown(built, claim)
    assert warnings == []
    assert nodes["a"].gpus[0].holders == (Holder(namespace="team-a", claim="all", pods=("p",), hold=Hold.ALLOCATED),)

    less = taken | {name: "1" for name in taken if name != names.CAPACITY_MEMORY}
    part = allocated("some", "a", [0], pods=["p"], profile="dgx-h100", shareID="s1", consumedCapacity=less)
    (holder,) = shown(built, part)[0]["a"].gpus[0].holders
    assert holder.share == "s1"


def test_claims_of_others_and_pins_that_prove_nothing_hold_nothing() -> None:
    unowned = promised("gpus-1", "a", [0], pod="p")
    del unowned["metadata"]["ownerReferences"]
    forged = promised("gpus-2", "a", [1], pod="p")
    del forged["metadata"]["labels"]
    damaged = promised("gpus-3", "a", [2], pod="p")
    damaged["metadata"]["annotations"][names.CHOICE] = "{"
    other = allocated("theirs", "a", [3], pods=["p"], driver="gpu.example.com")
    nodes, _ = shown([piece("a")], unowned, forged, damaged, other)
    assert states(nodes["a"]) == ["free"] * 8


def test_what_was_allocated_counts_and_not_what_was_promised() -> None:
    claim = promised("gpus-1", "a", [0, 1], pod="p")
    claim["status"] = allocated("gpus-1", "a", [6, 7], pods=["p"])["status"]
    nodes, _ = shown([piece("a")], claim)
    assert nodes["a"].free == [0, 1, 2, 3, 4, 5]


def test_a_gpu_that_is_tainted_or_not_listed_is_not_free() -> None:
    one = piece("a")
    devices = {device["name"]: device for device in one["spec"]["devices"]}
    gpus = machine("a").gpus
    devices[gpus[0].uuid.lower()]["taints"] = [{"key": "gpu.topology/xid", "value": "79", "effect": "NoExecute"}]
    devices[gpus[1].uuid.lower()]["taints"] = [{"key": "seen", "effect": "None"}]
    one["spec"]["devices"] = [d for d in devices.values() if d["name"] != gpus[2].uuid.lower()]
    nodes, _ = shown([one])
    assert [view.blocked for view in nodes["a"].gpus[:4]] == [
        "tainted gpu.topology/xid=79:NoExecute",
        "",
        "not in the node's slices",
        "",
    ]
    assert nodes["a"].free == [1, 3, 4, 5, 6, 7]


def test_a_gpu_in_mig_mode_is_not_free() -> None:
    gpus = tuple(msgspec.structs.replace(gpu, mig=() if gpu.index == 2 else None) for gpu in machine("a").gpus)
    (one,) = resource_slices.build(msgspec.structs.replace(machine("a"), gpus=gpus), node="a", node_uid="uid-a")
    nodes, _ = shown([one])
    assert (nodes["a"].gpus[2].blocked, nodes["a"].free) == ("in MIG mode", [0, 1, 3, 4, 5, 6, 7])


def test_a_gpu_that_is_gone_and_has_a_holder_is_lost() -> None:
    claim = allocated("gpus-1", "a", [0], pods=["p"])
    claim["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-gone"
    nodes, warnings = shown([piece("a"), piece("b")], claim)
    assert warnings == []
    assert list(nodes) == ["a", "b"]
    (lost,) = nodes["a"].lost
    assert (lost.index, lost.uuid, [holder.who for holder in lost.holders]) == (None, "gpu-gone", ["team-a/p"])
    assert (nodes["a"].unhealthy, nodes["b"].lost) == (1, ())


def test_slices_of_a_gpu_that_is_gone_are_one_lost_gpu() -> None:
    gpu = "gpu-f8570fa7-2128-9d54-5f95-5835eb6430cb"
    claim = allocated("gpus-1", "a", [0, 1], pods=["p"])
    for result, part in zip(claim["status"]["allocation"]["devices"]["results"], ("19-0", "14-4"), strict=True):
        result["device"] = f"{gpu}-{part}"
    nodes, _ = shown([piece("a")], claim)
    assert [lost.uuid for lost in nodes["a"].lost] == [gpu]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s["metadata"]["annotations"].update({names.MACHINE: "{"}), "annotation gpu.topology/machine: "),
        (lambda s: s["metadata"].pop("annotations"), "has no annotation gpu.topology/machine"),
        (lambda s: s["spec"].update(nodeName="other"), "not those of the node of that name"),
        (lambda s: s["spec"]["pool"].update(resourceSliceCount=2), "1 of 2 slices of generation 1 are there"),
    ],
)
def test_a_node_that_cannot_be_read_is_said_and_hides_no_other(change: Any, says: str) -> None:
    bad = piece("bad")
    change(bad)
    nodes, warnings = shown([bad, piece("good")])
    assert list(nodes) == ["good"]
    assert says in warnings[0]
    assert all(warning.startswith(("node bad: ", "node bad is left out: ")) for warning in warnings)
    assert warnings[-1].startswith("node bad is left out: ")


def test_the_newest_complete_generation_counts() -> None:
    old, new = piece("a", generation=4), piece("a", "dgx-h100", generation=5)
    new["metadata"]["name"] = "00001-other"
    nodes, warnings = shown([new, old])
    assert (nodes["a"].machine.name, warnings) == ("dgx-h100", [])
    new["spec"]["pool"]["resourceSliceCount"] = 2
    nodes, warnings = shown([new, old])
    assert nodes["a"].machine.name == "dgx1-v100"
    assert warnings == [
        "node a: 1 of 2 slices of generation 5 are there",
        "node a: shown as of generation 4",
    ]
    second = copy.deepcopy(new)
    del second["metadata"]["annotations"]
    second["spec"]["devices"] = []
    nodes, warnings = shown([second, old, new])
    assert (nodes["a"].machine.name, warnings) == ("dgx-h100", [])


def test_nodes_stand_in_natural_order_and_only_those_asked_for() -> None:
    pieces = [piece(name) for name in ("gpu-10", "gpu-9", "rack2-1", "gpu-1")]
    pieces.append(piece("foreign") | {"spec": piece("foreign")["spec"] | {"driver": "gpu.example.com"}})
    assert list(shown(pieces)[0]) == ["gpu-1", "gpu-9", "gpu-10", "rack2-1"]
    nodes, warnings = shown(pieces, only=("gpu-10", "gpu-2"))
    assert list(nodes) == ["gpu-10"]
    assert warnings == ["node gpu-2: it has no slices of driver gpu.topology"]
    assert natural("9" * 5000)  # longer than Python reads as one number


def test_the_largest_set_is_what_the_allocator_would_give() -> None:
    nodes, _ = shown([piece("a")], allocated("c", "a", [1, 2, 4, 6, 7], pods=["p"]))
    found = nodes["a"].nvlink_set
    assert found is not None
    assert (found.gpus, found.busbw_gbps) == ((0, 3), 40)  # GPU 5 is free as well, with no link to them
    full, _ = shown([piece("a")], allocated("c", "a", range(7), pods=["p"]))
    assert full["a"].nvlink_set is None
    pcie, _ = shown([piece("a", "rtx4090-x8")])
    assert pcie["a"].nvlink_set is None
    rack, _ = shown(pieces("a", "gb200-nvl72-rack"))
    assert (rack["a"].free, rack["a"].nvlink_set) == ([], None)
    why = "never placed: the machine has 72 GPUs, and at most 16 are supported"
    assert {view.blocked for view in rack["a"].gpus} == {why}
    assert nvlink_set(rack["a"]) == "not known above 16 GPUs"
    assert nvlink_set(pcie["a"]) == "none"
    amd, _ = shown([piece("a", "mi210-x8")])
    assert amd["a"].nvlink_set is not None
    assert nvlink_set(amd["a"]) == "4: GPU0 GPU1 GPU2 GPU3"  # nothing is predicted
    (row,) = data(list(amd.values()))
    assert list(row["largest_nvlink_set"]) == ["gpus", "bandwidth_gbps"]
    ascend, _ = shown([piece("a", "ascend-910a-x8")])
    (row,) = data(list(ascend.values()))
    assert row["largest_nvlink_set"] == {"gpus": [0, 1, 2, 3]}  # nor does anybody say what a link carries


HOSTILE = "x\x1b]0;owned\x07\x9b31m\u202e\r\n"


def test_text_of_others_cannot_steer_a_terminal() -> None:
    base = machine("a")
    evil = msgspec.structs.replace(
        base,
        name=HOSTILE,
        gpus=tuple(msgspec.structs.replace(gpu, product=HOSTILE) for gpu in base.gpus),
        nics=(msgspec.structs.replace(base.nics[0], name="n\x1b[2J"), *base.nics[1:]),
    )
    one = piece("a", text=machine_codec.encode(evil))
    one["spec"]["devices"][0]["taints"] = [{"key": HOSTILE, "effect": "NoSchedule"}]
    nodes, warnings = views(
        read_slices(one, piece(HOSTILE, text="{")),
        read_claims(
            allocated(HOSTILE, "a", [0], pods=[HOSTILE], namespace=HOSTILE, shareID=HOSTILE),
            promised("gpus-1", "a", [1], pod=HOSTILE),
        ),
    )
    assert len(nodes) == 1
    assert len(warnings) == 1
    said = msgspec.json.encode([nodes[0].name, nodes[0].machine, nodes[0].gpus]).decode() + "".join(warnings)
    assert "owned" in said
    assert [c for c in said if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")] == []
    assert "\\u00" not in said


def test_the_instances_of_a_gpu_in_mig_mode_are_shown_with_their_holders() -> None:
    found = in_mig_mode(profiles.load("hgx-h100", seed="a"), {1: [("3g.40gb", 0), ("1g.10gb", 6)]})
    gpu = found.gpus[1].uuid
    (published,) = resource_slices.build(
        found,
        node="a",
        node_uid="u",
        modes={gpu: Mode(mig="static")},
        kept={gpu: [resource_slices.part_name(gpu, 14, 4)]},
        gone={"key": "gpu.topology/instance-gone", "effect": "NoSchedule"},
    )
    claim = allocated("theirs", "a", [0], pods=["p"])
    claim["status"]["allocation"]["devices"]["results"][0]["device"] = resource_slices.part_name(gpu, 19, 6)
    nodes, warnings = shown([published], claim)
    assert warnings == []
    view = nodes["a"].gpus[1]
    assert view.blocked == "in MIG mode, with 1g.10gb@6, 3g.40gb@0, 2g.20gb@4 (tainted)"
    assert [holder.words for holder in view.holders] == ["team-a/p (1g.10gb@6)"]
    assert 1 not in nodes["a"].free


@pytest.mark.parametrize("mig", ["dynamic", "placements"])
def test_a_gpu_that_is_always_in_mig_mode_is_not_blocked_by_it_where_instances_are_made_for_claims(mig: Any) -> None:
    found = in_mig_mode(profiles.load("dgx-a100", seed="a").subset([0, 1]), {1: []})
    built = resource_slices.build(found, node="a", node_uid="u", modes={found.gpus[1].uuid: Mode(mig=mig)})
    nodes, warnings = shown(built)
    assert warnings == []
    assert [view.blocked for view in nodes["a"].gpus] == ["", ""]
