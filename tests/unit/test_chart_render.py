"""What Helm makes of the chart."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dradriver.api import names
from dradriver.controller.main import LEASE
from tests import needs
from tests.paths import REPO

pytestmark = pytest.mark.helm
CHART = REPO / "helm" / "gpu-topology-dra"
KUBERNETES = ("1.34.4", "1.35.4", "1.36.3", "1.37.0")
SIMULATED = ("discovery=simulated", "simulated.default=dgx-h100")
VARIANTS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "simulated": (*SIMULATED, "simulated.machines.node-a=dgx1-v100", "simulated.machines.b=dgx-h100"),
    "mounted": (
        "webhook.certificates.mode=mounted",
        "webhook.certificates.secretName=tls",
        "webhook.certificates.caBundle=YWI=",
        "webhook.configurationAnnotations.a/b=c",
        "networkPolicy.enabled=false",
    ),
    "mps": ("mps.enabled=true", "driverRoot=/run/nvidia/driver", "kubeletRoot=/data/kubelet"),
    "bare": (
        "node.priorityClassName=",
        "controller.priorityClassName=",
        "node.tolerations=null",
        "node.resources=null",
    ),
    "full": (
        "imagePullSecrets[0].name=pull",
        "logFormat=json",
        "verbose=true",
        "node.besideDevicePlugin=true",
        "node.nodeSelector.gpu=yes",
        "node.podAnnotations.a=b",
        "controller.tolerations[0].operator=Exists",
        "controller.replicas=1",
        "webhook.excludedNamespaces[0]=monitoring",
        "driverRoot=/run/nvidia/driver",
        "kubeletRoot=/data/kubelet",
        "cdiRoot=/etc/cdi",
        "networkPolicy.apiServerCidrs[0]=10.0.0.0/28",
        "networkPolicy.apiServerCidrs[1]=fd00::/64",
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring",
    ),
}


@functools.cache
def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(needs.helm()), *arguments], capture_output=True, text=True, check=False, cwd=REPO)


def template(*settings: str, namespace: str = "gpu-topology", kubernetes: str = "1.36.3") -> str:
    done = run(
        *("template", "gpu-topology", str(CHART), "--namespace", namespace, "--kube-version", kubernetes),
        *(word for setting in settings for word in ("--set", setting)),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(*settings: str, kubernetes: str = "1.36.3") -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rendered objects by kind and name; two of one name are an error."""
    documents = [d for d in yaml.safe_load_all(template(*settings, kubernetes=kubernetes)) if d]
    found = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    assert len(found) == len(documents)
    return found


@functools.cache
def validate(document: str, minor: str) -> None:
    """Check an object strictly; most objects of two variants are the same."""
    kubernetes_validate.validate(yaml.safe_load(document), minor, strict=True)


def workload(part: str, *settings: str) -> dict[str, Any]:
    kind = "DaemonSet" if part in ("node", "mps") else "Deployment"
    return objects(*settings)[kind, f"gpu-topology-{part}"]


def container(part: str, *settings: str) -> dict[str, Any]:
    (found,) = workload(part, *settings)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def rules(kind: str, part: str) -> list[tuple[str, str, tuple[str, ...], set[str]]]:
    """Each rule as group, resource, names and verbs."""
    return [
        (group, resource, tuple(rule.get("resourceNames", ())), set(rule["verbs"]))
        for rule in objects()[kind, f"gpu-topology-{part}"]["rules"]
        for group, resource in itertools.product(rule["apiGroups"], rule["resources"])
    ]


