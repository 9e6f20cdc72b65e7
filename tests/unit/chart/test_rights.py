"""What the chart's parts may do, and who may reach them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.claims import exclusive, reservation_config_map, search_limits, usage_config_maps
from dradriver.api.gangs import gang_size_of_owner, suspendable_owners
from dradriver.api.pod import claim_alternatives
from dradriver.api.vocabulary import annotation_words, container_limits
from dradriver.controller.main import LEASE
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS
from tests.effort import sampled
from tests.fakes.chart import CHART, KUBERNETES, SIMULATED, VARIANTS, container, objects, rules, template, workload
from webhook.admission import Admission

pytestmark = pytest.mark.helm


def test_no_role_has_a_wildcard() -> None:
    roles = [document for (kind, _), document in objects().items() if kind in ("Role", "ClusterRole")]
    assert len(roles) == 10
    for role in roles:
        for rule in role["rules"]:
            assert not any("*" in value for key in rule for value in rule[key])
            assert rule["verbs"]


def test_least_privilege_of_the_node_agent() -> None:
    assert ("Role", "gpu-topology-node") not in objects()
    assert rules("ClusterRole", "node") == [
        (
            "resource.k8s.io",
            "resourceslices",
            (),
            {"list", "watch", "create", "update", "delete"},
        ),
        ("resource.k8s.io", "resourceclaims", (), {"get", "list"}),
        ("resource.k8s.io", "resourceclaims/status", (), {"patch"}),
        ("resource.k8s.io", "resourceclaims/driver", ("gpu.topology",), {"associated-node:patch"}),
        ("", "events", (), {"create", "patch"}),
        ("", "nodes", (), {"get", "list", "watch"}),
    ]


BUDGETS: Final = (POD_DISRUPTION_BUDGETS.group, POD_DISRUPTION_BUDGETS.plural)


def owners_rights(*settings: str) -> dict[tuple[str, str], set[str]]:
    """Return what the controller may do with what makes pods, and with pods beyond patching."""
    found: dict[tuple[str, str], set[str]] = {}
    owners = {*suspendable_owners.OBJECTS.values(), ("", "pods"), BUDGETS}
    for group, resource, _, verbs in rules("ClusterRole", "controller", *settings):
        if (group, resource) in owners:
            found[group, resource] = found.get((group, resource), set()) | verbs
    found["", "pods"] -= {"get", "list", "watch", "patch"}
    return {key: verbs for key, verbs in found.items() if verbs}


def test_pods_are_evicted_only_where_a_value_says_so() -> None:
    right = ("", "pods/eviction", (), {"create"})
    budgets = ("policy", "poddisruptionbudgets", (), {"list"})
    assert right not in rules("ClusterRole", "controller")
    assert {right[1], budgets[1]} <= {rule[1] for rule in rules("ClusterRole", "controller", *VARIANTS["preemption"])}
    assert right in rules("ClusterRole", "controller", *VARIANTS["preemption"])
    (own,) = workload("controller", *VARIANTS["preemption"])["spec"]["template"]["spec"]["containers"]
    assert "--suspendable=Job" in own["args"]
    (own,) = workload("controller", *VARIANTS["gangs"])["spec"]["template"]["spec"]["containers"]
    assert not any(argument.startswith("--suspendable") for argument in own["args"])


def test_by_default_the_controller_reads_how_large_every_gang_is_and_stops_none() -> None:
    assert owners_rights() == {key: {"get"} for key in gang_size_of_owner.OBJECTS.values()}
    assert owners_rights("controller.gangOwners=null") == owners_rights(), "an upgrade with --reuse-values"
    assert owners_rights(*VARIANTS["addon"]) == owners_rights()
    without = owners_rights("controller.gangOwners.MPIJob.read=false", "controller.gangOwners.PodGroup.read=false")
    assert set(gang_size_of_owner.OBJECTS.values()) - set(without) == {
        ("kubeflow.org", "mpijobs"),
        ("scheduling.k8s.io", "podgroups"),
    }


def test_the_values_name_every_kind_that_a_gang_is_made_by() -> None:
    owners = yaml.safe_load((CHART / "values.yaml").read_text())["controller"]["gangOwners"]
    assert set(owners) == set(suspendable_owners.OBJECTS)
    assert {kind for kind, one in owners.items() if one.get("read")} == set(gang_size_of_owner.OBJECTS)
    assert {kind for kind, one in owners.items() if "suspend" in one} == {*owners} - {"PodGroup"}
    assert not any(one.get("suspend") for one in owners.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "group", "plural", "field"),
    [(kind, *suspendable_owners.OBJECTS[kind], ".".join(field)) for kind, field in suspendable_owners.FIELDS.items()],
)
def test_what_may_be_suspended_is_bound_to_that_by_a_policy(kind: str, group: str, plural: str, field: str) -> None:
    settings = (f"controller.gangOwners.{kind}.suspend=true",)
    assert owners_rights(*settings) == owners_rights() | {(group, plural): {"get", "list", "patch"}, BUDGETS: {"list"}}
    only = {key for key in objects(*settings) if key not in objects()}
    name = f"gpu-topology-suspends-{plural}"
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert only == {(kind, policy) for kind in kinds for policy in (name, "gpu-topology-owner-marks")}
    marks = objects(*settings)["ValidatingAdmissionPolicy", "gpu-topology-owner-marks"]["spec"]
    (rule,) = marks["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["resources"]) == ([group], [plural, f"{plural}/status"])
    policy = objects(*settings)["ValidatingAdmissionPolicy", name]["spec"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["resources"], rule["operations"]) == ([group], [plural], ["UPDATE"])
    assert rule["apiVersions"] == ["*"]
    free = [set(re.findall('key == "(.*?)"', one["expression"])) for one in policy["validations"]]
    assert [keys for keys in free if keys] == [{name} for name in field.split(".")]


@pytest.mark.slow
def test_pods_are_evicted_only_where_the_values_say_so_and_then_idle_ones_are_ended() -> None:
    right = ("", "pods/eviction", (), {"create"})

    def says(*settings: str) -> bool:
        pod = objects(*settings)["Deployment", "gpu-topology-controller"]["spec"]["template"]["spec"]
        return "--end-idle" in pod["containers"][0]["args"]

    for settings in ((), ("controller.idleEviction=null",)):
        assert right not in rules("ClusterRole", "controller", *settings)
        assert not says(*settings)
    assert right in rules("ClusterRole", "controller", "controller.idleEviction=true")
    assert says("controller.idleEviction=true")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Job", "LeaderWorkerSet"])
def test_who_ends_running_pods_may_ask_their_budgets(kind: str) -> None:
    right = ("policy", "poddisruptionbudgets", (), {"list"})
    assert right not in rules("ClusterRole", "controller")
    assert right in rules("ClusterRole", "controller", f"controller.gangOwners.{kind}.suspend=true")


@pytest.mark.slow
def test_namespaces_are_read_only_where_a_tenant_has_some_by_their_labels() -> None:
    right = ("", "namespaces", (), {"list", "watch"})
    assert right not in rules("ClusterRole", "controller", "policies.tenants.a.namespaces[0]=x")
    labels = ("policies.tenants.a.namespaces[0]=x", "policies.tenants.b.namespaceLabels.team=b")
    assert right in rules("ClusterRole", "controller", *labels)
    assert right not in rules("ClusterRole", "controller", "policies=null")


@pytest.mark.parametrize("kind", ["StatefulSet", "LeaderWorkerSet"])
def test_pods_are_deleted_only_where_their_owner_cannot_be_suspended(kind: str) -> None:
    settings = (f"controller.gangOwners.{kind}.suspend=true",)
    assert owners_rights(*settings) == owners_rights() | {("", "pods"): {"delete"}, BUDGETS: {"list"}}
    assert {name for _, name in set(objects(*settings)) - set(objects())} == {"gpu-topology-deletions"}


@pytest.mark.parametrize(
    "name",
    [
        *("nominations", "seats", "seat-statuses", "suspends-jobs", "suspends-mpijobs", "deletions"),
        *("pod-writes", "claim-writes", "template-writes", "evictions"),
    ],
)
def test_a_policy_of_the_controllers_is_about_the_account_that_it_uses(name: str) -> None:
    rendered = objects(*VARIANTS["gangs"], "controller.idleEviction=true")
    policy = rendered["ValidatingAdmissionPolicy", f"gpu-topology-{name}"]["spec"]
    account = workload("controller")["spec"]["template"]["spec"]["serviceAccountName"]
    (by,) = (condition["expression"] for condition in policy["matchConditions"])
    assert by == f"request.userInfo.username == 'system:serviceaccount:gpu-topology:{account}'"
    assert policy["failurePolicy"] == "Fail"
    assert all(one["reason"] == "Forbidden" for one in policy["validations"]), "not Invalid, which would be mended"
    binding = rendered["ValidatingAdmissionPolicyBinding", f"gpu-topology-{name}"]["spec"]
    assert binding == {"policyName": f"gpu-topology-{name}", "validationActions": ["Deny"]}


def test_namespaces_that_the_webhook_leaves_out_bound_admission_and_not_the_account_of_the_controller() -> None:
    """A pod that waited there before is still placed."""
    rendered = objects(*VARIANTS["gangs"], "controller.idleEviction=true", "webhook.excludedNamespaces[0]=monitoring")
    named = {name for (kind, name), obj in rendered.items() if "monitoring" in json.dumps(obj)}
    assert named == {"gpu-topology-webhook", "gpu-topology-evictions"}
    for name in (
        "pod-writes",
        "claim-writes",
        "template-writes",
        "nominations",
        "events",
        "suspends-jobs",
    ):
        policy = rendered["ValidatingAdmissionPolicy", f"gpu-topology-{name}"]["spec"]
        (message,) = [rule["message"] for rule in policy["validations"] if "kube-system" in rule["expression"]]
        assert message.endswith("in the namespaces kube-system, gpu-topology."), name
    evictions = rendered["ValidatingAdmissionPolicy", "gpu-topology-evictions"]["spec"]["validations"]
    assert evictions[0]["message"].endswith("in the namespaces kube-system, gpu-topology, monitoring.")


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_right_to_write_for_gangs_has_its_policy(variant: str) -> None:
    rendered = objects(*VARIANTS[variant])
    written = {
        resource for _, resource, _, verbs in rules("ClusterRole", "controller", *VARIANTS[variant])
        if verbs & {"create", "update", "patch"}
    }  # fmt: skip
    own = variant != "addon"
    assert "pods/status" in written
    assert ("ValidatingAdmissionPolicy", "gpu-topology-nominations") in rendered
    for resource, name in (("resourceslices", "seats"), ("resourceclaims/status", "seat-statuses")):
        assert (resource in written) == (("ValidatingAdmissionPolicy", f"gpu-topology-{name}") in rendered) == own


def test_the_chart_and_the_code_mean_the_same_seat() -> None:
    rendered = objects(kubernetes="1.34.4")
    (selector,) = rendered["DeviceClass", gang_barrier_device.CLASS]["spec"]["selectors"]
    assert set(re.findall('"(.*?)"', selector["cel"]["expression"])) == {
        names.DRIVER,
        "",
        gang_barrier_device.TYPE["type"]["string"],
    }
    later = [
        field
        for field in gang_barrier_device.resource_slice()["spec"]["devices"][0]
        if field not in ("name", "attributes")
    ]
    assert [field for field in later if field in selector["cel"]["expression"]] == [], "1.34 would refuse the class"
    only = " ".join(
        v["expression"] for v in rendered["ValidatingAdmissionPolicy", "gpu-topology-seats"]["spec"]["validations"]
    )
    assert {gang_barrier_device.SLICE, names.SEAT_POOL, names.DRIVER} <= set(re.findall("'(.*?)'", only))
    assert f'device.name == "{gang_barrier_device.DEVICE}"' in only
    assert ("DeviceClass", gang_barrier_device.CLASS) not in objects(*VARIANTS["addon"])


def test_least_privilege_of_the_controller() -> None:
    follows = {"list", "watch"}
    reads = {"get", *follows}
    assert rules("ClusterRole", "controller") == [
        ("", "pods", (), reads | {"patch"}),
        ("", "nodes", (), follows),
        ("resource.k8s.io", "resourceslices", (), follows),
        ("resource.k8s.io", "devicetaintrules", (), follows),
        ("resource.k8s.io", "deviceclasses", (), reads),
        ("resource.k8s.io", "resourceclaimtemplates", (), reads | {"create", "delete"}),
        ("resource.k8s.io", "resourceclaims", (), reads | {"create", "patch", "delete"}),
        ("rbac.authorization.k8s.io", "clusterroles", ("gpu-topology-controller",), {"get"}),
        ("kueue.x-k8s.io", "topologies", (), follows),
        ("", "pods/status", (), {"patch"}),
        ("resource.k8s.io", "resourceslices", (), {"create"}),
        ("resource.k8s.io", "resourceslices", (gang_barrier_device.SLICE,), {"get", "update", "delete"}),
        ("resource.k8s.io", "resourceclaims/status", (), {"patch"}),
        ("resource.k8s.io", "resourceclaims/driver", (names.DRIVER,), {"arbitrary-node:patch"}),
        *((group, plural, (), {"get"}) for _, (group, plural) in sorted(gang_size_of_owner.OBJECTS.items())),
        ("", "persistentvolumeclaims", (), {"get"}),
        ("", "persistentvolumes", (), {"get"}),
        ("storage.k8s.io", "storageclasses", (), {"get"}),
        ("", "events", (), {"create", "patch"}),
    ]
    assert rules("Role", "controller") == [
        ("coordination.k8s.io", "leases", (LEASE,), {"get", "update"}),
        ("coordination.k8s.io", "leases", (), {"create"}),
        ("", "namespaces", ("gpu-topology",), {"get"}),
        ("apps", "daemonsets", ("gpu-topology-node",), {"get"}),
        ("", "configmaps", ("gpu-topology-policies",), {"get", "list", "watch"}),
        ("", "configmaps", tuple(usage_config_maps.every_name()), {"get", "update"}),
        ("", "configmaps", (reservation_config_map.NAME,), {"get", "update"}),
        ("", "configmaps", (), {"create"}),
    ]


def test_least_privilege_of_the_webhook() -> None:
    secret = "gpu-topology-webhook-certificate"
    assert rules("ClusterRole", "webhook") == [
        ("admissionregistration.k8s.io", f"{kind}webhookconfigurations", ("gpu-topology-webhook",), {"get", "patch"})
        for kind in ("mutating", "validating")
    ]
    assert rules("Role", "webhook") == [("", "secrets", (secret,), {"get", "update"}), ("", "secrets", (), {"create"})]
    assert f"--secret={secret}" in container("webhook")["args"]


def test_mounted_certificates_need_no_right_and_no_token() -> None:
    rendered = objects(*VARIANTS["mounted"])
    assert [name for kind, name in rendered if "Role" in kind and "webhook" in name] == []
    assert (
        workload("webhook", *VARIANTS["mounted"])["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    )


@pytest.mark.parametrize("part", ["node", "controller", "webhook"])
def test_pods_have_what_they_need_and_no_more(part: str) -> None:
    spec, only = workload(part, *SIMULATED)["spec"]["template"]["spec"], container(part, *SIMULATED)
    assert spec["serviceAccountName"] == f"gpu-topology-{part}"
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["securityContext"].get("runAsNonRoot", False) is (part != "node")
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert {"name": "tmp", "mountPath": "/tmp"} in only["volumeMounts"]
    assert {entry["name"] for entry in only["env"]} == {"NODE_NAME", "POD_NAME", "POD_UID", "NAMESPACE"}
    health = next(port["containerPort"] for port in only["ports"] if port["name"] == "health")
    assert f"--health-port={health}" in only["args"]
    assert only["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
    assert only["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}


def test_the_webhooks_reach_only_what_is_ours() -> None:
    hooks = {
        hook["name"]: hook
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for hook in objects()[kind, "gpu-topology-webhook"]["webhooks"]
    }
    assert {name: hook["failurePolicy"] for name, hook in hooks.items()} == {
        "create.pods.gpu.topology": "Fail",
        "translate.pods.gpu.topology": "Fail",
        "notes.pods.gpu.topology": "Fail",
        "update.pods.gpu.topology": "Ignore",
        "workloads.gpu.topology": "Fail",
        "claims.gpu.topology": "Fail",
        "policies.gpu.topology": "Ignore",
    }
    assert list(hooks).index("create.pods.gpu.topology") < list(hooks).index("translate.pods.gpu.topology")
    for name, hook in hooks.items():
        assert hook["sideEffects"] == "None"
        assert hook["timeoutSeconds"] == 5
        assert hook["matchConditions"]
        assert "caBundle" not in hook["clientConfig"]
        if name == "policies.gpu.topology":
            continue
        excluded, *labelled = hook["namespaceSelector"]["matchExpressions"]
        assert bool(labelled) is (name == "translate.pods.gpu.topology")
        assert excluded["operator"] == "NotIn"
        assert excluded["values"] == ["kube-system", "gpu-topology"]
    user = next(a for a in container("webhook")["args"] if a.startswith("--controller-user=")).partition("=")[2]
    for name in ("notes.pods.gpu.topology", "update.pods.gpu.topology", "claims.gpu.topology"):
        assert f"!= '{user}'" in hooks[name]["matchConditions"][0]["expression"]


def test_of_config_maps_the_webhook_is_asked_about_the_policies_alone_and_never_holds_up_their_deletion() -> None:
    rendered = objects("fullnameOverride=own")
    hook = rendered["ValidatingWebhookConfiguration", "own-webhook"]["webhooks"][1]
    assert hook["rules"] == [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["configmaps"],
            "scope": "Namespaced",
        }
    ]
    assert hook["namespaceSelector"]["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["gpu-topology"]}
    ]
    (condition,) = hook["matchConditions"]
    policies = rendered["ConfigMap", "own-policies"]["metadata"]
    assert condition["expression"] == f"object.metadata.name == '{policies['name']}'"
    assert policies["namespace"] == "gpu-topology"


@pytest.mark.slow
def test_pods_without_our_words_are_translated_where_the_values_say() -> None:
    def selected(*settings: str) -> list[object]:
        hooks = objects(*settings)["MutatingWebhookConfiguration", "gpu-topology-webhook"]["webhooks"]
        return [
            hook["namespaceSelector"]["matchExpressions"][1:]
            for hook in hooks
            if hook["clientConfig"]["service"]["path"] == "/translate-pods"
        ]

    key = "gpu.topology/translate"
    assert selected() == [[{"key": key, "operator": "In", "values": ["true"]}]]
    assert selected("webhook.translate=all") == [[{"key": key, "operator": "NotIn", "values": ["false"]}]]
    assert selected("webhook.translate=none") == []
    assert selected("webhook.translate=null") == selected(), "an upgrade with --reuse-values"


def test_every_path_that_the_chart_names_is_answered() -> None:
    answered = Admission(controller_user="x").paths
    named = {
        hook["clientConfig"]["service"]["path"]
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for hook in objects()[kind, "gpu-topology-webhook"]["webhooks"]
    }
    assert named == set(answered)


def asked(pattern: str, limit: str) -> bool:
    """Whether a pattern finds a limit in the text that CEL makes of a container's, wherever it stands there."""
    texts = (f'{{"{limit}": "1"}}', f'{{"cpu": "1", "{limit}": "1", "memory": "1Gi"}}')
    found = {bool(re.search(pattern, text)) for text in texts}
    assert len(found) == 1
    return found.pop()


