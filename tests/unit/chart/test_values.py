"""The chart's files as such, without Helm."""

from __future__ import annotations

import copy
import json
import re
import typing
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

import dradriver
from dradriver.allocator.set_policies import LINKED, POLICIES
from dradriver.api.policies import policy_sections
from dradriver.api.policies.fields import MigWord, SharedWord
from dradriver.api.policies.policies_reader import PoliciesError, notes, read
from dradriver.api.policies.workload_words import LATER, WORDS
from dradriver.api.vocabulary import values as api_values
from dradriver.topology import profiles
from dradriver.topology.nccl import tuning
from tests.paths import REPO

CHART = REPO / "helm" / "gpu-topology-dra"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def errors(values: dict[str, Any]) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(values)]


def objects(schema: Any) -> list[dict[str, Any]]:
    """Every schema of an object that lists its properties."""
    found = []
    if isinstance(schema, dict):
        found += [schema] if "properties" in schema and schema.get("type") == "object" else []
        found += [inner for value in schema.values() for inner in objects(value)]
    return found


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_versions_are_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == dradriver.__version__


def test_defaults_satisfy_the_schema() -> None:
    assert errors(VALUES) == []


def test_the_schema_knows_exactly_the_values_there_are() -> None:
    def keys(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        known = {key for key, inner in schema["properties"].items() if "const" not in inner}  # others were renamed
        known -= {"global", "nccl"} if not path else set()  # Helm's; one that moved
        assert set(values) == known, path
        for key, value in values.items():
            inner = schema["properties"][key]
            if isinstance(value, dict) and "properties" in inner and key != "issuerRef":  # none by default
                keys(value, inner, f"{path}.{key}")

    keys(VALUES, SCHEMA, "")


def test_no_object_of_the_schema_takes_unknown_keys() -> None:
    assert len(objects(SCHEMA)) > 10
    assert all(found["additionalProperties"] is False for found in objects(SCHEMA))


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("discovery", "nvlm"),
        ("driverRoot", "run/nvidia/driver"),
        ("driverRoot", "/run/nvidia/driver/"),
        ("logFormat", "xml"),
        ("image", 3),
        ("image.repository", "registry/name:tag"),
        ("image.pullPolicy", "Sometimes"),
        ("kubeletRoot", "var/lib/kubelet"),
        ("kubeletRoot", "/var/lib/kubelet/"),
        ("cdiRoot", "/var/run/cdi --privileged"),
        ("simulated.machines", {"node-a": ""}),
        ("simulated.machines", {"Node A": "dgx-h100"}),
        ("simulated.default", "dgx-h100,beside"),
        ("deviceClass.extendedResourceName", "gpu"),
        ("node.tolerations", [{"key": "a", "opertor": "Exists"}]),
        ("node.nodeSelector", {"gpu": True}),
        ("node.gpuLabels", ["a b"]),
        ("node.gpuLabels", {"nvidia.com/gpu.present": "true"}),
        ("node.gpuLabels", ["a in (b, c)"]),
        ("webhook.replicas", "2"),
        ("webhook.port", 0),
        ("webhook.timeoutSeconds", 31),
        ("webhook.certificates.mode", "certmanager"),
        ("webhook.certificates.certManager.issuerRef", {"kind": "ClusterIssuer"}),
        ("webhook.topologySpreadConstraints", [{"topologyKey": "zone"}]),
        ("node.podLabels", {"app.kubernetes.io/name": "mine"}),
        ("node.podLabels", {"a": "b c"}),
        ("node.affinity", {"nodeAfinity": {}}),
        ("viewer.subjects", [{"kind": "Team", "name": "a"}]),
        ("fullnameOverride", "GPU"),
        ("webhook.excludedNamespaces", [""]),
        ("controller.leaderElection.retryPeriod", 0),
        ("controller.resources.request", {}),
        ("node.privileged", True),
        ("policies.nccl.version", 2.23),
        ("policies.nccl.version", "2.18.6"),
        ("policies.nccl.version", "newest"),
        ("networkPolicy.apiServerCidrs", ["10.0.0.1"]),
        ("networkPolicy.apiServerCidrs", "10.0.0.0/8"),
        ("networkPolicy.metricsFrom", [{}]),
        ("networkPolicy.metricsFrom", [{"nodeSelector": {}}]),
    ],
)
def test_bad_values_are_refused(path: str, bad: Any) -> None:
    values = copy.deepcopy(VALUES)
    *parents, last = path.split(".")
    place = values
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = bad
    assert errors(values)


