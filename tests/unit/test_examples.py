"""Every example is valid, and asks for what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from dradriver.allocator.request import Constraint, Whole
from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.policies_reader import notes, read
from dradriver.api.vocabulary.container_requests import count
from dradriver.cli.main import main
from tests import examples, schema
from tests.fakes.admission import admit, viewed
from tests.manifests import MINORS, check, check_together, has_wish, objects, pod_of
from tests.paths import REPO
from webhook import gpu_limits

EXAMPLES = examples.DEMO
ALONE = sorted((examples.FOLDER / "gangs").glob("*.yaml"))
TASKS = [path for path in examples.TASKS if path not in ALONE]
TENANTS = {"fifty-teams.yaml": 50, "small-teams.yaml": 2, "ten-teams.yaml": 10, "two-teams.yaml": 2}
# The first line after the comment at the head of a file.
BODY = re.compile(r"(?m)^(?!#)")


def gpus(document: dict[str, Any]) -> int:
    pod = pod_of(document)
    if pod is None:
        return 0
    if "resourceClaims" in pod["spec"]:
        templates = [d for path in EXAMPLES for d in objects(path.read_text()) if d["kind"] == "ResourceClaimTemplate"]
        wanted = [claim["resourceClaimTemplateName"] for claim in pod["spec"]["resourceClaims"]]
        used = [t for t in templates if t["metadata"]["name"] in wanted]
        return sum(r["exactly"]["count"] for t in used for r in t["spec"]["spec"]["devices"]["requests"])
    return sum(map(count, gpu_limits.asks(viewed(pod)).values())) * int(document["spec"].get("replicas", 1))


@pytest.mark.parametrize("path", EXAMPLES + ALONE, ids=lambda path: path.name)
def test_example(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ")
    assert "Expect: " in text
    assert objects(text)
    check_together(objects(text))
    for document in objects(text):
        check(document)
        if pod := pod_of(document):
            assert {c["image"] for c in pod["spec"]["containers"]} == {"busybox"}
            assert {c["imagePullPolicy"] for c in pod["spec"]["containers"]} == {"IfNotPresent"}


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.name)
def test_an_example_that_stands_alone_fits_on_the_demos_two_machines_and_is_a_gang(path: Path) -> None:
    (job,) = objects(path.read_text())
    assert gpus(job) * job["spec"]["parallelism"] <= 16
    made = admit(job, kind="Job", path="/mutate-workloads").admitted["spec"]["template"]
    pod = admit(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **made["metadata"]}, "spec": made["spec"]}
    )
    noted = resolved.read(pod.admitted["metadata"]["annotations"])
    assert noted.gang is not msgspec.UNSET
    assert noted.gang.name == "auto"


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.name)
def test_an_example_teaches_in_a_few_lines_and_names_no_registry(path: Path) -> None:
    text = path.read_text("utf-8")
    head = BODY.split(text, maxsplit=1)[0].splitlines()
    assert 3 <= len(head) <= 8
    assert all(line.startswith("# ") and len(line) <= 125 for line in head)
    assert any("Look at: " in line for line in head)
    assert head[-1].startswith("# Expect: ")
    for image in re.findall(r"(?m)^ *image: (.*)$", text):
        assert "." not in image.partition("/")[0], "the first part of such a name is a registry's host"
        assert ":" in image


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.name)
def test_objects_of_an_example_are_valid_and_its_pods_are_placed(path: Path) -> None:
    for document in objects(path.read_text("utf-8")):
        if document["kind"] not in examples.OTHERS:
            check(document)
    done = CliRunner().invoke(main, ["lint", "-o", "json", str(path)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)["results"]
    assert not [one for one in found if one["warnings"]]
    pods = [one["pod"] for one in found if one["ours"] and one["pod"]]
    for pod in pods:
        schema.check(pod, minors=MINORS)
    assert bool(pods) == (path.name not in examples.SCHEDULERS)
    assert all(one["metadata"]["labels"][names.LABEL] == names.LABEL_PLACED for one in pods)


@pytest.mark.parametrize("path", [path for path in TASKS if examples.own(path)], ids=lambda path: path.name)
def test_an_example_in_small_asks_for_the_same_of_the_driver(path: Path) -> None:
    def asked(documents: list[Any]) -> list[Any]:
        admitted = [admit(pod).admitted for one in documents if (pod := pod_of(one))]
        return [resolved.read(pod["metadata"]["annotations"]) for pod in admitted if has_wish(pod)]

    whole, small = objects(path.read_text("utf-8")), examples.runnable(path)
    assert asked(small) == asked(whole)
    for document in small:
        check(document)
    assert "busybox" in yaml.safe_dump_all(small)


def test_what_nccl_reaches_is_compared_with_what_the_driver_writes_on_the_pod() -> None:
    (job,) = objects((examples.FOLDER / "training" / "nccl-tests.yaml").read_text("utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (variable,) = container["env"]
    assert variable["name"] == "NCCL_TESTS_MIN_BW"
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": f"metadata.annotations['{names.BUSBW}']"}}


@pytest.mark.parametrize("path", examples.POLICIES, ids=lambda path: path.name)
def test_a_policies_file_is_taken_by_all_who_read_it_and_the_chart(path: Path) -> None:
    text = path.read_bytes()
    assert text.startswith(b"# ")
    policies = read(text, source=path.name)
    assert len(policies.tenants) == TENANTS.get(path.name, 0)
    assert notes(policies) == []
    values = json.loads((REPO / "helm" / "gpu-topology-dra" / "values.schema.json").read_text())
    assert not list(jsonschema.Draft7Validator(values).iter_errors({"policies": yaml.safe_load(text)}))


def test_a_pod_may_name_what_the_file_for_teams_says() -> None:
    policies = read((examples.FOLDER / "policies" / "words-for-teams.yaml").read_bytes(), source="examples")
    for word in ({names.POLICY: "train"}, {names.POLICY: "experiment"}, {names.WORKLOAD: "tensor-parallel"}):
        Annotations(word, policies).check()
        noted = resolved.resolve(Annotations(word, policies), {"main": 4})
        assert isinstance(noted.request, Whole)
        assert Constraint.NVLINK in (*noted.request.required, *noted.request.preferred)


def test_every_example_is_listed_with_a_line_of_its_own_and_nothing_else_is() -> None:
    page = (REPO / "docs" / "start" / "examples.md").read_text("utf-8")
    listed = re.findall(r"(?m)^\| \[[^]]+\]\(\.\./\.\./examples/([^)]+)\) \| .{20,} \|$", page)
    there = [str(path.relative_to(examples.FOLDER)) for path in examples.FOLDER.rglob("*.yaml")]
    assert sorted(listed) == sorted(there)


def test_the_examples_fit_together_on_the_demos_two_machines() -> None:
    documents = [document for path in EXAMPLES for document in objects(path.read_text())]
    assert 12 <= sum(map(gpus, documents)) <= 16
    assert len({(d["kind"], d["metadata"]["name"]) for d in documents}) == len(documents)
