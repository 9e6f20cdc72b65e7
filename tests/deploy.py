"""The driver on the local cluster: image, chart, and where the node agents keep their files."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dradriver.api.base import names
from dradriver.api.policies.policies_reader import read
from dradriver.api.slices import resource_slices
from dradriver.topology import profiles
from tests.cluster import Cluster, Node
from tests.cluster.progress import announce
from tests.cluster.settings import cache_folder
from tests.cluster.waiting import wait_for
from tests.kind import KindCluster
from tests.paths import REPO

Target = Cluster | KindCluster

NAMESPACE = "gpu-topology"
RELEASE = "gpu-topology"
CHART = REPO / "helm" / "gpu-topology-dra"
RELEASES: Final = REPO / "tests" / "releases"
IMAGE = "gpu-topology-dra"
TAG = "test"
MACHINES = {"node-a": "dgx1-v100", "node-b": "dgx-h100"}  # what the two nodes pretend to be
SHARED, SLICED = ("node-b", 6), ("node-b", 7)  # the GPUs that may be had in parts; others' pods get them whole
_EXCLUSIVE = "exclusiveTo=namespace"
_MODES = ((SHARED, ("shared=time-slicing", _EXCLUSIVE)), (SLICED, ("mig=dynamic",)))


def build_image(release: str = "") -> Path:
    """Return the image's archive, of this checkout or of a release. It is built unless it exists already."""
    archive = cache_folder() / "image" / f"gpu-topology-dra{release and '-' + release}.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "image/build.py", "--output", str(archive), "--reference", f"{IMAGE}:{release or TAG}"]
    if release:
        (wheel,) = RELEASES.glob(f"gpu_topology_dra-{release}-*.whl")
        command += ["--wheel", str(wheel)]
    subprocess.run(command, cwd=REPO, check=True)
    return archive


def machines(cluster: Target) -> dict[str, str]:
    """Return the profile that each node pretends to be."""
    return MACHINES if isinstance(cluster, Cluster) else cluster.machines


GPUS_PRESENT: Final = "nvidia.com/gpu.present"  # one of the labels that say where the agent runs


def policies(*, exclusive: bool = True) -> list[str]:
    """Return the policies file as settings; ``exclusive``: shares are of one namespace at a time."""
    return [
        f"policies.gpus[{n}].{word}"
        for n, ((node, gpu), mode) in enumerate(_MODES)
        for word in (f"nodes[0]={node}", f"numbers[0]={gpu}", *mode)
        if exclusive or word != _EXCLUSIVE
    ]


def install(
    cluster: Target,
    *settings: str,
    driver_root: str | None = None,
    device_root: str | None = None,
    exclusive: bool = True,
    release: str = "",
) -> None:
    """Install or upgrade the chart, and wait until every part is ready and has the policies.

    Chart and image are those of this checkout, or of the release that ``release`` names, whose files are in RELEASES.

    With ``driver_root`` the nodes' GPUs are those that the NVIDIA driver there tells of, with ``device_root`` those of
    AMD that a /sys there tells of; else they are simulated, and parts are handed out as ``policies`` says.
    """
    if isinstance(cluster, Cluster):
        archive = build_image(release)
        announce("loading the driver's image into the nodes", 5)
        cluster.load_image(archive)
    else:
        cluster.load_driver()
    if driver_root is None and device_root is None:
        simulated = [f"simulated.machines.{node}={profile}" for node, profile in machines(cluster).items()]
        discovery = ["discovery=simulated", *simulated, *policies(exclusive=exclusive)]
        if isinstance(cluster, Cluster):  # an installation before may have had a driver_root
            cluster.kubectl("label", "node", *machines(cluster), f"{GPUS_PRESENT}-")
    else:
        for node in machines(cluster):
            cluster.kubectl("label", "node", node, f"{GPUS_PRESENT}=true", "--overwrite")
        discovery = ["discovery=nvml", f"driverRoot={driver_root}"]
        if device_root is not None:
            discovery = ["discovery=amd", f"deviceRoot={device_root}"]
    values = [f"image.repository={IMAGE}", f"image.tag={release or TAG}", *discovery, *settings]
    chart = RELEASES / f"gpu-topology-dra-{release}.tgz" if release else CHART
    announce("installing the chart with Helm, which waits until all pods are ready", 15)
    cluster.helm(
        *("upgrade", "--install", RELEASE, str(chart), "--namespace", NAMESPACE, "--create-namespace"),
        # Tests change the policies file by kubectl, too; Helm 3, which kind may come with, knows no such conflicts.
        *(("--force-conflicts",) if isinstance(cluster, Cluster) else ()),
        *(word for value in values for word in ("--set", value)),
        *("--wait", "--timeout", "180s"),
    )
    if isinstance(cluster, Cluster):
        announce("waiting until all parts of the driver use the policies", 10)
        _policies_in_force(cluster)
        if discovery[0] == "discovery=simulated":
            _machines_published(cluster, machines(cluster) | _machines_of(settings))


