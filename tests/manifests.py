"""What a reader may copy: objects, and whether Kubernetes and the webhook take them as they stand."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import yaml

from dradriver.api.base import names
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod
from dradriver.api.claims.claim_templates import Template
from dradriver.api.policies.policy_sections import DEFAULTS
from dradriver.queue.placement_request import read_wish
from tests import schema
from tests.fakes.admission import admit

Object = dict[str, Any]
MINORS = ("1.34", "1.36", "1.37")


def objects(text: str) -> list[Object]:
    """Return the documents of a YAML text."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def pod_of(document: Object) -> Object | None:
    """Return the pod that an object is or leads to."""
    if document["kind"] == "Pod":
        return document
    template = document.get("spec", {}).get("template")
    if document["kind"] in ("Deployment", "StatefulSet", "Job"):
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x"} | template.get("metadata", {}),
            "spec": template["spec"],
        }
    return None


def has_wish(pod: Object) -> bool:
    """Return whether a pod says any word under one of our prefixes, known or not."""
    return any(map(names.is_ours, pod["metadata"].get("annotations") or {}))


def check(document: Object) -> None:
    """Fail unless an object is strictly valid, and the webhook has nothing to say against it."""
    schema.check(document, minors=MINORS)
    pod = pod_of(document)
    if pod is not None and has_wish(pod):
        verdict = admit(pod)
        assert verdict.warnings == []
        assert verdict.admitted["metadata"]["labels"][names.LABEL] in (names.LABEL_PLACED, names.LABEL_STATIC)
    if document["kind"] in ("ResourceClaim", "ResourceClaimTemplate"):
        verdict = admit(document, path="/validate-claims", kind=document["kind"])
        assert (verdict.allowed, verdict.warnings) == (True, []), verdict.message


def check_together(documents: list[Object]) -> None:
    """Fail unless pods with words whose GPUs stand in a template beside them can be placed."""
    kept = {
        one["metadata"]["name"]: Template(
            metadata=Metadata(name=one["metadata"]["name"]),
            spec=json.dumps(one["spec"]).encode(),
            nic_classes=DEFAULTS.nics.every,
        )
        for one in documents
        if one.get("kind") == "ResourceClaimTemplate"
    }
    for document in documents:
        if document.get("kind") == "Pod" and has_wish(document):
            pod = msgspec.convert(admit(document).admitted, Pod)
            if pod.template is not None:
                assert read_wish(pod, kept[pod.template[1]]).requests
