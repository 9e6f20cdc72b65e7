"""A pod as the webhook reads it: typed, with only the fields that it uses.

A field that may not be needed stays JSON until it is used. So a large pod costs no more than its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from dradriver.api.base import affinity, names
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import NodeSelector
from dradriver.api.pod.annotations import is_written

Quantity = str | int | float  # the API server sends text; people write numbers
ABSENT: Final = Raw(b"null")
QUEUE: Final = "kueue.x-k8s.io/queue-name"
PODSET: Final = "kueue.x-k8s.io/podset"  # what Kueue labels the pods of a Job with that it has admitted
PARENT: Final = "kueue.x-k8s.io/pod-suspending-parent"  # its annotation on pods of Deployments and StatefulSets
LONGEST: Final = (
    2 << 20
)  # bytes of JSON; Kubernetes keeps 256 KiB of annotations, which escapes can make six times that

_T = TypeVar("_T")


class _Part(msgspec.Struct, rename="camel", frozen=True, gc=False):
    pass


class Named(_Part, frozen=True, omit_defaults=True):
    """Base class of the entries of a pod's lists that Kubernetes merges by the entry's name."""

    name: str


class PodClaim(Named, frozen=True):
    """An entry of ``spec.resourceClaims``."""

    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class UsedClaim(Named, frozen=True):
    """An entry of a container's ``resources.claims``."""

    request: str | None = None


class Resources(_Part, frozen=True):
    """A container's resources. Limits and requests stay JSON; ``quantities`` reads them."""

    limits: Raw = ABSENT
    requests: Raw = ABSENT
    claims: list[UsedClaim] | None = None


class SecurityContext(_Part, frozen=True):
    """A container's security context: whether it is privileged. A privileged container sees all devices of its node."""

    privileged: bool | None = None


class Container(Named, frozen=True):
    """A container, or an init container. Its environment stays JSON; ``harmful_settings`` reads it."""

    resources: Resources | None = None
    env: Raw = ABSENT
    restart_policy: str | None = None
    security_context: SecurityContext | None = None

    @property
    def claims(self) -> Sequence[UsedClaim]:
        """Return the entries of a container's ``resources.claims``."""
        return (self.resources and self.resources.claims) or ()


class Spec(_Part, frozen=True):
    """The fields of a pod's spec that the driver reads or writes."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resource_claims: list[PodClaim] | None = None
    scheduling_gates: list[Named] | None = None
    affinity: Raw = ABSENT
    tolerations: Raw = ABSENT
    node_name: str | None = None
    scheduler_name: str | None = None
    active_deadline_seconds: int | None = None
    scheduling_group: Raw = ABSENT


class Pod(msgspec.Struct, frozen=True, gc=False):
    """A pod as the webhook reads it.

    Attributes:
        words: The author's annotations under the driver's prefixes.
        written: The annotations that the webhook and the controller write, also under names of other tools.
        annotated: Whether the pod has any annotations at all.
        labelled: Whether the pod has any labels at all.
        label: The value of the driver's label; None without it.
        annotations: All of its annotations.
        labels: All of its labels.
        queued: Whether the pod's GPUs count for Kueue's quota, as a plain pod or through its owner.
        queued_alone: Whether its author put the pod itself into a queue, as a plain pod.
        note_sent: Whether the pod is queued, and its author sent the annotation that notes a resolved request. Normally
            the webhook writes it.
        owners: Its ``metadata.ownerReferences``, undecoded.
        spec: Its spec.
    """

    words: dict[str, str]
    written: dict[str, str]
    annotated: bool
    labelled: bool
    label: str | None
    annotations: dict[str, str]
    labels: dict[str, str]
    queued: bool
    queued_alone: bool
    note_sent: bool
    owners: Raw
    spec: Spec

    @property
    def is_marked(self) -> bool:
        """Return whether the pod has an annotation or the label of this driver.

        Other pods are not for this driver, unless their GPU limits are translated.
        """
        return bool(self.words) or any(map(names.is_ours, self.written)) or self.label is not None

    @property
    def containers(self) -> Sequence[Container]:
        """Return the containers of the pod, without init containers."""
        return self.spec.containers or ()

    @property
    def init_containers(self) -> Sequence[Container]:
        """Return the init containers of the pod, including sidecars."""
        return self.spec.init_containers or ()

    @property
    def app_containers(self) -> list[Container]:
        """Return the containers that run for the pod's whole life: its containers, then its sidecars.

        A sidecar is an init container with ``restartPolicy: Always`` (KEP-753).
        """
        return [*self.containers, *(c for c in self.init_containers if c.restart_policy == "Always")]

    @property
    def template(self) -> tuple[str, str] | None:
        """Return the ``spec.resourceClaims`` entry of the pod's GPUs, and the template that its author named.

        The controller makes the claim of this entry from the template. None if the author named no template.
        """
        entry, slash, name = self.written.get(names.TEMPLATE, "").partition("/")
        return (entry, name) if slash and names.REQUEST in self.written else None

    @property
    def own_entry(self) -> str:
        """Return the name of the entry of the pod's ``spec.resourceClaims`` that the driver writes."""
        return names.POD_CLAIM if self.template is None else self.template[0]

    @property
    def own_claim(self) -> PodClaim | None:
        """Return the entry of ``spec.resourceClaims`` with the name ``own_entry``; None without one.

        It need not be the driver's: the pod's author can write an entry with this name.
        """
        return next((c for c in self.spec.resource_claims or () if c.name == self.own_entry), None)

    @property
    def is_in_group(self) -> bool:
        """Return whether the pod names a PodGroup (KEP-4671)."""
        return not same(self.spec.scheduling_group, ABSENT)

    @property
    def gated(self) -> bool:
        """Return whether the pod has the driver's scheduling gate."""
        return any(gate.name == names.GATE for gate in self.spec.scheduling_gates or ())


