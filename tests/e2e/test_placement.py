"""One annotation, four NVLinked GPUs, on a real Kubernetes."""

from __future__ import annotations

import datetime
import itertools

from dradriver.api.base import names
from dradriver.topology import profiles
from tests import deploy
from tests.e2e.kubectl import Namespace, eventually, no_gpu_is_owned_twice, pod

QUADS = ({0, 1, 2, 3}, {4, 5, 6, 7})
NVLINK = {names.POLICY: "nvlink"}


def minors(node: str, uuids: str) -> set[str]:
    """The device nodes that belong to an ``allocated`` annotation."""
    gpus = {gpu.uuid: gpu.minor for gpu in profiles.load(deploy.MACHINES[node], seed=node).gpus}
    return {f"/dev/nvidia{gpus[uuid]}" for uuid in uuids.split(",")}


def indices(text: str | None) -> set[int]:
    assert text is not None
    return {int(part) for part in text.split(",")}


def test_quads(namespace: Namespace) -> None:
    for name in ("first", "second"):
        namespace.apply(pod(name, gpus=4, words=NVLINK, node="node-a"))
    namespace.wait_running("first", "second")
    notes = {name: namespace.get("pod", name)["metadata"]["annotations"] for name in ("first", "second")}
    for name, note in notes.items():
        assert indices(note[names.RING_ORDER]) in QUADS
        assert namespace.devices(name) == minors("node-a", note[names.ALLOCATED])
        assert len(namespace.devices(name)) == 4
        assert note[names.LEVEL] == "nvlink"
        assert note[names.BUSBW] == "80GB/s"  # what NCCL 2.27.7 itself reaches on a quad of this machine
        assert not note.keys() & {*names.FORMER_RESULTS, names.AFFINITY, names.BANDWIDTH}
        assert names.FALLBACK not in note
    node = namespace.cluster.nodes["node-a"]
    assert len(deploy.cdi_files(node)) == len(deploy.prepared(node)) == 2
    assert indices(notes["first"][names.RING_ORDER]).isdisjoint(indices(notes["second"][names.RING_ORDER]))

    namespace.apply(pod("third", gpus=4, words=NVLINK, node="node-a"))
    reason = eventually("the reason stands on the pod", lambda: namespace.annotation("third", names.REASON))
    assert "4 GPUs" in reason
    assert namespace.get("pod", "third")["status"]["phase"] == "Pending"

    namespace.delete("first")
    namespace.wait_running("third")
    assert namespace.annotation("third", names.RING_ORDER) == notes["first"][names.RING_ORDER]
    assert namespace.annotation("third", names.REASON) is None
    assert no_gpu_is_owned_twice(namespace.cluster)


def test_two_containers(namespace: Namespace) -> None:
    namespace.apply(pod("pair", gpus={"left": 2, "right": 2, "none": 0}, words=NVLINK, node="node-a"))
    namespace.wait_running("pair")
    left, right = namespace.devices("pair", "left"), namespace.devices("pair", "right")

    assert len(left) == len(right) == 2
    assert left.isdisjoint(right)
    assert left | right == minors("node-a", str(namespace.annotation("pair", names.ALLOCATED)))
    assert namespace.devices("pair", "none") == set()


def test_no_cpu_left(namespace: Namespace) -> None:
    """node-b has the better links, but a pod has taken its CPU."""
    node = namespace.get("node", "node-b")["status"]["allocatable"]["cpu"]
    cpus = int(node) * 1000 if node.isdigit() else int(node.removesuffix("m"))
    namespace.apply(pod("hog", node="node-b", cpu=f"{cpus - 700}m"))
    namespace.wait_running("hog")
    namespace.apply(pod("wanted", gpus=4, words=NVLINK, cpu="701m"))
    namespace.wait_running("wanted")

    assert namespace.get("pod", "wanted")["spec"]["nodeName"] == "node-a"


def test_best_links_win(namespace: Namespace) -> None:
    namespace.apply(pod("free", gpus=4, words=NVLINK))
    namespace.wait_running("free")

    assert namespace.node("free") == "node-b"


