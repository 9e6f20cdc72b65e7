"""``gputopo verify`` of a cluster: what is missing or wrong is said with its cure."""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dradriver import __version__
from dradriver.api.base import allocating_driver, gang_barrier_device, names
from dradriver.api.policies.policies_reader import read
from dradriver.api.slices import resource_slices
from dradriver.cli.main import main
from dradriver.cli.verifier import cluster_checks, driver_pods, machine_checks, webhook_checks
from dradriver.cli.verifier import job as job_of
from dradriver.cli.verifier.finding import Status
from dradriver.cli.verify import verify
from dradriver.kube.resources import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEVICE_CLASSES,
    LEASES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    RESOURCE_SLICES,
    SECRETS,
    VALIDATING_WEBHOOKS,
)
from dradriver.topology import profiles
from tests.fakes import chart, nvidia
from tests.fakes.commands import CommandLine
from tests.fakes.faults import Fault
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.installed import policies_map, webhook_configuration
from webhook import certificates

OURS = "gpu-topology"
DENIED = (
    "admission webhook \"pods.gpu.topology\" denied the request: gpu.topology/min-driver: 'no-version' is no version"
)


def part(
    name: str, node: str = "n1", *, ready: str = "True", image: str = "gpu-topology-dra:1", more: Sequence[str] = ()
) -> dict[str, Any]:
    words = ["dradriver", "node", "--driver-root=/host/run/d", "--cdi-root=/etc/cdi", *more]
    labels = {
        "app.kubernetes.io/component": name, "app.kubernetes.io/part-of": "gpu-topology",
        "app.kubernetes.io/version": __version__,
    }  # fmt: skip
    return {
        "metadata": {"name": f"{name}-{node}", "namespace": OURS, "labels": labels},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "agent",
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [
                {"name": "injected", "image": "mesh:7"},
                {"name": name, "image": image, "args": words, "ports": [{"name": "health", "containerPort": 8081}]},
            ],
        },
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def authority(days: int) -> certificates.Bundle:
    """Return certificates with an authority that ends in so many days; the served certificate may have ended."""
    made = datetime.datetime.now(datetime.UTC) - certificates.AUTHORITY_LIFE + datetime.timedelta(days=days, hours=1)
    return certificates.renew(None, now=made, hosts=["x"])


def certified(days: int) -> certificates.Bundle:
    """Return certificates with an authority that ends in so many days, and with a served certificate of today."""
    return certificates.renew(authority(days), now=datetime.datetime.now(datetime.UTC), hosts=["x"])


def base64_of(pem: str) -> str:
    return base64.b64encode(pem.encode()).decode()


def bundle(days: int) -> str:
    """What the webhook publishes, so that it ends in so many days."""
    return base64_of(authority(days).authorities)


CLASSES = (*allocating_driver.OURS.vendor_of, names.SHARE_CLASS, names.MIG_CLASS, gang_barrier_device.CLASS)
REVIEWS = "selfsubjectaccessreviews"


@pytest.fixture
def well(cluster: GpuCluster, shell: CommandLine) -> GpuCluster:
    """A cluster where nothing is wrong."""
    cluster.node("n1")
    hook(cluster, bundle(300))
    info = {"kubeletVersion": "v1.37.2", "containerRuntimeVersion": "containerd://2.1.4"}
    node = cluster.find(NODES, "n1")
    assert node is not None
    cluster.put(NODES, node | {"status": node["status"] | {"nodeInfo": info}})
    for name in ("node", "controller", "webhook"):
        cluster.put(PODS, part(name))
    uses(shell, "node|webhook|controller", "{}\n")
    shell.api.fail(times=math.inf, method="GET", path="^/version$", body=b'{"gitVersion": "v1.37.2"}')
    for name in CLASSES:
        cluster.put(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": {}})
    lease(cluster, time.time())
    shell.api.fail(times=math.inf, method="POST", path=REVIEWS, status=201, body=b'{"status":{"allowed":true}}')
    shell.api.fail(times=math.inf, method="POST", path="/pods$", status=400, message=DENIED)
    return cluster


def uses(shell: CommandLine, processes: str, policies: str) -> Fault:
    """Have the metrics of these processes, of the node n1, say that they use the policies with this text."""
    digest = float(read(policies.encode(), source="x").digest)
    metrics = f"# TYPE gpu_topology_policies_digest gauge\ngpu_topology_policies_digest {digest!r}\n"
    path = f"/api/v1/namespaces/{OURS}/pods/({processes})-n1:8081/proxy/metrics$"
    return shell.api.fail(times=math.inf, method="GET", path=path, body=metrics.encode())


def lease(cluster: GpuCluster, renewed: float, policies: str | None = "{}\n", *, writer: str = "controller-a") -> None:
    """Have a controller lead, and this writer have noted that it uses the policies with this text, if any."""
    moment = datetime.datetime.fromtimestamp(renewed, datetime.UTC).isoformat().replace("+00:00", "Z")
    spec = {"holderIdentity": "controller-a", "renewTime": moment}
    metadata: dict[str, Any] = {"name": "gpu-topology-controller", "namespace": OURS}
    if policies is not None:
        fingerprint = read(policies.encode(), source="x").fingerprint
        metadata["annotations"] = {names.POLICIES: f"{writer}={fingerprint}"}
    cluster.put(LEASES, {"metadata": metadata, "spec": spec})


def hook(cluster: GpuCluster, ca: str, *, excluded: Sequence[str] = ()) -> None:
    service = {"name": "webhook", "namespace": OURS}
    rules = [{"operations": ["CREATE"], "resources": ["pods"]}]
    chosen = {
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [*excluded, OURS]}]
    }
    client = {"service": service, "caBundle": ca}
    hooks = [{"name": "pods", "clientConfig": client, "rules": rules, "namespaceSelector": chosen}]
    metadata = {"name": "hook", "labels": webhook_configuration(OURS)["metadata"]["labels"]}
    cluster.put(MUTATING_WEBHOOKS, {"metadata": metadata, "webhooks": hooks})


