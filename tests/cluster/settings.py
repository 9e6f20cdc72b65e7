"""Versions, names and addresses of the test cluster."""

import os
from dataclasses import dataclass
from pathlib import Path

KUBERNETES_VERSIONS = ("1.34.4", "1.35.4", "1.36.3", "1.37.2")
DEFAULT_KUBERNETES = "1.37.2"
# `make test` runs on these, `make test-all` on all: the newest, and the newest of those that drop fields of slices.
EVERYDAY_VERSIONS = ("1.35.4", DEFAULT_KUBERNETES)
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
# Prometheus 3: the release of its module, and the hash as go.sum has it.
PROMETHEUS = "0.316.0", "h1:f1GRFerhTMKQma+awCoC9T820ecWeGSdF+xAlMHzZzM="


@dataclass(frozen=True)
class Program:
    """A program of others that makes or queues pods.

    Attributes:
        name: What it is called here.
        module: Its Go module.
        version: The module's release.
        pinned: The hash of the release, as go.sum has it.
        package: Which of the module's packages is the program.
        seconds: How long a first build takes on two cores.
    """

    name: str
    module: str
    version: str
    pinned: str
    package: str
    seconds: int


JOBSET = Program("jobset", "sigs.k8s.io/jobset", "0.11.1", "h1:WgLEBnXTeX+4MxfVkIbfm4jIVgjvIY6Jfaei2okxKNk=", ".", 80)
LEADER_WORKER_SET = Program(
    "lws", "sigs.k8s.io/lws", "0.8.0", "h1:DdhJ8QabwTfWgbgaHH2gdf8twliioHaoSfmDXRYEVU0=", "./cmd", 80
)
KUEUE = Program(
    "kueue", "sigs.k8s.io/kueue", "0.17.0", "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I=", "./cmd/kueue", 150
)
MPI_OPERATOR = Program(
    "mpi-operator",
    "github.com/kubeflow/mpi-operator",
    "0.8.0",
    "h1:22EccUiO4VDooG4TooesdE8o8euGVj89PIRhiP24SRE=",
    "./cmd/mpi-operator",
    110,
)
TRAINING_OPERATOR = Program(
    "training-operator",
    "github.com/kubeflow/training-operator",
    "1.9.3",
    "h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=",
    "./cmd/training-operator.v1",
    80,
)
TRAINER = Program(
    "trainer",
    "github.com/kubeflow/trainer/v2",
    "2.2.0",
    "h1:whChZckEtycLo1UKH/M0hiNaCUozbLvf9JrgmMv+TAg=",
    "./cmd/trainer-controller-manager",
    70,
)
# Of which only its CustomResourceDefinitions are read.
PROMETHEUS_OPERATOR = Program(
    "prometheus-operator",
    "github.com/prometheus-operator/prometheus-operator",
    "0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    "./cmd/operator",
    120,
)

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
