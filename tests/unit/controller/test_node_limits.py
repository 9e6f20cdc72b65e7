"""The limits of features on the choice of a node: which requests have them, and which claims they keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dradriver.allocator.request import Amount
from dradriver.api.vocabulary.container_requests import Asked
from dradriver.controller.placing.channel_limit import ChannelLimit
from dradriver.controller.placing.nic_limit import NearNicLimit, NicLimit
from dradriver.controller.placing.node_limit import NodeLimit
from dradriver.controller.placing.node_limits import concerning
from dradriver.controller.placing.plan import revalidate
from dradriver.controller.placing.spot_limit import SpotLimit
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes import domains, nic_pods, nics
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.preempting import waiting

OWN = {"name": "gpu-topology", "resourceClaimName": claim_of("p")}
ZONE = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"app": "x"}}}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [ZONE]}}


async def limits(cluster: GpuCluster) -> list[type[NodeLimit]]:
    """Return the kinds of the limits that pod ``p`` has, in their order."""
    await cluster.settle()
    return [type(limit) for limit in concerning(waiting(cluster, "p").wish)]


@pytest.mark.parametrize(
    ("asked", "words", "spec"),
    [
        (1, {}, {}),
        (4, {"policy": "nvlink"}, {"requests": {"cpu": "2"}, "affinity": APART}),
        (2, {"shared-claim": "duo"}, {"resourceClaims": [OWN | {"resourceClaimName": "duo"}]}),
        (Amount(cores=50), {"share": "0.5"}, {}),
        (("1g.10gb",), {}, {}),
        (1, {"spot": "any"}, {}),
        # The allocator chooses only GPUs near NICs by itself.
        (1, {"near-nic": "required"}, {}),
    ],
)
async def test_a_request_without_features_has_no_limit(
    asked: Asked, words: Mapping[str, str], spec: dict[str, Any]
) -> None:
    cluster = GpuCluster()
    cluster.pod("p", asked, wishes=words, **spec)
    assert await limits(cluster) == []


@pytest.mark.parametrize(
    ("words", "limit"),
    [({"spot": "prefer"}, SpotLimit), ({"spot": "avoid"}, SpotLimit), ({"near-nic": "preferred"}, NearNicLimit)],
)
async def test_a_preference_has_its_own_limit_alone(words: Mapping[str, str], limit: type[NodeLimit]) -> None:
    cluster = GpuCluster()
    cluster.pod("p", 2, wishes=words)
    assert await limits(cluster) == [limit]


async def test_a_pod_of_a_compute_domain_has_the_limit_of_channels_alone() -> None:
    cluster = GpuCluster()
    cluster.put(RESOURCE_CLAIM_TEMPLATES, domains.template("t", "domain"))
    cluster.pod("p", 2, resourceClaims=[OWN, domains.entry("t")])
    assert await limits(cluster) == [ChannelLimit]


@pytest.mark.parametrize(
    ("words", "expected"),
    [({}, [NicLimit]), ({"near_nic": "required"}, [NicLimit]), ({"near_nic": "preferred"}, [NicLimit, NearNicLimit])],
)
async def test_a_claim_with_nics_has_the_limits_of_nics(
    words: Mapping[str, str], expected: list[type[NodeLimit]]
) -> None:
    cluster = GpuCluster()
    nic_pods.template(cluster, nic_pods.gpus(), nic_pods.wanted())
    nic_pods.pod(cluster, **words)
    assert await limits(cluster) == expected


async def test_a_template_without_nics_has_no_limit() -> None:
    cluster = GpuCluster()
    nic_pods.template(cluster, nic_pods.gpus())
    nic_pods.pod(cluster)
    assert await limits(cluster) == []


async def test_a_pod_with_all_features_has_all_limits_those_that_leave_out_nodes_first() -> None:
    cluster = GpuCluster()
    cluster.put(RESOURCE_CLAIM_TEMPLATES, domains.template("channel", "domain"))
    nic_pods.template(cluster, nic_pods.gpus(), nic_pods.wanted())
    gpus = {"name": "gpus", "resourceClaimName": claim_of("p")}
    words = {"template": "gpus/t", "near-nic": "preferred", "spot": "prefer"}
    cluster.pod("p", 1, wishes=words, resourceClaims=[gpus, domains.entry("channel")])
    assert await limits(cluster) == [ChannelLimit, NicLimit, NearNicLimit, SpotLimit]


def is_kept(cluster: GpuCluster) -> bool:
    """Return whether the claim of pod ``p`` is still valid for it."""
    cluster.deliver()
    member = waiting(cluster, "p")
    return revalidate(cluster.worker.picture, [member], [member]) is not None


async def test_a_claim_is_kept_while_its_nic_exists_and_is_free() -> None:
    cluster = nic_pods.a_cluster("a")
    nic_pods.template(cluster, nic_pods.gpus(), nic_pods.wanted())
    nic_pods.pod(cluster)
    await cluster.settle()
    assert is_kept(cluster)

    (address,) = nic_pods.addresses(cluster)
    published = nics.of_machine(cluster.machines["a"])
    (chosen,) = [nic for nic in published if nic["name"] == nics.device(address)["name"]]
    cluster.put(RESOURCE_SLICES, nics.published("a", [nic for nic in published if nic != chosen]))
    assert not is_kept(cluster)
    cluster.put(RESOURCE_SLICES, nics.published("a", published))
    assert is_kept(cluster)

    taken = {"driver": nics.DRANET, "pool": "a", "device": chosen["name"], "request": "nic"}
    allocated = {"allocation": {"devices": {"results": [taken]}}}
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "theirs", "namespace": "other"}, "status": allocated})
    assert not is_kept(cluster)


async def test_a_claim_is_kept_while_its_pod_may_have_the_channel_of_its_node() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.put(RESOURCE_SLICES, domains.resource_slice("a"))
    cluster.put(RESOURCE_CLAIM_TEMPLATES, domains.template("t", "domain"))
    cluster.pod("p", 2, resourceClaims=[OWN, domains.entry("t")])
    await cluster.settle()
    assert is_kept(cluster)
    cluster.put(RESOURCE_CLAIMS, domains.claim("theirs", "a"))
    assert not is_kept(cluster)
