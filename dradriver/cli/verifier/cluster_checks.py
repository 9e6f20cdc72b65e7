"""The cluster: versions, the driver's parts, what nodes publish, and who else hands out their GPUs."""

from __future__ import annotations

import contextlib
import email.utils
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from dradriver.cli.cluster.cluster_reading import whose
from dradriver.cli.verifier import agent_checks
from dradriver.cli.verifier.driver_pods import COMPONENT, LEASE, NODE, Pod, arguments, container_of, is_ready, pods_of
from dradriver.cli.verifier.finding import Finding, failed, first_few, passed, warned
from dradriver.cluster.views.gone_node_views import GoneNode
from dradriver.node.faults import KINDS, Fault
from dradriver.node.publishing.other_drivers import other_owner
from dradriver.topology.errors import TopologyError
from dradriver.topology.versions import numbers

_OLDEST, _NEWEST = (1, 34), (1, 37)
PARTS: Final = (NODE, "controller", "webhook")
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

    def agents(self) -> list[Pod]:
        """Return the pods of node agents that the checks have seen."""
        return pods_of(self.pods, NODE)

    def ledger(self) -> Ledger:
        """Return which driver allocates GPUs, by the command's option, the agents' or the slices."""
        if current_ledger() is not OURS:
            return current_ledger()
        for pod in self.agents():
            said = arguments(container_of(pod, NODE) or {}).get("--ledger", "")
            if said in LEDGERS:
                return LEDGERS[said]
        return ledger_of(self.slices)


def ledger_of(pieces: Iterable[ResourceSlice]) -> Ledger:
    """Return which driver allocates GPUs, by slices: another driver's if it has some next to a machine alone."""
    found = list(pieces)
    alone = {
        one.spec.pool.name for one in found if one.spec.driver == names.DRIVER and resource_slices.is_machine_alone(one)
    }
    theirs = {
        one: {piece.spec.node_name for piece in found if piece.spec.driver == one.driver and piece.spec.devices}
        for one in OTHERS
    }
    ledger = whose(alone, theirs)
    return OURS if alone.isdisjoint(theirs[ledger]) else ledger


def findings(seen: Seen, *, now: float) -> Iterator[Finding]:
    """Yield what ``gputopo verify`` finds in the cluster: versions, parts, slices; ``now`` is in epoch seconds."""
    yield from _versions(seen.nodes)
    yield from _runtimes(seen.nodes)
    yield from _parts(seen)
    if seen.gone is not None:
        yield from agent_checks.findings(seen.gone, seen.agents(), seen.namespace)
    yield _leader(seen, now)
    ledger = seen.ledger()
    yield _classes(seen.classes, ledger)
    yield from _published(seen)
    if ledger is not OURS:
        yield _offered(seen, ledger)
    yield from _beside(seen, ledger)


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
            "cdi", f"{first_few(old)} have containerd 1.x, where CDI is off unless it is turned on",
            "set enable_cdi = true for its CRI plugin, or run gputopo verify --job NODE, which asks the runtime",
        )  # fmt: skip
    else:
        yield passed("cdi", "no node has a containerd whose CDI is off unless it is turned on")


def _info(node: Mapping[str, Any], field: str) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get(field) or "")


def _parts(seen: Seen) -> Iterator[Finding]:
    images: set[str] = set()
    for part in PARTS:
        own = pods_of(seen.pods, part)
        ready = [pod for pod in own if is_ready(pod)]
        images |= {str(one.get("image", "")) for pod in own if (one := container_of(pod, part)) is not None}
        if not own:
            yield failed(part, "it has no pods", "install the chart, or name its namespace: --driver-namespace NAME")
        elif (
            part == NODE
            and (few := agent_checks.too_few(seen.agents_wanted, own, len(ready), seen.namespace)) is not None
        ):
            yield few
        elif len(ready) < len(own):
            idle = sorted(str(pod["metadata"]["name"]) for pod in own if pod not in ready)
            say = warned if ready and part != "node" else failed
            yield say(
                part, f"{len(ready)} of {len(own)} pods are ready; not {first_few(idle)}",
                f"kubectl -n {seen.namespace} logs {idle[0]} -c {part}; where it has no log: kubectl -n "
                f"{seen.namespace} describe pod {idle[0]}",
            )  # fmt: skip
        else:
            yield passed(part, f"{len(ready)} pods are ready")
    if len(images) > 1:
        yield warned(
            "versions", f"the parts run images {first_few(sorted(images))}",
            f"wait for the rollout, or look why it stopped: kubectl -n {seen.namespace} get pods",
        )  # fmt: skip
    elif images:
        yield passed("versions", f"all parts run {min(images)}; this is gputopo {__version__}")


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


