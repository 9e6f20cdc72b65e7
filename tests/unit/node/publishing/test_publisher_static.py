"""MIG instances that are handed out as they are: published while a claim has them, be they there or not."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.policies.policy_sections import DEFAULTS, GpuRule
from dradriver.api.slices import resource_slices
from dradriver.api.slices.slice_features import SliceFeatures
from dradriver.node.publishing import mode_transition
from dradriver.node.publishing import publisher as module
from dradriver.topology.machine import Machine
from tests.fakes.instances import in_mig_mode
from tests.fakes.node import eventually, machine
from tests.fakes.stage import Stage, stage, taint

STATIC = msgspec.structs.replace(DEFAULTS, gpus=(GpuRule(mig="static"),))


def in_parts(*instances: tuple[str, int]) -> Machine:
    return in_mig_mode(machine(profile="hgx-h100"), {0: instances})


def instances(on: Stage) -> dict[tuple[str, int], list[str]]:
    """Keys of the taints of each instance that is published, by profile and start."""
    return {
        (d["attributes"]["profile"]["string"], d["attributes"]["placement"]["int"]): [t["key"] for t in d["taints"]]
        if "taints" in d
        else []
        for piece in on.slices
        for d in piece["spec"]["devices"]
        if d["attributes"]["type"]["string"] == "mig"
    }


@pytest.mark.parametrize("left", [(("1g.10gb", 6),), (), None])
async def test_an_instance_that_is_gone_stays_published_and_tainted_until_its_claim_is_given_back(
    left: tuple[tuple[str, int], ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(mode_transition, "GRACE_S", 0.0)
    both = in_parts(("3g.40gb", 0), ("1g.10gb", 6))
    gpu = both.gpus[0].uuid
    used = {gpu: [resource_slices.part_name(gpu, 9, 0)]}

    asked = 0

    async def who() -> dict[str, list[str]] | None:
        nonlocal asked
        asked += 1
        return used if known else None

    known = True
    async with stage(registered=False, policies=lambda: STATIC, used=who) as on:
        on.machine = both
        on.register()
        await eventually(lambda: instances(on) == {("3g.40gb", 0): [], ("1g.10gb", 6): []})
        on.machine = machine(profile="hgx-h100") if left is None else in_parts(*left)
        on.publisher.poke()
        await eventually(lambda: "gpu.topology/instance-gone" in instances(on).get(("3g.40gb", 0), ()))
        assert instances(on).keys() == {("3g.40gb", 0), *(left or ())}
        whole = [
            d for piece in on.slices for d in piece["spec"]["devices"] if d["name"] == resource_slices.device_name(gpu)
        ]
        assert whole == [], "nobody gets the GPU while a claim has a part of it"
        known, used[gpu], before = False, [], (on.slices, asked)
        await eventually(lambda: asked > before[1] + 3)
        assert on.slices == before[0], "nobody knows that it was given back"
        known = True
        await eventually(lambda: ("3g.40gb", 0) not in instances(on))


async def test_one_that_is_gone_and_comes_back_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    both = in_parts(("3g.40gb", 0), ("1g.10gb", 6))
    gpu = both.gpus[0].uuid

    async def who() -> dict[str, list[str]]:
        return {gpu: [resource_slices.part_name(gpu, 9, 0)]}

    async with stage(registered=False, policies=lambda: STATIC, used=who) as on:
        on.machine = in_parts(("1g.10gb", 6))
        on.register()
        await eventually(lambda: instances(on).get(("3g.40gb", 0)) == ["gpu.topology/instance-gone"])
        on.machine = both
        on.publisher.poke()
        await eventually(lambda: instances(on) == {("3g.40gb", 0): [], ("1g.10gb", 6): []})


def test_where_no_taint_is_kept_an_instance_that_is_gone_is_no_device_and_its_gpu_is_not_whole() -> None:
    found = machine(profile="hgx-h100")
    gpu = found.gpus[0].uuid
    (piece,) = resource_slices.build(
        found,
        node="n",
        node_uid="u",
        modes={gpu: Mode(mig="static")},
        kept={gpu: [resource_slices.part_name(gpu, 9, 0)]},
        gone=taint(),
        features=SliceFeatures(taints=False, shares=False, counters=False),
    )
    assert len(piece["spec"]["devices"]) == 7
