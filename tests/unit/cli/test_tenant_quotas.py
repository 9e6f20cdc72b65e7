"""Quotas of tenants: what bounds what only kube-scheduler places."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dradriver.api.base.allocating_driver import NVIDIA, bound
from dradriver.cli.main import main
from dradriver.cli.tenant_quotas import of_tenant

WHOLE = "gpu.topology.deviceclass.resource.k8s.io/devices"


def whole(count: str) -> dict[str, str]:
    """Return a cap as a quota has it: of whole GPUs of each vendor, for no quota counts several classes together."""
    return {kind + WHOLE: count for kind in ("", "amd.", "ascend.")}


def test_each_namespace_gets_a_quota_of_the_whole_cap() -> None:
    made = of_tenant("vision", ("vision-dev", "vision"), {"*": 16.0})
    assert [(one["metadata"]["namespace"], one["spec"]["hard"]) for one in made.quotas] == [
        ("vision", whole("16")),
        ("vision-dev", whole("16")),
    ]
    assert {one["kind"] for one in made.quotas} == {"ResourceQuota"}
    assert "each of the 2 namespaces may have this many GPUs" in " ".join(made.notes)
    assert "share.gpu.topology.deviceclass.resource.k8s.io/devices" in " ".join(made.notes)


@pytest.mark.parametrize(
    ("caps", "counts", "says"),
    [
        ({"*": 2.5}, "2", "2 of 2.5 GPUs"),
        ({"*": 0.0}, "0", ""),
        ({"*": 4.0, "NVIDIA H100*": 1.0}, "4", "what it may have of NVIDIA H100* is not bounded"),
        ({"NVIDIA H100*": 1.0, "NVIDIA A100*": 2.0}, None, "of NVIDIA A100*, NVIDIA H100* is not bounded"),
        ({}, None, ""),
    ],
)
def test_what_a_quota_cannot_count_is_said(caps: Mapping[str, float], counts: str | None, says: str) -> None:
    made = of_tenant("a", ("a",), caps)
    assert made.counts == ({} if counts is None else whole(counts))
    assert len(made.quotas) == (counts is not None)
    assert says in " ".join(made.notes)


def test_as_an_add_on_the_other_drivers_devices_are_counted() -> None:
    with bound(NVIDIA):
        made = of_tenant("a", ("a",), {"*": 3.0})
    assert made.counts == {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "3"}
    assert not made.notes


def test_the_caps_of_a_policies_file_become_quotas(tmp_path: Path) -> None:
    text = """
tenants:
  vision: {namespaces: [vision], cap: [{gpus: 16}, {gpus: 2, products: [NVIDIA H100*]}]}
  labelled: {namespaces: [named], namespaceLabels: {team: x}, cap: [{gpus: 3}]}
  queued: {namespaces: [queued], cap: [{gpus: 4}], admission: kueue}
  free: {namespaces: [free]}
"""
    (tmp_path / "p.yaml").write_text(text)
    result = CliRunner().invoke(main, ["quota", "convert", "--policies", str(tmp_path / "p.yaml")])
    assert result.exit_code == 0, result.output
    made = list(yaml.safe_load_all(result.stdout))
    assert [(one["metadata"]["namespace"], one["spec"]["hard"]) for one in made] == [
        ("named", whole("3")),
        ("vision", whole("16")),
    ]
    assert "tenant labelled: its namespaces by labels are not in the file" in result.stderr
    assert "tenant vision: no quota counts one product's GPUs" in result.stderr


def test_quotas_of_tenants_are_asked_for_alone(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("tenants: {a: {namespaces: [a]}}")
    result = CliRunner().invoke(main, ["quota", "convert", "--policies", str(tmp_path / "p.yaml"), "-n", "a"])
    assert result.exit_code == 2
    result = CliRunner().invoke(main, ["quota", "convert", "--policies", str(tmp_path / "p.yaml")])
    assert "no tenant has a cap" in result.stderr