class _Metadata(_Part, frozen=True):
    labels: Raw = ABSENT
    annotations: Raw = ABSENT
    owner_references: Raw = ABSENT
    managed_fields: Raw = ABSENT


class _ManagedAnnotations(msgspec.Struct, frozen=True, gc=False):
    note: dict[str, Raw] | None = msgspec.field(name="f:" + names.REQUEST, default=None)


class _ManagedMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: _ManagedAnnotations | None = msgspec.field(name="f:annotations", default=None)


class _ManagedFields(msgspec.Struct, frozen=True, gc=False):
    metadata: _ManagedMetadata | None = msgspec.field(name="f:metadata", default=None)


class _Manager(msgspec.Struct, frozen=True, gc=False):
    fields: _ManagedFields | None = msgspec.field(name="fieldsV1", default=None)


class _Pod(_Part, frozen=True):
    metadata: _Metadata
    spec: Spec


class _NodeAffinity(msgspec.Struct, frozen=True, gc=False):
    required: Raw = msgspec.field(name=affinity.REQUIRED, default=ABSENT)


class _Affinity(_Part, frozen=True):
    node_affinity: _NodeAffinity | None = None


_POD: Final = msgspec.json.Decoder(_Pod)
_TEXTS: Final = msgspec.json.Decoder(dict[str, str] | None)
_MANAGERS: Final = msgspec.json.Decoder(list[_Manager] | None)
_QUANTITIES: Final = msgspec.json.Decoder(dict[str, Quantity] | None)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw] | None)
_SELECTOR: Final = msgspec.json.Decoder(NodeSelector | None)
_AFFINITY: Final = msgspec.json.Decoder(_Affinity | None)


