"""A whole agent over a /sys whose ports go down: the Node is told, nothing is published anew and no GPU tainted."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from dradriver.api.slices import resource_slices
from dradriver.kube.resources import EVENTS
from dradriver.node.nics import nic_watch
from dradriver.topology.machine import Machine
from tests.fakes import nvml
from tests.fakes.hardware import Server, cdi_specification
from tests.fakes.node import NODE, NodeUnderTest, a_node, claim, eventually, parameters, result


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server("hgx-h100", tmp_path)
    made.sys.file("etc/cdi/nvidia.yaml", cdi_specification(made.machine))
    for variable, value in made.environment().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(nic_watch, "of_host", functools.partial(nic_watch.of_host, interval_s=0.01))
    return made


def told(node: NodeUnderTest, reason: str) -> list[tuple[str, str, int]]:
    found = [obj for obj in node.api.all(EVENTS) if obj["reason"] == reason]
    assert all(obj["involvedObject"]["kind"] == "Node" for obj in found)
    return [(obj["involvedObject"]["name"], obj["message"], obj["count"]) for obj in found]


def pods_told(node: NodeUnderTest) -> list[tuple[str, str, int]]:
    found = [obj for obj in node.api.all(EVENTS) if obj["reason"] == "NoNearNICs"]
    return [(obj["involvedObject"]["uid"], obj["message"], obj["count"]) for obj in found]


def turn(server: Server, nic: str, *, up: bool) -> None:
    folder = f"sys/class/infiniband/{nic}/ports/1"
    server.sys.file(f"{folder}/phys_state", "5: LinkUp" if up else "2: Polling")
    server.sys.file(f"{folder}/rate", "400 Gb/sec (4X NDR)" if up else "10 Gb/sec (4X SDR)")
    server.sys.file(f"{folder}/state", "4: ACTIVE" if up else "1: DOWN")


def env(node: NodeUnderTest, name: str) -> list[str]:
    (device,) = node.specs[f"gpu.topology-claim_uid-{name}.json"]["devices"]
    return [one for one in device["containerEdits"]["env"] if one.startswith("NCCL_")]


def asked(machine: Machine, name: str, gpu: int) -> dict[str, Any]:
    results = [result("gpu", resource_slices.device_name(machine.gpus[gpu].uuid))]
    return claim(name, results=results, config=[parameters(nccl="near-nics")])


@pytest.mark.slow
async def test_a_port_that_goes_down_is_told_without_pods_and_nothing_else_happens(server: Server) -> None:
    first, second = (nic.name for nic in server.machine.nics[:2])
    how: dict[str, Any] = {"discovery": "nvml", "driver_root": nvml.compiled(), "host_root": server.sys.root}
    async with a_node() as node, node.agent(**how):
        await node.published()
        before = node.put_claim(asked(server.machine, "before", 0))
        await node.kubelet.prepare(before)
        assert env(node, "before") == [f"NCCL_IB_HCA=={first}:1"]
        written = [piece["metadata"]["resourceVersion"] for piece in node.slices]
        turn(server, first, up=False)
        await eventually(lambda: told(node, "NICPortDown"))
        await node.kubelet.unprepare(before)
        await node.kubelet.prepare(node.put_claim(asked(server.machine, "down", 0)))
        assert env(node, "down") == []
        await eventually(lambda: pods_told(node))
        assert pods_told(node) == [
            (
                "pod-uid",
                f"NCCL_IB_HCA is not set in the containers, because none of the nearest network cards ({first}) "
                f"has an active port.",
                1,
            )
        ]
        await node.kubelet.prepare(node.put_claim(asked(server.machine, "other", 1)))
        assert env(node, "other") == [f"NCCL_IB_HCA=={second}:1"]
        turn(server, first, up=True)
        await eventually(lambda: told(node, "NICPortRecovered"))
        ((about, message, count),) = told(node, "NICPortDown")
        assert (about, count) == (NODE, 1)
        assert message.startswith(f"Port 1 of {first} is DOWN (Polling). ")
        assert [piece["metadata"]["resourceVersion"] for piece in node.slices] == written
        assert not any(device.get("taints") for piece in node.slices for device in piece["spec"]["devices"])


async def test_simulated_cards_have_an_active_port_each() -> None:
    async with a_node() as node, node.agent(simulated_default="hgx-h100"):
        await node.published()
        name = node.slices[0]["spec"]["devices"][0]["name"]
        obj = claim("c", results=[result("gpu", name)], config=[parameters(nccl="near-nics")])
        await node.kubelet.prepare(node.put_claim(obj))
        (variable,) = env(node, "c")
        assert variable.startswith("NCCL_IB_HCA==mlx5_")
