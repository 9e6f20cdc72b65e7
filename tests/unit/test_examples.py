"""Every example is valid, and asks for what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from dradriver.api import resolved
from dradriver.api.parts import count
from dradriver.api.policies.read import notes, read
from tests.fakes.admission import admit, viewed
from tests.manifests import check, check_together, objects, pod_of
from tests.paths import REPO
from webhook import containers

EXAMPLES = sorted((REPO / "examples").glob("*.yaml"))
ALONE = sorted((REPO / "examples" / "gangs").glob("*.yaml"))
NODES = sorted((REPO / "examples" / "nodes").glob("*.yaml"))  # see test_examples_of_nodes.py
POLICIES = sorted((REPO / "examples" / "policies").glob("*.yaml"))


def gpus(document: dict[str, Any]) -> int:
    pod = pod_of(document)
    if pod is None:
        return 0
    if "resourceClaims" in pod["spec"]:
        templates = [d for path in EXAMPLES for d in objects(path.read_text()) if d["kind"] == "ResourceClaimTemplate"]
        wanted = [claim["resourceClaimTemplateName"] for claim in pod["spec"]["resourceClaims"]]
        used = [t for t in templates if t["metadata"]["name"] in wanted]
        return sum(r["exactly"]["count"] for t in used for r in t["spec"]["spec"]["devices"]["requests"])
    return sum(map(count, containers.asks(viewed(pod)).values())) * int(document["spec"].get("replicas", 1))


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


@pytest.mark.parametrize(("path", "tenants"), [*zip(POLICIES, (50, 0, 10, 2), strict=True)])
def test_a_policies_file_is_taken_by_all_who_read_it_and_the_chart(path: Path, tenants: int) -> None:
    text = path.read_bytes()
    assert text.startswith(b"# ")
    policies = read(text, source=path.name)
    assert len(policies.tenants) == tenants
    assert notes(policies) == []
    schema = json.loads((REPO / "helm" / "gpu-topology-dra" / "values.schema.json").read_text())
    assert not list(jsonschema.Draft7Validator(schema).iter_errors({"policies": yaml.safe_load(text)}))


def test_every_example_is_one_of_these() -> None:
    assert {*EXAMPLES, *ALONE, *NODES, *POLICIES} == set((REPO / "examples").rglob("*.yaml"))


def test_the_examples_fit_together_on_the_demos_two_machines() -> None:
    documents = [document for path in EXAMPLES for document in objects(path.read_text())]
    assert 12 <= sum(map(gpus, documents)) <= 16
    assert len({(d["kind"], d["metadata"]["name"]) for d in documents}) == len(documents)
