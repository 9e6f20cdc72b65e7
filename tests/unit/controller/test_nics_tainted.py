"""NICs with taints, of their driver or of an administrator's rule: no claim gets them, and none is pinned to them."""

from __future__ import annotations

import pytest

from dradriver.kube.resources import PODS, RESOURCE_SLICES
from tests.fakes import nics
from tests.fakes.nics import DRANET, SRIOV
from tests.unit.cluster.test_taint_rules import apply, withdraw
from tests.unit.controller.test_nics import NEAREST, a_cluster, given, gpus, pod, run, template, wanted

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
async def test_no_nic_is_chosen_that_a_rule_taints_until_it_is_gone(effect: str) -> None:
    cluster = a_cluster()
    cluster.put(RESOURCE_SLICES, nics.published("a", [nics.device(NEAREST[0]), nics.device(NEAREST[1])]))
    first, second = (str(nics.device(NEAREST[gpu])["name"]) for gpu in (0, 1))
    apply(cluster, "ill", {"driver": DRANET, "pool": "a", "device": first}, effect=effect)
    apply(cluster, "of-others", {"driver": SRIOV, "device": second}, effect=effect)
    template(cluster, gpus(), wanted())
    pod(cluster)
    await run(cluster)
    assert given(cluster) == [second]
    drain = apply(cluster, "drain", {"driver": DRANET, "pool": "a"}, effect=effect)
    cluster.remove(PODS, "p", "default")
    cluster.collect()
    pod(cluster, "q")
    await run(cluster)
    assert cluster.claim("q") is None
    withdraw(cluster, drain)
    await run(cluster)
    assert given(cluster, "q") == [second]