async def said(shell: CommandLine, *arguments: str, status: int = 0) -> dict[str, list[tuple[str, str]]]:
    result = await shell.run("verify", *arguments, "-o", "json")
    assert result.exit_code == status, result.output
    found: dict[str, list[tuple[str, str]]] = {}
    for one in json.loads(result.stdout)["findings"]:
        assert bool(one["cure"]) == (one["status"] != "PASS"), "what is wrong has a cure"
        found.setdefault(one["check"], []).append((one["status"], one["message"]))
    return found


async def test_where_all_is_well_nothing_but_pass_is_said(well: GpuCluster, shell: CommandLine) -> None:
    found = await said(shell)
    assert {status for every in found.values() for status, _ in every} == {"PASS"}, found
    assert found["slices"] == [("PASS", "1 node publishes a machine")]
    assert found["device-classes"] == [("PASS", ", ".join(sorted(CLASSES)))]
    assert found["policies"][0][1].startswith(
        "3 pods of controller, webhook and node agents use those of the ConfigMap, digest "
    )
    assert "refused a pod with a wrong annotation" in found["webhook-asked"][0][1]
    assert not [one for one in shell.api.requests if one.method == "POST" and one.path.endswith("/pods")
                and one.query.get("dryRun") != "All"], "no pod is made"  # fmt: skip


async def test_a_node_alone(well: GpuCluster, shell: CommandLine) -> None:
    well.node("n2", None)
    found = await said(shell, "n2", status=1)
    assert found["slices"][0][0] == "FAIL"
    assert "n2" in found["slices"][0][1]
    assert "webhook-asked" not in found
    result = await shell.run("verify", "n3")
    message = "Error: the cluster has no node n3. List the nodes: kubectl get nodes\n"
    assert (result.exit_code, result.stderr) == (2, message)


def _no_leader(cluster: GpuCluster) -> None:
    lease(cluster, time.time() - 3600)


def _no_class(cluster: GpuCluster) -> None:
    for name in (names.MIG_CLASS, "amd.gpu.topology", gang_barrier_device.CLASS):
        cluster.remove(DEVICE_CLASSES, name)


def _not_ready(cluster: GpuCluster) -> None:
    cluster.put(PODS, part("webhook", ready="False"))


def _no_agent(cluster: GpuCluster) -> None:
    cluster.remove(PODS, "node-n1", OURS)


def _two_images(cluster: GpuCluster) -> None:
    cluster.put(PODS, part("webhook", image="gpu-topology-dra:2"))


def _plugin(cluster: GpuCluster) -> None:
    cluster.node("n1", allocatable={"nvidia.com/gpu": "8"})


def _old_kubelet(cluster: GpuCluster) -> None:
    node = cluster.find(NODES, "n1")
    assert node is not None
    info = {"kubeletVersion": "v1.33.1", "containerRuntimeVersion": "containerd://1.7.20"}
    cluster.put(NODES, node | {"status": node["status"] | {"nodeInfo": info}})


def _future_leader(cluster: GpuCluster) -> None:
    lease(cluster, time.time() + 3600)


def _older_policies(cluster: GpuCluster) -> None:
    lease(cluster, time.time(), "weights: {nvlink: 1}")


def _older_controller(cluster: GpuCluster) -> None:
    lease(cluster, time.time(), None)


def _predecessors_policies(cluster: GpuCluster) -> None:
    lease(cluster, time.time(), writer="controller-b")


def _bad_policies(cluster: GpuCluster) -> None:
    cluster.put(CONFIG_MAPS, policies_map("gpu: []"))


async def test_the_cure_of_a_bad_file_names_the_release(well: GpuCluster, shell: CommandLine) -> None:
    _bad_policies(well)
    result = json.loads((await shell.run("verify", "-o", "json")).stdout)
    (found,) = [one for one in result["findings"] if one["check"] == "policies"]
    assert found["cure"].endswith("To go back: helm rollback any --namespace gpu-topology")


UNMATCHED = "tenants: {a: {namespaces: [a], cap: [{products: [H100], gpus: 1}]}}"


