"""What the API server does with manifests, ours and others'."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml

from dradriver.api.base import names
from tests import deploy
from tests.e2e.kubectl import Namespace, pod

NVLINK = {names.POLICY: "nvlink"}


def test_unchanged_apply_is_clean(namespace: Namespace) -> None:
    manifest = pod("steady", gpus=2, words=NVLINK)
    namespace.apply(manifest)
    namespace.wait_running("steady")
    before = namespace.get("pod", "steady")

    assert "unchanged" in namespace.apply(manifest).stdout or "configured" in namespace.apply(manifest).stdout
    served = namespace.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(manifest))
    assert "serverside-applied" in served.stdout
    assert namespace.kubectl("diff", "-f", "-", stdin=yaml.safe_dump(manifest), check=False).returncode == 0
    after = namespace.get("pod", "steady")
    assert after["spec"] == before["spec"]
    for key in (*names.RESULTS, *names.FORMER_RESULTS, *names.NOTES):
        assert after["metadata"]["annotations"].get(key) == before["metadata"]["annotations"].get(key)


def test_a_copy_gets_a_claim_of_its_own(namespace: Namespace) -> None:
    namespace.apply(pod("original", gpus=2, words=NVLINK))
    namespace.wait_running("original")
    original = namespace.get("pod", "original")
    copied = copy.deepcopy(original)
    copied["metadata"]["name"] = "copied"
    for key in ("uid", "resourceVersion", "creationTimestamp"):
        del copied["metadata"][key]
    created = namespace.kubectl("create", "-f", "-", stdin=json.dumps(copied))
    assert "copied" in created.stdout
    namespace.wait_running("copied")

    def claim(name: str) -> str:
        found: str = namespace.get("pod", name)["spec"]["resourceClaims"][0]["resourceClaimName"]
        return found

    assert claim("copied") != claim("original")
    assert namespace.annotation("copied", names.ALLOCATED) != namespace.annotation("original", names.ALLOCATED)
    assert namespace.annotation("copied", names.AFFINITY) is None, (
        "the original's narrowed affinity is not the author's"
    )


def test_others_are_left_alone(namespace: Namespace) -> None:
    manifest = pod("plain")
    manifest["metadata"]["labels"] = {"app": "x"}
    sent = copy.deepcopy(manifest["spec"])
    namespace.apply(manifest)
    namespace.wait_running("plain")
    got = namespace.get("pod", "plain")

    def holds(sent: Any, got: Any) -> bool:
        if isinstance(sent, dict):
            return all(key in got and holds(value, got[key]) for key, value in sent.items() if value != {})
        if isinstance(sent, list):
            return len(sent) <= len(got) and all(holds(a, b) for a, b in zip(sent, got, strict=False))
        return bool(sent == got)

    assert holds(sent, got["spec"])
    assert got["metadata"]["labels"] == {"app": "x"}
    assert not got["spec"].get("resourceClaims")
    assert not got["spec"].get("schedulingGates")
    assert not [key for key in got["metadata"]["annotations"] if key.startswith(names.PREFIX)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpu.topology/polcy": "nvlink"}, "did you mean gpu.topology/policy?"),
        ({"gpu.topology/policy": "nvlnk"}, "Write one of: best-effort, nvlink"),
        ({"gpu.topology/gpus": "3"}, "contradicts"),
    ],
    ids=["key", "value", "contradiction"],
)
def test_misspelt(namespace: Namespace, words: dict[str, str], message: str) -> None:
    refused = namespace.apply(pod("wrong", gpus=2, words=words), check=False)

    assert refused.returncode != 0
    assert message in refused.stderr
    assert namespace.list("pods") == []


def test_words_of_a_waiting_pod_are_read_again(namespace: Namespace) -> None:
    namespace.apply(pod("waiting", gpus=16, words=NVLINK))
    digits = "gpu.topology/min-memory=" + "9" * 5000
    refused = namespace.kubectl("annotate", "pod", "waiting", digits, check=False)
    assert refused.returncode != 0
    assert "At most 256" in refused.stderr
    namespace.kubectl("annotate", "pod", "waiting", "gpu.topology/preferred=same-numa")
    note = json.loads(str(namespace.annotation("waiting", names.REQUEST)))
    assert (note["request"]["containers"], note["request"]["preferred"]) == ([16], ["same-numa"])


def test_bad_opaque_config(namespace: Namespace) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "bad"},
        "spec": {
            "devices": {
                "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.topology"}}],
                "config": [{"opaque": {"driver": "gpu.topology", "parameters": {"kind": "Wrong"}}}],
            }
        },
    }
    refused = namespace.apply(claim, check=False)

    assert refused.returncode != 0
    assert "spec.devices.config[0]" in refused.stderr


def test_an_agent_writes_only_its_own_nodes_slices(namespace: Namespace) -> None:
    """The admission policy, tried with the agent's own account and a token bound to its own pod."""
    cluster = namespace.cluster
    agents = json.loads(
        cluster.kubectl(
            *("-n", deploy.NAMESPACE, "get", "pods", "-o", "json", "-l", "app.kubernetes.io/component=node")
        ).stdout
    )["items"]
    agent = next(item for item in agents if item["spec"]["nodeName"] == "node-a")
    account = agent["spec"]["serviceAccountName"]
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={agent['metadata']['name']}")
    token = cluster.kubectl("-n", deploy.NAMESPACE, "create", "token", account, *bound).stdout.strip()

    def write(node: str, driver: str = names.DRIVER) -> str:
        piece = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"fffff-{driver}-{node}"},
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [],
            },
        }
        stdin = json.dumps(piece)
        tried = cluster.kubectl("create", "--dry-run=server", "-f", "-", "--token", token, input=stdin, check=False)
        return tried.stderr

    assert write("node-a") == ""
    assert "node-b" in write("node-b") or "own node" in write("node-b")
    assert "driver" in write("node-a", driver="other.example.com")
