"""The checks of the cluster: versions, the driver's components, slices, and other allocators of the GPUs.

A *finding* is the result of one check: PASS, WARN or FAIL, with the repair. The agent of a node is *gone* if pods use
GPUs of the node, and the node has no slices any more.
"""

from __future__ import annotations

import contextlib
import email.utils
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dradriver import __version__
from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.allocating_driver import LEDGERS, OTHERS, OURS, Ledger, current_ledger
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Node, seconds
from dradriver.api.policies.unmatched_selectors import NodeGpus
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
    WEBHOOK,
    Pod,
    arguments,
    container_of,
    is_ready,
    pods_of,
)
from dradriver.cli.verifier.finding import Finding, failed, first_few, passed, warned
from dradriver.cluster.records.slice_records import MODE_CHANGES
from dradriver.cluster.views.gone_node_views import GoneNode
from dradriver.cluster.views.holder_names import Held, Hold
from dradriver.counted import counted
from dradriver.node.publishing.other_drivers import other_owner
from dradriver.node.repairs import located
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine
from dradriver.topology.versions import numbers

_OLDEST, _NEWEST = (1, 34), (1, 37)
_MOST_MINORS: Final = 3  # that a kubelet may be older than the API server (Kubernetes' version skew policy)
PARTS: Final = (NODE, CONTROLLER, WEBHOOK)
_LATE_S: Final = 60.0


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that were read of the cluster.

    Attributes:
        nodes: All nodes, or the one that the user names.
        slices: The slices of all drivers.
        pods: The pods of the driver's namespace.
        leases: The Leases of the driver's namespace.
        classes: Names of device classes.
        namespace: The driver's namespace.
        only: The node that the user names; empty for all.
        gone: Nodes whose agent is gone; None if that is not known.
        used: The pods that use devices, by node; empty if that is not known.
        agents_wanted: Number of node agents that the DaemonSet wants; 0 if that is not known.
        images_wanted: The images of these node agents.
        are_parts_there: Whether the driver is installed, or a part of it runs. If not, no part of it is checked.
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
    used: Held = {}
    agents_wanted: int = 0
    images_wanted: frozenset[str] = frozenset()
    are_parts_there: bool = True
    server: str = ""

    def agents(self) -> list[Pod]:
        """Return the pods of node agents."""
        return pods_of(self.pods, NODE)

    def ledger(self) -> Ledger:
        """Return the driver that allocates GPUs: by this command's option, the agents' option, or the slices."""
        if current_ledger() is not OURS:
            return current_ledger()
        for pod in self.agents():
            said = arguments(container_of(pod, NODE) or {}).get("--allocating-driver", "")
            if said in LEDGERS:
                return LEDGERS[said]
        return ledger_of(self.slices)