def _published(seen: Seen) -> Iterator[Finding]:
    pools: dict[str, list[ResourceSlice]] = {}
    for piece in seen.slices:
        spec = piece.spec
        if spec.driver == names.DRIVER and not names.is_seat(spec.driver, spec.pool.name):
            pools.setdefault(spec.pool.name, []).append(piece)
    lacking: Counter[str] = Counter()
    having_agents = {str(pod["spec"]["nodeName"]) for pod in seen.agents() if pod["spec"].get("nodeName")}
    wanted = having_agents | ({seen.only} if seen.only else pools.keys())
    silent, broken, good = [], 0, 0
    for name in sorted(wanted if not seen.only else {seen.only}):
        pieces = pools.get(name, [])
        if not pieces:
            if name not in {node.name for node in seen.gone or ()}:
                silent.append(name)
            continue
        newest = resource_slices.generations(pieces, resource_slices.place_of)[0]
        trouble = _trouble(name, newest)
        broken += bool(trouble)
        good += not trouble
        yield from trouble
        yield from _lost(name, newest)
        for piece in newest.slices:
            lacking.update(filter(None, piece.metadata.annotations.get(names.SERVER_LACKS, "").split(",")))
    if silent:
        say = failed if seen.only else warned
        yield say(
            "slices", f"{first_few(silent)}: no slices of this driver",
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


def _trouble(node: str, newest: resource_slices.Generation[ResourceSlice]) -> list[Finding]:
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
    taints = Counter(
        (taint.key, taint.value)
        for piece in newest.slices
        for device in piece.spec.devices
        for taint in device.taints or ()
    )
    return [
        warned(
            "taints", f"{node}: {count} devices have the taint {key}{'=' if value else ''}{value}", _cure(key, value)
        )
        for (key, value), count in sorted(taints.items())
    ]


def _cure(key: str, value: str) -> str:
    """Return what to do about a taint: the repair of its fault, if it is one of a GPU's."""
    kind = key.removeprefix(names.PREFIX)
    if key.startswith(names.PREFIX) and kind in KINDS:
        fault = Fault(kind, value, "")
        return f"{fault.words}; {fault.advice[:1].lower()}{fault.advice[1:].rstrip('.')}"
    return f"docs/node.md says what {key} is, if the node agent wrote it"


def _lost(node: str, newest: resource_slices.Generation[ResourceSlice]) -> list[Finding]:
    """Return a warning for each GPU that the node lost."""
    machine = None
    with contextlib.suppress(TopologyError):  # of which there is a finding already
        machine = resource_slices.read_machine(newest.slices)
    return [
        warned("lost-gpus", f"{node}: {gpu.described} is not on the node any more", KINDS["lost"].advice)
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
    return passed("slices", f"{ledger.driver} has devices on {len(wanted)} nodes")


def _beside(seen: Seen, ledger: Ledger) -> Iterator[Finding]:
    ours = {piece.spec.pool.name for piece in seen.slices if piece.spec.driver == names.DRIVER}
    of_node: dict[str, list[ResourceSlice]] = {}
    for piece in seen.slices:
        if piece.spec.node_name and piece.spec.driver != ledger.driver:
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
            also = f", and so does {'this driver' if ledger is OURS else ledger.driver}"
            yield say(
                "other-drivers", f"{name}: {owner}" + (also if name in ours else ""),
                "have only one of them hand out a node's GPUs: docs/migrating.md says how to change, docs/addon.md "
                "how to go on with NVIDIA's driver or AMD's",
            )  # fmt: skip
    if not found:
        than = "" if ledger is OURS else f" than {ledger.driver}"
        yield passed("other-drivers", f"nothing else{than} hands out GPUs of these nodes")


def clock(date: str = "") -> float:
    """Return seconds since the epoch for checks: by a header ``Date`` if there is one, else by this machine's clock."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return time.time()
