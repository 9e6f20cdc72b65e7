"""``gputopo quota convert``: what counted a device plugin's resources counts claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dradriver.api.base import names
from dradriver.cli.main import main
from dradriver.kube.resources import Resource
from tests.fakes.commands import command_line
from tests.fakes.gpucluster import GpuCluster
from tests.schema import check

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", namespaced=True)
WHOLE = "gpu.topology.deviceclass.resource.k8s.io/devices"
THEIRS = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
MIG = "mig.gpu.topology.deviceclass.resource.k8s.io/devices"


def quota(hard: dict[str, Any], **spec: Any) -> dict[str, Any]:
    metadata = {
        "name": "team",
        "namespace": "a",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "owner": "x"},
    }
    return {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard} | spec, "status": {}
    }  # fmt: skip


def convert(*quotas: dict[str, Any], options: tuple[str, ...] = ()) -> Result:
    return CliRunner().invoke(main, ["quota", "convert", "-", *options], input=yaml.safe_dump_all(quotas))


def converted(*quotas: dict[str, Any], options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    result = convert(*quotas, options=options)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def test_whole_gpus_and_slices_become_devices_of_our_classes() -> None:
    hard = {"requests.nvidia.com/gpu": "8", "requests.nvidia.com/mig-1g.10gb": 3, "requests.nvidia.com/mig-3g.40gb": 2}
    (made,) = converted(quota(hard | {"cpu": "100"}), options=("--replace",))
    assert made["spec"]["hard"] == {"cpu": "100", WHOLE: "8", MIG: "5"}
    assert made["metadata"] == {"name": "team", "namespace": "a", "annotations": {"owner": "x"}}
    assert "status" not in made
    (both,) = converted(quota(hard))
    assert both["spec"]["hard"] == {key: str(value) for key, value in hard.items()} | {WHOLE: "8", MIG: "5"}


def test_gpus_of_other_vendors_become_devices_of_their_classes() -> None:
    hard = {"requests.nvidia.com/gpu": "8", "requests.amd.com/gpu": "4", "requests.huawei.com/npu": "16"}
    (made,) = converted(quota(hard | {"requests.huawei.com/Ascend910B3": "2"}), options=("--replace",))
    assert made["spec"]["hard"] == {WHOLE: "8", f"amd.{WHOLE}": "4", f"ascend.{WHOLE}": "16"}
    said = convert(quota({"requests.huawei.com/Ascend910B3": "2"})).stderr
    assert f"no quota counts the GPUs of one product. Write how many GPUs of all products ascend.{WHOLE} allows" in said


def test_where_anothers_devices_are_handed_out_its_class_is_counted() -> None:
    hard = {"requests.nvidia.com/gpu": "8", "requests.nvidia.com/mig-1g.10gb": "3"}
    result = convert(quota(hard), options=("--replace", "--allocating-driver", "gpu.nvidia.com"))
    assert yaml.safe_load(result.stdout)["spec"]["hard"] == {THEIRS: "8"}
    assert "requests.nvidia.com/mig-1g.10gb: claims that this driver makes" in result.stderr
    assert "gpu.topology" not in result.output


def test_the_classes_are_those_that_claims_name() -> None:
    assert f"{names.DEVICE_CLASS}.deviceclass.resource.k8s.io/devices" == WHOLE
    assert f"{names.MIG_CLASS}.deviceclass.resource.k8s.io/devices" == MIG


def test_what_comes_out_is_a_quota() -> None:
    for made in converted(quota({"requests.nvidia.com/gpu": "8"}), quota({"nvidia.com/gpu": 1}, scopes=["BestEffort"])):
        check(made)


def test_what_is_not_the_same_is_said() -> None:
    result = convert(quota({"requests.nvidia.com/gpu": "8", "requests.nvidia.com/gpumem": "1000"}))
    assert "no quota counts memory or compute of shares" in result.stderr
    others = [f"amd.{WHOLE}", f"ascend.{WHOLE}", MIG, "share.gpu.topology.deviceclass.resource.k8s.io/devices"]
    assert f"write {' and '.join(f'{one}: 0' for one in others)} for none" in result.stderr
    assert "each of the two lines has its own limit" in result.stderr
    result = convert(quota({"requests.nvidia.com/gpu.A100": "8"}))
    assert "no quota counts the GPUs of one product" in result.stderr
    result = convert(quota({"requests.nvidia.com/gpu": "many"}))
    assert "is not a quantity" in result.stderr


def test_scopes_are_the_pods_alone() -> None:
    first, second = converted(quota({"requests.nvidia.com/gpu": "8"}, scopes=["NotTerminating"]))
    assert first["spec"] == {"hard": {"requests.nvidia.com/gpu": "8"}, "scopes": ["NotTerminating"]}
    assert (second["metadata"]["name"], second["spec"]) == ("team-devices", {"hard": {WHOLE: "8"}})


def test_a_quota_of_which_nothing_is_left_is_not_written() -> None:
    result = convert(quota({"requests.huawei.com/Ascend910B3": "2"}), options=("--replace",))
    assert result.stdout == ""
    assert "nothing is left of it: delete it, or write what its claims may have" in result.stderr


def test_quotas_without_gpus_are_left_out() -> None:
    result = convert(quota({"cpu": "1"}), {"kind": "ConfigMap", "metadata": {"name": "x"}})
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing to convert" in result.stderr


def test_tables_and_json() -> None:
    result = convert(quota({"requests.nvidia.com/gpu": "8"}), options=("-o", "table"))
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["QUOTA", "COUNTS"], ["a/team", "requests.nvidia.com/gpu:", "8"], ["a/team", f"{WHOLE}:", "8"],
    ]  # fmt: skip
    result = convert(quota({"requests.nvidia.com/gpu": "8"}), options=("-o", "json"))
    assert json.loads(result.stdout)["items"][0]["spec"]["hard"][WHOLE] == "8"


@pytest.mark.parametrize("text", ["[", "kind: ResourceQuota\nspec: 3", "kind: ResourceQuota\nspec: {hard: {a: []}}"])
def test_odd_input_is_no_traceback(text: str) -> None:
    result = CliRunner().invoke(main, ["quota", "convert", "-"], input=text)
    assert result.exit_code in (0, 1)
    assert not result.exception or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("value", ["!!binary aGE=", "!!set {a}", "!!timestamp 2026-01-01", ".inf", "!!omap [a: 1]"])
def test_values_that_no_object_of_kubernetes_has_are_refused(value: str) -> None:
    text = f"kind: ResourceQuota\nmetadata: {{labels: {{x: {value}}}}}\nspec: {{hard: {{nvidia.com/gpu: 1}}}}"
    result = CliRunner().invoke(main, ["quota", "convert", "-", "-o", "json"], input=text)
    assert isinstance(result.exception, SystemExit)
    assert (result.exit_code, result.stdout) == (1, "")
    why = "not a valid number: .inf" if value == ".inf" else "a value of the type "
    assert f"standard input:2: document 1: not YAML: {why}" in result.stderr


async def test_a_clusters_quotas(tmp_path: Path) -> None:
    cluster = GpuCluster()
    for namespace in ("a", "b"):
        cluster.put(
            QUOTAS,
            {"metadata": {"name": "q", "namespace": namespace}, "spec": {"hard": {"requests.nvidia.com/gpu": "2"}}},
        )
    async with command_line(cluster.store, tmp_path, namespace="a") as shell:
        assert (await shell.run("quota convert")).stdout.count("kind: ResourceQuota") == 1
        assert (await shell.run("quota convert", "-A")).stdout.count("kind: ResourceQuota") == 2
        assert (await shell.run("quota convert", "-A", "-n", "a")).exit_code == 2
        assert (await shell.run("quota convert", "-")).exit_code == 2
