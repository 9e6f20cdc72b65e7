"""The records that the controller keeps of pods.

This driver's pods are kept with all fields that the controller reads. A *foreign* pod is one that the controller does
not place: only its node, resources, host ports and labels are kept.

A cluster can have 150,000 foreign pods, and their annotations can be 256 KiB each. So only the fields to keep are
decoded, and equal values of several pods are stored once.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.objects import Condition, Metadata
from dradriver.api.base.pods import (
    Container,
    ContainerPort,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from dradriver.api.claims.pins import KEEP
from dradriver.api.gangs import gang_owners
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.cluster.nodes.host_ports import HostPort, host_ports
from dradriver.cluster.nodes.pod_resources import INFEASIBLE, PENDING, is_infeasible, request_of
from dradriver.kube import codec

SUCCEEDED: Final = "Succeeded"
FINISHED: Final = (SUCCEEDED, "Failed")
LONGEST_KEY: Final = 4096  # bytes of resources that are remembered; longer ones, which hardly any pod has, are not
LONGEST_LABELS: Final = 8_192  # characters of labels that are kept; of a pod with more, which nobody has, ours alone
LONGEST_FOREIGN_LABELS: Final = 1_024  # bytes of the labels of a foreign pod: a cluster can have 150,000 of them
LONGEST_SELECTOR: Final = 16_384  # characters of a node selector; a longer one selects nothing
TOO_LONG: Final = {"this-selector-is-too-long": "select fewer labels"}
_NOTHING: Final = msgspec.Raw(b"{}")
_NO_PORTS: Final = msgspec.Raw(b"[]")
_LABEL: Final = names.LABEL.encode()
_NULL: Final = b"null"
_UNSAID: Final = msgspec.Raw(_NULL)
_INFEASIBLE: Final = Condition(type=PENDING, reason=INFEASIBLE)


class Foreign(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A foreign pod that is bound to a node, belongs to a PodGroup, or is placed by the scheduler alone.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        uid: Its uid.
        resource_version: The resource version of this state.
        node: The node that it is bound to; empty if it is not bound.
        takes: The resources that it uses of that node, as ``pod_resources.request_of`` counts them, without zeros.
            Equal pods share one object.
        ports: The host ports that it uses there. Equal pods share one object.
        labels: Its labels as JSON, for the rules of other pods that select it. Equal pods share one text. Empty without
            labels and for labels that are too long.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    node: str
    takes: Mapping[str, int]
    ports: tuple[HostPort, ...] = ()
    labels: str = ""

    @property
    def metadata(self) -> Foreign:
        """Return the record itself, which has the fields that identify a pod.

        So code that reads ``metadata`` works for this record, too.
        """
        return self


class Static(Foreign, frozen=True, gc=False, kw_only=True):
    """A pod that the scheduler alone places: it names a template that the controller creates.

    Attributes:
        note: The webhook's annotation with the pod's request; empty if it is missing.
        template: The name of the template. The controller creates only templates with a name made from ``note``; empty
            if the pod names another one.
    """

    note: str
    template: str


class Grouped(Foreign, frozen=True, gc=False, kw_only=True):
    """A foreign pod of a PodGroup, bound or not. It counts towards the size of the group.

    Attributes:
        group: The PodGroup's name.
    """

    group: str


def read(data: msgspec.Raw) -> Pod | Foreign | None:
    """Return the record that the cache keeps of a pod's JSON; None if it keeps none.

    - A pod that the controller places (it has our label) is a ``Pod``: its labels, and the annotations and environment
      variables that the controller reads.
    - Any other pod is a ``Foreign``. It is kept only while it runs on a node, is placed by the scheduler alone
      (``Static``), or belongs to a PodGroup (``Grouped``).

    Raises:
        BadJson: It is not a pod.
    """
    # Most pods of a cluster are not ours, so the few fields that tell are decoded first.
    pod: _Pod = codec.decode(data, _Pod)
    labels = bytes(pod.metadata.labels)
    ours = codec.decode(labels, _Labels).ours if _LABEL in labels else None
    is_static = ours == names.LABEL_STATIC
    if ours is not None and not is_static:
        return _whole(data)

    # A pod that is being deleted does not count as one of its PodGroup. No PodGroup's name is longer than ``LONGEST``.
    group = "" if pod.metadata.deletion_timestamp or not pod.spec.scheduling_group else pod.spec.scheduling_group.name
    group = group if len(group) <= gang_owners.LONGEST else ""
    # A pod of a PodGroup that has succeeded takes nothing from its node, but it still counts as a pod of the group.
    is_done = group and pod.status.phase == SUCCEEDED
    if pod.status.phase in FINISHED and not is_done:
        return None
    if not (is_static or pod.spec.node_name or group):
        return None
    is_on_node = bool(pod.spec.node_name) and not is_done
    foreign = Foreign(
        namespace=sys.intern(pod.metadata.namespace),
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        resource_version=pod.metadata.resource_version,
        node="" if is_done else sys.intern(pod.spec.node_name),  # interned: thousands of pods have the same texts
        takes=_takes(pod.spec, pod.status) if is_on_node else {},
        ports=_ports(pod.spec) if is_on_node else (),
        labels=_labels(labels) if is_on_node else "",
    )
    if is_static and not is_done:
        return _static(foreign, data)
    return Grouped(**msgspec.structs.asdict(foreign), group=sys.intern(group)) if group else foreign


def _static(foreign: Foreign, data: msgspec.Raw) -> Static:
    pod: Pod = codec.decode(data, Pod)
    note = pod.metadata.annotations.get(names.REQUEST, "")
    note = note if len(note) <= resolved.LONGEST else ""
    name = claim_alternatives.template_name(note)
    named = any(c.name == names.POD_CLAIM and c.resource_claim_template_name == name for c in pod.spec.resource_claims)
    return Static(**msgspec.structs.asdict(foreign), note=sys.intern(note), template=name if named else "")


def _whole(data: msgspec.Raw) -> Pod:
    pod: Pod = codec.decode(data, Pod)
    # Anybody can set our label, and other people's annotations are as long on such a pod as on any other.
    ours = {key: value for key, value in pod.metadata.annotations.items() if _kept(key, value)}
    labels = pod.metadata.labels  # by which pods of ours choose each other as neighbours
    if sum(len(key) + len(value) for key, value in labels.items()) > LONGEST_LABELS:
        labels = {names.LABEL: labels[names.LABEL]}
    spec = msgspec.structs.replace(
        pod.spec,
        containers=[_lean(container) for container in pod.spec.containers],
        init_containers=[_lean(container) for container in pod.spec.init_containers],
    )
    if sum(len(key) + len(value) for key, value in spec.node_selector.items()) > LONGEST_SELECTOR:
        spec = msgspec.structs.replace(spec, node_selector=TOO_LONG)
    status = msgspec.structs.replace(
        pod.status,
        container_statuses=_news(pod.status.container_statuses, spec.containers),
        init_container_statuses=_news(pod.status.init_container_statuses, spec.init_containers),
    )
    metadata = msgspec.structs.replace(pod.metadata, annotations=ours, labels=labels)
    return msgspec.structs.replace(pod, metadata=metadata, spec=spec, status=status)


def _news(statuses: list[ContainerStatus], containers: list[Container]) -> list[ContainerStatus]:
    """Return the statuses of the containers whose resources differ from what they request.

    These containers are being resized. The status of any other container says nothing new, so it is not kept.
    """
    asked = {container.name: container.resources.requests for container in containers}

    def is_news(status: ContainerStatus) -> bool:
        requests = asked.get(status.name)
        said = (None if status.resources is None else status.resources.requests, status.allocated_resources)
        return any(each is not None and each != requests for each in said)

    return [status for status in statuses if is_news(status)]


def _kept(key: str, value: str) -> bool:
    """Return whether the cache keeps an annotation with this key and value.

    It keeps annotations of this driver, and annotations that describe the pod's gang.
    """
    return key.startswith(names.PREFIX) or (key.startswith(gang_owners.SAID) and len(value) <= gang_owners.LONGEST)


def _lean(container: Container) -> Container:
    """Return a container with only the environment variables and ports that the controller reads."""
    if not (container.env or container.ports):
        return container
    env = [v for v in container.env if v.name.startswith(KEEP)]
    return msgspec.structs.replace(container, env=env, ports=[port for port in container.ports if port.host_port > 0])


class _Labels(msgspec.Struct, frozen=True, gc=False):
    ours: str | None = msgspec.field(name=names.LABEL, default=None)


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: msgspec.Raw = _NOTHING


class _Container(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    resources: msgspec.Raw = _NOTHING
    restart_policy: str | None = None
    ports: msgspec.Raw = _NO_PORTS


class _Group(msgspec.Struct, frozen=True, gc=False):
    name: str = msgspec.field(name="podGroupName", default="")


class _Spec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    node_name: str = ""
    scheduling_group: _Group | None = None
    containers: list[_Container] = []
    init_containers: list[_Container] = []
    overhead: msgspec.Raw = _NOTHING
    resources: msgspec.Raw = _NOTHING


class _Condition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    reason: str = ""


class _ContainerStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    name: str = ""
    allocated_resources: msgspec.Raw = _UNSAID
    resources: msgspec.Raw = _UNSAID


class _Status(msgspec.Struct, rename="camel", frozen=True, gc=False):
    phase: str = ""
    conditions: list[_Condition] = []
    container_statuses: list[_ContainerStatus] = []
    init_container_statuses: list[_ContainerStatus] = []
    allocated_resources: msgspec.Raw = _UNSAID
    resources: msgspec.Raw = _UNSAID


class _Pod(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


_Resources = tuple[bytes, bytes, bytes, str | None]
"""As JSON what is requested, what there is, and what is allocated; and the restart policy of a container."""


def _labels(data: bytes) -> str:
    """Return the labels of a foreign pod (one that is not this driver's) as JSON.

    ``data`` are the labels in the pod's JSON. The result is empty if there are none, or if they are too long.
    """
    has_labels = data[:1] == b"{" and 2 < len(data) <= LONGEST_FOREIGN_LABELS
    return sys.intern(data.decode(errors="replace")) if has_labels else ""


def _ports(spec: _Spec) -> tuple[HostPort, ...]:
    """Return the host ports of a foreign pod (one that is not this driver's).

    Few pods have host ports, so a pod's ports are decoded only if its JSON contains host ports.
    """
    containers, init_containers = (
        tuple([(bytes(each.ports), each.restart_policy) for each in some if b"hostPort" in bytes(each.ports)])
        for some in (spec.containers, spec.init_containers)
    )
    if not (containers or init_containers):
        return ()
    length = sum(len(ports) for ports, _ in containers + init_containers)
    count = _host_ports if length <= LONGEST_KEY else _host_ports.__wrapped__
    return count(containers, init_containers)


@functools.lru_cache(maxsize=4096)
def _host_ports(
    containers: tuple[tuple[bytes, str | None], ...], init_containers: tuple[tuple[bytes, str | None], ...]
) -> tuple[HostPort, ...]:
    main, init = (
        [
            Container(ports=codec.decode(ports, list[ContainerPort]), restart_policy=restart_policy)
            for ports, restart_policy in some
        ]
        for some in (containers, init_containers)
    )
    return host_ports(main, init)


def _takes(spec: _Spec, status: _Status) -> Mapping[str, int]:
    infeasible = is_infeasible(status.conditions)
    statuses = {one.name: one for one in status.init_container_statuses + status.container_statuses}
    containers = tuple([_resources(one, statuses.get(one.name), infeasible) for one in spec.containers])
    before = tuple([_resources(one, statuses.get(one.name), infeasible) for one in spec.init_containers])
    whole = bytes(spec.resources), bytes(status.resources), bytes(status.allocated_resources), None
    overhead = bytes(spec.overhead)
    length = len(overhead) + sum([len(one[0]) + len(one[1]) + len(one[2]) for one in (whole, *containers, *before)])
    count = _count if length <= LONGEST_KEY else _count.__wrapped__
    return count(containers, before, whole, overhead, infeasible)


def _resources(container: _Container, status: _ContainerStatus | None, infeasible: bool) -> _Resources:
    requested = bytes(container.resources)
    if status is None:
        return requested, _NULL, _NULL, container.restart_policy
    actual, allocated = bytes(status.resources), bytes(status.allocated_resources)
    # What only repeats the request is left out, so that alike pods share what is counted, resized or not.
    if not infeasible and actual == requested:
        actual = _NULL
    if not infeasible and requested.endswith(b'"requests":' + allocated + b"}"):
        allocated = _NULL
    return requested, actual, allocated, container.restart_policy


@functools.lru_cache(maxsize=4096)
def _count(
    containers: tuple[_Resources, ...],
    before: tuple[_Resources, ...],
    whole: _Resources,
    overhead: bytes,
    infeasible: bool,
) -> Mapping[str, int]:
    main = [_container(at, one) for at, one in enumerate(containers)]
    init = [_container(at, one) for at, one in enumerate(before, len(containers))]
    spec = PodSpec(
        containers=[container for container, _ in main],
        init_containers=[container for container, _ in init],
        resources=codec.decode(whole[0], ResourceRequirements),
        overhead=codec.decode(overhead, dict[str, str]),
    )
    status = PodStatus(
        conditions=[_INFEASIBLE] if infeasible else [],
        container_statuses=[status for _, status in main + init],
        resources=codec.decode(whole[1], ResourceRequirements | None),
        allocated_resources=codec.decode(whole[2], dict[str, str] | None),
    )
    request = request_of(Pod(metadata=Metadata(), spec=spec, status=status))
    return _shared(tuple(sorted((resource, amount) for resource, amount in request.items() if amount)))


def _container(at: int, of: _Resources) -> tuple[Container, ContainerStatus]:
    requested, actual, allocated, restart_policy = of
    resources = codec.decode(requested, ResourceRequirements)
    status = ContainerStatus(
        name=str(at),
        resources=codec.decode(actual, ResourceRequirements | None),
        allocated_resources=codec.decode(allocated, dict[str, str] | None),
    )
    return Container(name=str(at), resources=resources, restart_policy=restart_policy), status


@functools.lru_cache(maxsize=4096)
def _shared(request: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    return MappingProxyType(dict(request))