def test_lint() -> None:
    done = run("lint", "--strict", str(CHART), "--namespace", "gpu-topology")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_object_is_valid(variant: str, kubernetes: str) -> None:
    rendered = objects(*VARIANTS[variant], kubernetes=kubernetes)
    for document in rendered.values():
        validate(yaml.safe_dump(document), kubernetes.rpartition(".")[0])
    assert {kind for kind, _ in rendered} >= {
        *("DaemonSet", "Deployment", "Service", "DeviceClass", "PodDisruptionBudget", "ServiceAccount"),
        *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy"),
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_rendering_twice_gives_the_same_bytes(variant: str) -> None:
    command = ("template", "gpu-topology", str(CHART), "--namespace", "x", "--set", ",".join(VARIANTS[variant]))
    first, second = run(*command), run.__wrapped__(*command)
    assert first.stdout
    assert first.stdout == second.stdout


@pytest.mark.parametrize(
    ("settings", "namespace", "cure"),
    [
        ((), "default", "--namespace gpu-topology --create-namespace"),
        (("discovery=simulated",), "x", "simulated.default=dgx-h100"),
        (("simulated.default=dgx-h100",), "x", "--set discovery=simulated"),
        (("webhook.replicas=1",), "x", "set webhook.replicas to 2"),
        (("webhook.certificates.mode=mounted",), "x", "set webhook.certificates.secretName"),
        (("webhook.certificates.caBundle=YWI=",), "x", "set webhook.certificates.mode to mounted"),
        (("deviceClass.extendedResourceName=nvidia.com/gpu",), "x", "leave it empty"),
        (("controller.leaderElection.renewDeadline=15",), "x", "15, 10 and 2 are good"),
        (("disovery=simulated",), "x", "'disovery' not allowed"),
        (("node.privileged=true",), "x", "'privileged' not allowed"),
    ],
)
def test_bad_values_are_refused_with_the_cure(settings: tuple[str, ...], namespace: str, cure: str) -> None:
    done = run(
        *("template", "g", str(CHART), "--namespace", namespace, "--kube-version", "1.35.4"),
        *(word for setting in settings for word in ("--set", setting)),
    )
    assert done.returncode != 0
    assert cure in done.stderr


def test_an_older_kubernetes_is_refused() -> None:
    done = run("template", "g", str(CHART), "--namespace", "x", "--kube-version", "1.33.9")
    assert "chart requires kubeVersion" in done.stderr


@pytest.mark.parametrize("part", ["node", "controller", "webhook", "mps"])
def test_each_process_knows_its_flags(part: str) -> None:
    """The chart and the code agree: every flag that any variant of the chart writes is in the process's help."""
    flags = set()
    for variant, settings in VARIANTS.items():
        if part == "mps" and variant != "mps":
            continue
        name, *rest = container(part, *settings)["args"]
        rest = rest if part == "webhook" else rest[1:]
        assert name == ("webhook" if part == "webhook" else "dradriver")
        flags |= {argument.partition("=")[0] for argument in rest}
    module = ["webhook"] if part == "webhook" else ["dradriver", part]
    done = subprocess.run(
        [sys.executable, "-m", *module, "--help"], check=False, capture_output=True, text=True, cwd=REPO
    )
    assert done.returncode == 0, done.stderr
    assert {flag for flag in flags if flag not in done.stdout} == set()


def test_no_role_has_a_wildcard() -> None:
    roles = [document for (kind, _), document in objects().items() if kind in ("Role", "ClusterRole")]
    assert len(roles) == 5
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
            {"get", "list", "watch", "create", "update", "delete"},
        ),
        ("resource.k8s.io", "resourceclaims", (), {"get"}),
        ("resource.k8s.io", "resourceclaims/status", (), {"patch"}),
        ("resource.k8s.io", "resourceclaims/driver", ("gpu.topology",), {"associated-node:patch"}),
        ("", "events", (), {"create", "patch"}),
        ("", "nodes", (), {"get", "list", "watch"}),
    ]