def test_the_api_server_asks_about_every_limit_that_is_read() -> None:
    (hook,) = [
        hook
        for hook in objects()["MutatingWebhookConfiguration", "gpu-topology-webhook"]["webhooks"]
        if hook["name"] == "translate.pods.gpu.topology"
    ]
    ((_, pattern, _),) = [re.split(r"matches\('(.*)'\)", hook["matchConditions"][0]["expression"])]
    read = (*container_limits.NAMES, "nvidia.com/gpu.A100-SXM4-40GB", "nvidia.com/mig-1g.5gb")
    assert all(map(container_limits.is_ours, read))
    assert [
        name for name in (*read, "nvidia.com/vgpu", "nvidia.com/gpumem-percentage") if not asked(pattern, name)
    ] == []
    others = ("cpu", "memory", "rdma/hca", "amd.com/cpu", "nvidia.com/hostdev", "hugepages-2Mi", "xnvidia.com/gpu")
    assert [name for name in others if asked(pattern, name)] == []


@pytest.mark.parametrize(
    ("name", "resource", "operations"),
    [
        ("slices", "resourceslices", {"CREATE", "UPDATE", "DELETE"}),
        ("statuses", "resourceclaims/status", {"UPDATE"}),
    ],
)
def test_a_policy_of_the_agents_is_about_the_account_that_the_agent_uses(
    name: str, resource: str, operations: set[str]
) -> None:
    """A policy about an account that nobody uses protects nothing."""
    policy = objects()["ValidatingAdmissionPolicy", f"gpu-topology-{name}"]["spec"]
    account = workload("node")["spec"]["template"]["spec"]["serviceAccountName"]
    assert f"'system:serviceaccount:gpu-topology:{account}'" in policy["matchConditions"][0]["expression"]
    assert policy["failurePolicy"] == "Fail"
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["resources"], set(rule["operations"])) == ([resource], operations)
    binding = objects()["ValidatingAdmissionPolicyBinding", f"gpu-topology-{name}"]["spec"]
    assert binding == {"policyName": f"gpu-topology-{name}", "validationActions": ["Deny"]}


