"""The life of a node: reboots, restarts, rollbacks, pods that go by force; a pod never pays for them."""

from __future__ import annotations

import fcntl
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import deploy
from tests.cluster import Node
from tests.e2e import parts
from tests.e2e.kubectl import Namespace, eventually, no_gpu_is_owned_twice, pod
from tests.e2e.load import ANY, NVLINK, SHARE, SLICE, failures
from tests.e2e.parts import is_prepared, restarts


def lasting(name: str, gpus: int, node: str, words: dict[str, str] = NVLINK) -> dict[str, Any]:
    """A pod whose container is started again, whatever ends it."""
    made = pod(name, gpus=gpus, words=words, node=node)
    made["spec"]["restartPolicy"] = "Always"
    return made


@contextmanager
def booted_again(node: Node) -> Iterator[str]:
    """Have the agent that starts next find another boot; afterwards it is the machine's own again."""
    boot = str(uuid.uuid4())
    file = deploy.state_dir(node) / "simulated" / "boot_id"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(boot)
    try:
        yield boot
    finally:
        file.unlink()


def test_reboot(namespace: Namespace) -> None:
    """Containers, the runtime's memory and its CDI folder are gone at once, and so is what was made on GPUs.

    Pods get back the GPUs that they had, and parts of them.
    """
    cluster = namespace.cluster
    node = cluster.nodes["node-b"]
    namespace.apply(*(lasting(f"slice-{n}", 1, "node-b", SLICE) for n in range(2)))
    namespace.apply(*(lasting(f"share-{n}", 1, "node-b", SHARE) for n in range(2)))
    parts_of = ("slice-0", "slice-1", "share-0", "share-1")
    namespace.wait_running(*parts_of)
    namespace.apply(lasting("first", 3, "node-b"), lasting("second", 2, "node-b"))
    namespace.apply(pod("once", gpus=1, words=ANY, node="node-b"))
    namespace.wait_running("first", "second", "once")
    before = {name: namespace.devices(name) for name in ("first", "second", *parts_of)}
    instances = parts.instances(node)
    assert len(instances) == 2

    with booted_again(node) as boot:
        node.power_off()
        assert not deploy.cdi_files(node)
        node.power_on()
        for name, devices in before.items():
            eventually(f"{name} starts again", lambda name=name: restarts(namespace, name), timeout_s=150)  # type: ignore[misc]
            namespace.wait_running(name)
            assert namespace.devices(name) == devices
        eventually("what does not start again has given its GPUs back", lambda: is_prepared(namespace, node, *before))
        assert {entry["boot"] for entry in parts.entries(node).values()} == {boot}
        assert parts.instances(node) == {key: one | {"boot": boot} for key, one in instances.items()}
        made = parts.made(node)
        assert [(entry["boot"], "done" in entry) for entry in made] == [(boot, True)] * 2
    assert {name: restarts(namespace, name) for name in before} == dict.fromkeys(before, 1)
    assert namespace.get("pod", "once")["status"]["phase"] == "Failed"
    parts.wait_ready(cluster)
    namespace.apply(pod("later", gpus=1, words=ANY, node="node-b"))
    namespace.wait_running("later")
    namespace.delete(*parts_of)
    assert no_gpu_is_owned_twice(cluster)
    eventually("nothing that was made is left", lambda: not parts.instances(node) and not parts.made(node))


@contextmanager
def hanging(node: Node, call: str) -> Iterator[None]:
    """Have the node's driver not answer a call."""
    file = deploy.state_dir(node) / "simulated" / "hangs"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(call)
    try:
        yield
    finally:
        file.unlink()


def test_an_agent_killed_between_an_instance_and_its_compute_instance(namespace: Namespace) -> None:
    """What it has made by half is undone, and the pod's slice made once."""
    cluster = namespace.cluster
    node = cluster.nodes["node-b"]
    with hanging(node, "nvmlGpuInstanceCreateComputeInstance"):
        namespace.apply(pod("slice", gpus=1, words=SLICE, node="node-b"))
        eventually("there is half an instance", lambda: parts.instances(node))
        assert [one["devices"] for one in parts.instances(node).values()] == [{}]
        assert ["done" in entry for entry in parts.made(node)] == [False]
        killed = parts.agent(cluster, "node-b")
        parts.kill(cluster, killed["name"])
    # One that is started again in its place may have to wait for the kubelet's patience with failing containers.
    cluster.kubectl("-n", deploy.NAMESPACE, "delete", "pod", killed["name"], "--force", "--grace-period=0")
    eventually(
        "there is another agent",
        lambda: [
            one for one in parts.parts(cluster, "node") if one["node"] == "node-b" and one["uid"] != killed["uid"]
        ],
    )
    parts.wait_ready(cluster)
    namespace.kubectl("annotate", "pod", "slice", "test/look-again=now")  # else the kubelet waits for a minute
    namespace.wait_running("slice")
    assert [len(one["devices"]) for one in parts.instances(node).values()] == [1]
    assert ["done" in entry for entry in parts.made(node)] == [True]
    namespace.delete("slice")
    eventually("nothing that was made is left", lambda: not parts.instances(node) and not parts.made(node))


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Hold the node's lock, which every prepare and unprepare waits for."""
    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_kubelet_restarted_in_the_middle(namespace: Namespace) -> None:
    """A prepare and an unprepare are under way; the next kubelet asks for both again, and both are done once."""
    cluster = namespace.cluster
    node = cluster.nodes["node-b"]
    uid = parts.agent(cluster, "node-b")["uid"]
    leaving = pod("leaving", gpus=2, words=NVLINK, node="node-b")
    leaving["spec"]["terminationGracePeriodSeconds"] = 1  # so it is in the API until its claim is given back
    namespace.apply(pod("steady", gpus=2, words=NVLINK, node="node-b"), leaving)
    namespace.wait_running("steady", "leaving")
    lock = deploy.state_dir(node) / "serialize.lock"
    with held(lock):
        namespace.kubectl("delete", "pod", "leaving", "--wait=false")
        eventually("the unprepare waits", lambda: parts.open_files(uid, lock.name) >= 1)
        namespace.apply(pod("coming", gpus=4, words=NVLINK, node="node-b"))
        eventually("so does the prepare", lambda: parts.open_files(uid, lock.name) >= 2)
        node.restart_kubelet()
    namespace.wait_running("coming", timeout_s=150)
    eventually(
        "both are done, and nothing else", lambda: is_prepared(namespace, node, "steady", "coming"), timeout_s=150
    )

    assert len(namespace.devices("steady")) == 2
    assert len(namespace.devices("coming")) == 4
    assert restarts(namespace, "steady") == 0
    assert no_gpu_is_owned_twice(cluster)


