"""What a public forge reads of the repository: workflows that call what is there, templates that are whole."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import click
import pytest
import yaml

from dradriver.cli.main import main as gputopo
from tests.paths import REPO

FORGE = REPO / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*"))
TEMPLATES = sorted(path for path in (FORGE / "ISSUE_TEMPLATE").glob("*") if path.name != "config.yml")
FILES = [*WORKFLOWS, *TEMPLATES, REPO / ".krew.yaml", REPO / "helm/artifacthub-repo.yml"]
HOST = re.compile(r"\b[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?:io|com|org|net|dev)\b(?=[/:])")
MINUTES = {"test": 120, "test-all": 300}  # of jobs that may take more than an hour
TARGETS = set(re.findall(r"(?m)^([a-z-]+):", (REPO / "Makefile").read_text("utf-8")))


def loaded(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = loaded(path)["jobs"]
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path).values():
        yield from job["steps"]


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_there_are_the_workflows_and_templates_that_are_meant() -> None:
    assert names(WORKFLOWS) == ["ci.yml", "nightly.yml", "release.yml", "scorecard.yml"]
    assert names(TEMPLATES) == ["bug.yml", "feature.yml", "placement.yml"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_host_is_named_but_examples(path: Path) -> None:
    named = set(HOST.findall(path.read_text("utf-8"))) - {"registry.example.com", "app.kubernetes.io"}
    assert named <= {"krew.googlecontainertools.github.com"}, "a forge's own variables say where its registry is"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_no_right_that_no_job_asks_for(path: Path) -> None:
    assert loaded(path)["permissions"] == {"contents": "read"}
    for name, job in jobs(path).items():
        assert job["timeout-minutes"] <= MINUTES.get(name, 60), name
        assert set(job.get("needs", "").split()) <= jobs(path).keys()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_what_is_there(path: Path) -> None:
    called = "\n".join(step.get("run", "") for step in steps(path))
    wanted = re.findall(r"(?m)^make ([a-z-]+)", called)
    assert wanted or path.name == "scorecard.yml", "Scorecard looks from outside"
    assert set(wanted) <= TARGETS
    for module in re.findall(r"python3? -m ([\w.]+)", called):
        assert importlib.util.find_spec(module), module
    for file in re.findall(r"(?:^|[\s<])((?:helm|image|tests|docs|requirements)/[\w./-]+)", called):
        assert (REPO / file).exists(), file
    for variable in re.findall(r"(?m)^\s*make [a-z-]+((?: \w+=\S+)+)", called):
        for name in re.findall(r"(\w+)=", variable):
            assert re.search(rf"(?m)^{name} [?:]?=", (REPO / "Makefile").read_text("utf-8")), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_commits_with_their_version(path: Path) -> None:
    """A tag can be moved to other code, which would run with the tokens that sign a release."""
    used = re.findall(r"(?m)^\s*(?:- )?uses: (.*)$", path.read_text("utf-8"))
    assert len(used) == len([step for step in steps(path) if "uses" in step]) > 0
    assert [text for text in used if not re.match(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+", text)] == []


def test_an_update_bot_keeps_actions_images_and_packages_pinned() -> None:
    settings = json.loads((REPO / "renovate.json").read_text("utf-8"))
    assert {"helpers:pinGitHubActionDigests", "docker:pinDigests"} <= set(settings["extends"])
    assert {"github-actions", "dockerfile", "pep621"} <= set(settings["enabledManagers"])
    (rule,) = settings["packageRules"]
    assert set(re.findall(r"`make ([a-z-]+)`", json.dumps(rule))) == {"lock"} <= TARGETS
    assert set(rule["matchManagers"]) <= set(settings["enabledManagers"])


def test_scorecard_sends_nothing_to_others() -> None:
    path = FORGE / "workflows/scorecard.yml"
    (step,) = (step for step in steps(path) if "scorecard-action" in step.get("uses", ""))
    assert step["with"]["publish_results"] is False
    assert set(jobs(path)["scorecard"]["permissions"].values()) == {"read"}


@pytest.mark.parametrize(
    "name", ["CODE_OF_CONDUCT", "GOVERNANCE", "MAINTAINERS", "ROADMAP", "CONTRIBUTING", "SECURITY", "THREAT_MODEL"]
)
def test_project_pages_are_where_a_forge_looks_and_name_no_person(name: str) -> None:
    text = (REPO / f"{name}.md").read_text("utf-8")
    assert text.startswith("# ")
    assert re.findall(r"[\w.+-]+@[\w-]+\.[a-z]{2,}|(?<![\w/])@[a-z][\w-]+", text) == []


def test_areas_of_maintainers_are_folders() -> None:
    paths = re.findall(r"`([\w./]+)`", (REPO / "MAINTAINERS.md").read_text("utf-8").partition("## Areas")[2])
    assert len(paths) > 10
    assert [path for path in paths if not (REPO / path).is_dir()] == []


def test_the_sign_off_and_the_supported_versions_are_told() -> None:
    contributing = (REPO / "CONTRIBUTING.md").read_text("utf-8")
    assert "Signed-off-by: " in contributing
    assert "developercertificate.org" in contributing
    assert "## Supported versions" in (REPO / "SECURITY.md").read_text("utf-8")


def test_outputs_that_a_step_reads_are_written_by_one_before() -> None:
    for path in WORKFLOWS:
        for job in jobs(path).values():
            text = json.dumps(job)
            for step, output in re.findall(r"steps\.(\w+)\.outputs\.(\w+)", text):
                (writer,) = (one for one in job["steps"] if one.get("id") == step)
                assert f"{output}=$(" in writer["run"]


def test_the_main_job_and_the_tests_are_a_command_each_that_the_readme_names() -> None:
    named = re.findall(r"(?m)^\| `make ([a-z-]+)` \|", (REPO / "README.md").read_text("utf-8"))
    assert named == ["demo", "test"]
    assert set(named) <= TARGETS


def test_the_strongest_tests_run_in_the_public_workflows() -> None:
    for file, job, target in (("ci.yml", "test", "test"), ("nightly.yml", "test-all", "test-all")):
        assert jobs(FORGE / "workflows" / file)[job]["steps"][-1] == {"run": f"make {target}"}


def test_units_run_on_every_python_that_is_promised() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]
    pythons = jobs(FORGE / "workflows/ci.yml")["unit"]["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={pythons[0]}"


def test_a_release_is_signed_and_says_where_it_comes_from() -> None:
    release = FORGE / "workflows/release.yml"
    text = release.read_text("utf-8")
    assert loaded(release)[True] == {"push": {"tags": ["v*"]}}, "YAML 1.1 reads the key on as true"
    for words in ("cosign sign-blob", "cosign sign --yes", "cosign attest", "attest-build-provenance", "helm push"):
        assert words in text
    for name in ("publish", "push"):
        assert jobs(release)[name]["permissions"]["id-token"] == "write"
    assert jobs(release)["push"]["if"] == "vars.REGISTRY != ''", "a forge without a registry has releases, too"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_an_issue_template_is_whole(path: Path) -> None:
    found = loaded(path)
    assert {"name", "description", "labels", "body"} == found.keys()
    identifiers = [field["id"] for field in found["body"]]
    assert len(set(identifiers)) == len(identifiers)
    for field in found["body"]:
        assert field["type"] in ("input", "textarea")
        assert field["attributes"]["label"]
    assert any(field.get("validations", {}).get("required") for field in found["body"])


def test_commands_that_templates_ask_for_are_there() -> None:
    asked = {word for path in TEMPLATES for word in re.findall(r"gputopo ([a-z]+)(?= [A-Z-])", path.read_text("utf-8"))}
    assert {"explain", "topo"} <= asked
    assert asked <= set(gputopo.list_commands(click.Context(gputopo)))
    assert "gputopo explain" in json.dumps(loaded(FORGE / "ISSUE_TEMPLATE/placement.yml")["body"][0])


def test_krews_manifest_is_whole_once_it_is_filled_in() -> None:
    text = (REPO / ".krew.yaml").read_text("utf-8")
    made = yaml.safe_load(Template(text).substitute(VERSION="1.2.3", URL="https://example.com/a", SHA256="0" * 64))
    assert made["metadata"]["name"] == "gputopo"
    assert made["spec"]["version"] == "v1.2.3"
    (platform,) = made["spec"]["platforms"]
    assert (platform["uri"], platform["bin"]) == ("https://example.com/a", "kubectl-gputopo")
    assert len(made["spec"]["shortDescription"]) <= 50, "Krew shows no more"


def test_the_chart_tells_artifact_hub_what_it_is() -> None:
    annotations = loaded(REPO / "helm/gpu-topology-dra/Chart.yaml")["annotations"]
    assert annotations["artifacthub.io/license"] == "Apache-2.0"
    assert annotations["artifacthub.io/category"] == "ai-machine-learning"
    (link,) = loaded(REPO / "helm/artifacthub-repo.yml").values()
    assert link == "$ARTIFACTHUB_REPOSITORY_ID"