@pytest.mark.parametrize("variant", sampled(VARIANTS))
def test_who_may_write_statuses_of_claims_is_bound_by_the_policy_about_them(variant: str) -> None:
    written = any(
        resource == "resourceclaims/status" for _, resource, _, _ in rules("ClusterRole", "node", *VARIANTS[variant])
    )
    assert written == (variant != "addon")
    assert written == (("ValidatingAdmissionPolicy", "gpu-topology-statuses") in objects(*VARIANTS[variant]))


def test_what_changes_a_pods_metadata_past_the_webhook_keeps_every_word_of_ours() -> None:
    policy = objects()["ValidatingAdmissionPolicy", "gpu-topology-notes"]["spec"]
    assert policy["failurePolicy"] == "Fail"
    said = {rule["operations"][0]: rule["resources"] for rule in policy["matchConstraints"]["resourceRules"]}
    assert said == {"UPDATE": ["pods/status"], "CREATE": ["pods/binding", "bindings"]}
    (kept,) = (one["expression"] for one in policy["variables"] if one["name"] == "words")
    ours = (*annotation_words.KEYS, *names.NOTES, *names.RESULTS, *names.FORMER_RESULTS)
    assert [names.PREFIX + word for word in re.findall("'(.*?)'", kept)] == list(ours)
    annotations, label = (validation["expression"] for validation in policy["validations"])
    assert annotations.startswith(f"['{names.PREFIX}', '{names.ALIAS_PREFIX}'].all(prefix, variables.words.all(word,")
    assert f"'{names.LABEL}'" in label
    bindings = [
        objects()["ValidatingAdmissionPolicyBinding", f"gpu-topology-notes-{n}"]["spec"] for n in ("status", "binding")
    ]
    assert all((one["policyName"], one["validationActions"]) == ("gpu-topology-notes", ["Deny"]) for one in bindings)
    bound = [rule for one in bindings for rule in one["matchResources"]["resourceRules"]]
    assert bound == policy["matchConstraints"]["resourceRules"]
    (ours,) = bindings[0]["matchResources"]["objectSelector"]["matchExpressions"]
    assert ours == {"key": names.LABEL, "operator": "Exists"}
    assert "objectSelector" not in bindings[1]["matchResources"]