def ledger_of(pieces: Iterable[ResourceSlice]) -> Ledger:
    """Return the driver that allocates GPUs, by the slices of all drivers.

    Another driver is returned if our slices of a node describe only the machine, and that driver has devices on the
    node.
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
    """Yield the findings of the cluster checks: versions, the driver's components, slices.

    ``seen`` has the objects of the cluster. ``now`` is in seconds since the epoch.
    """
    yield from _versions(seen)
    yield from _runtimes(seen.nodes)
    ledger = seen.ledger()
    if seen.are_parts_there:
        yield from _parts(seen)
        if seen.gone is not None:
            yield from agent_checks.findings(seen.gone, seen.agents(), seen.namespace)
        yield _leader(seen, now)
        yield _classes(seen.classes, ledger)
        yield from _slice_checks(seen)
        if ledger is not OURS:
            yield _offered(seen, ledger)
    yield from _other_allocators(seen, ledger)


def _versions(seen: Seen) -> Iterator[Finding]:
    """Yield findings about the versions of the API server and the kubelets.

    The driver must support these versions, and Kubernetes must support them together.
    """
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
    """Return major and minor number of a Kubernetes version.

    The result is None if the text is no version.
    """
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
    """Yield findings about the components of the driver: whether their pods are ready, and run the same image."""
    images, versions = set(seen.images_wanted), set[str]()
    for part in PARTS:
        pods = pods_of(seen.pods, part)
        versions |= {
            str(version) for pod in pods if (version := (pod["metadata"].get("labels") or {}).get(names.VERSION_LABEL))
        }
        images |= {str(container.get("image", "")) for pod in pods if (container := container_of(pod, part))}
        yield _pods_of_part(seen, part, pods)
    if len(images) > 1:
        yield warned(
            "versions", f"the components run different images: {first_few(sorted(images))}",
            f"wait for the rollout, or look why it stopped: kubectl -n {seen.namespace} get pods",
        )  # fmt: skip
    elif versions - {__version__}:
        yield warned(
            "versions", f"the driver has version {first_few(sorted(versions))}, and this gputopo {__version__}",
            "install the gputopo of the driver's release: gpu_topology_dra-VERSION-py3-none-any.whl",
        )  # fmt: skip
    elif images:
        yield passed("versions", f"all components run {min(images)}, and this is gputopo {__version__}")


def _pods_of_part(seen: Seen, part: str, pods: Sequence[Pod]) -> Finding:
    """Return the result of a check: whether a component of the driver has ready pods.

    ``part`` is the component, such as the controller, and ``pods`` are its pods.
    """
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
        part, f"{len(ready)} of {counted(len(pods), 'pod')} {are} ready. Not ready: "
            f"{first_few(unready)}",
        f"kubectl -n {seen.namespace} logs {unready[0]} -c {part}. If it has no log: kubectl -n {seen.namespace} "
        f"describe pod {unready[0]}",
    )  # fmt: skip


def _leader(seen: Seen, now: float) -> Finding:
    cure = f"look at the controller's log: kubectl -n {seen.namespace} logs -l {COMPONENT}=controller"
    spec = next((one.get("spec") or {} for one in seen.leases if one["metadata"]["name"] == LEASE), None)
    if spec is None or not spec.get("holderIdentity"):
        return failed("leader", "no controller leads, so no pod is placed", cure)
    renewed = seconds(spec.get("renewTime"))
    if renewed is None or now - renewed > _LATE_S:
        return failed(
            "leader", f"{spec['holderIdentity']} leads, and last renewed its Lease at {spec.get('renewTime')}", cure
        )
    if renewed - now > _LATE_S:
        return warned(
            "leader",
            f"{spec['holderIdentity']} leads, and renewed its Lease at {spec.get('renewTime')}, which is in the future",
            "compare the clocks of the control plane and of the controller's node: whether it still leads is not known",
        )  # fmt: skip
    return passed("leader", f"{spec['holderIdentity']} leads")


def _classes(found: frozenset[str], ledger: Ledger) -> Finding:
    # The chart installs all of them, unless another driver allocates the GPUs.
    wanted = {*ledger.vendor_of, names.SHARE_CLASS, names.MIG_CLASS, gang_barrier_device.CLASS}
    cure = "install the chart, or upgrade it"
    if ledger is not OURS:
        wanted, cure = {ledger.device_class}, f"install the driver {ledger.driver}, or upgrade it"
    if missing := sorted(wanted - found):
        cure += ": it brings them"
        return failed("device-classes", f"there is no DeviceClass {first_few(missing)}", cure)
    return passed("device-classes", ", ".join(sorted(wanted)))


def gpus_by_node(seen: Seen) -> Iterator[NodeGpus]:
    """Yield the nodes whose slices describe a machine, with their labels and GPUs."""
    labels = {str(node["metadata"]["name"]): node["metadata"].get("labels") or {} for node in seen.nodes}
    for name, slices in _pools(seen).items():
        with contextlib.suppress(TopologyError):  # ``_slice_findings`` reports it
            machine = resource_slices.read_machine(slices)
            if machine is not None:
                yield NodeGpus(name, labels.get(name, {}), machine.gpus)


def _pools(seen: Seen) -> dict[str, list[ResourceSlice]]:
    """Return the slices of this driver by pool, which has the name of its node."""
    pools: dict[str, list[ResourceSlice]] = {}
    for resource_slice in seen.slices:
        spec = resource_slice.spec
        # The slice with gang barrier devices belongs to no node.
        if spec.driver == names.DRIVER and not names.is_seat(spec.driver, spec.pool.name):
            pools.setdefault(spec.pool.name, []).append(resource_slice)
    return pools


def _slice_checks(seen: Seen) -> Iterator[Finding]:
    """Yield findings about the ResourceSlices of the nodes: faults in them, and fields that the API server drops."""
    pools = _pools(seen)
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
        users = _users(seen.used, name)
        findings_of_node = _slice_findings(name, newest, users)
        good_nodes += all(finding.check == "taints" for finding in findings_of_node)
        yield from findings_of_node
        yield from _lost_gpu_findings(name, newest, users)
        for resource_slice in newest.slices:
            # An annotation of the node agent: features of slices that the API server drops.
            missing_features.update(
                filter(None, resource_slice.metadata.annotations.get(names.SERVER_LACKS, "").split(","))
            )

    if nodes_without_slices:
        warned_or_failed = failed if seen.only else warned
        yield warned_or_failed(
            "slices", f"{first_few(nodes_without_slices)}: no slices of this driver",
            "a node without GPUs needs none. If the node has GPUs, read its agent's log, or run "
            "gputopo verify --job NODE",
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


def _users(used: Held, node: str) -> dict[str, list[str]]:
    """Return the pods that use each device of a node, by device name.

    ``used`` has the users on all nodes. Pods that only monitor a GPU are left out.
    """
    users: dict[str, list[str]] = {}
    for _, device, holder in used.get(node, ()):
        if holder.hold is not Hold.ADMIN:
            users.setdefault(device, []).append(holder.who)
    return users


def _used_by(devices: Iterable[str], users: Mapping[str, Sequence[str]]) -> str:
    pods = list(dict.fromkeys(pod for device in devices for pod in users.get(device, ())))
    return f", used by {first_few(pods)}" if pods else ""


def _slice_findings(
    node: str, newest: resource_slices.Generation[ResourceSlice], users: Mapping[str, Sequence[str]]
) -> list[Finding]:
    """Return findings about the newest slices of a node: incomplete, unreadable, or devices with taints.

    ``users`` has the pods that use each device.
    """
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
    tainted: dict[tuple[str, str], list[str]] = {}  # names of devices, by key and value of the taint
    for piece in newest.slices:
        for device in piece.spec.devices:
            for taint in device.taints or ():
                if taint.key != MODE_CHANGES:
                    tainted.setdefault((taint.key, taint.value), []).append(device.name)
    return unpublished + [
        warned(
            "taints",
            f"{node}: {counted(len(devices), 'device has', 'devices have')} the taint {key}"
            f"{'=' if value else ''}{value}{_used_by(devices, users)}",
            _cure(node, key, value),
        )
        for (key, value), devices in sorted(tainted.items())
    ]


def _missing_gpus(machine: Machine, newest: resource_slices.Generation[ResourceSlice]) -> list[str]:
    """Return the names of the machine's GPUs for which its newest slices have no device.

    Empty if the slices only describe the machine: then another driver publishes the devices.
    """
    if any(map(resource_slices.is_machine_alone, newest.slices)):
        return []  # another driver has the devices
    devices = [device for piece in newest.slices for device in piece.spec.devices]
    published = {device.name for device in devices}
    published |= {resource_slices.device_name(uuid) for device in devices if (uuid := device.text("parentUUID"))}
    return [gpu.label for gpu in machine.gpus if resource_slices.device_name(gpu.uuid) not in published]


def _are(names: Sequence[str]) -> str:
    return f"{first_few(names)} {'is' if len(names) == 1 else 'are'}"


def _cure(node: str, key: str, value: str) -> str:
    """Return the meaning of a GPU's taint with this key and value, and the repair, for a GPU of a node."""
    words, repair = gpu_faults.repair(key, value)
    return f"{words}. {located(repair, node=node).rstrip('.')}"


