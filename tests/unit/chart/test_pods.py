"""Names, labels and places of the chart's pods, who may look, and what `helm test` runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from docs import values
from dradriver.kube import resources
from dradriver.node.agent import COMPONENT
from tests.fakes.chart import CHART, SIMULATED, VARIANTS, objects, rules, template, workload
from tests.paths import REPO

helm = pytest.mark.helm
PARTS = ("node", "mps", "controller", "webhook")


def test_the_readme_is_up_to_date() -> None:
    assert values.TARGET.read_text("utf-8") == values.page(), "run make reference"


def test_the_readme_has_every_value_with_its_default() -> None:
    told = {".".join(one.path): one for one in values.values()}
    found = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    assert {path.partition(".")[0] for path in told} == found.keys()
    assert told["webhook.certificates.mode"].kind == "`selfManaged`, `certManager`, `mounted`"
    assert told["controller.leaderElection"].default == found["controller"]["leaderElection"]
    assert [path for path, one in told.items() if len(one.text) < len("How many pods.")] == []


def test_a_comment_belongs_to_the_key_below_it() -> None:
    text = "# One.\n# Two <x>.\na:\n  # Three. For example:\n  #   b: 4\n  b: 1\n  c: 2\n\n# Of nothing.\n\nd: 3\n"
    assert values.comments(text) == {("a",): "One. Two <x>.", ("a", "b"): "Three.", ("a", "c"): "", ("d",): ""}


@helm
def test_names_start_with_what_the_values_say() -> None:
    plain, named = objects(), objects("fullnameOverride=gpus")
    renamed = {(kind, re.sub("^gpu-topology-", "gpus-", name)) for kind, name in plain}
    assert set(named) == renamed
    text = yaml.safe_dump_all(named.values())
    kept = ("gpu-topology-usage-", "gpu-topology-reservations", "gpu-topology-controller", "gpu-topology-dra")
    others = set(re.findall(r"\bgpu-topology-[a-z-]+", text)) - {"gpu-topology-dra", COMPONENT}
    assert [name for name in others if not name.startswith(kept)] == [], "a reference to what is not there"
    assert named["Role", "gpus-controller"]["rules"][0]["resourceNames"] == ["gpu-topology-controller"], "the Lease"


@helm
@pytest.mark.parametrize("part", PARTS)
def test_a_name_of_their_own_is_on_pods_and_in_what_selects_them(part: str) -> None:
    spec = workload(part, *VARIANTS["mps"], "nameOverride=gpus")["spec"]
    assert spec["selector"]["matchLabels"]["app.kubernetes.io/name"] == "gpus"
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


@helm
@pytest.mark.parametrize("part", PARTS)
def test_pods_carry_what_the_values_say(part: str) -> None:
    made = workload(part, *VARIANTS["pods"])["spec"]["template"]
    assert made["metadata"]["labels"]["team"] == "gpus"
    assert made["metadata"]["labels"]["app.kubernetes.io/component"] == part
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert set(made["spec"]["affinity"]["nodeAffinity"]) == {"preferredDuringSchedulingIgnoredDuringExecution"}


@pytest.mark.slow
@helm
def test_mps_is_where_the_agents_affinity_is() -> None:
    settings = ("mps.enabled=true", "node.affinity.podAntiAffinity.a=b")
    assert workload("mps", *settings)["spec"]["template"]["spec"]["affinity"] == {"podAntiAffinity": {"a": "b"}}
    one = ("mps.enabled=true", "node.nodeSelector.gpu=a", "mps.affinity.podAffinity.a=b")
    spec = workload("mps", *one)["spec"]["template"]["spec"]
    assert (spec["nodeSelector"], spec["affinity"]) == ({"gpu": "a"}, {"podAffinity": {"a": "b"}})


@helm
@pytest.mark.parametrize("part", ["controller", "webhook"])
def test_replicas_are_spread_over_nodes_and_zones(part: str) -> None:
    spread = workload(part)["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    selector = workload(part)["spec"]["selector"]
    for one in spread:
        assert (one["labelSelector"], one["matchLabelKeys"]) == (selector, ["pod-template-hash"])
        assert one["whenUnsatisfiable"] == "ScheduleAnyway", "a cluster of one node has two replicas, too"
    own = f"{part}.topologySpreadConstraints[0]"
    settings = (f"{own}.maxSkew=1", f"{own}.topologyKey=rack", f"{own}.whenUnsatisfiable=DoNotSchedule")
    (only,) = workload(part, *settings)["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert only == {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}


@pytest.mark.slow
@helm
def test_a_quota_for_the_priority_classes_is_there_where_a_cloud_asks_for_it() -> None:
    name = ("ResourceQuota", "gpu-topology-priorities")
    assert name not in objects()

    def classes(*settings: str) -> Any:
        (scope,) = objects("priorityQuota=true", *settings)[name]["spec"]["scopeSelector"]["matchExpressions"]
        return scope["values"]

    assert classes() == ["system-cluster-critical", "system-node-critical"]
    assert classes("node.priorityClassName=mine", "mps.priorityClassName=") == ["mine", "system-cluster-critical"]
    none = [f"{part}.priorityClassName=" for part in PARTS]
    assert name not in objects("priorityQuota=true", *none)


def read_by_the_command_line() -> set[tuple[str, str]]:
    """The kinds that gputopo lists or gets, as its modules name them; exec plugins and webhooks aside."""
    found: set[tuple[str, str]] = set()
    for path in (REPO / "dradriver/cli").rglob("*.py"):
        for name in set(re.findall(r"\b[A-Z][A-Z_]+[A-Z]\b", path.read_text("utf-8"))):
            kind = getattr(resources, name, None)
            for one in kind if isinstance(kind, tuple) else (kind,):
                found |= {(one.group, one.plural)} if isinstance(one, resources.Resource) else set()
    return found


@helm
def test_the_viewer_may_read_what_the_command_line_reads_and_write_nothing() -> None:
    cluster, own = rules("ClusterRole", "viewer"), rules("Role", "viewer")
    allowed = {(group, plural) for group, plural, _, _ in (*cluster, *own)}
    assert read_by_the_command_line() >= {("", "pods"), ("resource.k8s.io", "resourceslices"), ("", "configmaps")}
    # Without the right on the webhook's Secret, verify says that it does not compare the caBundle with it.
    assert read_by_the_command_line() - allowed == {("", "secrets")}
    assert {("", "persistentvolumeclaims"), ("batch", "jobs"), ("", "resourcequotas")} <= allowed
    assert {verb for _, _, _, verbs in (*cluster, *own) for verb in verbs} <= {"get", "list", "watch"}
    assert {plural for _, plural, _, _ in cluster}.isdisjoint({"secrets", "configmaps"})


@helm
def test_the_viewer_is_bound_to_whom_the_values_name() -> None:
    def viewers(*settings: str) -> dict[str, Any]:
        return {kind: found for (kind, name), found in objects(*settings).items() if name == "gpu-topology-viewer"}

    assert set(viewers()) == {"ClusterRole", "Role"}
    assert viewers("viewer.enabled=false") == {}
    bound = viewers(*VARIANTS["pods"])
    for kind in ("ClusterRole", "Role"):
        assert bound[f"{kind}Binding"]["roleRef"]["kind"] == kind
        assert bound[f"{kind}Binding"]["subjects"] == [
            {"kind": "Group", "name": "ml-team", "apiGroup": "rbac.authorization.k8s.io"},
            {"kind": "ServiceAccount", "name": "dashboard", "namespace": "gpu-topology"},
        ]


@pytest.mark.slow
@helm
@pytest.mark.parametrize("settings", [(), SIMULATED, VARIANTS["addon"]])
def test_what_helm_test_makes_goes_away_again_and_may_little(settings: tuple[str, ...]) -> None:
    hooks = {key: found for key, found in objects(*settings).items() if key[1] == "gpu-topology-test"}
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Pod")
    assert {kind for kind, _ in hooks} == set(kinds)
    for (kind, _), found in hooks.items():
        annotations = found["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        gone = set(annotations["helm.sh/hook-delete-policy"].split(","))
        assert {"hook-succeeded", "before-hook-creation"} <= gone
        assert ("hook-failed" in gone) == (kind != "Pod"), "a failed pod's log is worth having"
        assert (kind == "Pod") == ("helm.sh/hook-weight" not in annotations), "rights come first"
    assert rules("ClusterRole", "test", *settings) == [("resource.k8s.io", "resourceslices", (), {"list"})]
    assert rules("Role", "test", *settings) == [("resource.k8s.io", "resourceclaims", (), {"create"})]
    pod = hooks["Pod", "gpu-topology-test"]["spec"]
    assert pod["containers"][0]["args"] == [(CHART / "files/smoke.py").read_text("utf-8"), "reviewed"]
    shown = template(*settings, "webhook.excludedNamespaces[0]=default")
    (excluded,) = [d for d in yaml.load_all(shown, yaml.CSafeLoader) if d and d["kind"] == "Pod"]
    assert excluded["spec"]["containers"][0]["args"][1] == "excluded"
