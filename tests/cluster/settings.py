"""Versions, names and addresses of the test cluster."""

import os
from dataclasses import dataclass
from pathlib import Path

KUBERNETES_VERSIONS = ("1.34.4", "1.35.4", "1.36.3", "1.37.2")
DEFAULT_KUBERNETES = "1.37.2"
CONTAINERD = "2.3.7"
HELM = "4.2.4"
# NVIDIA's container toolkit: releases and the hashes of their modules, as go.sum has them; the last is the newest.
# Up to 1.15 nvidia-ctk is its own hook. The checksum database has no 1.14.
NVIDIA_TOOLKITS = {
    "1.15.0": "h1:YmYZUKJzhz/lJSVH6k1mk5IUCHpt8HwRtwMrtBoCzhQ=",
    "1.16.2": "h1:udrrtB8JrAs2KkKQ4njgSb/anUOC1b9tP5LjUtbjE+k=",
    "1.18.2": "h1:S46SDe5aez/qeRvTybHQqOXPNcRphLnIuXoqDDyx8YY=",
    "1.20.1": "h1:DsE0Pnu2XAl7IC00W2tmld7i/GerwnZGzRbmChj295Q=",
}

SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
CLUSTER_DNS = "10.96.0.10"  # nothing answers there, the kubelet only wants one
POD_RANGE = "10.97.0.0/16"
API_PORT = 6443
ETCD_URL = "http://127.0.0.1:2379"
# Where a node sees its own container runtime; short, unlike the cache folder.
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

PAUSE_IMAGE = "gpu-topology/pause:test"
BUSYBOX_IMAGE = "busybox:latest"  # what the examples use


@dataclass(frozen=True)
class NodeAddress:
    """Where a node lives. All of it exists inside its own namespaces only."""

    name: str
    address: str
    pods: str
    link: str


NODE_A = NodeAddress("node-a", "10.99.0.1", "10.97.0.0/24", "gputopo-a")
NODE_B = NodeAddress("node-b", "10.99.0.2", "10.97.1.0/24", "gputopo-b")
NODES = (NODE_A, NODE_B)
API_URL = f"https://{NODE_A.address}:{API_PORT}"


def kubernetes_version() -> str:
    """Returns the wanted version: `KUBERNETES` from the environment or the default.

    Raises:
        ValueError: There is no such version here.
    """
    wanted = os.environ.get("KUBERNETES", "") or DEFAULT_KUBERNETES
    for version in KUBERNETES_VERSIONS:
        if wanted.removeprefix("v") in (version, minor_of(version)):
            return version
    raise ValueError(f"KUBERNETES={wanted}: there are {', '.join(KUBERNETES_VERSIONS)}")


def minor_of(version: str) -> str:
    """Returns `1.36` for `1.36.3`."""
    return version.rpartition(".")[0]


def cache_folder() -> Path:
    """Returns the folder for binaries and running clusters; it may not exist yet."""
    if own := os.environ.get("GPU_TOPOLOGY_CACHE"):
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(shared).absolute() / "gpu-topology-dra"
