"""The driver's own pods on the cluster: which there are, their processes, and what the agents keep on their nodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dradriver.node.boot import BOOT_ID, boot_id
from dradriver.node.vendors.nvidia.devices.nvidia_hardware import HARDWARE
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from dradriver.topology.machine import Gpu
from tests import deploy
from tests.cluster import Cluster, Node
from tests.e2e.kubectl import Namespace, eventually


def parts(cluster: Cluster, component: str) -> list[dict[str, str]]:
    """Names, nodes and uids of one component's pods, without those that are going."""
    pods = cluster.api.objects("pods", namespace=deploy.NAMESPACE)
    items = [pod for pod in pods if pod["metadata"]["labels"].get("app.kubernetes.io/component") == component]
    return [
        {"name": item["metadata"]["name"], "node": item["spec"].get("nodeName", ""), "uid": item["metadata"]["uid"]}
        for item in items
        if "deletionTimestamp" not in item["metadata"]
    ]


def agent(cluster: Cluster, node: str) -> dict[str, str]:
    """Name and uid of the one agent of a node."""
    return next(part for part in parts(cluster, "node") if part["node"] == node)


def processes_of(uid: str) -> list[int]:
    """The process ids of a pod's containers, found by the pod's uid in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if f"POD_UID={uid}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # gone meanwhile
            continue
    return found


def open_files(uid: str, name: str) -> int:
    """How many descriptors of files of that name a pod's processes have open."""
    count = 0
    for pid in processes_of(uid):
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                count += Path(os.readlink(descriptor)).name == name
    return count


def kill(cluster: Cluster, pod_name: str, *, missing_ok: bool = False) -> None:
    """End a pod's processes with SIGKILL."""
    got = cluster.api.object("pod", pod_name, namespace=deploy.NAMESPACE)
    victims = processes_of(got["metadata"]["uid"])
    assert victims or missing_ok, f"{pod_name} runs no process"
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


@contextmanager
def frozen(uid: str) -> Iterator[None]:
    """Stop a pod's processes as a machine under load does; afterwards they go on."""
    stopped = processes_of(uid)
    assert stopped, f"the pod {uid} runs no process"
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def leader(cluster: Cluster) -> str:
    """Return the name of the controller's pod that leads."""
    lease = cluster.api.object("lease", "gpu-topology-controller", namespace=deploy.NAMESPACE)
    return str(lease["spec"].get("holderIdentity") or "")


def kill_leader(cluster: Cluster) -> str:
    """End the leader with SIGKILL, and have its pod made anew under another name. Returns the name that it had."""
    name = leader(cluster)
    kill(cluster, name)
    # Its container would start again, each time later, and go on leading under the same name.
    cluster.kubectl("-n", deploy.NAMESPACE, "delete", "pod", name, "--force", "--grace-period=0")
    return name


def another_leads(cluster: Cluster, before: str) -> None:
    """Return once another replica leads than the one that did before."""
    eventually("the standby leads", lambda: leader(cluster) not in ("", before))


def restarts(namespace: Namespace, name: str) -> int:
    """How often a pod's containers were started again."""
    return sum(status["restartCount"] for status in namespace.get("pod", name)["status"].get("containerStatuses", ()))


def wait_ready(cluster: Cluster) -> None:
    """Return once every pod of the driver is ready."""
    rollouts = (f"daemonset/{deploy.RELEASE}-node", *(f"deployment/{deploy.RELEASE}-{one}" for one in _DEPLOYMENTS))
    for rollout in rollouts:
        cluster.kubectl("-n", deploy.NAMESPACE, "rollout", "status", rollout, "--timeout=90s")


_DEPLOYMENTS = ("controller", "webhook")