def _unmatched_cap(cluster: GpuCluster) -> None:
    lease(cluster, time.time(), UNMATCHED)
    cluster.put(CONFIG_MAPS, policies_map(UNMATCHED))


def _excluded(cluster: GpuCluster) -> None:
    hook(cluster, bundle(300), excluded=["default"])


def _half_a_pool(cluster: GpuCluster) -> None:
    piece = cluster.find(RESOURCE_SLICES, resource_slices.slice_name(0, "n1"))
    assert piece is not None
    piece["spec"]["pool"]["resourceSliceCount"] = 2
    cluster.put(RESOURCE_SLICES, piece)


def _damaged(cluster: GpuCluster) -> None:
    piece = cluster.find(RESOURCE_SLICES, resource_slices.slice_name(0, "n1"))
    assert piece is not None
    piece["metadata"]["annotations"][names.MACHINE] = "{"
    cluster.put(RESOURCE_SLICES, piece)


def _without_a_gpu(cluster: GpuCluster) -> None:
    piece = cluster.find(RESOURCE_SLICES, resource_slices.slice_name(0, "n1"))
    assert piece is not None
    piece["spec"]["devices"].pop()
    cluster.put(RESOURCE_SLICES, piece)


def _two_authorities(cluster: GpuCluster) -> None:
    hooks = cluster.find(MUTATING_WEBHOOKS, "hook")
    assert hooks is not None
    other = hooks["webhooks"][0]["clientConfig"] | {"caBundle": bundle(299)}
    metadata = hooks["metadata"] | {"name": "other"}
    cluster.put(VALIDATING_WEBHOOKS, {"metadata": metadata, "webhooks": [{"name": "x", "clientConfig": other}]})


def _new_kubelet(cluster: GpuCluster) -> None:
    node = cluster.find(NODES, "n1")
    assert node is not None
    node["status"]["nodeInfo"]["kubeletVersion"] = "v1.38.0"
    cluster.put(NODES, node)


def _other_release(cluster: GpuCluster) -> None:
    for name in ("node", "controller", "webhook"):
        made = part(name)
        made["metadata"]["labels"]["app.kubernetes.io/version"] = "9.9.9"
        cluster.put(PODS, made)


def _image_not_rolled_out(cluster: GpuCluster) -> None:
    labels = part("node")["metadata"]["labels"]
    containers = [{"name": "node", "image": "gpu-topology-dra:3"}]
    made = {"metadata": {"name": "node", "namespace": OURS, "labels": labels}}
    made |= {"spec": {"template": {"spec": {"containers": containers}}}, "status": {"desiredNumberScheduled": 1}}
    cluster.put(DAEMON_SETS, made)


def _lacks(cluster: GpuCluster) -> None:
    piece = cluster.find(RESOURCE_SLICES, resource_slices.slice_name(0, "n1"))
    assert piece is not None
    piece["metadata"]["annotations"][names.SERVER_LACKS] = "shares"
    cluster.put(RESOURCE_SLICES, piece)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "check", "status", "text"),
    [
        (_no_leader, "leader", "FAIL", "last renewed its Lease at"),
        (_future_leader, "leader", "WARN", "which is in the future"),
        (_older_policies, "policies", "WARN", "and the ConfigMap has"),
        (_older_controller, "policies", "WARN", "no controller says which policies it uses"),
        (_predecessors_policies, "policies", "WARN", "no controller says which policies it uses"),
        (_bad_policies, "policies", "FAIL", "gpu: This field is unknown. Known fields: gpus, "),
        (_bad_policies, "policies", "FAIL", "This is line 1 of policies.yaml of ConfigMap gpu-topology/any-policies."),
        (
            _unmatched_cap,
            "policies",
            "WARN",
            "tenants.a.cap[0].products: no GPU of the cluster matches H100. The clust",
        ),
        (_excluded, "webhook-asked", "WARN", "about no pod of namespace default"),
        (_no_class, "device-classes", "FAIL", names.MIG_CLASS),
        (_no_class, "device-classes", "FAIL", "amd.gpu.topology"),
        (_no_class, "device-classes", "FAIL", "seat.gpu.topology"),
        (_not_ready, "webhook", "FAIL", "0 of 1 pod are ready"),
        (_no_agent, "node", "FAIL", "it has no pods"),
        (_two_images, "versions", "WARN", "gpu-topology-dra:2"),
        (_plugin, "other-drivers", "FAIL", "a device plugin offers 8 nvidia.com/gpu, and so does this driver"),
        (_old_kubelet, "kubernetes", "FAIL", "v1.33.1"),
        (_new_kubelet, "kubernetes", "FAIL", "v1.38.0, which is newer than the API server (v1.37.2)"),
        (_other_release, "versions", "WARN", f"the driver has version 9.9.9, and this gputopo {__version__}"),
        (_image_not_rolled_out, "versions", "WARN", "gpu-topology-dra:3"),
        (_without_a_gpu, "slices", "WARN", "n1: GPU6 is in no slice"),
        (_two_authorities, "certificates", "WARN", "the webhooks of hook and other trust different authorities"),
        (_old_kubelet, "cdi", "WARN", "containerd 1.x"),
        (_half_a_pool, "slices", "FAIL", "1 of 2 slices are there"),
        (_damaged, "slices", "FAIL", "its machine cannot be read"),
        (_lacks, "features", "WARN", "lacks shares"),
    ],
)
async def test_what_is_wrong(
    harm: Any, check: str, status: str, text: str, well: GpuCluster, shell: CommandLine
) -> None:
    harm(well)
    result = await said(shell, status=1 if status == "FAIL" else int(harm is _old_kubelet))
    assert any(one == status and text in what for one, what in result[check]), result[check]