@pytest.mark.parametrize("variant", sampled(VARIANTS))
def test_no_expression_looks_at_each_of_what_an_object_may_have_thousands_of(variant: str) -> None:
    """Over 36,000 annotations, which any tenant may send, a loop costs an API server 5 s (Kubernetes 1.36.3)."""
    parts: list[dict[str, Any]] = []
    for (kind, _), found in objects(*VARIANTS[variant]).items():
        if kind == "ValidatingAdmissionPolicy":
            for group in ("matchConditions", "variables", "validations"):
                parts += found["spec"].get(group, ())
        elif kind.endswith("WebhookConfiguration"):
            parts += [condition for hook in found["webhooks"] for condition in hook["matchConditions"]]
    assert parts
    for part in parts:
        expression = re.sub(r'"%s"\.format\(\[.*?\]\)', "text", part["expression"])
        # The texts of the new and the old object: two of each.
        expression = re.sub(r"variables\.[a-z]+(Text|Entries|Pieces)\b", "two", expression)
        looped = re.findall(r"(\S*)\.(?:all|exists|exists_one|map|filter)\(", expression)
        assert not [over for over in looped if re.search("(?i)annotations|labels|limits", over)], part
        if any("ontainers" in over for over in looped):
            # The loop is skipped if there are very many.
            sizes = "size(object.spec.containers) + ", "size(variables.containers) > ", "size(variables.containers) <= "
            assert expression.startswith(sizes), part


