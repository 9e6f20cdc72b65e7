"""What Helm makes of the chart."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dradriver.api.policies.policies_reader import read
from dradriver.api.policies.policy_sections import DEFAULTS, plain
from dradriver.topology.vendors import NVIDIA, VENDORS
from tests import schema
from tests.fakes.chart import CHART, KUBERNETES, SIMULATED, VARIANTS, container, objects, run, template, workload
from tests.paths import REPO
from tests.unit.chart.test_values import example

pytestmark = pytest.mark.helm


@functools.cache
def validate(document: str, minor: str) -> None:
    """Check an object strictly; most objects of two variants are the same."""
    schema.check(json.loads(document), minors=(minor,))


def test_lint() -> None:
    done = run("lint", "--strict", str(CHART), "--namespace", "gpu-topology")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_object_is_valid(variant: str, kubernetes: str) -> None:
    rendered = objects(*VARIANTS[variant], kubernetes=kubernetes)
    for document in rendered.values():
        if document["apiVersion"] != "cert-manager.io/v1":  # test_certificates.py
            validate(json.dumps(document, sort_keys=True), kubernetes.rpartition(".")[0])
    assert {kind for kind, _ in rendered} >= {
        *("DaemonSet", "Deployment", "Service", "PodDisruptionBudget", "ServiceAccount"),
        *(() if variant == "addon" else ("DeviceClass",)),
        *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy"),
    }


def nodes_of(part: str, *settings: str) -> Any:
    """Return the node selector and the terms of the required node affinity of a part's pods."""
    spec = workload(part, *settings)["spec"]["template"]["spec"]
    required = (
        spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    )
    terms = [term["matchExpressions"] for term in required.get("nodeSelectorTerms", ())]
    assert all(len(term) == 1 for term in terms), "any of the labels is enough"
    return spec.get("nodeSelector"), [f"{e['key']}={e['values'][0]}" if "values" in e else e["key"] for [e] in terms]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["node", "mps"])
def test_the_privileged_agents_run_where_a_label_says_that_there_are_gpus(part: str) -> None:
    mps = VARIANTS["mps"]
    selector, labels = nodes_of(part, *mps)
    assert selector is None
    assert {"nvidia.com/gpu.present=true", "feature.node.kubernetes.io/pci-10de.present=true"} < set(labels)
    assert labels == yaml.safe_load((CHART / "values.yaml").read_text())["node"]["gpuLabels"]
    assert nodes_of(part, *mps, f"{part}.nodeSelector.gpu=yes-0") == ({"gpu": "yes-0"}, [])
    assert nodes_of(part, *mps, "node.gpuLabels=null") == (None, [])
    assert nodes_of(part, *mps, "node.gpuLabels={a.example.com/b,c=d}") == (None, ["a.example.com/b", "c=d"])
    assert nodes_of(part, *mps, "node.nodeSelector.gpu=a") == ({"gpu": "a"}, []), "MPS is where the agent is"
    assert nodes_of(part, *mps, "node.gpuLabels={123=456}") == (None, ["123=456"])
    assert nodes_of("controller", *mps) == (None, [])


@pytest.mark.parametrize("code", ["0302", "0300"])
def test_nfds_own_labels_are_enough(code: str) -> None:
    """Its default names class and vendor (deviceLabelFields); NVIDIA's charts configure the vendor alone."""
    _, labels = nodes_of("node")
    assert f"feature.node.kubernetes.io/pci-{code}_10de.present=true" in labels


def test_mps_can_be_on_fewer_nodes_than_the_agent() -> None:
    settings = (*VARIANTS["mps"], "node.nodeSelector.gpu=a", "mps.nodeSelector.shared=b")
    assert (nodes_of("node", *settings)[0], nodes_of("mps", *settings)[0]) == ({"gpu": "a"}, {"shared": "b"})


