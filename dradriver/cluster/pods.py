"""Pods as the controller keeps them: ours whole, of any other only what it takes from its node.

A cluster can have 150,000 pods that are none of our business, and their annotations can be 256 KiB each. So nothing of
a foreign pod is built that is not kept, and what alike pods share is kept once.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.api import gang_owners, ladder, names, resolved
from dradriver.api.objects import Metadata
from dradriver.api.pins import KEEP
from dradriver.api.pods import Container, Pod, PodSpec, ResourceRequirements
from dradriver.cluster.nodes.requests import request_of
from dradriver.kube import codec

SUCCEEDED: Final = "Succeeded"
FINISHED: Final = (SUCCEEDED, "Failed")
LONGEST_KEY: Final = 4096  # bytes of resources that are remembered; longer ones, which hardly any pod has, are not
LONGEST_LABELS: Final = 8_192  # characters of labels that are kept; of a pod with more, which nobody has, ours alone
LONGEST_SELECTOR: Final = 16_384  # characters of a node selector; a longer one selects nothing
TOO_LONG: Final = {"this-selector-is-too-long": "select fewer labels"}
_NOTHING: Final = msgspec.Raw(b"{}")


class Foreign(msgspec.Struct, frozen=True, gc=False):
    """A pod of somebody else's that runs on a node, or will.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        uid: Its uid.
        resource_version: The version that this is of.
        node: The node that it is bound to.
        takes: What it takes from that node, as ``capacity.request_of`` counts it, without what it takes none of. Alike
            pods share one.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    node: str
    takes: Mapping[str, int]

    @property
    def metadata(self) -> Foreign:
        """Itself, which has the parts of an object's metadata that tell it from others."""
        return self


class Static(Foreign, frozen=True, gc=False):
    """A pod that the scheduler alone places: a foreign one that names a template which the controller makes.

    Attributes:
        note: What the webhook made of its words; empty where that is missing.
        template: The name of the template; empty where it is not the one of this note: we make no other.
    """

    note: str
    template: str


class Grouped(Foreign, frozen=True, gc=False):
    """A foreign pod of a PodGroup, bound or not: the group's number of pods counts it.

    Attributes:
        group: The PodGroup's name.
    """

    group: str


def read(data: msgspec.Raw) -> Pod | Foreign | None:
    """Return what is kept of a pod's JSON.

    A pod with our label is a ``Pod``, with its labels, and those of its annotations and variables that are looked at.
    Of any other nothing is kept until it is bound, unless the scheduler alone places it, or it is of a PodGroup, nor
    once it has finished.

    Raises:
        BadJson: It is not a pod.
    """
    pod: _Pod = codec.decode(data, _Pod)
    static = pod.metadata.labels.ours == names.LABEL_STATIC
    if pod.metadata.labels.ours is not None and not static:
        return _whole(data)
    group = "" if pod.metadata.deletion_timestamp or not pod.spec.scheduling_group else pod.spec.scheduling_group.name
    group = group if len(group) <= gang_owners.LONGEST else ""
    # One of a PodGroup that has ended well needs no place any more, and is one of its pods all the same.
    done = group and pod.status.phase == SUCCEEDED
    if (pod.status.phase in FINISHED and not done) or not (static or pod.spec.node_name or group):
        return None
    foreign = Foreign(
        namespace=sys.intern(pod.metadata.namespace),
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        resource_version=pod.metadata.resource_version,
        node="" if done else sys.intern(pod.spec.node_name),
        takes=_takes(pod.spec) if pod.spec.node_name and not done else {},
    )
    if static and not done:
        return _static(foreign, data)
    return Grouped(**msgspec.structs.asdict(foreign), group=sys.intern(group)) if group else foreign


def _static(foreign: Foreign, data: msgspec.Raw) -> Static:
    pod: Pod = codec.decode(data, Pod)
    note = pod.metadata.annotations.get(names.REQUEST, "")
    note = note if len(note) <= resolved.LONGEST else ""
    name = ladder.template_name(note)
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
    metadata = msgspec.structs.replace(pod.metadata, annotations=ours, labels=labels)
    return msgspec.structs.replace(pod, metadata=metadata, spec=spec)


def _kept(key: str, value: str) -> bool:
    """Return whether an annotation is looked at: a note of ours, or what a pod's maker says of its gang."""
    return key.startswith(names.PREFIX) or (key.startswith(gang_owners.SAID) and len(value) <= gang_owners.LONGEST)


def _lean(container: Container) -> Container:
    """Return a container with those of its variables that are looked at."""
    if not container.env:
        return container
    return msgspec.structs.replace(container, env=[v for v in container.env if v.name.startswith(KEEP)])


class _Labels(msgspec.Struct, frozen=True, gc=False):
    ours: str | None = msgspec.field(name=names.LABEL, default=None)


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: _Labels = _Labels()


class _Container(msgspec.Struct, rename="camel", gc=False):
    resources: msgspec.Raw = _NOTHING
    restart_policy: str | None = None


class _Group(msgspec.Struct, frozen=True, gc=False):
    name: str = msgspec.field(name="podGroupName", default="")


class _Spec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    node_name: str = ""
    scheduling_group: _Group | None = None
    containers: list[_Container] = []
    init_containers: list[_Container] = []
    overhead: msgspec.Raw = _NOTHING
    resources: msgspec.Raw = _NOTHING


class _Status(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class _Pod(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


_Texts = tuple[tuple[bytes, str | None], ...]  # resources as JSON and restart policy of each container


def _takes(spec: _Spec) -> Mapping[str, int]:
    containers = tuple([(bytes(c.resources), None) for c in spec.containers])
    before = tuple([(bytes(c.resources), c.restart_policy) for c in spec.init_containers])
    whole, overhead = bytes(spec.resources), bytes(spec.overhead)
    length = len(whole) + len(overhead) + sum([len(text) for text, _ in containers + before])
    count = _count if length <= LONGEST_KEY else _count.__wrapped__
    return count(containers, before, whole, overhead)


@functools.lru_cache(maxsize=4096)
def _count(containers: _Texts, before: _Texts, whole: bytes, overhead: bytes) -> Mapping[str, int]:
    spec = PodSpec(
        containers=[_container(*one) for one in containers],
        init_containers=[_container(*one) for one in before],
        resources=codec.decode(whole, ResourceRequirements),
        overhead=codec.decode(overhead, dict[str, str]),
    )
    request = request_of(Pod(metadata=Metadata(), spec=spec))
    return _shared(tuple(sorted((resource, amount) for resource, amount in request.items() if amount)))


def _container(resources: bytes, restart_policy: str | None) -> Container:
    return Container(resources=codec.decode(resources, ResourceRequirements), restart_policy=restart_policy)


@functools.lru_cache(maxsize=4096)
def _shared(request: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    return MappingProxyType(dict(request))
