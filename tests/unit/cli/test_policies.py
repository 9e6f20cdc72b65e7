from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from dradriver.api.policies import fields, policy_sections
from dradriver.api.policies.policies_reader import read
from dradriver.api.policies.policy_sections import DEFAULTS, WORKLOADS, plain
from dradriver.api.policies.workload_words import LATER, WORDS
from dradriver.cli.main import main
from tests.paths import REPO

GOOD = "gpus: [{mig: dynamic}]\npolicies: {new: {near: leaf}}\nweights: {nvlink: 50}\n"
BAD = "gpus:\n  - mig: dynamc\n"


def run(*arguments: str, sent: str | None = None) -> Result:
    return CliRunner().invoke(main, ["policies", "check", *arguments], input=sent)


def test_a_good_file_is_said_to_be_good_and_what_has_no_effect_yet(tmp_path: Path) -> None:
    (file := tmp_path / "p.yaml").write_text(GOOD)
    result = run(str(file))
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "warning: policies.new: near is not available yet, and pods that request it are refused.",
        f"{file}: good (gpus: 1 rules, policies: 1, nccl.servers: 0, tenants: 0)",
    ]


def test_a_bad_file_is_said_with_line_place_and_cure_and_status_1(tmp_path: Path) -> None:
    (file := tmp_path / "p.yaml").write_text(BAD)
    for result, source in ((run(str(file)), str(file)), (run("-", sent=BAD), "standard input")):
        assert result.exit_code == 1
        said = "gpus[0].mig: 'dynamc' is not allowed (did you mean dynamic?). Write dynamic, off, placements or static."
        assert result.output == f"error: {source}:2: {said}\n"


def test_all_errors_of_a_file_are_printed() -> None:
    bad = BAD + "weights: {nvlnk: 3}\n"
    lines = run("-", sent=bad).output.splitlines()
    assert [line.partition(" is ")[0].partition(": This")[0] for line in lines] == [
        "error: standard input:2: gpus[0].mig: 'dynamc'",
        "error: standard input:3: weights.nvlnk",
    ]
    assert len(json.loads(run("-", "-o", "json", sent=bad).stdout)["errors"]) == 2


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_what_is_in_force(output: str, load: Any) -> None:
    told = load(run("-", "-o", output, sent=GOOD).stdout)
    assert (told["valid"], len(told["warnings"])) == (True, 1)
    usual = {"pcie": 25, "numa": 20, "memory": 10, "power": 5, "price": 0, "utilisation": 0}
    assert told["policies"]["weights"] == {"nvlink": 50} | usual
    again = read(yaml.safe_dump(told["policies"]).encode(), source="x")
    assert plain(again) == plain(read(GOOD.encode(), source="x"))
    result = run("-", "-o", output, sent=BAD)
    assert (result.exit_code, load(result.stdout)["valid"]) == (1, False)
    assert "did you mean dynamic?" in load(result.stdout)["error"]


def test_a_file_that_is_not_there_is_1_and_wrong_usage_2(tmp_path: Path) -> None:
    result = run(str(tmp_path / "none.yaml"))
    assert result.exit_code == 1
    assert "none.yaml: cannot be read: " in result.output
    assert run().exit_code == 2
    assert run("-", "-o", "svg").exit_code == 2


def test_no_text_of_a_file_reaches_the_terminal_as_a_command() -> None:
    result = run("-", sent='policies: {a: {product: "\\e[31m"}}\n')
    assert result.exit_code == 1
    assert "\x1b" not in result.output


# docs/reference/policies.md

WRITTEN = (REPO / "docs" / "reference" / "policies.md").read_text("utf-8")


def part(heading: str) -> str:
    return WRITTEN.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> set[str]:
    return {name for row in re.findall(r"(?m)^\| (`.*?) \|", text) for name in re.findall(r"`([\w-]+)`", row)}


def test_the_page_names_every_field() -> None:
    named = {field.encode_name for field in msgspec.structs.fields(policy_sections.GpuRule)}
    assert first_cells(part("gpus")) == named
    assert first_cells(part("nccl")) == {field.encode_name for field in msgspec.structs.fields(policy_sections.Nccl)}
    assert first_cells(part("workloads")) == set(WORKLOADS)
    for field in msgspec.structs.fields(policy_sections.Sections):
        assert f"\n## {field.encode_name}\n" in WRITTEN


def test_the_page_has_the_words_and_the_defaults() -> None:
    now, later = re.findall(r"(?m)^\| (?:annotations|not available yet) \| (.*) \|$", part("policies"))
    assert tuple(re.findall(r"`([\w-]+)`", now)) == WORDS
    assert tuple(re.findall(r"`([\w-]+)`", later)) == LATER
    for row in re.findall(r"(?m)^\| `([\w-]+)` \| `(.*?)` \|", part("workloads")):
        assert yaml.safe_load(row[1]) == DEFAULTS.workloads.meaning(row[0])
    assert dict(re.findall(r"`(\w+)` (\d+)", part("weights"))) == {
        name: str(value) for name, value in plain(DEFAULTS)["weights"].items()
    }
    assert f"{policy_sections.MOST_BYTES >> 10} KiB, {fields.MOST_RULES} rules, {fields.MOST_NAMES} policies" in part(
        "Bounds"
    )


def test_the_pages_example_is_good() -> None:
    text = WRITTEN.split("```yaml\n")[1].split("```")[0]
    assert run("-", sent=text).exit_code == 0
