"""Every YAML that a reader may copy is valid, and asks for what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import msgspec
import pytest
import yaml

from dradriver.api import names
from dradriver.api.annotations import has_wish
from dradriver.api.objects import Metadata, Pod
from dradriver.api.parts import count
from dradriver.api.policies.read import read
from dradriver.api.templates import Template
from dradriver.controller.entries import read_wish
from dradriver.topology.profiles import schema
from tests.fakes.admission import admit, viewed
from tests.paths import REPO
from webhook import containers

EXAMPLES = sorted((REPO / "examples").glob("*.yaml"))
TEXTS = [*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md"), *(REPO / "examples").rglob("*.md")]
MINORS = ("1.34", "1.36", "1.37")


def blocks() -> Iterator[Any]:
    for path in sorted(TEXTS):
        found = re.findall(r"(?ms)^( *)```yaml\n(.*?)^ *```", path.read_text())
        for number, (indent, text) in enumerate(found, 1):
            plain = re.sub(f"(?m)^{indent}", "", text)
            yield pytest.param(plain, id=f"{path.relative_to(REPO)}-{number}")


def objects(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def pod_of(document: dict[str, Any]) -> dict[str, Any] | None:
    """The pod that an object is or leads to."""
    if document["kind"] == "Pod":
        return document
    template = document.get("spec", {}).get("template")
    if document["kind"] in ("Deployment", "StatefulSet", "Job"):
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x"} | template["metadata"],
            "spec": template["spec"],
        }
    return None


def check(document: dict[str, Any]) -> None:
    for minor in MINORS:
        kubernetes_validate.validate(document, minor, strict=True)
    pod = pod_of(document)
    if pod is not None and has_wish(pod["metadata"].get("annotations", {})):
        verdict = admit(pod)
        assert verdict.warnings == []
        assert verdict.admitted["metadata"]["labels"][names.LABEL] in (names.LABEL_PLACED, names.LABEL_STATIC)
    if document["kind"] in ("ResourceClaim", "ResourceClaimTemplate"):
        verdict = admit(document, path="/validate-claims", kind=document["kind"])
        assert (verdict.allowed, verdict.warnings) == (True, []), verdict.message


def check_together(documents: list[dict[str, Any]]) -> None:
    """Pods with words whose GPUs stand in a template beside them: what it asks for can be placed."""
    kept = {
        one["metadata"]["name"]: Template(
            metadata=Metadata(name=one["metadata"]["name"]), spec=json.dumps(one["spec"]).encode()
        )
        for one in documents
        if one.get("kind") == "ResourceClaimTemplate"
    }
    for document in documents:
        if document.get("kind") == "Pod" and has_wish(document["metadata"].get("annotations", {})):
            pod = msgspec.convert(admit(document).admitted, Pod)
            if pod.template is not None:
                assert read_wish(pod, kept[pod.template[1]]).requests


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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
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


@pytest.mark.parametrize("text", list(blocks()))
def test_block_of_a_document(text: str) -> None:
    check_together(objects(text))
    for document in objects(text):
        if "kind" in document:
            check(document)
        elif "name" in document:
            assert schema.read(text, source="docs").gpus  # a machine's profile
        else:
            assert read(text.encode(), source="docs").gpus  # a policies file


def test_readme_has_a_block() -> None:
    assert any(param.id and param.id.startswith("README.md") for param in blocks())


def test_the_examples_fit_together_on_the_demos_two_machines() -> None:
    documents = [document for path in EXAMPLES for document in objects(path.read_text())]
    assert 12 <= sum(map(gpus, documents)) <= 16
    assert len({(d["kind"], d["metadata"]["name"]) for d in documents}) == len(documents)
