"""MIG instances that somebody made on a GPU, on the real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from dradriver.topology import profiles
from dradriver.topology.machine import Gpu
from tests import deploy
from tests.cluster import Cluster
from tests.e2e import parts
from tests.e2e.kubectl import Namespace, eventually, pod

NODE, NUMBER = deploy.SLICED[0], 5
GPU: Gpu = profiles.load(deploy.MACHINES[NODE], seed=NODE).gpus[NUMBER]
PROFILES = {profile.name: profile for profile in GPU.profiles}
WORDS = {names.MIG_PROFILE: "1g.10gb"}


@pytest.fixture
def hardware(driver: Cluster) -> Iterator[SimulatedGpu]:
    """A GPU in MIG mode with two instances; the agent's next start finds it so, and what is published is gone."""
    found = parts.simulated(driver.nodes[NODE], GPU)
    with parts.no_agent(driver, NODE):
        parts.forget(driver, NODE)
        parts.make_instances(found, GPU, ("3g.40gb", 0), ("1g.10gb", 6))
    yield found
    with parts.no_agent(driver, NODE):
        parts.forget(driver, NODE)
        for instance in found.gpu_instances(GPU.uuid):
            found.destroy_compute_instance(GPU.uuid, instance, 0)
            found.destroy_gpu_instance(GPU.uuid, instance)
        found.set_mig_mode(GPU.uuid, False)


def test_an_instance_that_exists_is_given_first_and_stays(hardware: SimulatedGpu, namespace: Namespace) -> None:
    own = resource_slices.part_name(GPU.uuid, PROFILES["1g.10gb"].id, 6)
    namespace.apply(pod("first", gpus=1, words=WORDS, node=NODE))
    namespace.wait_running("first")
    assert namespace.annotation("first", names.PART) == "1g.10gb@6"
    assert namespace.annotation("first", names.ALLOCATED) == GPU.uuid
    (claim,) = namespace.list("resourceclaim")
    assert [one["device"] for one in claim["status"]["allocation"]["devices"]["results"]] == [own]

    namespace.apply(pod("second", gpus=1, words=WORDS, node=NODE))
    namespace.apply(pod("whole", gpus=8, words={names.POLICY: "best-effort"}, node=NODE))
    namespace.wait_running("second")
    assert namespace.annotation("second", names.ALLOCATED) != GPU.uuid, "that one was made"
    eventually("whole is told why it waits", lambda: namespace.annotation("whole", names.REASON))

    namespace.delete("first", "second", "whole")
    eventually("the claims are given back", lambda: not deploy.prepared(namespace.cluster.nodes[NODE]))
    assert len(hardware.gpu_instances(GPU.uuid)) == 2
