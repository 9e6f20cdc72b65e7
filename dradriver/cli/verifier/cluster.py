"""The cluster: versions, the driver's parts, what nodes publish, and who else hands out their GPUs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from dradriver import __version__
from dradriver.api import names, seats, slices
from dradriver.api.dra_objects import ResourceSlice
from dradriver.api.errors import WordError
from dradriver.api.objects import Node, seconds
from dradriver.api.slice_features import WITHOUT
from dradriver.cli.verifier.finding import Finding, failed, passed, warned
from dradriver.node.publishing.other_drivers import other_owner
from dradriver.topology.errors import TopologyError
from dradriver.topology.versions import numbers

_OLDEST, _NEWEST = (1, 34), (1, 37)
_COMPONENT: Final = "app.kubernetes.io/component"
PARTS: Final = ("node", "controller", "webhook")
_LATE_S: Final = 60.0
_MOST: Final = 5  # that are named


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of the cluster.

    Attributes:
        nodes: All nodes, or the one that was asked about.
        slices: All drivers' slices.
        pods: Those of the driver's namespace.
        leases: Those of the driver's namespace.
        classes: Names of device classes.
        only: The node that was asked about; empty for all.
    """

    nodes: list[dict[str, Any]]
    slices: list[ResourceSlice]
    pods: list[dict[str, Any]]
    leases: list[dict[str, Any]]
    classes: frozenset[str]
    only: str = ""


def findings(seen: Seen, *, now: float) -> Iterator[Finding]:
    """Yield what there is to say; ``now`` in seconds since the epoch."""
    yield from _versions(seen.nodes)
    yield from _runtimes(seen.nodes)
    yield from _parts(seen.pods)
    yield _leader(seen.leases, now)
    yield _classes(seen.classes)
    yield from _published(seen)
    yield from _beside(seen)


