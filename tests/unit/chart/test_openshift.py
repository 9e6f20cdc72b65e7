"""What the chart grants on OpenShift, and what it asks of hosts whose folders are read-only."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.fakes.chart import CHART, SIMULATED, run

pytestmark = pytest.mark.helm
API = ("--api-versions", "security.openshift.io/v1")
PARTS = ("node", "controller", "webhook")


def rendered(*settings: str, arguments: tuple[str, ...] = ()) -> dict[tuple[str, str], dict[str, Any]]:
    done = run(
        *("template", "gpu-topology", str(CHART), "--namespace", "gpu-topology", "--kube-version", "1.36.3"),
        *(word for setting in settings for word in ("--set", setting)),
        *arguments,
    )
    assert done.returncode == 0, done.stderr
    return {(d["kind"], d["metadata"]["name"]): d for d in yaml.load_all(done.stdout, yaml.CSafeLoader) if d}


def bindings(objects: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Who may use constraints of OpenShift's."""
    return [d for (kind, _), d in objects.items() if "RoleBinding" in kind and "openshift" in d["roleRef"]["name"]]


def security(objects: dict[tuple[str, str], dict[str, Any]], part: str) -> dict[str, Any]:
    kind = "DaemonSet" if part == "node" else "Deployment"
    found: dict[str, Any] = objects[kind, f"gpu-topology-{part}"]["spec"]["template"]["spec"]["securityContext"]
    return found


@pytest.mark.parametrize(
    ("settings", "arguments", "is_openshift"),
    [
        ((), (), False),
        ((), API, True),
        (("openshift.enabled=true",), (), True),
        (("openshift.enabled=false",), API, False),
    ],
)
def test_the_node_agent_alone_may_be_privileged(
    settings: tuple[str, ...], arguments: tuple[str, ...], is_openshift: bool
) -> None:
    objects = rendered(*settings, arguments=arguments)
    if not is_openshift:
        assert bindings(objects) == []
        assert {security(objects, part)["runAsUser"] for part in PARTS} == {0, 65532}
        assert security(objects, "webhook")["fsGroup"] == 65532
        return
    (binding,) = bindings(objects)
    assert binding["kind"] == "RoleBinding"  # in its own namespace only
    assert binding["metadata"]["namespace"] == "gpu-topology"
    assert binding["roleRef"]["name"] == "system:openshift:scc:privileged"
    account = {"kind": "ServiceAccount", "name": "gpu-topology-node", "namespace": "gpu-topology"}
    assert binding["subjects"] == [account]
    assert ("ServiceAccount", "gpu-topology-node") in objects
    assert security(objects, "node")["runAsUser"] == 0
    for part in ("controller", "webhook"):  # restricted-v2 refuses users and groups outside the namespace's range
        assert security(objects, part) == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.slow
def test_a_simulated_agent_is_not_privileged_and_reaches_the_kubelets_folders() -> None:
    objects = rendered(*SIMULATED, "openshift.enabled=true")
    assert security(objects, "node")["seLinuxOptions"] == {"type": "spc_t"}
    assert "seLinuxOptions" not in security(rendered("openshift.enabled=true"), "node")
    assert "seLinuxOptions" not in security(rendered(*SIMULATED), "node")


def test_other_words_are_refused() -> None:
    done = run("template", "g", str(CHART), "--namespace", "x", "--set", "openshift.enabled=yes")
    assert done.returncode != 0
    assert "'auto', true, false" in done.stderr


@pytest.mark.parametrize("settings", [(), SIMULATED], ids=["real", "simulated"])
def test_folders_are_made_only_where_every_host_lets_them_be_made(settings: tuple[str, ...]) -> None:
    spec = rendered(*settings)["DaemonSet", "gpu-topology-node"]["spec"]["template"]["spec"]
    folders = {v["hostPath"]["path"]: v["hostPath"]["type"] for v in spec["volumes"] if "hostPath" in v}
    made = {path for path, kind in folders.items() if kind == "DirectoryOrCreate"}
    real = {"/var/lib/gpu-topology"} if not settings else set()
    assert made == real | {
        "/var/lib/kubelet/plugins/gpu.topology",
        "/var/lib/kubelet/plugins_registry",
        "/var/run/cdi",
    }
    assert folders.keys() - made <= {"/"}
