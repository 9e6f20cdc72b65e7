"""What the chart makes where NVIDIA's driver hands out the GPUs: less of everything."""

from __future__ import annotations

import pytest

from tests.fakes.chart import SIMULATED, VARIANTS, container, objects, rules, workload

pytestmark = pytest.mark.helm
ADDON = VARIANTS["addon"]


@pytest.mark.parametrize("part", ["node", "controller", "webhook"])
def test_every_process_is_told_and_by_default_none(part: str) -> None:
    assert "--allocating-driver=gpu.nvidia.com" in container(part, *ADDON)["args"]
    assert not any("--allocating-driver" in argument for argument in container(part)["args"])


def test_the_node_agent_may_read_nodes_and_write_slices_and_no_more() -> None:
    assert rules("ClusterRole", "node", *ADDON) == [
        ("resource.k8s.io", "resourceslices", (), {"list", "watch", "create", "update", "delete"}),
        ("", "nodes", (), {"get", "list", "watch"}),
    ]


def test_it_has_no_folder_of_the_kubelets_nor_the_hosts_processes() -> None:
    spec = workload("node", *ADDON)["spec"]["template"]["spec"]
    assert "hostPID" not in spec
    assert {volume["name"] for volume in spec["volumes"]} == {"tmp", "policies", "host"}
    simulated = workload("node", *ADDON, *SIMULATED)["spec"]["template"]["spec"]
    assert {volume["name"] for volume in simulated["volumes"]} == {"tmp", "policies"}


def test_there_is_no_device_class_that_would_match_nothing() -> None:
    assert [name for kind, name in objects(*ADDON) if kind == "DeviceClass"] == []
    assert [name for kind, name in objects() if kind == "DeviceClass"]
