"""The page as a Deployment: off by default, read-only, and out of everybody's reach but that of who is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dradriver.cli.main import main
from dradriver.cli.page import followed_objects
from tests.fakes.chart import CHART, VARIANTS, container, objects, rules, run, template, workload

pytestmark = pytest.mark.helm

PAGE = VARIANTS["page"]
PROXIED = VARIANTS["proxied"]


def own(*settings: str) -> dict[tuple[str, str], Any]:
    found = objects(*settings)
    return {
        key: one for key, one in found.items() if one["metadata"]["labels"].get("app.kubernetes.io/component") == "page"
    }


def test_it_is_off_by_default() -> None:
    assert own() == {}
    assert ("Deployment", "gpu-topology-page") in own(*PAGE)


@pytest.mark.parametrize("variant", ["page", "proxied"])
@pytest.mark.parametrize("role", ["page", "viewer"])
def test_its_account_and_viewers_only_read_and_may_read_all_that_it_follows(variant: str, role: str) -> None:
    every = [*rules("ClusterRole", role, *VARIANTS[variant]), *rules("Role", role, *VARIANTS[variant])]
    assert {verb for *_, verbs in every for verb in verbs} <= {"get", "list", "watch"}
    may = {(group, resource): verbs for group, resource, _, verbs in every}
    for source in followed_objects.sources("gpu-topology"):
        assert {"list", "watch"} <= may[source.resource.group, source.resource.plural], source.resource.plural
    assert ("", "secrets") not in may


def test_its_pod_is_hardened() -> None:
    only, spec = container("page", *PAGE), workload("page", *PAGE)["spec"]["template"]["spec"]
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any("hostPath" in volume for volume in spec["volumes"])


@pytest.mark.parametrize("variant", ["page", "proxied"])
def test_the_command_knows_its_flags(variant: str) -> None:
    spec = workload("page", *VARIANTS[variant])["spec"]["template"]["spec"]
    only = spec["containers"][0]
    assert only["command"] == ["gputopo"]
    assert only["args"][0] == "serve"
    said = CliRunner().invoke(main, ["serve", "--help"]).output
    assert [flag for argument in only["args"][1:] if (flag := argument.partition("=")[0]) not in said] == []


def test_alone_it_is_not_reached_from_the_network() -> None:
    found = own(*PAGE)
    assert "--address=127.0.0.1" in container("page", *PAGE)["args"]
    assert not [kind for kind, _ in found if kind == "Service"]
    assert found["NetworkPolicy", "gpu-topology-page"]["spec"]["ingress"] == [
        {"ports": [{"protocol": "TCP", "port": 8084}]}
    ]


def test_a_proxy_is_named_with_who_may_come() -> None:
    found = own(*PROXIED)
    assert ("Service", "gpu-topology-page") in found
    first, _ = found["NetworkPolicy", "gpu-topology-page"]["spec"]["ingress"]
    assert first == {"from": [{"namespaceSelector": {"matchLabels": {"team": "ingress"}}}]}
    page, proxy = found["Deployment", "gpu-topology-page"]["spec"]["template"]["spec"]["containers"]
    assert {"--host=gpus.example.com", "--host=::1", "--address=0.0.0.0"} <= set(page["args"])
    assert proxy["name"] == "proxy"


def test_addresses_of_ipv6_are_words() -> None:
    assert {"--address=::", "--host=fd00::", "--host=::1"} <= set(container("page", *VARIANTS["ipv6"])["args"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("page.port=8084",), "page.port and page.healthPort are both 8084"),
        (("page.extraContainers[0].name=page", "page.extraContainers[0].image=x"), "container named page"),
    ],
)
def test_what_cannot_be_together_is_refused(settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        template(*PAGE, *settings)


def test_values_of_a_chart_from_before_the_page_are_told_how(tmp_path: Path) -> None:
    """As ``--reuse-values --set page.enabled=true`` gives them."""
    old = tmp_path / "chart"
    shutil.copytree(CHART, old)
    values = yaml.safe_load((old / "values.yaml").read_text())
    del values["page"]
    (old / "values.yaml").write_text(yaml.safe_dump(values))
    words = ("template", "gpu-topology", str(old), "--namespace", "gpu-topology", "--kube-version", "1.36.3")
    assert run(*words).returncode == 0
    refused = run(*words, "--set", "page.enabled=true")
    assert refused.returncode != 0
    assert "--reset-then-reuse-values" in refused.stderr


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("networkPolicy.pageFrom", "List the allowed pods or addresses in networkPolicy.pageFrom"),
        ("page.hosts", "List the names by which the proxy calls the page in page.hosts"),
    ],
)
def test_an_open_page_says_who_may_come_and_by_which_name(lacks: str, said: str) -> None:
    settings = tuple(one for one in PROXIED if not one.startswith(lacks))
    with pytest.raises(AssertionError, match=said):
        template(*settings)
