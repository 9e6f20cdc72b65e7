"""``gputopo slices``: what a node will publish, before there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dradriver.api.slices import resource_slices
from dradriver.cli.main import main
from dradriver.topology.load import read_machine
from tests.fakes.gpunodes import read_slices
from tests.schema import check


def printed(*options: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["slices", "--machine", "hgx-h100", *options])
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def test_they_are_the_agents_without_what_only_a_node_has() -> None:
    made = printed("--node", "node-x")
    wanted = resource_slices.build(read_machine("hgx-h100"), node="node-x", node_uid="")
    for piece in wanted:
        del piece["metadata"]["ownerReferences"]
        piece["spec"]["pool"]["generation"] = 1
    assert made == wanted
    assert resource_slices.read_machine(read_slices(*made)) == read_machine("hgx-h100")
    check(made[0])


def test_the_policies_file_says_what_is_cut_up(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text("gpus:\n  - nodeSelector: {pool: inference}\n    shared: time-slicing\n")
    (whole,) = printed("--policies", str(file))
    assert not any(device.get("allowMultipleAllocations") for device in whole["spec"]["devices"])
    (shared,) = printed("--policies", str(file), "--label", "pool=inference")
    assert all(device["allowMultipleAllocations"] for device in shared["spec"]["devices"])
    result = CliRunner().invoke(main, ["slices", "-m", "hgx-h100", "--policies", str(file), "--label", "pool"])
    assert result.exit_code == 2
    file.write_text("gpus: 3")
    assert CliRunner().invoke(main, ["slices", "-m", "hgx-h100", "--policies", str(file)]).exit_code == 2


@pytest.mark.parametrize("name", ["", "A_b", "-a", "a..b", "\x1b[31m", "a" * 254, "a\n"])
def test_names_that_no_node_has_are_refused(name: str) -> None:
    result = CliRunner().invoke(main, ["slices", "-m", "hgx-h100", "--node", name])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is no name of a node" in result.stderr


def test_tables_and_json() -> None:
    result = CliRunner().invoke(main, ["slices", "-m", "dgx1-v100", "-o", "table"])
    assert len(result.stdout.splitlines()) == 9
    result = CliRunner().invoke(main, ["slices", "-m", "dgx1-v100", "-o", "json"])
    assert len(json.loads(result.stdout)["items"][0]["spec"]["devices"]) == 8