def secret(cluster: GpuCluster, certificate: str, *, mounted: bool = False) -> None:
    """Have the webhook serve this certificate from its own Secret, or from a mounted one."""
    made = part("webhook")
    made["spec"]["containers"][1]["args"] = ["webhook", *(() if mounted else ("--secret=webhook-certificates",))]
    if mounted:
        made["spec"]["volumes"] = [{"name": "certificates", "secret": {"secretName": "webhook-certificates"}}]
    cluster.put(PODS, made)
    metadata = {"name": "webhook-certificates", "namespace": OURS}
    cluster.put(SECRETS, {"metadata": metadata, "type": "Opaque", "data": {"tls.crt": base64_of(certificate)}})


async def test_the_ca_bundle_is_compared_with_the_secret(well: GpuCluster, shell: CommandLine) -> None:
    assert "ca-bundle" not in await said(shell), "it is not known where the certificates are"
    kept = certified(300)
    hook(well, base64_of(kept.authorities))
    secret(well, kept.certificate)
    assert (await said(shell))["ca-bundle"] == [
        ("PASS", f"each caBundle verifies the certificate in Secret {OURS}/webhook-certificates")
    ]
    secret(well, certified(299).certificate)
    assert (await said(shell, status=1))["ca-bundle"] == [
        (
            "FAIL",
            f"the caBundle of hook does not verify the certificate in Secret {OURS}/webhook-certificates, so the API "
            "server does not trust the webhook",
        )
    ]
    secret(well, "")
    assert (await said(shell, status=1))["ca-bundle"][0][0] == "FAIL"
    well.remove(SECRETS, "webhook-certificates", OURS)
    assert (await said(shell, status=1))["ca-bundle"][0][0] == "FAIL"
    shell.api.fail(times=math.inf, path="/secrets/", status=403, reason="Forbidden")
    assert (await said(shell))["ca-bundle"][0][1].startswith("not compared: you may not read Secret")


async def test_while_authorities_rotate_that_of_the_served_certificate_counts(
    well: GpuCluster, shell: CommandLine
) -> None:
    old, new = certified(200), certified(300)
    both = base64_of(old.authorities + new.authorities)
    for trusts, serves, status in (
        (base64_of(old.authorities), old, "PASS"),  # the new authority is in the Secret, and is not published yet
        (both, old, "PASS"),
        (both, new, "PASS"),
        (base64_of(old.authorities), new, "FAIL"),  # the old authority is common to both, and did not sign
    ):
        hook(well, trusts)
        secret(well, serves.certificate)
        assert (await said(shell, status=int(status == "FAIL")))["ca-bundle"][0][0] == status


async def test_a_certificate_that_has_ended_is_not_trusted(well: GpuCluster, shell: CommandLine) -> None:
    made = datetime.datetime.now(datetime.UTC) - 2 * certificates.CERTIFICATE_LIFE
    kept = certificates.renew(None, now=made, hosts=["x"])
    hook(well, base64_of(kept.authorities))
    secret(well, kept.certificate)
    assert (await said(shell, status=1))["ca-bundle"][0][0] == "FAIL"


async def test_webhooks_of_other_programs_in_the_namespace_do_not_count(well: GpuCluster, shell: CommandLine) -> None:
    kept = certified(300)
    hook(well, base64_of(kept.authorities), excluded=["default"])
    secret(well, kept.certificate)
    client = {"service": {"name": "other", "namespace": OURS}, "caBundle": bundle(20)}
    hooks = [{"name": "other", "clientConfig": client, "rules": [{"resources": ["pods"]}]}]
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        well.put(resource, {"metadata": {"name": "other"}, "webhooks": hooks})
    found = await said(shell)
    assert found["ca-bundle"][0][0] == "PASS"
    assert [status for status, _ in found["certificates"]] == ["PASS"]
    assert "about no pod of namespace default" in found["webhook-asked"][0][1]
    well.remove(MUTATING_WEBHOOKS, "hook")
    ((status, text),) = (await said(shell, status=1))["certificates"]
    assert (status, text) == ("FAIL", f"no webhook configuration names a service of namespace {OURS}")


async def test_a_mounted_certificate_of_another_authority_is_a_warning(well: GpuCluster, shell: CommandLine) -> None:
    hook(well, bundle(300))
    secret(well, certified(299).certificate, mounted=True)
    assert (await said(shell))["ca-bundle"][0][0] == "WARN"


