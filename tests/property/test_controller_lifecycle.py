"""Whatever happens in whatever order: no GPU has two owners, no pod is lifted and forgotten, and nothing is left over.

The scheduler of the fake allocates pinned devices first come, first served, and trusts nobody. Events reach the
controller late, in any order between kinds, and it is killed at any of its writes.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dradriver.api import names
from dradriver.kube.client import ApiError
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dradriver.node.discovery.simulated import without
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of

KINDS: tuple[Resource, ...] = (PODS, RESOURCE_CLAIMS, NODES, RESOURCE_SLICES)


class Lifecycle(RuleBasedStateMachine):
    """Pods come and go, GPUs vanish and return, claims of others are allocated, controllers die."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.cluster = GpuCluster(unschedulable_s=0)
        self.pods: list[str] = []
        self.made = 0
        self.gone: dict[str, set[str]] = {"a": set(), "b": set()}

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.loop.close()

    @initialize()
    def nodes(self) -> None:
        self.cluster.node("a", "dgx1-v100", allocatable={"cpu": "8"})
        self.cluster.node("b", "a100-pcie-x8-bridge-pairs", allocatable={"cpu": "8"})

    @rule(
        gpus=st.sampled_from([1, 2, 3, 4, 8]),
        wishes=st.sampled_from([{}, {"policy": "nvlink"}, {"preferred": "nvlink,same-numa"}]),
        cpu=st.sampled_from(["0", "1", "5"]),
    )
    def create(self, gpus: int, wishes: dict[str, str], cpu: str) -> None:
        self.made += 1
        name = f"p{self.made}"
        self.pods.append(name)
        self.cluster.pod(name, gpus, wishes=wishes, requests={"cpu": cpu})

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.pods))
        self.pods.remove(name)
        self.cluster.remove(PODS, name, "default")

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        pod = self.cluster.get_pod(data.draw(st.sampled_from(self.pods)))
        if pod["spec"].get("nodeName"):
            self.cluster.put(PODS, pod | {"status": {"phase": "Succeeded"}})

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def delete_claim(self, data: st.DataObject) -> None:
        with contextlib.suppress(Exception):
            self.cluster.remove(RESOURCE_CLAIMS, claim_of(data.draw(st.sampled_from(self.pods))), "default")

    @rule(node=st.sampled_from(["a", "b"]), index=st.integers(0, 7))
    def rival(self, node: str, index: int) -> None:
        """A claim without words of ours takes a device that is free by the scheduler's books."""
        machine = self.cluster.machines[node]
        device = (node, machine.gpus[index].uuid.lower())
        if device not in self.owners() and machine.gpus[index].uuid not in self.gone[node]:
            self.cluster.rival(f"rival-{node}-{index}", node, [index])

    @rule(node=st.sampled_from(["a", "b"]), index=st.integers(0, 7))
    def rival_ends(self, node: str, index: int) -> None:
        if self.cluster.find(RESOURCE_CLAIMS, f"rival-{node}-{index}", "default"):
            self.cluster.remove(RESOURCE_CLAIMS, f"rival-{node}-{index}", "default")

    @rule(node=st.sampled_from(["a", "b"]), index=st.integers(0, 7))
    def vanish_or_return(self, node: str, index: int) -> None:
        machine = self.cluster.machines[node]
        changed = self.gone[node] ^ {machine.gpus[index].uuid}
        self.gone[node] = changed if len(changed) <= 3 else {machine.gpus[index].uuid}
        self.cluster.publish(node, without(machine, self.gone[node]))

    @rule()
    def schedule(self) -> None:
        self.cluster.schedule()

    @rule()
    def collect(self) -> None:
        self.cluster.collect()

    @rule(kinds=st.sets(st.sampled_from(KINDS), min_size=1))
    def deliver(self, kinds: set[Resource]) -> None:
        self.cluster.deliver(*sorted(kinds, key=lambda kind: kind.plural))

    @rule(kill_at=st.integers(-4, 4))
    def step(self, kill_at: int) -> None:
        """One pass of the controller over what it knows; it may be killed at one of its writes."""
        written = len(self.cluster.client.writes)
        self.cluster.client.kill_at = (written + kill_at if kill_at > 0 else kill_at - written) if kill_at else 0
        try:
            self.run(self.cluster.worker.rest())
        except Killed:
            self.restart()
        except ApiError as error:
            assert error.status >= 500, error
        finally:
            self.cluster.client.kill_at = 0

    @rule()
    def deliver_all_and_step(self) -> None:
        self.cluster.deliver()
        self.run(self.cluster.worker.rest())

    @rule()
    def restart(self) -> None:
        self.cluster.restart()
        self.cluster.deliver()

    @invariant()
    def no_device_has_two_owners(self) -> None:
        doubled = [device for device, count in self.owners().items() if count > 1]
        assert doubled == []

    @invariant()
    def no_pod_runs_with_other_gpus_than_it_says(self) -> None:
        for name in self.pods:
            pod = self.cluster.get_pod(name)
            if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Running":
                claim = self.cluster.claim(name)
                if claim is None or "allocation" not in claim["status"]:
                    continue  # somebody deleted it under a running pod
                devices = {r["device"] for r in claim["status"]["allocation"]["devices"]["results"]}
                said = (self.cluster.note(name, "allocated") or "").lower().split(",")
                assert sorted(devices) == sorted(said)
                assert pod["spec"]["nodeName"] == self.cluster.note(name, "node")

    def owners(self) -> collections.Counter[tuple[str, str]]:
        return collections.Counter(
            (result["pool"], result["device"])
            for claim in self.cluster.all(RESOURCE_CLAIMS)
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        )

    def drain(self) -> None:
        """Give the rest of the cluster time, then take all pods away: every GPU must be free again."""
        self.cluster.restart()
        self.settle()
        for name in self.pods:
            pod = self.cluster.get_pod(name)
            if names.GATE in [gate["name"] for gate in pod["spec"]["schedulingGates"]]:
                assert self.cluster.note(name, "reason"), f"{name} waits without a reason"
            elif not pod["spec"].get("nodeName"):
                assert self.cluster.note(name, "reason"), f"{name} was lifted and is not bound, without a reason"
            self.cluster.remove(PODS, name, "default")
        for claim in self.cluster.all(RESOURCE_CLAIMS):
            if claim["metadata"]["name"].startswith("rival"):
                self.cluster.remove(RESOURCE_CLAIMS, claim["metadata"]["name"], "default")
        self.settle()
        assert self.cluster.all(RESOURCE_CLAIMS) == []
        fleet = self.cluster.worker.picture.inventory.fleet
        assert {node: len(fleet.free(node)) for node in fleet.nodes} == {
            node: 8 - len(gone) for node, gone in self.gone.items()
        }

    def settle(self) -> None:
        # Bounded: with no patience an unschedulable pod may go round its nodes for ever.
        for _ in range(6):
            self.cluster.deliver()
            self.run(self.cluster.worker.rest())
            self.cluster.schedule()
            self.cluster.collect()
        self.cluster.deliver()

    def run(self, work: Any) -> None:
        self.loop.run_until_complete(work)


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