def _lost_gpu_findings(
    node: str, newest: resource_slices.Generation[ResourceSlice], users: Mapping[str, Sequence[str]]
) -> list[Finding]:
    """Return a warning for each GPU that the node lost, as its newest slices report.

    ``users`` has the pods that use each device.
    """
    machine = None
    with contextlib.suppress(TopologyError):  # of which there is a finding already
        machine = resource_slices.read_machine(newest.slices)
    return [
        warned(
            "lost-gpus",
            f"{node}: {gpu.described} is not on the node any more"
            + _used_by([resource_slices.device_name(gpu.uuid)], users),
            located(gpu_faults.LOST.repair, node=node, uuid=gpu.uuid),
        )
        for gpu in lost_gpus.read(newest.slices, machine)
    ]


def _offered(seen: Seen, ledger: Ledger) -> Finding:
    """Return the result of a check: whether another driver has devices where it allocates GPUs.

    ``ledger`` is this other driver. It must have devices on all nodes for which our agents publish only the machine.
    """
    wanted = {piece.spec.pool.name for piece in seen.slices if resource_slices.is_machine_alone(piece)}
    wanted &= {seen.only} if seen.only else wanted
    there = {piece.spec.node_name for piece in seen.slices if piece.spec.driver == ledger.driver and piece.spec.devices}
    if lacking := sorted(wanted - there):
        return failed(
            "slices", f"{first_few(lacking)}: no devices of {ledger.driver}, which allocates the GPUs",
            "look at that driver's kubelet plugin on the node: kubectl get pods -A --field-selector "
            f"spec.nodeName={lacking[0]}",
        )  # fmt: skip
    return passed("slices", f"{ledger.driver} has devices on {counted(len(wanted), 'node')}")


def _other_allocators(seen: Seen, ledger: Ledger) -> Iterator[Finding]:
    """Yield findings about nodes where a second allocator manages the GPUs, for example a device plugin.

    ``ledger`` is the driver that should allocate them. The finding is a failure on nodes with our slices, because both
    allocators would allocate the same GPUs.
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
                "let only one of them allocate a node's GPUs: remove the other one from the node, or keep NVIDIA's or "
                "AMD's DRA driver and name it in the chart's value allocatingDriver",
            )  # fmt: skip
    if not has_other:
        than = "" if ledger is OURS else f" than {ledger.driver}"
        yield passed("other-drivers", f"nothing else{than} allocates GPUs of these nodes")


def clock(date: str = "") -> float:
    """Return the present time in seconds since the epoch: from a ``Date`` header, else this machine's clock."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return time.time()
