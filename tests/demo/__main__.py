"""Brings up a cluster with two simulated GPU nodes, installs the driver, applies the examples, shows what they got."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests import deploy
from tests.cluster import Cluster, why_not
from tests.cluster.progress import announce
from tests.demo import offline, online
from tests.demo.table import render
from tests.kind import KindCluster


def main() -> int:
    """Run the demo, or take it away, and return the process's exit status."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    parser.add_argument("--down", action="store_true", help="take the cluster away")
    arguments = parser.parse_args()
    cluster = Cluster() if arguments.cluster == "local" else KindCluster()
    if arguments.down:
        announce("taking the cluster away", 20)
        cluster.down()
        print("The cluster is gone.")
        return 0
    reason = why_not() if isinstance(cluster, Cluster) else cluster.why_not()
    if reason:
        print(f"No cluster here ({reason}): the same examples offline, through the same allocator.\n")
        print(render(offline.rows(deploy.MACHINES)))
        return 0
    begun = time.monotonic()

    def step(text: str, usual_s: int) -> None:
        announce(f"[{time.monotonic() - begun:4.0f} s] {text}", usual_s)

    step("bringing up a Kubernetes with two nodes, unless it runs", 15)
    cluster.up()
    step("installing the driver from helm/gpu-topology-dra", 30)
    deploy.install(cluster)
    step("applying examples/ in namespace demo", 20)
    online.apply(cluster)
    print(f"[{time.monotonic() - begun:4.0f} s] done\n", flush=True)
    machines = deploy.machines(cluster)
    print(render(online.rows(cluster, machines)))
    dgx1, h100 = machines
    tools = ":".join(map(str, (*cluster.tool_folders, Path(sys.executable).parent)))
    print(
        f"""
{dgx1} pretends to be a DGX-1 with 8 V100, {h100} a DGX H100; the GPUs are simulated, everything else is real.
DRA ALONE: what the same pods would get without topology, the first free GPUs by number.
Go on:
  export KUBECONFIG={cluster.kubeconfig}
  export PATH={tools}:$PATH
  kubectl -n demo get pods
  kubectl -n demo describe pod nvlink-quad
  gputopo topo --cluster        who has GPUs of which node; --detail shows each GPU, -o html draws it
  kubectl delete namespace {online.NAMESPACE}        frees the GPUs of the examples for pods of your own
  make down{" CLUSTER=kind" if arguments.cluster == "kind" else ""}        takes the cluster away"""
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