def _versions(nodes: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    kubelets = Counter(_info(node, "kubeletVersion") for node in nodes)
    for said, count in sorted(kubelets.items()):
        found = numbers(said.removeprefix("v").partition("-")[0].partition("+")[0])
        number = () if found is None else tuple(found[:2])
        if number and number < _OLDEST:
            yield failed(
                "kubernetes", f"{count} nodes have kubelet {said}", "the driver needs Kubernetes 1.34 or newer"
            )
        elif not number or number > _NEWEST:
            yield warned(
                "kubernetes", f"{count} nodes have kubelet {said or 'of no version'}", "it was tried on 1.34 to 1.37"
            )
        else:
            yield passed("kubernetes", f"{count} nodes have kubelet {said}")


def _runtimes(nodes: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    old = sorted(
        str(node["metadata"]["name"])
        for node in nodes
        if _info(node, "containerRuntimeVersion").startswith(("containerd://1.", "containerd://v1."))
    )
    if old:
        yield warned(
            "cdi", f"{_some(old)} have containerd 1.x, where CDI is off unless it is turned on",
            "set enable_cdi = true for its CRI plugin, or run gputopo verify --job NODE, which asks the runtime",
        )  # fmt: skip
    else:
        yield passed("cdi", "no node has a containerd whose CDI is off unless it is turned on")


def _info(node: Mapping[str, Any], field: str) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get(field) or "")


def _parts(pods: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    by_part: dict[str, list[Mapping[str, Any]]] = {part: [] for part in PARTS}
    for pod in pods:
        part = (pod["metadata"].get("labels") or {}).get(_COMPONENT, "")
        if part in by_part:
            by_part[part].append(pod)
    images: set[str] = set()
    for part, own in by_part.items():
        ready = [pod for pod in own if _is_ready(pod)]
        images |= {str(one.get("image", "")) for pod in own for one in pod["spec"]["containers"]}
        if not own:
            yield failed(part, "it has no pods", "install the chart, or name its namespace: --driver-namespace NAME")
        elif len(ready) < len(own):
            idle = sorted(str(pod["metadata"]["name"]) for pod in own if pod not in ready)
            say = warned if ready and part != "node" else failed
            yield say(part, f"{len(ready)} of {len(own)} pods are ready; not {_some(idle)}", f"kubectl logs {idle[0]}")
        else:
            yield passed(part, f"{len(ready)} pods are ready")
    if len(images) > 1:
        yield warned(
            "versions", f"the parts run images {_some(sorted(images))}",
            "wait for the rollout (kubectl rollout status), or look why it stopped",
        )  # fmt: skip
    elif images:
        yield passed("versions", f"all parts run {min(images)}; this is gputopo {__version__}")


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _leader(leases: Iterable[Mapping[str, Any]], now: float) -> Finding:
    cure = "look at the controller's log: kubectl logs -l app.kubernetes.io/component=controller"
    spec = next((one.get("spec") or {} for one in leases if one["metadata"]["name"] == "gpu-topology-controller"), None)
    if spec is None or not spec.get("holderIdentity"):
        return failed("leader", "no controller leads, so no pod is placed", cure)
    renewed = seconds(spec.get("renewTime"))
    if renewed is None or now - renewed > _LATE_S:
        return failed("leader", f"{spec['holderIdentity']} leads, and last said so at {spec.get('renewTime')}", cure)
    return passed("leader", f"{spec['holderIdentity']} leads")


def _classes(found: frozenset[str]) -> Finding:
    wanted = {names.DEVICE_CLASS, names.SHARE_CLASS, names.MIG_CLASS}
    if missing := sorted(wanted - found):
        cure = "install the chart, or upgrade it: it brings them"
        return failed("device-classes", f"there is no DeviceClass {_some(missing)}", cure)
    return passed("device-classes", _some(sorted(wanted)))


def _published(seen: Seen) -> Iterator[Finding]:
    pools: dict[str, list[ResourceSlice]] = {}
    for piece in seen.slices:
        spec = piece.spec
        if spec.driver == names.DRIVER and not seats.is_seat(spec.driver, spec.pool.name):
            pools.setdefault(spec.pool.name, []).append(piece)
    lacking: Counter[str] = Counter()
    agents = {
        str(pod["spec"].get("nodeName"))
        for pod in seen.pods
        if (pod["metadata"].get("labels") or {}).get(_COMPONENT) == "node" and pod["spec"].get("nodeName")
    }
    wanted = agents | ({seen.only} if seen.only else pools.keys())
    silent, broken, good = [], 0, 0
    for name in sorted(wanted if not seen.only else {seen.only}):
        pieces = pools.get(name, [])
        if not pieces:
            silent.append(name)
            continue
        newest = slices.generations(pieces, slices.place_of)[0]
        trouble = _trouble(name, newest)
        broken += bool(trouble)
        good += not trouble
        yield from trouble
        for piece in newest.slices:
            lacking.update(filter(None, piece.metadata.annotations.get(names.SERVER_LACKS, "").split(",")))
    if silent:
        say = failed if seen.only else warned
        yield say(
            "slices", f"{_some(silent)}: no slices of this driver",
            "a node without GPUs has none; else look at its agent's log, or run gputopo verify --job NODE",
        )  # fmt: skip
    if good:
        yield passed("slices", f"{good} nodes publish a machine")
    for feature, count in sorted(lacking.items()):
        yield warned(
            "features", f"the API server lacks {feature} ({count} nodes): {WITHOUT.get(feature, 'less is published')}",
            "Kubernetes 1.36 and newer have it",
        )  # fmt: skip
    if not lacking:
        yield passed("features", "the API server keeps all that is published")


def _trouble(node: str, newest: slices.Generation[ResourceSlice]) -> list[Finding]:
    cure = "look at the node agent's log, and restart its pod if it stays so"
    if len(newest.slices) < newest.said:
        said = f"{node}: {len(newest.slices)} of {newest.said} slices are there: nothing is allocated from them"
        return [failed("slices", said, cure)]
    try:
        machine = slices.read_machine(newest.slices)
    except TopologyError as error:
        return [failed("slices", f"{node}: its machine cannot be read: {error}", cure)]
    if machine is None:
        return [failed("slices", f"{node}: no slice has the machine", cure)]
    taints = Counter(
        taint.key for piece in newest.slices for device in piece.spec.devices for taint in device.taints or ()
    )
    return [
        warned(
            "taints",
            f"{node}: {count} devices have the taint {key}",
            "see the cure in the Event on the node (kubectl describe node), or docs/node.md",
        )
        for key, count in sorted(taints.items())
    ]


def _beside(seen: Seen) -> Iterator[Finding]:
    ours = {piece.spec.pool.name for piece in seen.slices if piece.spec.driver == names.DRIVER}
    of_node: dict[str, list[ResourceSlice]] = {}
    for piece in seen.slices:
        if piece.spec.node_name:
            of_node.setdefault(piece.spec.node_name, []).append(piece)
    found = False
    for raw in seen.nodes:
        name = str(raw["metadata"]["name"])
        try:
            node = msgspec.convert(raw, Node)
            owner = other_owner(node, of_node.get(name, ()))
        except (WordError, msgspec.ValidationError) as error:
            owner = f"something whose amount cannot be read ({error})"
        if owner is not None:
            found = True
            say = failed if name in ours else warned
            yield say(
                "other-drivers", f"{name}: {owner}" + (", and so does this driver" if name in ours else ""),
                "have only one of them hand out a node's GPUs: docs/migrating.md says how to change, docs/addon.md "
                "how to go on with NVIDIA's driver",
            )  # fmt: skip
    if not found:
        yield passed("other-drivers", "nothing else hands out GPUs of these nodes")


def _some(found: list[str]) -> str:
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return ", ".join(found[:_MOST]) + more


def clock() -> float:
    """Return seconds since the epoch."""
    return time.time()