def test_the_claims_policy_keeps_every_mark_that_is_read() -> None:
    policy = objects()["ValidatingAdmissionPolicy", "gpu-topology-claims"]["spec"]
    label, annotations = (validation["expression"] for validation in policy["validations"][1:3])
    assert set(re.findall("'(.*?)'", label)) == {names.LABEL}
    assert set(re.findall("'(.*?)'", annotations)) == {
        names.CHOICE,
        names.SET,
        names.PLAN,
        names.PREEMPTS,
        names.HANDED_OVER,
        names.IDLE_END,
    }


def test_the_marks_of_suspended_owners_are_the_controllers_alone_of_each_kind_that_it_may_suspend() -> None:
    rendered = objects(*VARIANTS["gangs"])
    policy = rendered["ValidatingAdmissionPolicy", "gpu-topology-owner-marks"]["spec"]
    assert policy["failurePolicy"] == "Fail"
    rules_of = policy["matchConstraints"]["resourceRules"]
    assert {(rule["apiGroups"][0], rule["resources"][0]) for rule in rules_of} == {
        suspendable_owners.OBJECTS[kind] for kind in suspendable_owners.FIELDS
    }
    assert {tuple(rule["operations"]) for rule in rules_of} == {("CREATE", "UPDATE")}
    label, annotations = (validation["expression"] for validation in policy["validations"])
    assert set(re.findall("'(.*?)'", label)) == {names.RESTARTING}
    assert set(re.findall("'(.*?)'", annotations)) == {names.RESTART, names.IDLE}
    exempt, marked = (condition["expression"] for condition in policy["matchConditions"])
    assert exempt == "request.userInfo.username != 'system:serviceaccount:gpu-topology:gpu-topology-controller'"
    assert set(re.findall("'(.*?)'", marked)) == {names.RESTARTING, names.RESTART, names.IDLE}
    binding = rendered["ValidatingAdmissionPolicyBinding", "gpu-topology-owner-marks"]["spec"]
    assert binding == {"policyName": "gpu-topology-owner-marks", "validationActions": ["Deny"]}
    assert ("ValidatingAdmissionPolicy", "gpu-topology-owner-marks") not in objects(), "it suspends nothing by default"


