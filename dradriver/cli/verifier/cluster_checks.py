"""The cluster: versions, the driver's parts, what nodes publish, and who else hands out their GPUs."""

from __future__ import annotations

import contextlib
import email.utils
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dradriver import __version__
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import LEDGERS, OTHERS, OURS, Ledger, current_ledger
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Node, seconds
from dradriver.api.slices import lost_gpus, resource_slices
from dradriver.api.slices.slice_features import WITHOUT
from dradriver.cli.cluster import gpu_faults
from dradriver.cli.cluster.cluster_reading import whose
from dradriver.cli.verifier import agent_checks
from dradriver.cli.verifier.driver_pods import (
    COMPONENT,
    CONTROLLER,
    LEASE,
    NODE,
    VERSION,
    WEBHOOK,
    Pod,
    arguments,
    container_of,
    is_ready,
    pods_of,
)
from dradriver.cli.verifier.finding import Finding, failed, first_few, passed, warned
from dradriver.cluster.views.gone_node_views import GoneNode
from dradriver.counted import counted
from dradriver.node.publishing.other_drivers import other_owner
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine
from dradriver.topology.versions import numbers

_OLDEST, _NEWEST = (1, 34), (1, 37)
_MOST_MINORS: Final = 3  # that a kubelet may be older than the API server (Kubernetes' version skew policy)
PARTS: Final = (NODE, CONTROLLER, WEBHOOK)
_LATE_S: Final = 60.0


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of the cluster.

    Attributes:
        nodes: All nodes, or the one that was asked about.
        slices: All drivers' slices.
        pods: Those of the driver's namespace.
        leases: Those of the driver's namespace.
        classes: Names of device classes.
        namespace: The driver's.
        only: The node that was asked about; empty for all.
        gone: Nodes whose agent is gone; None if that is not known.
        agents_wanted: How many node agents the DaemonSet wants; 0 if that is not known.
        images_wanted: The images of the node agents that it wants.
        server: The version of the API server, as ``v1.37.2``; empty if it is not known.
    """

    nodes: list[dict[str, Any]]
    slices: list[ResourceSlice]
    pods: list[dict[str, Any]]
    leases: list[dict[str, Any]]
    classes: frozenset[str]
    namespace: str
    only: str = ""
    gone: tuple[GoneNode, ...] | None = None
    agents_wanted: int = 0
    images_wanted: frozenset[str] = frozenset()
    server: str = ""

    def agents(self) -> list[Pod]:
        """Return the pods of node agents that the cluster checks have seen."""
        return pods_of(self.pods, NODE)

    def ledger(self) -> Ledger:
        """Return for the cluster checks which driver allocates GPUs: by the option, the agents' or the slices."""
        if current_ledger() is not OURS:
            return current_ledger()
        for pod in self.agents():
            said = arguments(container_of(pod, NODE) or {}).get("--allocating-driver", "")
            if said in LEDGERS:
                return LEDGERS[said]
        return ledger_of(self.slices)


def ledger_of(pieces: Iterable[ResourceSlice]) -> Ledger:
    """Return for the cluster checks which driver allocates GPUs, by the slices of all drivers.

    It is another driver if that driver has devices on a node where our slices describe only the machine.
    """
    slices = list(pieces)
    machine_only_nodes = {
        piece.spec.pool.name
        for piece in slices
        if piece.spec.driver == names.DRIVER and resource_slices.is_machine_alone(piece)
    }
    nodes_of_driver = {
        other: {piece.spec.node_name for piece in slices if piece.spec.driver == other.driver and piece.spec.devices}
        for other in OTHERS
    }
    driver = whose(machine_only_nodes, nodes_of_driver)
    return OURS if machine_only_nodes.isdisjoint(nodes_of_driver[driver]) else driver


def findings(seen: Seen, *, now: float) -> Iterator[Finding]:
    """Yield the findings of the cluster checks: versions, parts of the driver, slices; ``now`` is in epoch seconds."""
    yield from _versions(seen)
    yield from _runtimes(seen.nodes)
    yield from _parts(seen)
    if seen.gone is not None:
        yield from agent_checks.findings(seen.gone, seen.agents(), seen.namespace)
    yield _leader(seen, now)
    ledger = seen.ledger()
    yield _classes(seen.classes, ledger)
    yield from _slice_checks(seen)
    if ledger is not OURS:
        yield _offered(seen, ledger)
    yield from _other_allocators(seen, ledger)