def test_simulated_gpus_are_on_all_nodes() -> None:
    assert nodes_of("node", *SIMULATED) == (None, [])


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_rendering_twice_gives_the_same_bytes(variant: str) -> None:
    command = ("template", "gpu-topology", str(CHART), "--namespace", "x", "--set", ",".join(VARIANTS[variant]))
    first, second = run(*command), run.__wrapped__(*command)
    assert first.stdout
    assert first.stdout == second.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "namespace", "cure"),
    [
        ((), "default", "--namespace gpu-topology --create-namespace"),
        (("discovery=simulated",), "x", "simulated.default=dgx-h100"),
        (("simulated.default=dgx-h100",), "x", "--set discovery=simulated"),
        (("webhook.replicas=1",), "x", "Set webhook.replicas to 2"),
        (
            ("allocatingDriver=gpu.nvidia.com", "mps.enabled=true"),
            "x",
            "Set mps.enabled to false, or allocatingDriver to gpu.topology",
        ),
        (
            ("allocatingDriver=gpu.nvidia.com", "deviceClass.extendedResourceName=nvidia.com/gpu"),
            "x",
            "Leave the value empty",
        ),
        (("webhook.certificates.mode=mounted",), "x", "Set webhook.certificates.secretName"),
        (
            ("webhook.certificates.mode=certManager", "webhook.certificates.caBundle=YWI="),
            *("x", "Leave caBundle empty"),
        ),
        (("webhook.certificates.caBundle=YWI=",), "x", "Set webhook.certificates.mode to mounted"),
        (("deviceClass.extendedResourceName=nvidia.com/gpu",), "x", "Leave the value empty"),
        (("deviceClass.extendedResourceName=a.kubernetes.io/gpu",), "x", "for example nvidia.com/gpu"),
        (("deviceClass.extendedResourceName=requests.nvidia.com/gpu",), "x", "for example nvidia.com/gpu"),
        ((f"deviceClass.extendedResourceName=nvidia.com/{'x' * 64}",), "x", "for example nvidia.com/gpu"),
        (("controller.leaderElection.renewDeadline=15",), "x", "The defaults are 15, 10 and 2"),
        (("nccl.tuning=auto",), "x", "with the same servers and tuning"),
        (("nccl.server=x",), "x", "with the same servers and tuning"),
        (("nccl.servers.p5=hgx-h100",), "x", "with the same servers and tuning"),
        (("disovery=simulated",), "x", "'disovery' not allowed"),
        (("node.privileged=true",), "x", "'privileged' not allowed"),
        (("controller.gangOwners.PodGroup.suspend=true",), "x", "'suspend' not allowed"),
        (("controller.gangOwners.RayJob.read=true",), "x", "'RayJob' not allowed"),
    ],
)
def test_bad_values_are_refused_with_the_cure(settings: tuple[str, ...], namespace: str, cure: str) -> None:
    done = run(
        *("template", "g", str(CHART), "--namespace", namespace, "--kube-version", "1.35.4"),
        *(word for setting in settings for word in ("--set", setting)),
    )
    assert done.returncode != 0
    assert cure in done.stderr


@pytest.mark.slow
def test_an_upgrade_that_reuses_the_values_of_an_older_chart_renders_the_same() -> None:
    """--reuse-values has the older chart's defaults in the place of this one's, so what is new is not there."""
    assert template("nccl.servers=null", "nccl.tuning=", "policies=null", "openshift=null") == template()
    for value in (
        *("mps", "allocatingDriver", "networkPolicy", "webhook.translate", "controller.gangOwners"),
        *(
            "viewer",
            "priorityQuota",
            "page",
            "metrics",
            "nameOverride",
            "fullnameOverride",
            "node.affinity",
            "node.podLabels",
        ),
        *("webhook.certificates.certManager", "webhook.topologySpreadConstraints"),
    ):
        assert template(f"{value}=null") == template(), value
    without = [line for line in template().splitlines() if not re.search("--(placement|unschedulable)-timeout=", line)]
    assert template("controller.tentativePlacement=null").splitlines() == without


def test_a_value_that_was_renamed_is_refused_with_its_new_name() -> None:
    renamed = {
        "ledger=gpu.nvidia.com": "allocatingDriver",
        "sysRoot=/x": "deviceRoot",
        "node.besideDevicePlugin=true": "node.allowDevicePlugin",
        "controller.evictions=true": "controller.idleEviction",
        "controller.promise.kept=20": "controller.tentativePlacement with timeoutSeconds",
        "page.from[0].podSelector.matchLabels.app=proxy": "networkPolicy.pageFrom",
    }
    done = run("template", "g", str(CHART), "--namespace", "x", *(word for old in renamed for word in ("--set", old)))
    assert done.returncode != 0
    assert [new for new in renamed.values() if f"renamed: write {new}" not in done.stderr] == []


def test_an_upgrade_that_reuses_values_and_wants_mps_is_told_how() -> None:
    done = run(
        *("template", "g", str(CHART), "--namespace", "x", "--kube-version", "1.36.3"),
        *("--set-json", 'mps={"enabled": true, "healthPort": null}'),
    )
    assert done.returncode != 0
    assert "--reset-then-reuse-values" in done.stderr


def test_an_older_kubernetes_is_refused() -> None:
    done = run("template", "g", str(CHART), "--namespace", "x", "--kube-version", "1.33.9")
    assert "chart requires kubeVersion" in done.stderr


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("root", "inside"), [("/", "/host"), ("/run/nvidia/driver", "/host/run/nvidia/driver"), ("/opt", "/host/opt")]
)
def test_a_node_agent_of_real_gpus_sees_the_hosts_files_and_later_mounts(root: str, inside: str) -> None:
    settings = (f"driverRoot={root}",)
    only, spec = container("node", *settings), workload("node", *settings)["spec"]["template"]["spec"]
    assert {f"--driver-root={inside}", "--host-root=/host", "--discovery=auto"} <= set(only["args"])
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


