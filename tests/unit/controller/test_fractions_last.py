"""Whole pods take GPUs that are set aside for fractions last, or never if the policies file says so."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.policies.gpu_modes import Mode, mode_of
from dradriver.api.policies.policies_reader import PoliciesError, read
from dradriver.api.slices import resource_slices
from dradriver.api.slices.slice_features import ALL
from dradriver.kube.resources import RESOURCE_SLICES
from dradriver.node.publishing.mode_transition import published
from dradriver.topology import profiles
from tests.fakes.gang_pods import gang
from tests.fakes.gpucluster import GpuCluster

KINDS = {
    "shares": Mode(shared="mps"),
    "slices": Mode(mig="dynamic"),
    "placements": Mode(mig="placements"),
}
EACH = pytest.mark.parametrize("kind", KINDS)


def cluster_of(
    mode: Mode, *for_fractions: int, nodes: tuple[str, ...] = ("a",), **of_node: tuple[int, ...]
) -> GpuCluster:
    """Return a cluster of nodes on which these GPUs are handed out by the mode."""
    cluster = GpuCluster()
    for name in nodes:
        cluster.node(name, "hgx-h100")
        machine = cluster.machines[name]
        modes = {gpu.uuid: mode for gpu in machine.gpus if gpu.index in of_node.get(name, for_fractions)}
        for built in resource_slices.build(machine, node=name, node_uid="n", modes=modes):
            built["spec"]["pool"]["generation"] = 2
            cluster.put(RESOURCE_SLICES, built)
    return cluster


@EACH
async def test_a_pod_takes_other_gpus_first_and_these_last(kind: str) -> None:
    cluster = cluster_of(KINDS[kind], 5, 6)
    cluster.pod("p", 4)
    await cluster.settle()
    cluster.schedule()
    cluster.pod("q", 2)
    cluster.pod("r", 2)
    await cluster.settle()
    cluster.schedule()
    first, *rest = (set(cluster.gpus(pod)[1]) for pod in ("p", "q", "r"))
    assert not first & {5, 6}
    assert {5, 6} in rest


@EACH
async def test_it_takes_a_set_of_another_node_first(kind: str) -> None:
    cluster = cluster_of(KINDS[kind], nodes=("a", "b"), a=(0, 1, 2, 3, 4), b=())
    cluster.pod("p", 4)
    await cluster.settle()
    assert cluster.gpus("p")[0] == "b"


@EACH
async def test_a_gang_takes_other_gpus_first(kind: str) -> None:
    cluster = cluster_of(KINDS[kind], 0, 1, nodes=("a", "b"))
    pods = gang(cluster, 2, gpus=4)
    await cluster.settle()
    held = [cluster.gpus(pod) for pod in pods]
    assert [len(gpus) for _, gpus in held] == [4, 4]
    assert not any({0, 1} & set(gpus) for _, gpus in held)


@EACH
async def test_of_fractions_only_no_pod_gets_them_whole(kind: str) -> None:
    mode = msgspec.structs.replace(KINDS[kind], fractions_only=True)
    cluster = cluster_of(mode, 0, 1, 2, 3, 4)
    cluster.pod("p", 4)
    cluster.pod("q", 3)
    await cluster.settle()
    cluster.schedule()
    assert cluster.claim("p") is None
    assert set(cluster.gpus("q")[1]) == {5, 6, 7}


@EACH
@pytest.mark.parametrize("fractions_only", [False, True])
def test_what_is_published_says_so(kind: str, fractions_only: bool) -> None:
    machine = profiles.load("hgx-h100", seed="a")
    mode = msgspec.structs.replace(KINDS[kind], fractions_only=fractions_only)
    modes = {gpu.uuid: mode for gpu in machine.gpus}
    built = resource_slices.build(machine, node="a", node_uid="n", modes=modes)
    whole = [
        d for piece in built for d in piece["spec"].get("devices", ()) if d["attributes"]["type"]["string"] == "gpu"
    ]
    assert len(whole) == (0 if fractions_only else 8)
    found = published([msgspec.convert(piece, ResourceSlice) for piece in built], machine)
    assert {uuid: one.fractions_only for uuid, one in found.items()} == dict.fromkeys(modes, fractions_only)
    assert {one.form for one in found.values()} == {mode.form}
    assert resource_slices.as_handed_out(machine.gpus[0], mode, ALL) == mode


def test_a_rule_says_it() -> None:
    gpu = profiles.load("hgx-h100", seed="a").gpus[0]
    policies = read(b"gpus: [{shared: mps, fractionsOnly: true}]", source="x")
    assert mode_of(policies, node="a", labels={}, gpu=gpu) == Mode(shared="mps", fractions_only=True)
    with pytest.raises(PoliciesError, match=r"the GPUs of this rule have no fractions\. Add shared or mig to the rule"):
        read(b"gpus: [{fractionsOnly: true}]", source="x")