def _versions(seen: Seen) -> Iterator[Finding]:
    """Yield whether the API server and the kubelets have versions that the driver and Kubernetes support together."""
    server = _minor(seen.server)
    if server is None:
        cure = "look at kubectl version, which reads the same: you need the verb get on the URL /version"
        yield warned("kubernetes", "the version of the API server is not known", cure)
    elif server < _OLDEST:
        yield failed("kubernetes", f"the API server has {seen.server}", "the driver needs Kubernetes 1.34 or newer")
    kubelets = Counter(_info(node, "kubeletVersion") for node in seen.nodes)
    for said, count in sorted(kubelets.items()):
        number, nodes = _minor(said), counted(count, "node has", "nodes have")
        if number is not None and number < _OLDEST:
            yield failed("kubernetes", f"{nodes} kubelet {said}", "the driver needs Kubernetes 1.34 or newer")
        elif number is not None and server is not None and number > server:
            yield failed(
                "kubernetes", f"{nodes} kubelet {said}, which is newer than the API server ({seen.server})",
                "upgrade the control plane first: Kubernetes supports no kubelet that is newer",
            )  # fmt: skip
        elif number is not None and server is not None and server[1] - number[1] > _MOST_MINORS:
            yield warned(
                "kubernetes", f"{nodes} kubelet {said}, and the API server is {seen.server}",
                f"upgrade the nodes: Kubernetes supports kubelets that are at most {_MOST_MINORS} minor versions older",
            )  # fmt: skip
        elif number is None or number > _NEWEST:
            yield warned("kubernetes", f"{nodes} kubelet {said or 'of no version'}", "it was tried on 1.34 to 1.37")
        else:
            yield passed("kubernetes", f"{nodes} kubelet {said}")


def _minor(version: str) -> tuple[int, int] | None:
    """Return major and minor number of a version of Kubernetes; None if the text is none."""
    found = numbers(version.removeprefix("v").partition("-")[0].partition("+")[0])
    return None if found is None else (found[0], found[1])


def _runtimes(nodes: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    old = sorted(
        str(node["metadata"]["name"])
        for node in nodes
        if _info(node, "containerRuntimeVersion").startswith(("containerd://1.", "containerd://v1."))
    )
    if old:
        yield warned(
            "cdi", f"{first_few(old)} have containerd 1.x, where CDI is off unless it is turned on",
            "set enable_cdi = true for its CRI plugin, or run gputopo verify --job NODE, which asks the runtime",
        )  # fmt: skip
    else:
        yield passed("cdi", "no node has a containerd whose CDI is off unless it is turned on")


def _info(node: Mapping[str, Any], field: str) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get(field) or "")


def _parts(seen: Seen) -> Iterator[Finding]:
    """Yield whether the pods of each part of the driver are ready, and whether all run the same image."""
    images, versions = set(seen.images_wanted), set[str]()
    for part in PARTS:
        pods = pods_of(seen.pods, part)
        versions |= {str(version) for pod in pods if (version := (pod["metadata"].get("labels") or {}).get(VERSION))}
        images |= {str(container.get("image", "")) for pod in pods if (container := container_of(pod, part))}
        yield _pods_of_part(seen, part, pods)
    if len(images) > 1:
        yield warned(
            "versions", f"the parts run images {first_few(sorted(images))}",
            f"wait for the rollout, or look why it stopped: kubectl -n {seen.namespace} get pods",
        )  # fmt: skip
    elif versions - {__version__}:
        yield warned(
            "versions", f"the driver has version {first_few(sorted(versions))}, and this gputopo {__version__}",
            "install the gputopo of the driver's version: docs/install.md says how",
        )  # fmt: skip
    elif images:
        yield passed("versions", f"all parts run {min(images)}; this is gputopo {__version__}")


def _pods_of_part(seen: Seen, part: str, pods: Sequence[Pod]) -> Finding:
    """Return whether a part of the driver (as the controller) has pods, and whether they are ready."""
    if not pods:
        return failed(part, "it has no pods", "install the chart, or name its namespace: --driver-namespace NAME")
    ready = [pod for pod in pods if is_ready(pod)]
    if part == NODE:
        too_few = agent_checks.too_few(seen.agents_wanted, pods, len(ready), seen.namespace)
        if too_few is not None:
            return too_few
    if len(ready) == len(pods):
        return passed(part, f"{counted(len(ready), 'pod is', 'pods are')} ready")
    # A node whose agent is not ready has no substitute; controller and webhook work with one pod that is ready.
    unready = sorted(str(pod["metadata"]["name"]) for pod in pods if pod not in ready)
    warned_or_failed = warned if ready and part != NODE else failed
    are = "is" if len(ready) == 1 else "are"
    return warned_or_failed(
        part, f"{len(ready)} of {counted(len(pods), 'pod')} {are} ready; not {first_few(unready)}",
        f"kubectl -n {seen.namespace} logs {unready[0]} -c {part}; where it has no log: kubectl -n "
        f"{seen.namespace} describe pod {unready[0]}",
    )  # fmt: skip