async def test_a_secret_that_cannot_be_read_is_no_good_sign(well: GpuCluster, shell: CommandLine) -> None:
    secret(well, certified(300).certificate)
    shell.api.fail(times=math.inf, path="/secrets/", status=500)
    ((status, text),) = (await said(shell))["ca-bundle"]
    assert status == "WARN"
    assert text.startswith("not compared: Secret")


async def test_the_cure_of_older_policies_names_all_pods(well: GpuCluster, shell: CommandLine) -> None:
    for node in ("n2", "n3"):
        well.put(PODS, part("node", node))
        shell.api.fail(times=math.inf, path=f"/node-{node}:8081/proxy", body=b"gpu_topology_policies_digest 7.0\n")
    result = json.loads((await shell.run("verify", "-o", "json")).stdout)
    (found,) = [one for one in result["findings"] if one["check"] == "policies"]
    assert found["cure"].endswith(f"kubectl -n {OURS} delete pod node-n2 node-n3")


async def test_many_pods_with_older_policies_are_restarted_by_their_owners(
    well: GpuCluster, shell: CommandLine
) -> None:
    for number in range(2, 10):
        well.put(PODS, part("node", f"n{number}"))
    well.put(PODS, part("controller", "n2"))
    older = shell.api.fail(times=math.inf, path="-n[2-9]:8081/proxy", body=b"gpu_topology_policies_digest 7.0\n")
    result = json.loads((await shell.run("verify", "-o", "json")).stdout)
    (found,) = [one for one in result["findings"] if one["check"] == "policies"]
    restart = f"kubectl -n {OURS} rollout restart"
    assert found["cure"].endswith(
        f"restart these 9 pods by their owners: {restart} deployment -l app.kubernetes.io/component=controller; "
        f"{restart} daemonset -l app.kubernetes.io/component=node"
    )
    older.stop()
    shell.api.fail(times=math.inf, path="-n[2-9]:8081/proxy", body=b"nothing 7.0\n")
    result = json.loads((await shell.run("verify", "-o", "json")).stdout)
    (found,) = [one for one in result["findings"] if one["check"] == "policies"]
    assert found["cure"].endswith("describe pod controller-n2 " + " ".join(f"node-n{number}" for number in range(2, 9)))


async def test_pods_that_use_a_faulty_gpu_are_named(well: GpuCluster, shell: CommandLine) -> None:
    well.rival("old", "n1", [1])
    piece = well.find(RESOURCE_SLICES, resource_slices.slice_name(0, "n1"))
    assert piece is not None
    uuid = well.machines["n1"].gpus[1].uuid
    (device,) = [one for one in piece["spec"]["devices"] if one["name"] == resource_slices.device_name(uuid)]
    device["taints"] = [{"key": "gpu.topology/xid", "value": "79", "effect": "NoSchedule"}]
    well.put(RESOURCE_SLICES, piece)
    assert (await said(shell))["taints"] == [
        ("WARN", "n1: 1 device has the taint gpu.topology/xid=79, used by default/old, a claim without pod")
    ]


async def test_a_process_with_older_policies_is_named(well: GpuCluster, shell: CommandLine) -> None:
    well.put(PODS, part("node", "n2"))
    shell.api.fail(times=math.inf, path="/node-n2:8081/proxy", body=b"gpu_topology_policies_digest 7.0\n")
    status, text = (await said(shell))["policies"][0]
    assert status == "WARN"
    assert text.endswith(" of the controller and the ConfigMap is not that of node-n2")


async def test_a_controller_that_stands_by_is_asked_too(well: GpuCluster, shell: CommandLine) -> None:
    well.put(PODS, part("controller", "n2"))
    shell.api.fail(times=math.inf, path="/controller-n2:8081/proxy", body=b"gpu_topology_policies_digest 7.0\n")
    assert "is not that of controller-n2" in (await said(shell))["policies"][0][1]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"status": 403, "reason": "Forbidden"}, "injected"),
        ({"status": 503, "body": b"no route"}, "503"),
        ({"body": b"gpu_topology_policies_digest x\n"}, "could not convert"),
        ({"body": b"gpu_topology_policies_digest +Inf\n"}, "infinity"),
    ],
)
async def test_a_process_that_cannot_be_asked_is_named(
    answer: dict[str, Any], why: str, well: GpuCluster, shell: CommandLine
) -> None:
    well.put(PODS, part("webhook", "n2"))
    well.put(PODS, part("webhook", "n3", ready="False"))
    shell.api.fail(times=math.inf, path="/webhook-n2:8081/proxy", **answer)
    status, text = (await said(shell))["policies"][0]
    assert status == "WARN"
    assert text.startswith("which policies webhook-n2 use is not known: webhook-n2: ")
    assert why in text


async def test_a_process_whose_metrics_say_nothing_of_policies_is_named(well: GpuCluster, shell: CommandLine) -> None:
    well.put(PODS, part("node", "n2"))
    shell.api.fail(times=math.inf, path="/node-n2:8081/proxy", body=b"python_info 1.0\n")
    assert (await said(shell))["policies"] == [
        ("WARN", "the metrics of node-n2 do not say which policies these pods use")
    ]