def test_least_privilege_of_the_controller() -> None:
    reads = {"get", "list", "watch"}
    assert rules("ClusterRole", "controller") == [
        ("", "pods", (), reads | {"patch"}),
        ("", "nodes", (), reads),
        ("resource.k8s.io", "resourceslices", (), reads),
        ("resource.k8s.io", "deviceclasses", (), reads),
        ("resource.k8s.io", "resourceclaims", (), reads | {"create", "patch", "delete"}),
        ("", "events", (), {"create", "patch"}),
    ]
    assert rules("Role", "controller") == [
        ("coordination.k8s.io", "leases", (LEASE,), {"get", "update"}),
        ("coordination.k8s.io", "leases", (), {"create"}),
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


@pytest.mark.parametrize(
    ("root", "inside"), [("/", "/host"), ("/run/nvidia/driver", "/host/run/nvidia/driver"), ("/opt", "/host/opt")]
)
def test_a_node_agent_of_real_gpus_sees_the_hosts_files_and_whatever_is_mounted_there_later(
    root: str, inside: str
) -> None:
    settings = (f"driverRoot={root}",)
    only, spec = container("node", *settings), workload("node", *settings)["spec"]["template"]["spec"]
    assert {f"--driver-root={inside}", "--host-root=/host", "--discovery=nvml"} <= set(only["args"])
    assert only["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    (seen,) = [mount for mount in only["volumeMounts"] if mount["name"] in paths and mount.get("readOnly")]
    assert paths[seen["name"]] == "/"
    assert seen | {"name": ""} == {
        "name": "",
        "mountPath": "/host",
        "readOnly": True,
        "mountPropagation": "HostToContainer",
    }
    # What a read-only host refuses to make is not asked for.
    made = {path for path in paths.values() if path.startswith("/etc")}
    assert made == set()
    assert not {"hostNetwork", "hostIPC"} & set(spec)
    assert spec["hostPID"] is True  # else NVML names no process


def test_what_nccl_is_told_reaches_the_node_agent() -> None:
    own = {"--nccl-server", "--nccl-tuning"}
    assert not own & {word.partition("=")[0] for word in container("node")["args"]}
    told = container("node", "nccl.servers.p5\\.48xlarge=hgx-h100", "nccl.tuning=auto")["args"]
    assert {"--nccl-server=p5.48xlarge=hgx-h100", "--nccl-tuning=auto"} <= set(told)


def test_host_folders_are_mounted_at_the_same_path() -> None:
    """The kubelet dials, and the runtime mounts, what the agent names (kubelet_behaviour, trap 17)."""
    settings = (*SIMULATED, "kubeletRoot=/data/kubelet", "cdiRoot=/etc/cdi")
    volumes = workload("node", *settings)["spec"]["template"]["spec"]["volumes"]
    on_host = {volume["name"]: volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}
    inside = {mount["name"]: mount["mountPath"] for mount in container("node", *settings)["volumeMounts"]}
    assert on_host == {
        "plugin": "/data/kubelet/plugins/gpu.topology",
        "registry": "/data/kubelet/plugins_registry",
        "cdi": "/etc/cdi",
    }
    assert on_host.items() <= inside.items()


def test_an_upgrade_leaves_no_gap() -> None:
    assert workload("node")["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert workload("webhook")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert container("webhook")["lifecycle"]["preStop"]["sleep"]["seconds"] > 0


def test_selectors_hold_nothing_that_a_version_changes() -> None:
    keys = {f"app.kubernetes.io/{key}" for key in ("name", "instance", "component")}
    for part in ("node", "controller", "webhook"):
        spec = workload(part)["spec"]
        assert set(spec["selector"]["matchLabels"]) == keys
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_mps_is_off_until_it_is_asked_for() -> None:
    assert [name for _, name in objects() if name.endswith("-mps")] == []
    assert "--mps" not in container("node")["args"]
    simulated = objects(*SIMULATED, "mps.enabled=true")  # nothing runs there, and the agent's hardware is a file
    assert [name for _, name in simulated if name.endswith("-mps")] == []
    assert "--mps" in container("node", *SIMULATED, "mps.enabled=true")["args"]


def test_an_upgrade_leaves_the_daemons_of_shares_alone() -> None:
    only, spec = container("mps", *VARIANTS["mps"]), workload("mps", *VARIANTS["mps"])["spec"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    pod = spec["template"]["spec"]
    assert (pod["automountServiceAccountToken"], pod["hostPID"]) == (False, True)
    assert not {"hostNetwork", "hostIPC"} & set(pod)
    assert "limits" not in only["resources"]
    plugin = "/data/kubelet/plugins/gpu.topology"
    assert {f"--state-dir={plugin}", "--driver-root=/host/run/nvidia/driver"} <= set(only["args"])
    mounts = {mount["name"]: mount for mount in only["volumeMounts"]}
    assert (mounts["plugin"]["mountPath"], mounts["plugin"]["mountPropagation"]) == (plugin, "Bidirectional")
    assert mounts["host"]["readOnly"]
    rendered = objects(*VARIANTS["mps"])
    assert [name for kind, name in rendered if "Role" in kind and "mps" in name] == []
    (rule,) = rendered["NetworkPolicy", "gpu-topology-mps"]["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [port["containerPort"] for port in only["ports"]]


def test_simulated_machines_are_told_to_the_agent_in_order() -> None:
    arguments = container("node", *VARIANTS["simulated"])["args"]
    assert [a for a in arguments if a.startswith("--simulated")] == [
        "--simulated-default=dgx-h100",
        "--simulated-machine=b=dgx-h100",
        "--simulated-machine=node-a=dgx1-v100",
    ]


def test_the_webhooks_reach_only_what_is_ours() -> None:
    hooks = {
        hook["name"]: hook
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for hook in objects()[kind, "gpu-topology-webhook"]["webhooks"]
    }
    assert {name: hook["failurePolicy"] for name, hook in hooks.items()} == {
        "create.pods.gpu.topology": "Fail",
        "update.pods.gpu.topology": "Ignore",
        "claims.gpu.topology": "Fail",
    }
    for hook in hooks.values():
        assert hook["sideEffects"] == "None"
        assert hook["timeoutSeconds"] == 5
        assert hook["matchConditions"]
        assert "caBundle" not in hook["clientConfig"]
        (excluded,) = hook["namespaceSelector"]["matchExpressions"]
        assert excluded["operator"] == "NotIn"
        assert excluded["values"] == ["kube-system", "gpu-topology"]
    user = next(a for a in container("webhook")["args"] if a.startswith("--controller-user=")).partition("=")[2]
    for name in ("update.pods.gpu.topology", "claims.gpu.topology"):
        assert f"!= '{user}'" in hooks[name]["matchConditions"][0]["expression"]


def test_the_slices_policy_is_about_the_account_that_the_agent_uses() -> None:
    """A policy about an account that nobody uses protects nothing."""
    policy = objects()["ValidatingAdmissionPolicy", "gpu-topology-slices"]["spec"]
    account = workload("node")["spec"]["template"]["spec"]["serviceAccountName"]
    assert f"'system:serviceaccount:gpu-topology:{account}'" in policy["matchConditions"][0]["expression"]
    assert policy["failurePolicy"] == "Fail"
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert set(rule["operations"]) == {"CREATE", "UPDATE", "DELETE"}
    binding = objects()["ValidatingAdmissionPolicyBinding", "gpu-topology-slices"]["spec"]
    assert binding == {"policyName": "gpu-topology-slices", "validationActions": ["Deny"]}


def test_the_claims_policy_is_about_everybody_but_the_account_that_the_controller_uses() -> None:
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


def test_the_device_class_takes_an_extended_resource_name() -> None:
    assert "extendedResourceName" not in objects()["DeviceClass", "gpu.topology"]["spec"]
    named = objects("deviceClass.extendedResourceName=nvidia.com/gpu")["DeviceClass", "gpu.topology"]
    assert named["spec"]["extendedResourceName"] == "nvidia.com/gpu"


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