def _leader(seen: Seen, now: float) -> Finding:
    cure = f"look at the controller's log: kubectl -n {seen.namespace} logs -l {COMPONENT}=controller"
    spec = next((one.get("spec") or {} for one in seen.leases if one["metadata"]["name"] == LEASE), None)
    if spec is None or not spec.get("holderIdentity"):
        return failed("leader", "no controller leads, so no pod is placed", cure)
    renewed = seconds(spec.get("renewTime"))
    if renewed is None or now - renewed > _LATE_S:
        return failed("leader", f"{spec['holderIdentity']} leads, and last said so at {spec.get('renewTime')}", cure)
    if renewed - now > _LATE_S:
        return warned(
            "leader", f"{spec['holderIdentity']} leads, and says so at {spec.get('renewTime')}, which is yet to come",
            "compare the clocks of the control plane and of the controller's node: whether it still leads is not known",
        )  # fmt: skip
    return passed("leader", f"{spec['holderIdentity']} leads")


def _classes(found: frozenset[str], ledger: Ledger) -> Finding:
    wanted, cure = {*ledger.vendor_of, names.SHARE_CLASS, names.MIG_CLASS}, "install the chart, or upgrade it"
    if ledger is not OURS:
        wanted, cure = {ledger.device_class}, f"install the driver {ledger.driver}, or upgrade it"
    if missing := sorted(wanted - found):
        cure += ": it brings them"
        return failed("device-classes", f"there is no DeviceClass {first_few(missing)}", cure)
    return passed("device-classes", first_few(sorted(wanted)))


def _slice_checks(seen: Seen) -> Iterator[Finding]:
    """Yield what is wrong with the ResourceSlices of the nodes, and which of their fields the API server drops."""
    # A pool has the name of its node. The slice with gang barrier devices belongs to no node.
    pools: dict[str, list[ResourceSlice]] = {}
    for resource_slice in seen.slices:
        spec = resource_slice.spec
        if spec.driver == names.DRIVER and not names.is_seat(spec.driver, spec.pool.name):
            pools.setdefault(spec.pool.name, []).append(resource_slice)

    if seen.only:
        checked_nodes = {seen.only}
    else:
        nodes_with_agent = {str(pod["spec"]["nodeName"]) for pod in seen.agents() if pod["spec"].get("nodeName")}
        checked_nodes = nodes_with_agent | pools.keys()
    gone_nodes = {node.name for node in seen.gone or ()}  # agent_checks has a finding about these
    missing_features: Counter[str] = Counter()
    nodes_without_slices, good_nodes = [], 0
    for name in sorted(checked_nodes):
        if name not in pools:
            if name not in gone_nodes:
                nodes_without_slices.append(name)
            continue
        # Only the newest generation of a pool counts (KEP-4381).
        newest = resource_slices.generations(pools[name], resource_slices.place_of)[0]
        findings_of_node = _slice_findings(name, newest)
        good_nodes += not findings_of_node
        yield from findings_of_node
        yield from _lost_gpu_findings(name, newest)
        for resource_slice in newest.slices:
            # An annotation of the node agent: features of slices that the API server drops.
            missing_features.update(
                filter(None, resource_slice.metadata.annotations.get(names.SERVER_LACKS, "").split(","))
            )

    if nodes_without_slices:
        warned_or_failed = failed if seen.only else warned
        yield warned_or_failed(
            "slices", f"{first_few(nodes_without_slices)}: no slices of this driver",
            "a node without GPUs has none; else look at its agent's log, or run gputopo verify --job NODE",
        )  # fmt: skip
    if good_nodes:
        yield passed("slices", f"{counted(good_nodes, 'node publishes', 'nodes publish')} a machine")
    for feature, count in sorted(missing_features.items()):
        yield warned(
            "features",
            f"the API server lacks {feature} ({counted(count, 'node')}): {WITHOUT.get(feature, 'less is published')}",
            "Kubernetes 1.36 and newer have it",
        )  # fmt: skip
    if not missing_features:
        yield passed("features", "the API server keeps all that is published")


def _slice_findings(node: str, newest: resource_slices.Generation[ResourceSlice]) -> list[Finding]:
    """Return what is wrong with the newest slices of a node: incomplete, unreadable, or devices with taints."""
    cure = "look at the node agent's log, and restart its pod if it stays so"
    if len(newest.slices) < newest.said:
        said = f"{node}: {len(newest.slices)} of {newest.said} slices are there: nothing is allocated from them"
        return [failed("slices", said, cure)]
    try:
        machine = resource_slices.read_machine(newest.slices)
    except TopologyError as error:
        return [failed("slices", f"{node}: its machine cannot be read: {error}", cure)]
    if machine is None:
        return [failed("slices", f"{node}: no slice has the machine", cure)]
    missing = _missing_gpus(machine, newest)
    unpublished = [warned("slices", f"{node}: {_are(missing)} in no slice", cure)] if missing else []
    taints = Counter(
        (taint.key, taint.value)
        for piece in newest.slices
        for device in piece.spec.devices
        for taint in device.taints or ()
    )
    return unpublished + [
        warned(
            "taints",
            f"{node}: {counted(count, 'device has', 'devices have')} the taint {key}{'=' if value else ''}{value}",
            _cure(key, value),
        )
        for (key, value), count in sorted(taints.items())
    ]


