"""Whatever happens in whatever order: no GPU has two owners, no pod is lifted and forgotten, and nothing is left over.

The scheduler of the fake allocates pinned devices first come, first served, and trusts nobody. Events reach the
controller late, in any order between kinds, and it is killed at any of its writes.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import re
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dradriver.allocator.request import Amount
from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.vocabulary.container_requests import Asked
from dradriver.kube.client import ApiError
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dradriver.node.discovery.simulated_machine import without
from tests.effort import examples
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of

SHARES = (Amount(cores=25), Amount(cores=60), Amount(memory_mib=30_000), Amount(cores=10, memory_mib=60_000))
SLICES = (("1g.10gb",), ("1g.10gb", "1g.10gb"), ("3g.40gb",), ("2g.20gb", "4g.40gb"), ("7g.80gb",))
KINDS: tuple[Resource, ...] = (PODS, RESOURCE_CLAIMS, NODES, RESOURCE_SLICES)


class Lifecycle(RuleBasedStateMachine):
    """Pods come and go, GPUs vanish and return, claims of others are allocated, controllers die."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.cluster = GpuCluster(unschedulable_s=0)
        self.pods: list[str] = []
        self.made = 0
        self.gone: dict[str, set[str]] = {"a": set(), "b": set(), "s": set(), "m": set(), "t": set()}

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.loop.close()

    @initialize()
    def nodes(self) -> None:
        self.cluster.node("a", "dgx1-v100", allocatable={"cpu": "8"})
        self.cluster.node("b", "a100-pcie-x8-bridge-pairs", allocatable={"cpu": "8"})
        self.cluster.node("s", "hgx-h100", mode=Mode(shared="time-slicing"), allocatable={"cpu": "8"})
        self.cluster.node("m", "hgx-h100", mode=Mode(mig="dynamic"), allocatable={"cpu": "8"})
        self.cluster.node("t", "hgx-h100", mode=Mode(mig="placements"), allocatable={"cpu": "8"})

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

    @rule(
        asks=st.lists(st.sampled_from(SHARES), min_size=1, max_size=3)
        | st.lists(st.sampled_from(SLICES), min_size=1, max_size=3)
    )
    def create_with_parts(self, asks: list[Amount] | list[tuple[str, ...]]) -> None:
        self.made += 1
        name = f"p{self.made}"
        self.pods.append(name)
        each: list[Asked] = [*asks]
        self.cluster.pod(name, {f"c{number}": ask for number, ask in enumerate(each)})

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
    def no_memory_slice_is_in_two_instances(self) -> None:
        """The scheduler counts slices; that they lie beside each other is the controller's to see to."""
        used: collections.Counter[tuple[str, int]] = collections.Counter()
        for claim in self.cluster.all(RESOURCE_CLAIMS):
            if "allocation" in claim.get("status", {}):
                mig = claim.get("spec", {}).get("devices", {}).get("config", [{}])[0].get("opaque", {})
                for one in mig.get("parameters", {}).get("mig", {}).values():
                    (profile,) = [p for p in self.cluster.machines["m"].gpus[0].profiles if p.name == one["profile"]]
                    for uuid, start in one["starts"].items():
                        used.update((uuid, number) for number in range(start, start + profile.size))
        assert [place for place, count in used.items() if count > 1] == []

    @invariant()
    def no_pod_runs_with_other_gpus_than_it_says(self) -> None:
        for name in self.pods:
            pod = self.cluster.get_pod(name)
            if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Running":
                claim = self.cluster.claim(name)
                if claim is None or "allocation" not in claim["status"]:
                    continue  # somebody deleted it under a running pod
                every = [r["device"] for r in claim["status"]["allocation"]["devices"]["results"]]
                devices = [re.sub(r"-[0-9]{1,3}-[0-9]$", "", device) for device in every]  # of a placement
                said = (self.cluster.note(name, "allocated") or "").lower().split(",")
                assert sorted(devices) == sorted(said)
                assert pod["spec"]["nodeName"] == self.cluster.gpus(name)[0]

    def owners(self) -> collections.Counter[tuple[str, str]]:
        return collections.Counter(
            (result["pool"], result["device"])
            for claim in self.cluster.all(RESOURCE_CLAIMS)
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
            if "shareID" not in result
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
TestLifecycle.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
