"""Every YAML that a document shows is taken: an object, a part of one, a file of ours, values of the chart.

What each is is seen from its keys. Parts of objects are completed here into whole ones, which are checked as such.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from dradriver.api.base import names
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.policies_reader import read
from dradriver.api.policies.policy_sections import Sections
from dradriver.api.vocabulary import annotation_words
from dradriver.topology.profiles import profile_reader
from tests.manifests import Object, check, check_together, objects
from tests.paths import REPO
from tests.snippets import MARK, Snippet, snippets

CHART = REPO / "helm" / "gpu-topology-dra"
VALUES: Object = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())
MESSAGES = REPO / "docs" / "reference" / "messages.md"  # its texts have gaps, and are those of the code
DOCUMENTS = [*REPO.glob("*.md"), *({*(REPO / "docs").rglob("*.md")} - {MESSAGES}), *(REPO / "examples").rglob("*.md"),
             *CHART.rglob("*.md"), CHART / "templates" / "NOTES.txt"]  # fmt: skip
FOREIGN = "not ours"


def check_objects(text: str) -> None:
    check_together(objects(text))
    for document in objects(text):
        check(document)


def check_pod(text: str) -> None:
    """A pod's metadata, or its spec, or something of both; it has a container with GPUs where it shows none."""
    found = yaml.safe_load(text)
    part = found if found.keys() & {"metadata", "spec"} else {"spec": found}
    words = part.get("metadata", {}).get("annotations") or {}
    gpus = "2" if annotation_words.OF_SETS & words.keys() or not words.keys() & set(annotation_words.OF_PARTS) else "1"
    container = {"name": "main", "image": "busybox", "resources": {"limits": {names.GPU_RESOURCE: gpus}}}
    check_objects(yaml.safe_dump({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **part.get("metadata", {})},
        "spec": {"containers": [container], **part.get("spec", {})},
    }))  # fmt: skip


def check_annotations(text: str) -> None:
    found = yaml.safe_load(text)
    check_pod(yaml.safe_dump({"metadata": {"annotations": found.get("annotations", found)}}))


def check_container(text: str) -> None:
    check_pod(yaml.safe_dump({"containers": [{"name": "main", "image": "busybox", **yaml.safe_load(text)}]}))


def check_claim(text: str) -> None:
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
    check({**claim, "spec": yaml.safe_load(text)})


def check_configuration(text: str) -> None:
    """The opaque configuration of a claim over our class."""
    request = {"name": "gpus", "exactly": {"deviceClassName": names.DEVICE_CLASS}}
    opaque = {"driver": names.DRIVER, "parameters": yaml.safe_load(text)}
    check_claim(yaml.safe_dump({"devices": {"requests": [request], "config": [{"opaque": opaque}]}}))


def check_values(text: str) -> None:
    """Values that a user writes: known ones, of the kind that the chart's schema wants."""
    jsonschema.Draft7Validator(SCHEMA).validate(yaml.safe_load(text))


def check_policies(text: str) -> None:
    read(text.encode(), source="docs")


def check_profile(text: str) -> None:
    assert profile_reader.read(text, source="docs").gpus


# Fields by which parts of objects are known; what has others than one row's is none of that row's.
PARTS: dict[str, set[str]] = {
    "annotations": {"annotations", *annotation_words.KEYS},
    "container": {"args", "command", "env", "image", "name", "resources", "securityContext", "volumeMounts"},
    "pod": {
        "metadata", "spec", "affinity", "containers", "initContainers", "nodeName", "nodeSelector", "resourceClaims",
        "schedulerName", "schedulingGates", "tolerations", "topologySpreadConstraints", "volumes", "restartPolicy",
    },
    "claim": {"devices"},
    "policies file": {field.encode_name for field in msgspec.structs.fields(Sections)},
    "chart values": set(VALUES),
}  # fmt: skip
CHECKS: dict[str, Callable[[str], object]] = {
    "objects": check_objects,
    "claim configuration": check_configuration,
    "machine profile": check_profile,
    "annotations": check_annotations,
    "container": check_container,
    "pod": check_pod,
    "claim": check_claim,
    "policies file": check_policies,
    "chart values": check_values,
    FOREIGN: yaml.safe_load,
}


def kind(snippet: Snippet) -> str:
    """Return what a snippet is: a key of ``CHECKS``.

    Raises:
        AssertionError: It is nothing that is known here.
    """
    documents: list[Any] = [one for one in yaml.safe_load_all(snippet.text) if one]
    fields = set().union(*(one if isinstance(one, dict) else {"a list"} for one in documents))
    if snippet.mark:
        found = [snippet.mark] if snippet.mark in CHECKS else []
    elif "kind" in fields:
        found = ["claim configuration" if documents[0]["kind"] == names.CONFIG_KIND else "objects"]
    elif {"name", "gpus"} <= fields:
        found = ["machine profile"]
    else:
        found = [name for name, known in PARTS.items() if documents and fields <= known]
    assert found, (
        f"line {snippet.line}: YAML of no known kind ({', '.join(sorted(fields))}); write before it what it is, as "
        f"{MARK.format('pod')}, one of {', '.join(CHECKS)}; {FOREIGN!r} is for another project's, which is only parsed"
    )
    return found[0]


def shown() -> Iterator[Any]:
    for path in sorted(DOCUMENTS):
        for snippet in snippets(path.read_text("utf-8")):
            yield pytest.param(snippet, id=f"{path.relative_to(REPO)}:{snippet.line}")


@pytest.mark.parametrize("snippet", list(shown()))
def test_what_a_document_shows_is_taken(snippet: Snippet) -> None:
    CHECKS[kind(snippet)](snippet.text)


