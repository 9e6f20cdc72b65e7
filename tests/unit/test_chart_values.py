"""The chart's files as such, without Helm."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

import dradriver
from tests.paths import REPO

CHART = REPO / "helm" / "gpu-topology-dra"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def errors(values: dict[str, Any]) -> list[str]:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(values)]


def objects(schema: Any) -> list[dict[str, Any]]:
    """Every schema of an object that lists its properties."""
    found = []
    if isinstance(schema, dict):
        found += [schema] if "properties" in schema and schema.get("type") == "object" else []
        found += [inner for value in schema.values() for inner in objects(value)]
    return found


def test_versions_are_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == dradriver.__version__


def test_defaults_satisfy_the_schema() -> None:
    assert errors(VALUES) == []


def test_the_schema_knows_exactly_the_values_there_are() -> None:
    def keys(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        known = set(schema["properties"]) - ({"global"} if not path else set())
        assert set(values) == known, path
        for key, value in values.items():
            inner = schema["properties"][key]
            if isinstance(value, dict) and "properties" in inner:
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
        ("webhook.replicas", "2"),
        ("webhook.port", 0),
        ("webhook.timeoutSeconds", 31),
        ("webhook.certificates.mode", "certManager"),
        ("webhook.excludedNamespaces", [""]),
        ("controller.leaderElection.retryPeriod", 0),
        ("controller.resources.request", {}),
        ("node.privileged", True),
        ("nccl.version", 2.23),
        ("nccl.version", "2.18.6"),
        ("nccl.version", "newest"),
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
        place = place[parent]
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


def test_the_public_names_are_the_codes() -> None:
    from dradriver.api import names

    templates = {path.name: path.read_text() for path in CHART.rglob("templates/**/*.yaml")}
    helpers = (CHART / "templates/_helpers.tpl").read_text()
    assert f'{{{{- define "driver" -}}}}{names.DRIVER}{{{{- end }}}}' in helpers
    assert names.DRIVER == names.DEVICE_CLASS
    for word in (names.PREFIX, names.ALIAS_PREFIX, names.LABEL):
        assert f'"{word}"' in templates["configuration.yaml"]
