"""A node's disks that are full or read-only: pods are told, wait, and run once that is over."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from dradriver.api.base import names
from tests import deploy
from tests.cluster import Cluster, Node
from tests.e2e import parts
from tests.e2e.kubectl import Namespace, eventually, pod

NODE = "node-b"
STATE = "/var/lib/kubelet/plugins/gpu.topology"
CDI = "/run/cdi"
ANY = {names.POLICY: "best-effort"}
SAID = {"full": "No space left on device", "read-only": "Read-only file system"}


@pytest.fixture(scope="module")
def node(driver: Cluster) -> Iterator[Node]:
    """A node with file systems of their own, a few pages large, for the agent's state and the CDI specifications."""
    node = driver.nodes[NODE]
    with parts.no_agent(driver, NODE):
        for folder in (STATE, CDI):
            node.run("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder)
        node.restart_containerd()  # it watches the folder that it saw when it started
    try:
        yield node
    finally:
        with parts.no_agent(driver, NODE):
            for folder in (STATE, CDI):
                node.run("umount", folder)
            node.restart_containerd()


def inside(node: Node, folder: str) -> Path:
    """Where the machine sees a folder among the node's own mounts."""
    return Path(f"/proc/{node.sandbox.first_process}/root{folder}")


@contextmanager
def broken(node: Node, folder: str, how: str) -> Iterator[None]:
    """Have the folder's file system full or read-only during the block."""
    if how == "read-only":
        eventually(
            "nobody is writing", lambda: not node.run("mount", "-o", "remount,ro", folder, check=False).returncode
        )
        try:
            yield
        finally:
            node.run("mount", "-o", "remount,rw", folder)
        return
    filler = inside(node, folder) / "filler"
    with filler.open("wb") as file, suppress(OSError):
        while True:
            os.write(file.fileno(), bytes(4096))
    try:
        yield
    finally:
        filler.unlink()


def said(cluster: Cluster) -> str:
    """What the node's agent has logged."""
    agent = parts.agent(cluster, NODE)["name"]
    return cluster.kubectl("-n", deploy.NAMESPACE, "logs", agent).stdout


def left(node: Node) -> list[str]:
    """Everything of claims that is on the node."""
    claims = [*inside(node, f"{STATE}/claims").glob("*"), *inside(node, CDI).glob("gpu.topology-claim_*")]
    # os.walk, unlike a pattern with two stars, passes over a folder that the agent deletes meanwhile.
    files = [name for _, _, names in os.walk(inside(node, f"{STATE}/files")) for name in names]
    return [*(path.name for path in claims), *files]


@pytest.fixture
def pods(namespace: Namespace, node: Node) -> Iterator[Namespace]:
    """A namespace; afterwards nothing of its claims may be left on the small disks either."""
    yield namespace
    namespace.kubectl("delete", "pods", "--all", "--timeout=90s")
    eventually("nothing is left", lambda: not left(node))


def test_prepare_waits_for_the_disk(pods: Namespace, node: Node) -> None:
    cluster = pods.cluster
    for folder, how in itertools.product((STATE, CDI), SAID):
        pods.apply(pod("ending", gpus=2, words=ANY, node=NODE))
        pods.wait_running("ending")
        before = said(cluster).count(SAID[how])
        with broken(node, folder, how):
            pods.apply(pod("coming", gpus=4, words=ANY, node=NODE))
            eventually(f"the agent says of {folder}: {how}", lambda: said(cluster).count(SAID[how]) > before)  # noqa: B023
            if how == "full":
                pods.delete("ending")  # what frees room is not kept from doing so
        pods.wait_running("coming", timeout_s=30)
        assert len(pods.devices("coming")) == 4
        pods.kubectl("delete", "pods", "--all", "--timeout=90s")
        eventually("nothing is left", lambda: not left(node))


def test_the_pod_is_told(pods: Namespace, node: Node) -> None:
    """By an event when the agent gives up; the kubelet asks again by itself, and at once when the pod changes."""
    with broken(node, STATE, "full"):
        pods.apply(pod("told", gpus=4, words=ANY, node=NODE))

        def told() -> list[str]:
            events = pods.list("events")
            return [event["message"] for event in events if event["reason"] == "FailedPrepareDynamicResources"]

        (message,) = eventually("an event says why", told)
        assert f"{SAID['full']}: '{STATE}/" in message
        # The kubelet asks again and again: each time the agent writes what it can, and removes it.
        eventually("nothing is left", lambda: not left(node))
    pods.kubectl("annotate", "pod", "told", "changed=yes")
    pods.wait_running("told", timeout_s=30)


def test_an_agent_that_starts_on_a_full_disk(pods: Namespace, node: Node) -> None:
    """As after a reboot, specifications are gone and cannot be written: pods can end, others get theirs later."""
    pods.apply(*(pod(name, gpus=2, words=ANY, node=NODE) for name in ("ending", "steady")))
    pods.wait_running("ending", "steady")
    claim = pods.get("pod", "steady")["spec"]["resourceClaims"][0]["resourceClaimName"]
    spec = inside(node, CDI) / f"gpu.topology-claim_{pods.get('resourceclaim', claim)['metadata']['uid']}.json"
    with ExitStack() as disk:
        with parts.no_agent(pods.cluster, NODE):
            for path in inside(node, CDI).glob("gpu.topology-claim_*"):
                path.unlink()
            disk.enter_context(broken(node, CDI, "full"))
        assert SAID["full"] in said(pods.cluster)
        pods.delete("ending")
        assert not spec.exists()
    eventually("the specification is back", spec.exists)