async def test_a_taint_is_said_with_the_repair_of_its_fault(well: GpuCluster, shell: CommandLine) -> None:
    piece = well.find(RESOURCE_SLICES, resource_slices.slice_name(0, "n1"))
    assert piece is not None
    piece["spec"]["devices"][0]["taints"] = [
        {"key": "gpu.topology/xid", "value": "79", "effect": "NoSchedule"},
        {"key": "gpu.topology/ecc", "value": "uncorrected", "effect": "None"},
        {"key": "example.com/mine", "effect": "None"},
    ]
    well.put(RESOURCE_SLICES, piece)
    result = await shell.run("verify", "-o", "json")
    findings = json.loads(result.stdout)["findings"]
    assert [one["message"] for one in findings if one["check"] == "slices"] == ["1 node publishes a machine"]
    found = [one for one in findings if one["check"] == "taints"]
    assert [(one["status"], one["message"], one["cure"]) for one in found] == [
        (
            "WARN",
            "n1: 1 device has the taint example.com/mine",
            "a taint that is no fault known to this driver. Find out which program wrote the taint. "
            "kubectl get devicetaintrules lists the taints of administrators",
        ),
        (
            "WARN",
            "n1: 1 device has the taint gpu.topology/ecc=uncorrected",
            "memory errors that could not be corrected. A reset remaps the bad rows. Until then new pods can still get "
            "the GPU. Keep new pods off the node (kubectl cordon n1). When no pod uses the GPU, reset it on the node "
            "(nvidia-smi --gpu-reset -i <UUID>), and run kubectl uncordon n1",
        ),
        (
            "WARN",
            "n1: 1 device has the taint gpu.topology/xid=79",
            "the GPU has fallen off the bus, so its PCIe connection is broken. Drain the node (kubectl drain n1 "
            "--ignore-daemonsets --delete-emptydir-data), reboot it, and run kubectl uncordon n1. If it comes again, "
            "have the GPU and its slot checked",
        ),
    ]


async def test_a_faulty_gpu_is_a_warning_of_verify_and_the_matter_of_health(
    well: GpuCluster, shell: CommandLine
) -> None:
    pointer = "GPUs that are lost or have a fault do not change the exit status of verify. gputopo health "
    assert pointer not in (await shell.run("verify")).stdout
    piece = well.find(RESOURCE_SLICES, resource_slices.slice_name(0, "n1"))
    assert piece is not None
    piece["spec"]["devices"][0]["taints"] = [{"key": "gpu.topology/xid", "value": "79", "effect": "NoSchedule"}]
    well.put(RESOURCE_SLICES, piece)
    verified = await shell.run("verify")
    counts, line = verified.stdout.splitlines()[-2:]
    assert (verified.exit_code, counts.partition(" PASS")[0].rpartition(",")[0]) == (0, "0 FAIL, 1 WARN")
    assert line.startswith(pointer)
    assert (await shell.run("health")).exit_code == 1
    for command in ("verify", "health"):
        assert "Exit status: 0 no " in CliRunner().invoke(main, [command, "--help"]).stdout


@pytest.mark.parametrize(("ahead_s", "by_this_clock"), [(-86_400.0, "WARN"), (86_400.0, "FAIL")])
async def test_a_leader_is_judged_by_the_servers_clock(
    well: GpuCluster, shell: CommandLine, ahead_s: float, by_this_clock: str
) -> None:
    shell.api.ahead_s = ahead_s
    assert (await said(shell, status=int(by_this_clock == "FAIL")))["leader"][0][0] == by_this_clock
    lease(well, time.time() + ahead_s)
    assert (await said(shell))["leader"][0][0] == "PASS"