def test_every_value_has_a_comment() -> None:
    """A comment stands before a value, or before the block of values that it is part of."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    uncommented = [
        line.strip()
        for before, line in zip(["", *lines], lines, strict=False)
        if re.match(r"^[a-z]\w*:", line) and not before.startswith("#")
    ]
    # The blocks whose values have comments of their own.
    assert uncommented == ["simulated:", "image:", "deviceClass:"]


# The policies file: the schema and what the processes read by.


def example() -> str:
    """The example in the comment of values.yaml, as a file."""
    comment = re.search(r"(?m)^# The policies file(?:.*\n#)+.*\npolicies: \{\}", (CHART / "values.yaml").read_text())
    assert comment is not None
    return "\n".join(line[4:] for line in comment[0].splitlines() if line.startswith("#   "))


def definition(name: str) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMA["definitions"][name]
    return found


def fields(struct: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(struct)}


def test_the_schema_of_policies_has_the_fields_that_are_read() -> None:
    sections = definition("policies")["properties"]
    assert sections.keys() == fields(policy_sections.Sections).keys()
    for name, struct in (
        ("workloads", policy_sections.Workloads),
        ("weights", policy_sections.Weights),
        ("nccl", policy_sections.Nccl),
    ):
        assert sections[name]["properties"].keys() == fields(struct).keys()
    assert definition("gpuRule")["properties"].keys() == fields(policy_sections.GpuRule).keys()


def test_the_schema_of_policies_has_the_words_that_are_read() -> None:
    rule, words = definition("gpuRule")["properties"], definition("words")
    assert set(rule["mig"]["enum"]) - {False} == set(typing.get_args(MigWord))
    assert set(rule["shared"]["enum"]) == set(typing.get_args(SharedWord))
    assert set(definition("policies")["properties"]["nccl"]["properties"]["tuning"]["enum"]) == {
        *("", tuning.AUTO),
        *tuning.PROFILES,
    }
    assert sorted(definition("profile")["enum"]) == sorted(profiles.names("nvidia"))
    assert words["properties"].keys() == {*WORDS, *LATER}
    assert set(words["properties"]["strategy"]["enum"]) == set(api_values.STRATEGIES)
    assert set(words["properties"]["nccl"]["enum"]) - {False} == set(api_values.NCCL)
    rungs = re.findall(r"[a-z]+(?:-[a-z]+)*", definition("ladder")["pattern"])
    assert set(rungs) == set(api_values.CONSTRAINTS)
    assert definition("policies")["properties"]["policies"]["propertyNames"]["not"]["enum"] == [
        name for name in POLICIES if name != LINKED
    ]


def test_the_example_satisfies_both() -> None:
    assert errors(VALUES | {"policies": yaml.safe_load(example())}) == []
    assert notes(read(example().encode(), source="values.yaml")) == []


@pytest.mark.parametrize(
    "bad",
    [
        "gpu: []",
        "gpus: {mig: off}",
        "gpus: [{mig: dynamc}]",
        "gpus: [{mgi: static}]",
        "gpus: [{nodes: []}]",
        "gpus: [{nodes: gpu-7}]",
        "gpus: [{nodes: [GPU]}]",
        "gpus: [{nodeSelector: {a: b c}}]",
        "gpus: [{numbers: [0, 256]}]",
        "gpus: [{numbers: [-1]}]",
        "gpus: [{products: ['a\"b']}]",
        "gpus: [{shared: MPS}]",
        "gpus: [{shared: mps, memoryOvercommit: 0.5}]",
        "gpus: [{shared: mps, equalShares: 1}]",
        "gpus: [{shared: mps, equalShares: 49}]",
        "gpus: [{shared: mps, equalShare: 4}]",
        "gpus: [{shared: mps, exclusiveTo: pod}]",
        "policies: [a]",
        "policies: {A: {}}",
        "policies: {nvlink: {}}",
        "policies: {a: {requird: nvlink}}",
        "policies: {a: {required: nvlnk}}",
        "policies: {a: {required: 'nvlink,'}}",
        "policies: {a: {required: [nvlink]}}",
        "policies: {a: {strategy: packed}}",
        "policies: {a: {gpus: 4}}",
        "policies: {a: {policy: nvlink}}",
        "policies: {a: {nccl: maybe}}",
        "policies: {a: {require-nvlink: maybe}}",
        "schedulers: gpu-scheduler",
        "schedulers: [GPU]",
        "xids: [94]",
        "xids: {94: fatal}",
        "xids: {'0': taint}",
        "xids: {contained: taint}",
        "workloads: {tensor: nvlink}",
        "workloads: {inference: [nvlink]}",
        "workloads: {inference: ''}",
        "weights: {nvlink: -1}",
        "weights: {nvlnk: 1}",
        "weights: {nvlink: 1001}",
        "nccl: {version: latest}",
        "nccl: {servers: {p5: hgx-h10}}",
        "nccl: {servers: {p/5: hgx-h100}}",
        "nccl: {tuning: fast}",
    ],
)
def test_what_the_processes_refuse_helm_refuses_before(bad: str) -> None:
    with pytest.raises(PoliciesError):
        read(bad.encode(), source="x")
    assert errors(VALUES | {"policies": yaml.safe_load(bad)})


def test_a_version_that_yaml_would_shorten_is_refused() -> None:
    assert errors(VALUES | {"policies": yaml.safe_load("nccl: {version: 2.30}")}), "2.3 to Helm"
    assert errors(VALUES | {"policies": yaml.safe_load("nccl: {version: '2.30'}")}) == []


def test_the_public_names_are_the_codes() -> None:
    from dradriver.api.base import names

    templates = {path.name: path.read_text() for path in CHART.rglob("templates/**/*.yaml")}
    helpers = (CHART / "templates/_helpers.tpl").read_text()
    assert f'{{{{- define "driver" -}}}}{names.DRIVER}{{{{- end }}}}' in helpers
    assert names.DRIVER == names.DEVICE_CLASS
    assert f'"{names.LABEL}"' in templates["configuration.yaml"]
    for prefix in (names.PREFIX, names.ALIAS_PREFIX):
        assert f'text.contains("{prefix}")' in helpers
        for start in ('{"', ', "'):
            assert f"'{(start + prefix)[:10]}'" in helpers