@pytest.mark.parametrize("part", ["node", "controller", "webhook"])
def test_every_part_reads_the_policies_file_from_a_folder_of_its_configmap(part: str) -> None:
    only, spec = container(part), workload(part)["spec"]["template"]["spec"]
    (argument,) = [word for word in only["args"] if word.startswith("--policies=")]
    folder, _, name = argument.partition("=")[2].rpartition("/")
    (mount,) = [mount for mount in only["volumeMounts"] if mount["mountPath"] == folder]
    assert (mount["readOnly"], "subPath" in mount) == (True, False), "the kubelet changes no file mounted by itself"
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == mount["name"]]
    assert name in objects()["ConfigMap", volume["configMap"]["name"]]["data"]
    assert not spec.get("subPath")
    # A change is followed: no checksum of it restarts anything.
    changed = workload(part, "policies.nccl.tuning=auto")
    assert changed == workload(part)


def test_the_policies_of_the_values_are_the_file(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"policies": yaml.safe_load(example())}))
    rendered = [d for d in yaml.load_all(template(values=values), yaml.CSafeLoader) if d and d["kind"] == "ConfigMap"]
    ((name, text),) = rendered[0]["data"].items()
    assert name == "policies.yaml"
    found = read(text.encode(), source=name)
    assert plain(found) == plain(read(example().encode(), source="values.yaml"))
    assert {"colocate-nvlink", "spread-across-az", "gpu-share-small"} == found.policies.keys()
    ((name, text),) = objects()["ConfigMap", "gpu-topology-policies"]["data"].items()
    assert plain(read(text.encode(), source=name)) == plain(DEFAULTS)


def test_what_helm_makes_of_words_is_what_was_meant(tmp_path: Path) -> None:
    """YAML 1.1 has bools that are words here, and numbers that lose their zeros."""
    values = tmp_path / "values.yaml"
    values.write_text(
        "policies:\n  gpus: [{mig: off}]\n"
        "  policies: {a: {nccl: off, require-nvlink: true, min-bandwidth: 100, min-busbw: 12.50, min-memory: 40Gi}}\n"
    )
    rendered = [d for d in yaml.load_all(template(values=values), yaml.CSafeLoader) if d and d["kind"] == "ConfigMap"]
    found = read(rendered[0]["data"]["policies.yaml"].encode(), source="x")
    assert found.gpus[0].mig == "off"
    assert found.policies["a"] == {
        "nccl": "off",
        "require-nvlink": "true",
        "min-bandwidth": "100",
        "min-busbw": "12.5",
        "min-memory": "40Gi",
    }


def test_a_bad_policy_fails_with_its_place_before_anything_is_installed() -> None:
    setting = ("--set", "policies.gpus[0].mig=dynamc")
    for command in (("template", "gpu-topology"), ("lint",)):
        done = run(*command, str(CHART), "--namespace", "gpu-topology", *setting)
        assert done.returncode != 0
        assert "/policies/gpus/0/mig" in (told := done.stdout + done.stderr)
        assert "dynamic" in told


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


def test_the_device_class_takes_an_extended_resource_name() -> None:
    assert "extendedResourceName" not in objects()["DeviceClass", "gpu.topology"]["spec"]
    named = objects("deviceClass.extendedResourceName=nvidia.com/gpu")["DeviceClass", "gpu.topology"]
    assert named["spec"]["extendedResourceName"] == "nvidia.com/gpu"


def test_each_vendor_has_a_class_that_selects_its_whole_gpus_alone() -> None:
    plain, named = objects(), objects("deviceClass.extendedResourceName=nvidia.com/gpu")
    attributes = 'device.attributes["gpu.topology"]'
    for vendor in VENDORS.values():
        spec = plain["DeviceClass", vendor.device_class]["spec"]
        (selector,) = spec["selectors"]
        assert "extendedResourceName" not in spec
        absent = '"nvidia"' if vendor is NVIDIA else '""'
        assert selector["cel"]["expression"].split(" && ") == [
            'device.driver == "gpu.topology"',
            f'{attributes}.?type.orValue("") == "{vendor.type}"',
            f'{attributes}.?vendor.orValue({absent}) == "{vendor.word}"',
        ]
        assert named["DeviceClass", vendor.device_class]["spec"]["extendedResourceName"] == vendor.resources[0]
    for part in ("share", "mig"):
        (selector,) = plain["DeviceClass", f"{part}.gpu.topology"]["spec"]["selectors"]
        assert selector["cel"]["expression"].endswith(f' && {attributes}.?vendor.orValue("nvidia") == "nvidia"')
    taken = objects("deviceClass.extendedResourceName=amd.com/gpu")
    assert "extendedResourceName" not in taken["DeviceClass", "amd.gpu.topology"]["spec"], "two classes cannot have it"
