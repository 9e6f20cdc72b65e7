"""NICs with taints, of their driver or of an administrator's rule: they are for claims alone that tolerate these."""

from __future__ import annotations

import pytest

from dradriver.controller.placing import nic_refusals
from dradriver.kube.resources import PODS, RESOURCE_SLICES
from tests.fakes import nics
from tests.fakes.nic_pods import NEAREST, a_cluster, addresses, given, gpus, pod, run, template, wanted
from tests.fakes.nics import DRANET, SRIOV
from tests.unit.cluster.test_taint_rules import apply, withdraw
from tests.unit.controller.test_nics_many import wish_of


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


@pytest.mark.parametrize(
    ("toleration", "is_covered"),
    [
        ({"key": "dedicated", "operator": "Exists"}, True),
        ({"key": "dedicated", "value": "train", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "operator": "Equal", "value": "train"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "dedicated", "value": "serve"}, False),
        ({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        (None, False),
    ],
)
@pytest.mark.parametrize("near", ["required", ""])
async def test_a_tainted_nic_is_for_pods_that_tolerate_all_its_taints(
    toleration: dict[str, str] | None, is_covered: bool, near: str
) -> None:
    cluster = a_cluster()
    taint = {"key": "dedicated", "value": "train", "effect": "NoSchedule"}
    tainted = nics.device(NEAREST[2]) | {"taints": [taint, {"key": "only-told", "effect": "None"}]}
    cluster.put(RESOURCE_SLICES, nics.published("a", [tainted]))
    template(cluster, gpus(), wanted(tolerations=[toleration] if toleration else []))
    pod(cluster, **({"near_nic": near} if near else {}))
    await run(cluster)
    assert (cluster.claim("p") is not None) is is_covered, cluster.note("p", "reason")
    if is_covered:
        assert addresses(cluster) == [NEAREST[2]]
        assert given(cluster) == [tainted["name"]]
    else:
        ask = wish_of(cluster, "p").nics
        assert ask is not None
        told = nic_refusals.figures(cluster.worker.picture, ask, ["a"])
        assert told.startswith("a: 1 of 1 NICs free (1 of these tainted), 0 of them match the request")


async def test_of_two_taints_one_that_is_tolerated_is_not_enough() -> None:
    cluster = a_cluster()
    tainted = nics.device(NEAREST[0]) | {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}
    cluster.put(RESOURCE_SLICES, nics.published("a", [tainted]))
    rule = apply(cluster, "ill", {"driver": DRANET})
    template(cluster, gpus(), wanted(tolerations=[{"key": "dedicated", "operator": "Exists"}]))
    pod(cluster)
    await run(cluster)
    assert cluster.claim("p") is None
    withdraw(cluster, rule)
    await run(cluster)
    assert given(cluster) == [tainted["name"]]


async def test_requests_that_tolerate_different_taints_get_different_nics() -> None:
    cluster = a_cluster()
    cluster.put(
        RESOURCE_SLICES,
        nics.published(
            "a", [nics.device(NEAREST[0]), nics.device(NEAREST[1]) | {"taints": [{"key": "k", "effect": "NoSchedule"}]}]
        ),
    )
    template(cluster, gpus(), wanted("own", tolerations=[{"key": "k", "operator": "Exists"}]), wanted("any"))
    pod(cluster)
    await run(cluster)
    assert [addresses(cluster, request=name) for name in ("own", "any")] == [[NEAREST[1]], [NEAREST[0]]]