def test_rollback_to_an_agent_that_cannot_read_the_ledger(namespace: Namespace) -> None:
    """What a newer agent wrote is in nobody's way: its pods go on and end, others come."""
    cluster = namespace.cluster
    node = cluster.nodes["node-a"]
    for name in ("steady", "ending"):
        namespace.apply(pod(name, gpus=2, words=NVLINK, node="node-a"))
    namespace.wait_running("steady", "ending")
    before = parts.entries(node)
    with parts.no_agent(cluster, "node-a"):
        for file in (deploy.state_dir(node) / "claims").glob("*.json"):
            newer = {"uid": file.stem} | {key: before[file.stem][key] for key in ("namespace", "name")}
            file.write_text(json.dumps({"version": 99, "checksum": "of another kind", "entry": newer | {"what": [1]}}))
    eventually("the entries were written anew", lambda: parts.entries(node) == before)

    namespace.delete("ending")
    namespace.apply(pod("later", gpus=6, words=ANY, node="node-a"))
    namespace.wait_running("later")
    assert is_prepared(namespace, node, "steady", "later")
    assert restarts(namespace, "steady") == 0
    assert not failures(namespace)


def test_pods_deleted_by_force(namespace: Namespace) -> None:
    """Their claims are gone before the kubelet gives them back; whoever gets their GPUs next waits for that."""
    node = namespace.cluster.nodes["node-a"]
    forced = [f"forced-{i}" for i in range(4)]
    namespace.apply(*(pod(name, gpus=2, words=ANY, node="node-a") for name in forced))
    namespace.wait_running(*forced)
    namespace.kubectl("delete", "pod", *forced, "--force", "--grace-period=0", "--timeout=60s")
    namespace.apply(pod("next", gpus=8, words=ANY, node="node-a"))
    namespace.wait_running("next")

    eventually("only the last is prepared", lambda: is_prepared(namespace, node, "next"))
    assert len(namespace.devices("next")) == 8
    assert not failures(namespace)


def state(namespace: Namespace, name: str) -> dict[str, Any]:
    """How the pod's container is."""
    found: dict[str, Any] = namespace.get("pod", name)["status"]["containerStatuses"][0]["state"]
    return found


def test_pods_that_end_while_there_is_no_agent(namespace: Namespace) -> None:
    """One ends by itself, one is deleted, one by force: each is given back once there is an agent again."""
    cluster = namespace.cluster
    node = cluster.nodes["node-a"]
    until_told = ["sh", "-c", "until [ -e /tmp/end ]; do sleep 0.1; done"]
    namespace.apply(pod("ending", gpus=2, words=ANY, node="node-a", command=until_told))
    namespace.apply(*(lasting(name, 2, "node-a") for name in ("deleted", "forced", "steady")))
    namespace.wait_running("ending", "deleted", "forced", "steady")
    with parts.no_agent(cluster, "node-a"):
        namespace.kubectl("exec", "ending", "--", "touch", "/tmp/end")  # in the container
        namespace.kubectl("delete", "pod", "deleted", "--wait=false", "--grace-period=1")
        namespace.kubectl("delete", "pod", "forced", "--force", "--grace-period=0", "--timeout=60s")
        for name in ("ending", "deleted"):
            eventually(f"{name} ended", lambda name=name: "terminated" in state(namespace, name))  # type: ignore[misc]
        assert len(deploy.prepared(node)) == 4
    eventually("all is given back", lambda: is_prepared(namespace, node, "steady"), timeout_s=150)
    namespace.apply(pod("next", gpus=6, words=ANY, node="node-a"))
    namespace.wait_running("next")
    assert restarts(namespace, "steady") == 0