async def test_pods_that_are_over_or_of_others_are_no_parts(well: GpuCluster, shell: CommandLine) -> None:
    evicted = part("node", "n2", ready="False", image="gpu-topology-dra:0")
    well.put(PODS, evicted | {"status": {"phase": "Failed"}})
    foreign = part("webhook", "n3", ready="False", image="other:9")
    del foreign["metadata"]["labels"]["app.kubernetes.io/part-of"]
    well.put(PODS, foreign)
    replaced = part("controller", "n3", image="gpu-topology-dra:0")
    replaced["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    well.put(PODS, replaced)
    found = await said(shell)
    assert found["node"] == [("PASS", "1 pod is ready")]
    assert found["webhook"] == found["controller"] == [("PASS", "1 pod is ready")]
    assert found["versions"][0][1].startswith("all components run gpu-topology-dra:1, ")


def test_commands_of_cures_name_their_namespace() -> None:
    """What is said is what somebody types: each looks where the driver is, and kubectl logs has no -A."""
    own = profiles.load("dgx1-v100", seed="x")
    pods = [part("node", ready="False"), part("controller", ready="False"), part("webhook", image="b:2")]
    seen = cluster_checks.Seen(nodes=[], slices=[], pods=pods, leases=[], classes=frozenset(), namespace="elsewhere")
    every = [*cluster_checks.findings(seen, now=0), machine_checks.against_slices(own, None, "n", "elsewhere")]
    every.append(machine_checks.against_slices(own, own.subset(range(7)), "n", "elsewhere"))
    commands = [one for found in every for one in re.findall(r"kubectl [^;:,)]*", found.cure)]
    wanted = [one for one in commands if re.search(r"\b(logs|pods?|rollout)\b", one)]
    assert len(wanted) > 6
    for one in wanted:
        assert one.startswith("kubectl -n elsewhere "), one


# Beside NVIDIA's driver.


@pytest.fixture
def addon(well: GpuCluster) -> GpuCluster:
    """The same where NVIDIA's driver hands out the GPUs."""
    for name in CLASSES:
        well.remove(DEVICE_CLASSES, name)
    well.put(DEVICE_CLASSES, {"metadata": {"name": "gpu.nvidia.com"}, "spec": {}})
    (built,) = resource_slices.machine_alone(well.machines["n1"], node="n1", node_uid="n")
    for piece in well.all(RESOURCE_SLICES):
        well.remove(RESOURCE_SLICES, piece["metadata"]["name"])
    well.put(RESOURCE_SLICES, built)
    well.put(RESOURCE_SLICES, nvidia.slices("n1", nvidia.whole(well.machines["n1"])))
    return well


@pytest.mark.parametrize("more", [(), ("--allocating-driver=gpu.nvidia.com",)])
async def test_where_all_is_well_next_to_nvidias_driver(
    addon: GpuCluster, shell: CommandLine, more: tuple[str, ...]
) -> None:
    addon.put(PODS, part("node", more=more))
    found = await said(shell)
    assert {status for every in found.values() for status, _ in every} == {"PASS"}, found
    assert found["device-classes"] == [("PASS", "gpu.nvidia.com")]
    assert ("PASS", "gpu.nvidia.com has devices on 1 node") in found["slices"]


async def test_what_is_wrong_next_to_nvidias_driver(addon: GpuCluster, shell: CommandLine) -> None:
    addon.put(PODS, part("node", more=("--allocating-driver=gpu.nvidia.com",)))
    addon.remove(DEVICE_CLASSES, "gpu.nvidia.com")
    addon.put(RESOURCE_SLICES, nvidia.slices("n1", []))
    node = addon.find(NODES, "n1")
    assert node is not None
    addon.put(NODES, node | {"status": node["status"] | {"allocatable": {"nvidia.com/gpu": "8"}}})
    found = await said(shell, status=1)
    assert found["device-classes"] == [("FAIL", "there is no DeviceClass gpu.nvidia.com")]
    assert ("FAIL", "n1: no devices of gpu.nvidia.com, which allocates the GPUs") in found["slices"]
    assert found["other-drivers"] == [
        ("FAIL", "n1: a device plugin offers 8 nvidia.com/gpu, and so does gpu.nvidia.com")
    ]


@pytest.mark.parametrize(("days", "status"), [(-2, Status.FAIL), (5, Status.WARN), (300, Status.PASS)])
def test_when_certificates_end(days: int, status: Status) -> None:
    service = {"namespace": OURS}
    hooks = [{"clientConfig": {"service": service, "caBundle": bundle(days)}}]
    configuration = {"metadata": {"name": "hook"}, "webhooks": hooks}
    (found,) = webhook_checks.certificates([configuration], OURS, now=time.time())
    assert found.status is status
    (none,) = webhook_checks.certificates([configuration], "elsewhere", now=time.time())
    assert none.status is Status.FAIL
    for bad in ("", "!", base64.b64encode(b"nonsense").decode()):
        hooks[0]["clientConfig"]["caBundle"] = bad
        (found,) = webhook_checks.certificates([configuration], OURS, now=time.time())
        assert found.status is Status.FAIL


@pytest.mark.parametrize(
    ("code", "message", "status"),
    [
        (500, 'failed calling webhook "pods": x509: certificate has expired', "FAIL"),
        (500, 'failed calling webhook "pods": connection refused', "FAIL"),
        (403, 'pods is forbidden: User "u" cannot create', "WARN"),
        (400, 'admission webhook "policy.example" denied the request: no limits', "WARN"),
    ],
)
async def test_a_webhook_that_cannot_be_asked(
    code: int, message: str, status: str, cluster: GpuCluster, shell: CommandLine
) -> None:
    shell.api.fail(times=math.inf, method="POST", path=REVIEWS, status=201, body=b'{"status":{"allowed":true}}')
    shell.api.fail(times=math.inf, method="POST", path="/pods$", status=code, reason="Forbidden", message=message)
    assert (await said(shell, status=1))["webhook-asked"][0][0] == status


async def test_a_webhook_that_is_not_asked_and_rights_that_are_missing(cluster: GpuCluster, shell: CommandLine) -> None:
    shell.api.fail(times=math.inf, method="POST", path=REVIEWS, status=201, body=b'{"status":{"allowed":false}}')
    found = await said(shell, status=1)
    assert found["webhook-asked"] == [("FAIL", "nothing refused a pod with a wrong annotation in namespace default")]
    assert {status for status, _ in found["rights"]} == {"WARN"}
    assert not [one for one in cluster.all(PODS) if one["metadata"]["name"].startswith("gputopo")]


async def test_the_drivers_namespace_is_where_its_webhook_is(well: GpuCluster, shell: CommandLine) -> None:
    for name in ("node", "controller", "webhook"):
        pod = part(name)
        well.remove(PODS, pod["metadata"]["name"], OURS)
        well.put(PODS, pod | {"metadata": pod["metadata"] | {"namespace": "kube-gpu"}})
    assert (await shell.run("verify n1 --job")).exit_code == 2
    well.remove(MUTATING_WEBHOOKS, "hook")
    well.put(MUTATING_WEBHOOKS, webhook_configuration("kube-gpu"))
    result = await shell.run("verify n1 --job")
    assert yaml.safe_load(result.stdout)["metadata"]["namespace"] == "kube-gpu"
    assert "--driver-namespace=kube-gpu" in result.stdout
    assert "kubectl -n kube-gpu logs" in result.stderr
    found = json.loads((await shell.run("verify n1 -o json")).stdout)["findings"]
    assert [one["status"] for one in found if one["check"] in ("node", "webhook")] == ["PASS", "PASS"]
    other = await shell.run("verify n1 --job", "--driver-namespace", OURS)
    assert (other.exit_code, "namespace gpu-topology has no node agent" in other.stderr) == (2, True)


async def test_the_job_has_the_agents_image_account_and_driver(well: GpuCluster, shell: CommandLine) -> None:
    result = await shell.run("verify n1 --job")
    job = yaml.safe_load(result.stdout)
    spec = job["spec"]["template"]["spec"]
    assert (spec["nodeName"], spec["serviceAccountName"]) == ("n1", "agent")
    assert spec["automountServiceAccountToken"] is True, "the agent's account has false"
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    (container,) = spec["containers"]
    assert container["image"] == "gpu-topology-dra:1"
    assert {"--driver-root=/host/run/d", "--cdi-root=/etc/cdi", "--allocating-driver=gpu.topology"} <= set(
        container["args"]
    )
    assert {"name": "cdi", "hostPath": {"path": "/etc/cdi", "type": ""}} in spec["volumes"], "nothing is made"
    assert {"name": "cdi", "mountPath": "/etc/cdi", "readOnly": True} in container["volumeMounts"]
    flags = {word.partition("=")[0] for word in container["args"] if word.startswith("-")}
    assert flags <= {flag for parameter in verify.params for flag in parameter.opts}
    assert f"kubectl -n gpu-topology logs -f --pod-running-timeout=5m job/{job['metadata']['name']}\n" in result.stderr
    assert (await shell.run("verify --job")).exit_code == 2


async def test_slices_of_a_machine_that_cannot_be_read_are_not_judged(
    well: GpuCluster, shell: CommandLine, tmp_path: Path
) -> None:
    roots = [word for flag in ("--driver-root", "--host-root", "--cdi-root") for word in (flag, str(tmp_path))]
    found = await said(shell, "--this-machine", "n1", *roots, status=1)
    assert found["driver"][0][0] == "FAIL"
    assert found["slices"] == [("WARN", "there is no machine to compare them with: this one cannot be read")]


def test_no_two_jobs_have_one_name() -> None:
    agent = job_of.Agent(image="i", account="a")
    pool = "gke-production-training-a100-80gb-pool-1-4f3b2c1d"
    nodes = [f"{pool}-abcd", f"{pool}-wxyz", f"{pool}-wxyz", "a.b", "a-b", "n" * 253]
    found = [job_of.manifest(node, agent, namespace=OURS)["metadata"]["name"] for node in nodes]
    assert len(set(found)) == len(nodes)
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", one) and len(one) <= 63 for one in found)


@pytest.mark.helm
@pytest.mark.parametrize("variant", ["full", "addon", "mps"])
def test_the_job_of_the_charts_own_agent(variant: str) -> None:
    spec = chart.workload("node", *chart.VARIANTS[variant])["spec"]["template"]
    pod = {"metadata": spec["metadata"] | {"name": "p"}, "spec": spec["spec"] | {"nodeName": "n"}}
    assert driver_pods.pods_of([pod], "node") == [pod]
    agent = job_of.of_agent([pod], "n")
    assert agent is not None
    assert (agent.driver_root, agent.cdi_root, agent.allocating_driver, agent.pull_secrets) == {
        "full": ("/run/nvidia/driver", "/etc/cdi", "gpu.topology", ({"name": "pull"},)),
        "addon": ("/", "/var/run/cdi", "gpu.nvidia.com", ()),
        "mps": ("/run/nvidia/driver", "/var/run/cdi", "gpu.topology", ()),
    }[variant]


def test_a_machine_that_is_not_as_published() -> None:
    own = profiles.load("dgx1-v100", seed="x")
    assert machine_checks.against_slices(own, own, "n", OURS).status is Status.PASS
    other = machine_checks.against_slices(own, own.subset(range(7)), "n", OURS)
    assert other.status is Status.FAIL
    assert f"{own.gpus[7].uuid} is not published" in other.said
    assert machine_checks.against_slices(own, None, "n", OURS).status is Status.FAIL