def read(text: bytes | Raw, *, also_written: Sequence[str] = ()) -> Pod:
    """Return the view of a pod from its JSON.

    Args:
        text: The pod as JSON.
        also_written: Names of further annotations that the controller writes, without the driver's prefixes.

    Raises:
        WordError: The JSON is not a pod.
    """
    pod = decode(_POD, text, "")
    annotations = _texts(pod.metadata.annotations, "metadata.annotations")
    labels = _texts(pod.metadata.labels, "metadata.labels")
    # Annotations under our prefixes: the author's, and those that only webhook and controller write.
    words: dict[str, str] = {}
    written: dict[str, str] = {}
    for key, value in (annotations or {}).items():
        if names.is_ours(key):
            (written if is_written(key) else words)[key] = value
        elif key in also_written:
            written[key] = value
    labelled = labels or {}
    # Kueue labels a plain pod with its queue, and a pod of a Job that it admitted with its podset.
    queue, podset = labelled.get(QUEUE), labelled.get(PODSET)
    queued = bool(queue or podset)
    return Pod(
        words=words,
        written=written,
        annotated=annotations is not None,
        labelled=labels is not None,
        label=labelled.get(names.LABEL),
        annotations=annotations or {},
        labels=labelled,
        queued=queued,
        queued_alone=bool(queue) and not podset and PARENT not in (annotations or {}),
        note_sent=queued and names.REQUEST in written and _note_sent(pod.metadata.managed_fields),
        owners=pod.metadata.owner_references,
        spec=pod.spec,
    )


def _texts(text: Raw, path: str) -> dict[str, str] | None:
    if len(memoryview(text)) > LONGEST:
        raise WordError(f"{path}: more than {LONGEST} bytes of JSON. Kubernetes stores at most 256 KiB of annotations.")
    found: dict[str, str] | None = decode(_TEXTS, text, f"{path}: ")
    return found


def _note_sent(managed: Raw) -> bool:
    """Return whether a new pod's author sent the note with a resolved request.

    True if unknown. The note is an annotation that normally the webhook writes. ``managedFields`` tells: before
    admission the API server lists there the fields that were sent. The list does not contain fields that admission
    adds. If the API server cannot make the list, it removes it (apiserver 1.36, endpoints/handlers/create.go;
    managedfields UpdateNoErrors).

    Args:
        managed: The pod's ``managedFields`` as JSON.

    Raises:
        WordError: The list is invalid.
    """
    managers = decode(_MANAGERS, managed, "metadata.managedFields: ")
    listed = [one.fields.metadata.annotations for one in managers or () if one.fields and one.fields.metadata]
    return not managers or any(one is not None and one.note is not None for one in listed)


def quantities(raw: Raw) -> dict[str, Quantity]:
    """Return a container's limits or requests by resource, from their JSON.

    Raises:
        WordError: The JSON is not a map of quantities.
    """
    return {} if same(raw, ABSENT) else decode(_QUANTITIES, raw, "resources: ") or {}


def members(raw: Raw) -> dict[str, Raw] | None:
    """Return the fields of a JSON object in a pod, each still as JSON; None without the object.

    Raises:
        WordError: The JSON is not an object.
    """
    found: dict[str, Raw] | None = decode(_MEMBERS, raw, "")
    return found


def required(spec: Spec) -> Raw:
    """Return a pod's required node affinity as undecoded JSON; ``ABSENT`` without one.

    Raises:
        WordError: The affinity is invalid.
    """
    found = None if same(spec.affinity, ABSENT) else decode(_AFFINITY, spec.affinity, "spec.affinity: ")
    return ABSENT if found is None or found.node_affinity is None else found.node_affinity.required


def selector(spec: Spec) -> NodeSelector | None:
    """Return a pod's required node affinity, decoded; None without one.

    Raises:
        WordError: The affinity is invalid.
    """
    found: NodeSelector | None = decode(_SELECTOR, required(spec), "spec.affinity: ")
    return found


def same(one: Raw, other: Raw) -> bool:
    """Return whether two pieces of a pod's JSON are the same bytes.

    The API server writes equal values as equal bytes, so False means that the values differ.
    """
    return memoryview(one) == memoryview(other)


def decode(decoder: msgspec.json.Decoder[_T], text: bytes | Raw, where: str) -> _T:
    """Return a piece of a pod's JSON, decoded as the decoder's type.

    Args:
        decoder: The decoder.
        text: The JSON.
        where: The place in the pod, for the message.

    Raises:
        WordError: The JSON is not of that type.
    """
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError) as error:
        problem = where + str(error)
        raise WordError(f"The object is not a valid Pod: {problem}.") from None


def plain(entry: PodClaim | UsedClaim | Named) -> Any:
    """Return an entry of a pod's list as JSON, without fields that are not set."""
    return msgspec.to_builtins(entry)