@contextmanager
def no_agent(cluster: Cluster, node: str) -> Iterator[None]:
    """Keep the node without an agent, as after an uninstallation; afterwards there is a ready one again.

    A taint keeps a new one away. What runs on the node stays.
    """
    kubectl, gone = cluster.kubectl, agent(cluster, node)
    kubectl("taint", "node", node, "gpu.topology.test/no-agent=:NoSchedule")
    try:
        kubectl("-n", deploy.NAMESPACE, "delete", "pod", gone["name"], "--timeout=60s")
        yield
    finally:
        kubectl("taint", "node", node, "gpu.topology.test/no-agent:NoSchedule-")
        eventually("the node has an agent again", lambda: [p for p in parts(cluster, "node") if p["node"] == node])
        wait_ready(cluster)


def simulated(node: Node, gpu: Gpu) -> SimulatedGpu:
    """The hardware of a node's simulated GPU, as an administrator can change it; the agent's next start finds it so."""
    folder = deploy.state_dir(node) / "simulated"
    own = folder / "boot_id"
    return SimulatedGpu(folder / HARDWARE, lambda _: gpu, boot=boot_id(own if own.exists() else BOOT_ID))


def make_instances(hardware: SimulatedGpu, gpu: Gpu, *wanted: tuple[str, int]) -> None:
    """Turn MIG mode on and make instances of these profiles at these starts."""
    by_name = {profile.name: profile for profile in gpu.profiles}
    hardware.set_mig_mode(gpu.uuid, True)
    for profile, start in wanted:
        hardware.create_compute_instance(gpu.uuid, hardware.create_gpu_instance(gpu.uuid, by_name[profile], start))


def forget(cluster: Cluster, node: str) -> None:
    """Take away all that tells as what a node's GPUs are handed out; the node has no agent meanwhile."""
    cluster.kubectl("delete", "resourceslices", f"--field-selector=spec.nodeName={node}")
    (deploy.state_dir(cluster.nodes[node]) / "modes.json").unlink(missing_ok=True)


@contextmanager
def published_again(cluster: Cluster, node: str, rules: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Hand out an idle node's GPUs by these rules of the policies file alone; afterwards as before.

    A GPU that is published keeps its form for a minute after the file changed. So what is published is forgotten.
    """
    name = f"{deploy.RELEASE}-policies"
    kubectl = cluster.kubectl
    file = cluster.api.object("configmap", name, namespace=deploy.NAMESPACE)["data"]

    def become(text: str) -> None:
        with no_agent(cluster, node):
            patch = json.dumps({"data": {"policies.yaml": text}})
            kubectl("-n", deploy.NAMESPACE, "patch", "configmap", name, "--type=merge", f"--patch={patch}")
            forget(cluster, node)

    become(yaml.safe_dump(yaml.safe_load(file["policies.yaml"]) | {"gpus": list(rules)}))
    try:
        yield
    finally:
        become(file["policies.yaml"])


def entries(node: Node) -> dict[str, dict[str, Any]]:
    """What the agent keeps of each prepared claim, by uid."""
    found = [json.loads(path.read_text())["entry"] for path in (deploy.state_dir(node) / "claims").glob("*.json")]
    return {entry["uid"]: entry for entry in found}


def instances(node: Node) -> dict[str, dict[str, Any]]:
    """The MIG instances on the node's simulated GPUs, by GPU and start: profile, devices and boot of each."""
    file = deploy.state_dir(node) / "simulated" / "hardware.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    return {
        f"{gpu} {one['start']}": one | {"boot": state["boot"]}
        for gpu, state in found.items()
        for one in state["instances"].values()
    }


def made(node: Node) -> list[dict[str, Any]]:
    """What the agent keeps of each change of hardware."""
    found = (deploy.state_dir(node) / "made").glob("*.json")
    return [json.loads(path.read_text())["entry"] for path in found]


def is_prepared(namespace: Namespace, node: Node, *pods: str) -> bool:
    """Whether these pods' claims are prepared on the node, with their CDI files, and no others."""
    claims = {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in namespace.list("resourceclaim")}
    named = {name: namespace.get("pod", name)["spec"]["resourceClaims"][0]["resourceClaimName"] for name in pods}
    wanted = {claims[name] for name in named.values()}
    return entries(node).keys() == wanted == {path.stem.rpartition("_")[2] for path in deploy.cdi_files(node)}