def _machines_of(settings: tuple[str, ...]) -> dict[str, str]:
    """Return the profiles that settings of the chart give to nodes."""
    prefix = "simulated.machines."
    return dict(word.removeprefix(prefix).split("=", 1) for word in settings if word.startswith(prefix))


def _machines_published(cluster: Cluster, profile_of_node: Mapping[str, str]) -> None:
    """Wait until each node publishes devices of its machine alone.

    During an upgrade two agents run on a node for some seconds. Each writes the slices of the machine that it knows,
    until the older one has ended; Helm does not wait for that.
    """
    expected = {
        node: tuple(resource_slices.device_name(gpu.uuid) for gpu in profiles.load(profile, seed=node).gpus)
        for node, profile in profile_of_node.items()
    }

    def wrong() -> list[str]:
        pods = cluster.api.objects("pods", namespace=NAMESPACE)
        ending = [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"]]
        devices: dict[str, list[str]] = {}
        for piece in cluster.api.objects("resourceslices"):
            if piece["spec"]["driver"] == names.DRIVER:
                found = devices.setdefault(piece["spec"].get("nodeName", ""), [])
                found.extend(device["name"] for device in piece["spec"].get("devices", ()))
        other = [
            f"devices of {node}: {devices.get(node)}"
            for node, gpus in expected.items()
            if not devices.get(node) or not all(device.startswith(gpus) for device in devices[node])
        ]
        return ending + other

    wait_for("the nodes' machines in slices", lambda: not wrong(), seconds=120, interval=0.5, why=lambda: f"{wrong()}")


_MARK: Final = "tests/policies"


def _policies_in_force(cluster: Cluster) -> None:
    """Wait until every part has the policies of the ConfigMap, which the kubelet brings to each when its turn comes."""
    ours = ("-n", NAMESPACE)
    found = cluster.api.object("configmap", f"{RELEASE}-policies", namespace=NAMESPACE)
    digest = read(found["data"]["policies.yaml"].encode(), source="policies.yaml").digest
    mark = f"{digest:012x}"

    def other() -> list[str]:
        pods = cluster.api.objects("pods", namespace=NAMESPACE)
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and not _is_page(pod)]
        new = [pod["metadata"]["name"] for pod in alive if pod["metadata"].get("annotations", {}).get(_MARK) != mark]
        for name in new:  # a pod that changed has its turn at once; one of a release before may be gone by now
            cluster.kubectl(*ours, "annotate", "pod", name, "--overwrite", f"{_MARK}={mark}", check=False)
        return [pod["metadata"]["name"] for pod in alive if _digest(cluster, pod) != digest]

    wait_for("policies in force", lambda: not other(), seconds=180, interval=0.5, why=lambda: f"not in {other()}")


def _is_page(pod: dict[str, Any]) -> bool:
    """Return whether a pod serves the page, which reads the policies by the API."""
    return bool(pod["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "page")


def _digest(cluster: Cluster, pod: dict[str, Any]) -> float | None:
    """Return the digest of the policies that a part says are in force; None where it does not answer."""
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:{ports['health']}/proxy/metrics"
    page = cluster.api.get(path) or ""
    said = re.search(r"^gpu_topology_policies_digest (\S+)$", page, re.MULTILINE)
    return float(said[1]) if said else None


def change(cluster: Cluster, *settings: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Upgrade the installed chart by these values alone; returns what Helm said, once every part is ready."""
    return cluster.helm(
        *("upgrade", RELEASE, str(CHART), "--namespace", NAMESPACE, "--reuse-values"),
        *(word for value in settings for word in ("--set", value)),
        *("--wait", "--timeout", "180s"),
        check=check,
    )


def state_dir(node: Node) -> Path:
    """Return the node agent's state folder as the host sees it."""
    return node.kubelet_root / "plugins" / "gpu.topology"


def cdi_files(node: Node) -> list[Path]:
    """Return the CDI specs of claims on the node."""
    return sorted(node.cdi_dir.glob("gpu.topology-claim_*"))


def prepared(node: Node) -> list[str]:
    """Return the uids of the claims in the node agent's checkpoint, damaged ones included."""
    return sorted(path.name.split(".", 1)[0] for path in (state_dir(node) / "claims").glob("*"))
