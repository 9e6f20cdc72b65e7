"""A node: a real kubelet and a real containerd in namespaces of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import configs, control_groups, kubeconfig
from tests.cluster.certificates import Authority
from tests.cluster.errors import ClusterError
from tests.cluster.sandbox import Sandbox
from tests.cluster.settings import API_URL, CONTAINERD_SOCKET, NodeAddress
from tests.cluster.waiting import wait_for


class Node:
    """One node; everything it is lies below `folder` and in its namespaces.

    Attributes:
        name: The node's name in Kubernetes.
        address: Its address and its pods' addresses.
        folder: Its files.
        sandbox: Its namespaces and processes.
        kubelet_root: Where the machine sees the node's /var/lib/kubelet.
        cdi_dir: Where the machine sees the node's /var/run/cdi.
    """

    def __init__(self, address: NodeAddress, folder: Path, logs: Path, binaries: Path, containerd: Path) -> None:
        self.address = address
        self.name = address.name
        self.folder = folder
        self.sandbox = Sandbox(address.name, folder, logs)
        self.kubelet_root = folder / "kubelet"
        self.cdi_dir = folder / "cdi"
        self._cgroup = f"gputopo-{folder.parent.name}-{address.name}"
        self._binaries = binaries
        self._containerd = containerd

    # ---- for tests

    def run(
        self,
        *command: str | Path,
        input: str | None = None,  # noqa: A002  # subprocess's own word
        check: bool = True,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Returns what a command did that ran on the node, among its mounts, network and processes.

        Raises:
            ClusterError: The node is not running, or the command failed and `check` is set.
            TimeoutExpired: It did not end in time.
        """
        words = [*self.sandbox.enter(), *map(str, command)]
        done = subprocess.run(words, input=input, capture_output=True, text=True, timeout=timeout, check=False)
        if check and done.returncode != 0:
            raise ClusterError(f"{self.name}: {' '.join(map(str, command))}: {done.stderr.strip()}")
        return done

    def ctr(self, *arguments: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Returns what `ctr` did, with the arguments given, in the namespace of Kubernetes.

        Raises:
            ClusterError: It failed.
            TimeoutExpired: It did not end in time.
        """
        ctr: list[str | Path] = [self._containerd / "ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io"]
        return self.run(*ctr, *arguments, timeout=timeout)

    def stop_kubelet(self) -> None:
        """Ends the kubelet; containers go on.

        Raises:
            ClusterError: It does not end.
        """
        self.sandbox.stop("kubelet")

    def start_kubelet(self) -> None:
        """Starts the kubelet unless it runs; does not wait for the node to be Ready.

        Raises:
            ClusterError: It could not be started.
        """
        if self.sandbox.running("kubelet"):
            return
        command: list[str | Path] = [self._binaries / "kube", "kubelet", f"--config={self.folder / 'kubelet.json'}"]
        command += [f"--kubeconfig={self.folder / 'kubelet.kubeconfig'}", f"--hostname-override={self.name}"]
        command += [f"--node-ip={self.address.address}"]
        self.sandbox.spawn("kubelet", command)

    def restart_kubelet(self) -> None:
        """Ends the kubelet and starts it; does not wait for the node to be Ready.

        Raises:
            ClusterError: It does not end, or could not be started.
        """
        self.stop_kubelet()
        self.start_kubelet()

    def restart_containerd(self) -> None:
        """Ends containerd and starts it; containers go on.

        Raises:
            ClusterError: It does not end, or did not start.
        """
        self.sandbox.stop("containerd")
        self.start_containerd([])

    def power_off(self) -> None:
        """Ends everything on the node at once; what is kept is what its disks have, /var/run not among it.

        Not for the node of the control plane, which would end with it.

        Raises:
            ClusterError: Something does not end.
        """
        self.sandbox.reboot()
        control_groups.remove(self._cgroup)
        for path in self.cdi_dir.iterdir():
            path.unlink()

    def power_on(self) -> None:
        """Starts the node's processes; does not wait for the node to be Ready.

        Raises:
            ClusterError: One could not be started.
        """
        control_groups.create(self._cgroup)
        self.start_containerd([])
        self.start_kubelet()

    # ---- for the cluster

    def write_files(self, authority: Authority) -> None:
        """Writes the node's configuration and makes the control group of its pods."""
        (self.folder / "cni-networks").mkdir(parents=True)
        shim = self._containerd / "containerd-shim-runc-v2"
        containerd = configs.containerd(root=self.folder / "containerd", shim=shim)
        (self.folder / "containerd.toml").write_text(containerd)
        (self.folder / "cni-networks/10-pods.conflist").write_text(configs.pod_network(self.address))
        resolv_conf = self.folder / "resolv.conf"
        resolv_conf.write_text("nameserver 127.0.0.1\n")
        settings = configs.kubelet(
            node=self.address,
            certificates=authority.folder,
            resolv_conf=resolv_conf,
            cgroup=f"/{self._cgroup}",
        )
        (self.folder / "kubelet.json").write_text(settings)
        user = f"system:node:{self.name}"
        path = self.folder / "kubelet.kubeconfig"
        kubeconfig.write_with_certificate(path, server=API_URL, authority=authority, user=user, file=self.name)
        control_groups.create(self._cgroup)

    def start_containerd(self, images: Sequence[Path]) -> None:
        """Starts containerd and gives it images; returns once it has them.

        Raises:
            ClusterError: It did not start or did not take an image.
        """
        config = self.folder / "containerd.toml"
        self.sandbox.spawn("containerd", [self._containerd / "containerd", "--config", config])

        def answers() -> bool:
            self.sandbox.check("containerd")
            return self.run("test", "-S", CONTAINERD_SOCKET, check=False).returncode == 0

        wait_for(f"{self.name}: containerd", answers, seconds=60)
        for image in images:
            self.load_image(image)

    def load_image(self, tar: Path) -> None:
        """Gives the node an image from an OCI or Docker tar.

        Raises:
            ClusterError: containerd does not take it.
        """
        self.ctr("images", "import", "--local", tar.absolute(), timeout=300)

    def remove(self) -> None:
        """Ends everything on the node and leaves nothing of it but its folder.

        Raises:
            ClusterError: Some process or control group does not go away.
        """
        self.sandbox.kill()
        control_groups.remove(self._cgroup)