def test_the_claims_policy_is_about_all_accounts_but_the_one_that_the_controller_uses() -> None:
    policy = objects()["ValidatingAdmissionPolicy", "gpu-topology-claims"]["spec"]
    account = workload("controller")["spec"]["template"]["spec"]["serviceAccountName"]
    by, marked = (condition["expression"] for condition in policy["matchConditions"])
    assert by == f"request.userInfo.username != 'system:serviceaccount:gpu-topology:{account}'"
    assert f"'{names.LABEL}' in " in marked
    assert f"'{names.CHOICE}' in " in marked
    assert policy["failurePolicy"] == "Fail"
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE", "UPDATE"], ["resourceclaims"])
    binding = objects()["ValidatingAdmissionPolicyBinding", "gpu-topology-claims"]["spec"]
    assert binding == {"policyName": "gpu-topology-claims", "validationActions": ["Deny"]}


def test_no_other_account_makes_a_template_that_pods_without_a_choice_would_take() -> None:
    policy = objects()["ValidatingAdmissionPolicy", "gpu-topology-templates"]["spec"]
    account = workload("controller")["spec"]["template"]["spec"]["serviceAccountName"]
    (by,) = (condition["expression"] for condition in policy["matchConditions"])
    assert by == f"request.userInfo.username != 'system:serviceaccount:gpu-topology:{account}'"
    assert policy["failurePolicy"] == "Fail"
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE", "UPDATE"], ["resourceclaimtemplates"])
    create, update = (validation["expression"] for validation in policy["validations"])
    assert f"'{names.LABEL}' in " in create
    (pattern,) = re.findall(r'matches\("(.*)"\)', create)
    assert re.search(pattern, claim_alternatives.template_name("a note"))
    assert [
        name for name in ("gpus-quad", "gpus-abcdefghij", "my-gpus-abcdefghijklmnop") if re.search(pattern, name)
    ] == []
    assert f"['{names.LABEL}']" in update
    binding = objects()["ValidatingAdmissionPolicyBinding", "gpu-topology-templates"]["spec"]
    assert binding == {"policyName": "gpu-topology-templates", "validationActions": ["Deny"]}


def test_only_a_claim_with_a_choice_is_beyond_the_bounds() -> None:
    """One that is handed over is for the scheduler to search. Nobody else may write that label, nor on a template."""
    policy = objects()["ValidatingAdmissionPolicy", "gpu-topology-parts"]["spec"]
    assert policy["matchConstraints"]["objectSelector"] == {
        "matchExpressions": [{"key": names.LABEL, "operator": "NotIn", "values": [names.LABEL_PLACED]}]
    }


@pytest.mark.slow
@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_claims_of_parts_are_bounded_everywhere_and_say_their_amounts_where_the_server_keeps_them(
    kubernetes: str,
) -> None:
    rendered = objects(kubernetes=kubernetes)
    policy = rendered["ValidatingAdmissionPolicy", "gpu-topology-parts"]["spec"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["resourceclaims", "resourceclaimtemplates"])
    told = " ".join(validation["message"] for validation in policy["validations"])
    assert "at most 8 MIG slices" in told
    assert ("Write capacity.requests" in told) == (kubernetes >= "1.36")
    assert not any("\n" in validation["message"] for validation in policy["validations"]), "the server refuses them"
    binding = rendered["ValidatingAdmissionPolicyBinding", "gpu-topology-parts"]["spec"]
    assert binding == {"policyName": "gpu-topology-parts", "validationActions": ["Deny"]}


def test_the_chart_and_the_code_have_the_same_limits_of_what_the_scheduler_searches_for() -> None:
    """tests/contract/test_claim_policies.py has both judge the same claims."""
    policy = objects()["ValidatingAdmissionPolicy", "gpu-topology-parts"]["spec"]
    parts, gpus, different = (one["expression"] for one in policy["validations"][:3])
    one, several, alternatives = (
        search_limits.IN_ONE_REQUEST,
        search_limits.IN_SEVERAL_REQUESTS,
        search_limits.WITH_ALTERNATIVES,
    )
    assert re.findall(r"<= (\d+)", gpus) == ["1", str(one), str(several), str(alternatives)]
    assert re.findall(r"<= (\d+)", different) == ["1", str(search_limits.DIFFERENT)]
    assert set(re.findall(r"[?:] (\d+)\)", parts)) == {str(several), str(search_limits.DIFFERENT)}


def test_claims_of_mig_slices_may_ask_for_less_where_each_placement_is_a_device() -> None:
    def told(*settings: str) -> str:
        policy = objects(*settings)["ValidatingAdmissionPolicy", "gpu-topology-parts"]["spec"]
        return str(policy["validations"][0]["message"])

    assert "of several requests: 4" in told("policies.gpus[0].mig=placements")
    assert told("policies.gpus[0].mig=dynamic") == told("policies=null") == told()