def test_nodes_that_go(namespace: Namespace) -> None:
    """node-b has the better links: only who is gone in time gets them; and a spot node comes first for who says so."""
    kubectl = namespace.cluster.kubectl
    goes = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)
    kubectl("annotate", "node", "node-b", f"{names.MAINTENANCE}={goes.isoformat(timespec='seconds')}")
    try:
        namespace.apply(pod("endless", gpus=4, words=NVLINK))
        namespace.apply(pod("short", gpus=4, words=NVLINK | {names.MAX_DURATION: "1h"}))
        namespace.wait_running("endless", "short")
        assert namespace.node("endless") == "node-a"
        assert namespace.node("short") == "node-b"
        kubectl("annotate", "node", "node-b", f"{names.MAINTENANCE}-")
        kubectl("label", "node", "node-a", "karpenter.sh/capacity-type=spot")
        namespace.apply(pod("cheap", gpus=4, words=NVLINK | {names.SPOT: "prefer"}))
        namespace.wait_running("cheap")
        assert namespace.node("cheap") == "node-a"
    finally:
        kubectl("annotate", "node", "node-b", f"{names.MAINTENANCE}-")
        kubectl("label", "node", "node-a", "karpenter.sh/capacity-type-")


def test_ladder_falls_back(namespace: Namespace) -> None:
    """Three NVLinked GPUs are left on neither node; the wish is softer, and the pod says what it did not get."""
    for node in ("node-a", "node-b"):
        namespace.apply(pod(f"full-{node}", gpus=7, words=NVLINK, node=node))
    namespace.wait_running("full-node-a", "full-node-b")
    namespace.apply(pod("one", gpus=1, words={names.PREFERRED: "nvlink"}))
    namespace.wait_running("one")
    namespace.apply(pod("hard", gpus=2, words=NVLINK))

    assert eventually("the reason stands on the pod", lambda: namespace.annotation("hard", names.REASON))


def test_template_of_ones_own(namespace: Namespace) -> None:
    """Attributes alone: a hand-written template gets a quad while no controller runs."""
    kubectl = namespace.cluster.kubectl
    deployment = f"deployment/{deploy.RELEASE}-controller"
    kubectl("-n", deploy.NAMESPACE, "scale", deployment, "--replicas=0")
    kubectl(
        *("-n", deploy.NAMESPACE, "wait", "--for=delete", "pod", "--timeout=60s"),
        *("-l", "app.kubernetes.io/component=controller"),
    )
    try:
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "quad"},
            "spec": {
                "spec": {
                    "devices": {
                        "requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu.topology", "count": 4}}],
                        "constraints": [{"requests": ["gpus"], "matchAttribute": "gpu.topology/nvlinkGroup4"}],
                    }
                }
            },
        }
        by_hand = pod("by-hand", node="node-a")
        by_hand["spec"]["resourceClaims"] = [{"name": "quad", "resourceClaimTemplateName": "quad"}]
        by_hand["spec"]["containers"][0]["resources"]["claims"] = [{"name": "quad"}]
        namespace.apply(template, by_hand)
        namespace.wait_running("by-hand")
        seen = {int(device.removeprefix("/dev/nvidia")) for device in namespace.devices("by-hand")}

        assert seen in QUADS
    finally:
        kubectl("-n", deploy.NAMESPACE, "scale", deployment, "--replicas=2")
        kubectl("-n", deploy.NAMESPACE, "rollout", "status", deployment, "--timeout=90s")


def test_all_gpus_in_pods_of_every_size(namespace: Namespace) -> None:
    """Sixteen GPUs: nothing is handed out twice, and every pod runs.

    The large pods come first. If an error delays one of these, smaller ones could divide what is left of both nodes.
    """
    sizes = {"a": 4, "b": 4, "c": 2, "d": 2, "e": 2, "f": 1, "g": 1}
    for _, group in itertools.groupby(sizes, key=sizes.__getitem__):
        names_of_size = list(group)
        namespace.apply(*(pod(name, gpus=sizes[name], words={names.POLICY: "best-effort"}) for name in names_of_size))
        namespace.wait_running(*names_of_size)
    seen = [namespace.devices(name) for name in sizes]

    assert [len(devices) for devices in seen] == list(sizes.values())
    assert no_gpu_is_owned_twice(namespace.cluster)
