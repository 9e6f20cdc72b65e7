"""The configuration files of containerd, the kubelet and the scheduler."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.oci import qualified
from tests.cluster.requirements import CNI_FOLDER, runc
from tests.cluster.settings import CLUSTER_DNS, CONTAINERD_SOCKET, PAUSE_IMAGE, NodeAddress


def containerd(*, root: Path, shim: Path) -> str:
    """Returns containerd's configuration.

    Args:
        root: Where it keeps images and snapshots.
        shim: The binary that looks after one pod.
    """
    return f"""\
version = 3
root = "{root}"
state = "{Path(CONTAINERD_SOCKET).parent}"
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs",
]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.nri.v1.nri']
disable = true

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{qualified(PAUSE_IMAGE)}"

[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
# Without the right to lower a score (CAP_SYS_RESOURCE) runc fails on every container.
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI_FOLDER}"]
conf_dir = "/etc/cni/net.d"

[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{shim}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc()}"
SystemdCgroup = false
"""


def pod_network(node: NodeAddress) -> str:
    """Returns the CNI configuration of a node's pods."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": node.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})


def kubelet(*, node: NodeAddress, certificates: Path, resolv_conf: Path, cgroup: str) -> str:
    """Returns a kubelet's configuration.

    Args:
        node: The node it stands for.
        certificates: The folder with `ca.crt` and the kubelet's own.
        resolv_conf: What it gives to pods.
        cgroup: The control group that its pods go below.
    """
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(certificates / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(certificates / f"{node.name}.crt"),
            "tlsPrivateKeyFile": str(certificates / f"{node.name}.key"),
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "clusterDomain": "cluster.local",
            "clusterDNS": [CLUSTER_DNS],
            "resolvConf": str(resolv_conf),
            "podLogsDir": "/var/log/pods",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "maxPods": 110,
            # A developer's disk and memory may be nearly full; images are loaded once and must stay.
            "evictionHard": {
                "memory.available": "50Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
                "imagefs.inodesFree": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
            "kubeAPIQPS": 500,
            "kubeAPIBurst": 1000,
            "logging": {"verbosity": 2},
        },
        indent=2,
    )


def scheduler(*, kubeconfig: Path, devices: Mapping[str, str]) -> str:
    """Returns the scheduler's configuration, with client limits that do not hold it back.

    ``devices`` are arguments of its plugin for devices, as ``filterTimeout``.
    """
    return json.dumps(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 5000},
            "profiles": [
                {
                    "schedulerName": "default-scheduler",
                    "pluginConfig": [{"name": "DynamicResources", "args": dict(devices)}] if devices else [],
                }
            ],
        },
        indent=2,
    )