def test_claims_of_gpus_have_finalizers_of_kubernetes_only() -> None:
    for settings in ((), VARIANTS["addon"]):
        rendered = objects(*settings)
        policy = rendered["ValidatingAdmissionPolicy", "gpu-topology-finalizers"]["spec"]
        (rule,) = policy["matchConstraints"]["resourceRules"]
        assert (rule["operations"], rule["resources"]) == (["CREATE", "UPDATE"], ["resourceclaims"])
        (check,) = policy["validations"]
        assert names.FINALIZER in check["expression"], "the controller's claims have it from the start"
        assert policy["failurePolicy"] == "Fail"
        binding = rendered["ValidatingAdmissionPolicyBinding", "gpu-topology-finalizers"]["spec"]
        assert binding == {"policyName": "gpu-topology-finalizers", "validationActions": ["Deny"]}


def ingress(part: str, *settings: str) -> list[dict[str, Any]]:
    spec = objects(*settings)["NetworkPolicy", f"gpu-topology-{part}"]["spec"]
    assert spec["policyTypes"] == ["Ingress"], "what the pods connect to is the cluster's to know"
    assert spec["podSelector"]["matchLabels"] == workload(part)["spec"]["selector"]["matchLabels"]
    found: list[dict[str, Any]] = spec["ingress"]
    return found


@pytest.mark.parametrize("part", ["node", "controller", "webhook"])
def test_only_the_ports_that_are_listened_on_are_open(part: str) -> None:
    open_ports = [port["port"] for rule in ingress(part) for port in rule["ports"]]
    assert open_ports == [port["containerPort"] for port in container(part)["ports"]]
    assert [rule for rule in ingress(part) if "from" in rule] == [], "no default can know where the API server is"
    assert ("NetworkPolicy", f"gpu-topology-{part}") not in objects("networkPolicy.enabled=false")


def test_reviews_come_from_the_api_server_and_metrics_are_read_by_whom_the_values_name() -> None:
    reviews, metrics = ingress("webhook", *VARIANTS["full"])
    assert reviews["from"] == [{"ipBlock": {"cidr": "10.0.0.0/28"}}, {"ipBlock": {"cidr": "fd00::/64"}}]
    assert metrics["from"] == [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]
    for part in ("node", "controller"):
        assert [rule["from"] for rule in ingress(part, *VARIANTS["full"])] == [metrics["from"]]


def test_claims_of_gpus_that_are_one_namespaces_are_the_controllers_where_the_webhook_is_asked() -> None:
    rendered = objects(*VARIANTS["exclusive"])
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert {key for key in rendered if key not in objects()} == {(kind, "gpu-topology-exclusive") for kind in kinds}
    policy, binding = (rendered[kind, "gpu-topology-exclusive"]["spec"] for kind in kinds)
    (where,) = binding["matchResources"]["namespaceSelector"]["matchExpressions"]
    hooks = rendered["ValidatingWebhookConfiguration", "gpu-topology-webhook"]["webhooks"]
    assert [where] == hooks[0]["namespaceSelector"]["matchExpressions"]
    (condition,) = policy["matchConditions"]
    assert condition == hooks[0]["matchConditions"][0], "what the controller hands over is looked at, too"
    said = {one["name"]: one["expression"] for one in policy["variables"]}
    assert yaml.safe_load(said["classes"]) == [names.SHARE_CLASS]
    assert yaml.safe_load(said["capacities"]) == [names.CAPACITY_CORES, f"{names.DRIVER}/{names.CAPACITY_CORES}"]
    assert f"'{exclusive.ELSEWHERE}'" in policy["validations"][0]["expression"]
    assert f"annotation {names.SHARE} or {names.MIG_PROFILE} on the pod" in policy["validations"][0]["message"]
    slices = objects("policies.gpus[0].mig=dynamic", "policies.gpus[0].exclusiveTo=namespace")
    variables = slices["ValidatingAdmissionPolicy", "gpu-topology-exclusive"]["spec"]["variables"]
    assert yaml.safe_load(variables[1]["expression"]) == [names.MIG_CLASS]
    assert {names.CAPACITY_MEMORY_SLICES, names.CAPACITY_COMPUTE_SLICES} < set(
        yaml.safe_load(variables[2]["expression"])
    )
    addon = objects(*VARIANTS["exclusive"], *VARIANTS["addon"])
    assert (kinds[0], "gpu-topology-exclusive") not in addon


def test_only_namespaces_of_tenants_with_a_partition_are_kept_from_what_the_scheduler_places() -> None:
    """A binding of all namespaces would refuse every static pod of the cluster."""
    rendered = objects(*VARIANTS["partitions"])
    only = {key for key in rendered if key not in objects()}
    names = ("gpu-topology-partitions", "gpu-topology-partitions-claims")
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert only == {(kind, name) for kind in kinds for name in names}
    for name in names:
        binding = rendered["ValidatingAdmissionPolicyBinding", name]["spec"]
        (where,) = binding["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert (where["key"], where["operator"]) == ("kubernetes.io/metadata.name", "In")
        assert where["values"] == ["team-vision", "vision"]
        assert binding["validationActions"] == ["Deny"]
    pods, claims = (rendered["ValidatingAdmissionPolicy", name]["spec"] for name in names)
    (rule,) = pods["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods"], ["CREATE", "UPDATE"])
    assert "matchConditions" not in claims, "the controller is bound, too"
    by, _ = claims["variables"]
    account = workload("controller")["spec"]["template"]["spec"]["serviceAccountName"]
    assert by["expression"] == f"request.userInfo.username == 'system:serviceaccount:gpu-topology:{account}'"


