"""The cluster itself: it does what tests rely on, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.cluster import Cluster
from tests.cluster.api import Api
from tests.cluster.processes import ProcessId
from tests.cluster.waiting import wait_for

pytestmark = pytest.mark.cluster

IMAGE = "busybox"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of its own, so that one in use is left alone."""
    needs.real_cluster()
    cluster = Cluster("self-test")
    cluster.down()
    before = traces(cluster)
    cluster.up()
    namespaces = namespaces_of(cluster)
    yield cluster
    cluster.down()
    assert traces(cluster) == before
    assert not namespaces & all_namespaces()
    assert not cluster.folder.exists()
    cluster.down()  # once more does nothing


def traces(cluster: Cluster) -> dict[str, object]:
    """Returns everything a cluster could leave on the machine."""
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/gputopo-{cluster.name}-*")]
    processes = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if of_cluster(cluster, path)]
    folders = [
        "/var/lib/kubelet",
        "/var/lib/cni",
        "/etc/cdi",
        "/etc/cni",
        "/run/cdi",
        "/run/containerd",
        "/var/log/pods",
    ]
    return {
        "mounts": sorted(Path("/proc/self/mounts").read_text().splitlines()),
        "named network namespaces": output("ip", "netns"),
        "network links": output("ip", "-brief", "link"),
        "firewall": [line for line in output("iptables-save").splitlines() if not line.startswith("#")],
        "control groups": groups,
        "processes": processes,
        "folders": [folder for folder in folders if Path(folder).exists()],
        "kernel settings": [Path("/proc/sys", name).read_text() for name in ("vm/overcommit_memory", "kernel/panic")],
    }


def output(*command: str) -> str:
    if not shutil.which(command[0]):
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def of_cluster(cluster: Cluster, cmdline: Path) -> bool:
    try:
        return str(cluster.folder).encode() in cmdline.read_bytes()
    except OSError:
        return False


def namespaces_of(cluster: Cluster) -> set[str]:
    first = [node.sandbox.first_process for node in cluster.nodes.values()]
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in first for kind in ("mnt", "net", "pid_for_children")}


def all_namespaces() -> set[str]:
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/*"):
        if ProcessId.of(int(link.parts[2])) is None:
            continue  # ended, only the machine's first process has not taken note yet
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return found


def serve(cluster: Cluster, node: str) -> str:
    """Starts a pod on a node that serves its node's name. Returns the pod's address."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"web-{node}"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "volumes": [
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "kubelet", "hostPath": {"path": "/var/lib/kubelet/plugins", "type": "DirectoryOrCreate"}},
                {"name": "cdi", "hostPath": {"path": "/var/run/cdi", "type": "Directory"}},
            ],
            "containers": [
                {
                    "name": "web",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": [
                        *("sh", "-c"),
                        f"cd /memory; echo {node} | tee index.html /kubelet/seen /cdi/seen; exec httpd -f -p 8080",
                    ],
                    "volumeMounts": [
                        {"name": "memory", "mountPath": "/memory"},
                        {"name": "kubelet", "mountPath": "/kubelet"},
                        {"name": "cdi", "mountPath": "/cdi"},
                    ],
                }
            ],
        },
    }
    cluster.kubectl("apply", "-f", "-", input=json.dumps(pod))
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/web-{node}", "--timeout=60s")
    return cluster.kubectl("get", "pod", f"web-{node}", "-o", "jsonpath={.status.podIP}").stdout


def test_pods_on_both_nodes_reach_each_other_and_the_api_server(cluster: Cluster) -> None:
    addresses = {node: serve(cluster, node) for node in cluster.nodes}
    for here in cluster.nodes:
        assert cluster.kubectl("logs", f"web-{here}").stdout == f"{here}\n"
        for there, address in addresses.items():
            get = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | timeout 5 nc {address} 8080"
            assert there in cluster.kubectl("exec", f"web-{here}", "--", "sh", "-c", get).stdout
        cluster.kubectl("exec", f"web-{here}", "--", "timeout", "5", "nc", "10.96.0.1", "443", input="")


def test_each_node_has_its_own_folders_behind_the_usual_paths(cluster: Cluster) -> None:
    for name, node in cluster.nodes.items():
        serve(cluster, name)
        assert (node.kubelet_root / "plugins/seen").read_text() == f"{name}\n"
        assert (node.cdi_dir / "seen").read_text() == f"{name}\n"
        assert node.run("cat", "/var/run/cdi/seen").stdout == f"{name}\n"


def test_input_and_long_answers_pass_through_to_a_pod(cluster: Cluster) -> None:
    serve(cluster, "node-b")
    text = "0123456789abcde\n" * 100_000
    assert cluster.kubectl("exec", "-i", "web-node-b", "--", "cat", input=text).stdout == text


def test_tokens_name_the_node(cluster: Cluster) -> None:
    serve(cluster, "node-b")
    uid = cluster.kubectl("get", "pod", "web-node-b", "-o", "jsonpath={.metadata.uid}").stdout
    bound = ("--bound-object-kind=Pod", "--bound-object-name=web-node-b", f"--bound-object-uid={uid}")
    token = cluster.kubectl("create", "token", "default", *bound).stdout.strip()
    who = cluster.kubectl("auth", "whoami", "--token", token, "-o", "json").stdout
    user = json.loads(who)["status"]["userInfo"]
    assert user["username"] == "system:serviceaccount:default:default"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == ["node-b"]


def test_up_again_keeps_the_running_cluster(cluster: Cluster) -> None:
    holders = [node.sandbox.first_process for node in cluster.nodes.values()]
    cluster.up()
    assert [node.sandbox.first_process for node in cluster.nodes.values()] == holders


def test_kubelet_can_be_restarted(cluster: Cluster) -> None:
    node = cluster.nodes["node-b"]
    serve(cluster, "node-b")
    node.stop_kubelet()
    assert not cluster.is_up()
    assert node.ctr("tasks", "list", "--quiet").stdout, "the pod goes on"
    node.start_kubelet()
    wait_for("node Ready again", cluster.is_up, seconds=60)


def test_a_node_can_lose_power(cluster: Cluster) -> None:
    node = cluster.nodes["node-b"]
    serve(cluster, "node-b")
    plugged_in = os.readlink(f"/proc/{node.sandbox.first_process}/ns/net")
    before = {path.name for path in node.folder.glob("containerd/*")}
    node.power_off()
    assert not list(node.cdi_dir.iterdir())
    assert {path.name for path in node.folder.glob("containerd/*")} == before  # images stay
    node.power_on()
    assert os.readlink(f"/proc/{node.sandbox.first_process}/ns/net") == plugged_in
    wait_for("the pod runs again", lambda: bool(node.ctr("tasks", "list", "--quiet").stdout), seconds=60)
    wait_for("node Ready again", cluster.is_up, seconds=60)


@pytest.mark.parametrize("victim", ["kubelet", "namespaces"])
def test_up_recovers_from_killed_processes(cluster: Cluster, victim: str) -> None:
    node = cluster.nodes["node-a"]
    serve(cluster, "node-a")
    if victim == "kubelet":
        record = ProcessId.read(node.folder / "processes/kubelet")
        assert record is not None
        node.run("kill", "-KILL", str(record.pid))
    else:
        os.kill(node.sandbox.first_process, signal.SIGKILL)
    wait_for("death noticed", lambda: not cluster.is_up(), seconds=20)
    cluster.up()
    assert Api(cluster.kubeconfig).ready_nodes() == {"node-a", "node-b"}