def _missing_gpus(machine: Machine, newest: resource_slices.Generation[ResourceSlice]) -> list[str]:
    """Return the GPUs of a machine for which its slices have no device, by their labels."""
    if any(map(resource_slices.is_machine_alone, newest.slices)):
        return []  # another driver has the devices
    devices = [device for piece in newest.slices for device in piece.spec.devices]
    published = {device.name for device in devices}
    published |= {resource_slices.device_name(uuid) for device in devices if (uuid := device.text("parentUUID"))}
    return [gpu.label for gpu in machine.gpus if resource_slices.device_name(gpu.uuid) not in published]


def _are(names: Sequence[str]) -> str:
    return f"{first_few(names)} {'is' if len(names) == 1 else 'are'}"


def _cure(key: str, value: str) -> str:
    """Return what to do about a taint: the repair of its fault, if it is one of a GPU's."""
    words, repair = gpu_faults.repair(key, value)
    return f"{words}; {repair[:1].lower()}{repair[1:].rstrip('.')}"


def _lost_gpu_findings(node: str, newest: resource_slices.Generation[ResourceSlice]) -> list[Finding]:
    """Return a warning for each GPU that the node lost."""
    machine = None
    with contextlib.suppress(TopologyError):  # of which there is a finding already
        machine = resource_slices.read_machine(newest.slices)
    return [
        warned("lost-gpus", f"{node}: {gpu.described} is not on the node any more", gpu_faults.LOST.repair)
        for gpu in lost_gpus.read(newest.slices, machine)
    ]


def _offered(seen: Seen, ledger: Ledger) -> Finding:
    """Return whether the other driver has devices on the nodes whose machines are known."""
    wanted = {piece.spec.pool.name for piece in seen.slices if resource_slices.is_machine_alone(piece)}
    wanted &= {seen.only} if seen.only else wanted
    there = {piece.spec.node_name for piece in seen.slices if piece.spec.driver == ledger.driver and piece.spec.devices}
    if lacking := sorted(wanted - there):
        return failed(
            "slices", f"{first_few(lacking)}: no devices of {ledger.driver}, which hands out the GPUs",
            "look at that driver's kubelet plugin on the node: kubectl get pods -A --field-selector "
            f"spec.nodeName={lacking[0]}",
        )  # fmt: skip
    return passed("slices", f"{ledger.driver} has devices on {counted(len(wanted), 'node')}")


def _other_allocators(seen: Seen, ledger: Ledger) -> Iterator[Finding]:
    """Yield the nodes where something else than the driver ``ledger`` allocates GPUs, for example a device plugin.

    This is a failure on nodes with our slices, because both would allocate the same GPUs.
    """
    our_nodes = {
        resource_slice.spec.pool.name for resource_slice in seen.slices if resource_slice.spec.driver == names.DRIVER
    }
    other_slices: dict[str, list[ResourceSlice]] = {}  # of other DRA drivers, by node
    for resource_slice in seen.slices:
        if resource_slice.spec.node_name and resource_slice.spec.driver != ledger.driver:
            other_slices.setdefault(resource_slice.spec.node_name, []).append(resource_slice)
    has_other = False
    for node_object in seen.nodes:
        name = str(node_object["metadata"]["name"])
        try:
            node = msgspec.convert(node_object, Node)
            # What else allocates the node's GPUs, in words: a device plugin by the node's status, a DRA driver by
            # slices.
            owner = other_owner(node, other_slices.get(name, ()))
        except (WordError, msgspec.ValidationError) as error:
            owner = f"something whose amount cannot be read ({error})"
        if owner is not None:
            has_other = True
            warned_or_failed = failed if name in our_nodes else warned
            also = f", and so does {'this driver' if ledger is OURS else ledger.driver}"
            yield warned_or_failed(
                "other-drivers", f"{name}: {owner}" + (also if name in our_nodes else ""),
                "have only one of them hand out a node's GPUs: docs/migrating.md says how to change, docs/addon.md "
                "how to go on with NVIDIA's driver or AMD's",
            )  # fmt: skip
    if not has_other:
        than = "" if ledger is OURS else f" than {ledger.driver}"
        yield passed("other-drivers", f"nothing else{than} hands out GPUs of these nodes")


def clock(date: str = "") -> float:
    """Return the time for checks of the cluster, epoch seconds: by a header ``Date``, else by this machine's clock."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return time.time()