@pytest.mark.parametrize(
    ("settings", "classes"),
    [
        ((), {f"{kind}gpu.topology" for kind in ("", "share.", "mig.", "amd.", "ascend.")}),
        (("allocatingDriver=gpu.nvidia.com",), {"gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"}),
    ],
)
def test_claims_of_every_class_that_gives_gpus_are_kept_out_of_a_partition(
    settings: tuple[str, ...], classes: set[str]
) -> None:
    rendered = objects(*VARIANTS["partitions"], *settings)
    policy = rendered["ValidatingAdmissionPolicy", "gpu-topology-partitions-claims"]["spec"]
    _, validation = policy["validations"]
    assert set(re.findall('"([a-z.]+)"', validation["expression"])) == classes
    made = {key[1] for key in rendered if key[0] == "DeviceClass"} - {"seat.gpu.topology"}
    assert made <= classes


def limits_refused(name: str, *settings: str) -> Callable[[dict[str, str]], bool]:
    """Return what a variable of the policy on pods in a partition says of a container's limits."""
    rendered = objects(*VARIANTS["partitions"], *settings)
    variables = rendered["ValidatingAdmissionPolicy", "gpu-topology-partitions"]["spec"]["variables"]
    (expression,) = (one["expression"] for one in variables if one["name"] == name)
    (pattern,) = re.findall(r"matches\( ?'(.*)'\)", expression)

    def found(limits: dict[str, str]) -> bool:
        text = "{" + ", ".join(f'"{key}": "{value}"' for key, value in limits.items()) + "}"
        return re.search(pattern, text) is not None

    return found


def test_the_limits_that_a_partition_refuses_are_those_that_the_webhook_would_translate() -> None:
    found = limits_refused("limits")
    ours = (*container_limits.NAMES, "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.A100-SXM4-40GB", "nvidia.com/vgpu")
    for name in ours:
        assert found({"cpu": "3", name: "1"}), name
        assert found({name: "10", "memory": "1Gi"}), name
        assert not found({name: "0", "cpu": "3"}), name
    assert not found({"cpu": "1", "example.com/gpus": "1", "memory": "3Gi", "rdma/hca": "1"})


@pytest.mark.parametrize("ledger", ["", "gpu.nvidia.com", "gpu.amd.com"])
def test_extended_resources_of_every_class_that_gives_gpus_are_kept_out_of_a_partition(ledger: str) -> None:
    named = "" if ledger else "example.com/gpu"
    settings = [f"allocatingDriver={ledger}"] if ledger else [f"deviceClass.extendedResourceName={named}"]
    found = limits_refused("extended", *settings)
    rendered = objects(*VARIANTS["partitions"], *settings)
    policy = rendered["ValidatingAdmissionPolicy", "gpu-topology-partitions-claims"]["spec"]["validations"][1]
    for name in re.findall('"([a-z.]+)"', policy["expression"]):
        resource = f"deviceclass.resource.kubernetes.io/{name}"
        assert found({"cpu": "3", resource: "1"}), resource
        assert not found({resource: "0"}), resource
        assert not found({f"{resource}-2": "1", f"x{resource}": "1"}), resource
    assert found({"example.com/gpu": "2"}) == bool(named)
    assert not found({"example.com/gpus": "2", "cpu": "1"})


def test_an_extended_resource_that_the_webhook_translates_is_told_as_such() -> None:
    """One advice for each limit: labelling the namespace is of no use for what the webhook does not translate."""
    named = f"deviceClass.extendedResourceName={names.GPU_RESOURCE}"
    assert limits_refused("limits", named)({names.GPU_RESOURCE: "1"})
    assert not limits_refused("extended", named)({names.GPU_RESOURCE: "1"})


def test_namespaces_that_are_a_tenants_by_their_labels_are_kept_so_too() -> None:
    settings = (
        "policies.tenants.vision.namespaceLabels.team=vision",
        "policies.tenants.vision.partition.numbers[0]=1",
        "policies.tenants.other-team.namespaces[0]=elsewhere",
    )
    rendered = objects(*settings)
    bindings = {key[1] for key in rendered if key not in objects() and key[0] == "ValidatingAdmissionPolicyBinding"}
    assert bindings == {"gpu-topology-partitions-of-vision", "gpu-topology-partitions-claims-of-vision"}
    for name in bindings:
        binding = rendered["ValidatingAdmissionPolicyBinding", name]["spec"]
        assert binding["policyName"] == name.removesuffix("-of-vision")
        where = binding["matchResources"]["namespaceSelector"]
        assert where["matchLabels"] == {"team": "vision"}
        (named,) = where["matchExpressions"]
        assert (named["operator"], named["values"]) == ("NotIn", ["elsewhere"])


@pytest.mark.parametrize(("partition", "bound"), [("{}", True), ("null", False)])
def test_a_partition_of_all_gpus_is_one(partition: str, bound: bool, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(f"policies: {{tenants: {{all: {{namespaces: [x], partition: {partition}}}}}}}")
    assert ("name: gpu-topology-partitions\n" in template(values=values)) == bound