def test_every_document_is_looked_through() -> None:
    found = {str(param.id).partition(":")[0] for param in shown()}
    assert {
        "README.md",
        "docs/tasks/migrating.md",
        "docs/internals/mig-and-shares.md",
        "docs/reference/policies.md",
    } <= found
    assert str((CHART / "templates" / "NOTES.txt").relative_to(REPO)) in found


GOOD_AND_BAD = [
    ("annotations", "gpu.topology/policy: {}", "nvlink", "nvlnk"),
    ("annotations", "annotations: {{gpu-topology.example.com/required: {}}}", "same-numa", "numa"),
    ("pod", "metadata: {{annotations: {{gpu.topology/share: {}}}}}", "'0.5'", "'5'"),
    ("pod", "nodeSelector: {}", "{a: b}", "[a]"),
    ("pod", "resourceClaims: [{{name: a, {}: b}}]", "resourceClaimName", "claim"),
    ("container", "resources: {}", "{limits: {nvidia.com/gpu: 1}}", "{limit: {nvidia.com/gpu: 1}}"),
    ("claim", "devices: {{requests: [{{name: a, exactly: {{{}: gpu.topology}}}}]}}", "deviceClassName", "class"),
    ("claim configuration", "{{apiVersion: gpu.topology/v1alpha1, kind: ClaimConfig, nccl: {}}}", "'off'", "maybe"),
    ("policies file", "policies: {{a: {{required: {}}}}}", "nvlink", "nvlnk"),
    ("chart values", "webhook: {{translate: {}}}", "all", "everywhere"),
    ("objects", "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: a}}, {}: {{}}}}", "data", "date"),
]


@pytest.mark.parametrize(("what", "text", "good", "bad"), GOOD_AND_BAD, ids=[row[1][:30] for row in GOOD_AND_BAD])
def test_what_is_wrong_with_a_snippet_is_found(what: str, text: str, good: str, bad: str) -> None:
    for value in (good, bad):
        snippet = Snippet(1, text.format(value), "")
        assert kind(snippet) == what
        if value == good:
            CHECKS[what](snippet.text)
        else:
            with pytest.raises(Exception, match=r"."):
                CHECKS[what](snippet.text)


@pytest.mark.parametrize("text", ["driver: {}\n", "metadata: {}\nwebhook: {}\n", "- a: b\n"])
def test_an_unknown_snippet_says_how_to_mark_it(text: str) -> None:
    with pytest.raises(AssertionError, match=r"line 7: .*; write before it what it is, as <!-- yaml: pod -->, one of"):
        kind(Snippet(7, text, ""))
    with pytest.raises(AssertionError, match="line 7"):
        kind(Snippet(7, text, "something"))
    assert kind(Snippet(7, text, FOREIGN)) == FOREIGN


def test_snippets_are_found_where_markdown_has_them() -> None:
    document = """
# Title

Prose: with a colon.

    gputopo topo --machine dgx1-v100

    a: 1

    b: 2

```yaml
c: 3
```

```console
d: 4
```

```
e: 5
```

* An item:
    that goes on.

  <!-- yaml: not ours -->

      driver:
        f: 6

      g: 7
* Another.

    <!-- yaml: pod -->
<!-- yaml: pod -->

Prose comes between.

    h: 8
"""
    assert [(one.line, one.text, one.mark) for one in snippets(document)] == [
        (13, "c: 3\n", ""),
        (21, "e: 5\n", ""),
        (29, "driver:\n  f: 6\n\ng: 7\n", FOREIGN),
        (40, "h: 8\n", ""),
    ]


# Values that documents name without YAML: by --set, and as `webhook.translate` in their sentences.


def named() -> Iterator[Any]:
    for path in sorted(DOCUMENTS):
        text = path.read_text("utf-8")
        found = [*re.findall(r"--set ([A-Za-z][\w.]*)=([\w./-]*)", text)]
        for code in re.findall(r"`([^`\n]+)`", text):
            key, _, value = code.partition(": ")
            if key.partition(".")[0] in VALUES and re.fullmatch(r"\w+(\.\w+)+", key) and not key.endswith(".md"):
                found.append((key, value))
        for key, value in dict.fromkeys(found):
            yield pytest.param(key, value, id=f"{path.relative_to(REPO)}:{key}={value}")


@pytest.mark.parametrize(("key", "value"), list(named()))
def test_a_value_that_is_named_is_one_of_the_charts(key: str, value: str) -> None:
    *above, last = key.split(".")
    inner = VALUES
    for step in above:
        inner = inner[step]
    assert last in inner, f"{key}: the chart has {', '.join(inner)}"
    if value.strip("."):
        made: Any = yaml.safe_load(value)
        for step in reversed(key.split(".")):
            made = {step: made}
        check_values(yaml.safe_dump(made))


def said() -> Iterator[Any]:
    for path in sorted(DOCUMENTS):
        codes = re.findall(r"`(gpu\.topology/[a-z-]+): \"?([^`\"\n]+)\"?`", path.read_text("utf-8"))
        for key, value in dict.fromkeys(codes):
            if key in annotation_words.BY_KEY:
                yield pytest.param(key, value, id=f"{path.relative_to(REPO)}:{key}={value}")


@pytest.mark.parametrize(("key", "value"), list(said()))
def test_a_word_that_a_sentence_says_is_taken(key: str, value: str) -> None:
    """Policies by name are those of the example of a policies file."""
    (example,) = [
        one
        for one in snippets((REPO / "docs/reference/policies.md").read_text("utf-8"))
        if kind(one) == "policies file"
    ]
    Annotations({key: value}, read(example.text.encode(), source="docs")).check()
