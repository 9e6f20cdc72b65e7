"""The controller's states of GPUs and those of the commands are the same, also for GPUs with taints."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.base.objects import Metadata, Taint
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.cluster.derived.gpu_states import states_of
from dradriver.cluster.gpus.taint_rules import TaintRule
from dradriver.cluster.views import node_views
from dradriver.cluster.views.node_views import NotOffered
from dradriver.kube.reflector import Change
from dradriver.kube.resources import RESOURCE_SLICES
from tests.fakes.gpucluster import GpuCluster

MODES = (
    Mode(),
    Mode(shared="time-slicing"),
    Mode(shared="time-slicing", fractions_only=True),
    Mode(mig="placements"),
    Mode(mig="placements", fractions_only=True),
    Mode(mig="dynamic", fractions_only=True),
)


@pytest.mark.slow
@pytest.mark.parametrize("ruled", ["", "one", "pool"])
@pytest.mark.parametrize("tainted", [0, 1, 1000])
@pytest.mark.parametrize("taint", ["mode-changes", "xid"])
@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_controller_and_commands_name_the_same_states(mode: Mode, taint: str, tainted: int, ruled: str) -> None:
    cluster = GpuCluster()
    cluster.node("a", "dgx-a100", mode=mode)
    for piece in cluster.all(RESOURCE_SLICES):
        for device in piece["spec"].get("devices", ())[:tainted]:
            device["taints"] = [{"key": names.PREFIX + taint, "value": "79", "effect": "NoSchedule"}]
        cluster.put(RESOURCE_SLICES, piece)
    await cluster.settle()
    picture = cluster.worker.picture
    if ruled:
        device = "" if ruled == "pool" else resource_slices.device_name(cluster.machines["a"].gpus[0].uuid)
        taint_rule = TaintRule(
            metadata=Metadata(name="drain"), taint=Taint(key="x", effect="NoSchedule"), pool="a", device=device
        )
        picture.taint_rule_changed(Change(("", "drain"), None, taint_rule))
    pieces = [msgspec.convert(piece, ResourceSlice) for piece in cluster.all(RESOURCE_SLICES)]
    (view,), _ = node_views.views(pieces, [], not_offered=NotOffered(taint_rules=picture.offered.taint_rules))
    states = states_of("a", picture.inventory, picture.accounts, picture.nodes)
    assert {gpu.gpu.index: gpu.state for gpu in view.gpus} == states
