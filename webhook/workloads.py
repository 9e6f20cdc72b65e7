"""Annotations on a Job, a Deployment or another object that creates pods: they are copied into its pod templates.

Kubernetes does not copy annotations of such an object to its pods, but many manifests have them there. The webhook
reads these annotations like the annotations of a pod. So the author of a mistake gets an error at once, instead of an
Event on the object's controller.

A template with annotations of the driver is not changed. There is one exception, in an update: if the annotations of
the template were exactly those of the object before, they had been copied. Then the new annotations are copied, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Raw

from dradriver.api.base import names, other_schedulers
from dradriver.api.base.errors import WordError
from dradriver.api.base.jsonpatch import Patch
from dradriver.api.gangs import gang_size_of_owner
from dradriver.api.pod.annotations import Annotations, is_written
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.vocabulary import container_limits
from webhook import disruption, gang, kueue, pod_view

_EACH: Final = "*"  # of a list or of an object's members
_SPEC: Final = ("spec", "template")
# Where pod templates stand, by kind.
TEMPLATES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "Job": (_SPEC,),
    "CronJob": (("spec", "jobTemplate", *_SPEC),),
    "Deployment": (_SPEC,),
    "StatefulSet": (_SPEC,),
    "JobSet": (("spec", "replicatedJobs", _EACH, "template", *_SPEC),),
    "LeaderWorkerSet": tuple(("spec", "leaderWorkerTemplate", f"{role}Template") for role in ("leader", "worker")),
    **{
        kind: (("spec", field, _EACH, "template"),) for kind, field in gang_size_of_owner.REPLICAS.items()
    },  # Kubeflow's
}

_Path = tuple[str | int, ...]


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None

    @property
    def words(self) -> dict[str, str]:
        return {k: v for k, v in (self.annotations or {}).items() if names.is_ours(k) and not is_written(k)}

    @property
    def queue(self) -> str | None:
        return (self.labels or {}).get(pod_view.QUEUE)


class _Template(msgspec.Struct, frozen=True, gc=False):
    metadata: _Metadata | None = None
    spec: pod_view.Spec | None = None

    @property
    def asks(self) -> bool:
        """Return whether a container of the pod template has a GPU limit above zero."""
        spec = self.spec or pod_view.Spec()
        every = (*(spec.containers or ()), *(spec.init_containers or ()))
        return any(container_limits.some(pod_view.quantities(c.resources.limits)) for c in every if c.resources)


class _Object(msgspec.Struct, frozen=True, gc=False):
    metadata: _Metadata = _Metadata()
    spec: Raw = pod_view.ABSENT


_OBJECT: Final = msgspec.json.Decoder(_Object | None)
_TEMPLATE: Final = msgspec.json.Decoder(_Template | None)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw] | list[Raw] | None)


def admitted(kind: str, new: Raw, old: Raw, namespace: str, policies: Policies) -> tuple[Patch, list[str]]:
    """Return the patch that copies a workload's annotations into its pod templates, and warnings.

    The patch is empty if there is nothing to copy. If some templates have GPU limits, only these get the annotations:
    the other templates, such as a launcher, request no GPUs, and their pods would be refused. If no template has
    limits, all of them get the annotations, because an annotation may request the GPUs.

    Args:
        kind: One of ``TEMPLATES``; other kinds have no templates.
        new: The object.
        old: The object before an update, else ``null``.
        namespace: Its namespace.
        policies: The policies in force.

    Raises:
        WordError: A new annotation is unknown or bad, requests GPUs that the queue would not count, or requests a gang
            that the object's pods cannot form. Or the object is not of this kind.
    """
    sent = _read(kind, new)
    annotations = Annotations(sent.metadata.words, policies)
    # ``schedulers``: those that the pods of the templates will name.
    patch, schedulers = _copied(kind, new, sent, _read(kind, old).metadata, annotations)
    warnings = (other_schedulers.warning(name) for name in schedulers if name not in policies.schedulers)
    return patch, [*filter(None, warnings), *disruption.warnings(kind, annotations, sent.spec, namespace)]


def _copied(
    kind: str, new: Raw, sent: _Object, before: _Metadata, annotations: Annotations
) -> tuple[Patch, Iterable[str]]:
    """Return the patch that copies an object's annotations into its pod templates.

    The second value has the ``schedulerName`` of each template that gets annotations. ``new`` is the object as JSON,
    ``sent`` the same decoded; ``before`` is the metadata before an update.
    """
    # 1. The object's annotations, now and before this update. ``words`` are those under our prefixes.
    metadata = sent.metadata
    words, former_words = annotations.texts, before.words
    patch = Patch()
    if not words or kind not in TEMPLATES:
        return patch, ()
    if words != former_words:
        annotations.check()
    try:
        templates = [template for path in TEMPLATES[kind] for template in _templates(new, path)]
    except (ValueError, RecursionError) as error:
        raise WordError(f"The object is not a valid {kind}: {error}.") from None
    # Kueue charges limits: check its queue if the queue or the annotations changed.
    if metadata.queue and (metadata.queue, words) != (before.queue, former_words):
        kueue.check_words(words, limits=any(template.asks for _, template in templates))

    # 2. The templates that get them, as pairs of path and template.
    receiving = [template for template in templates if template[1].asks] or templates
    if words != former_words:
        gang.check_maker(
            kind, annotations.gang, metadata.annotations or {}, sent.spec, templates=[path for path, _ in receiving]
        )

    # 3. Copy. A template with other annotations is its author's own.
    for path, template in receiving:
        present = template.metadata.words if template.metadata else {}
        if present in ({}, former_words) and present != words:
            _write(patch, path, template.metadata, present, words)
    schedulers = ((template.spec and template.spec.scheduler_name) or "" for _, template in receiving)
    return patch, dict.fromkeys(schedulers)


def _write(
    patch: Patch, path: _Path, metadata: _Metadata | None, has: Mapping[str, str], words: Mapping[str, str]
) -> None:
    if metadata is None:
        patch.add(*path, "metadata", value={"annotations": dict(words)})
    elif metadata.annotations is None:
        patch.add(*path, "metadata", "annotations", value=dict(words))
    else:
        for key in has.keys() - words.keys():
            patch.remove(*path, "metadata", "annotations", key)
        for key, value in words.items():
            if has.get(key) != value:
                patch.add(*path, "metadata", "annotations", key, value=value)


def _read(kind: str, text: Raw) -> _Object:
    try:
        return _OBJECT.decode(text) or _Object()
    except (ValueError, RecursionError) as error:
        raise WordError(f"The object is not a valid {kind}: {error}.") from None


def _templates(text: Raw, path: tuple[str, ...], above: _Path = ()) -> Iterator[tuple[_Path, _Template]]:
    """Yield each pod template of an object at a path, with its full path.

    Args:
        text: The object, or a part of it, as JSON.
        path: The path of the templates inside ``text``; it can lead through lists.
        above: The path of ``text`` in the whole object.
    """
    if not path:
        if (template := _TEMPLATE.decode(text)) is not None:
            yield above, template
        return
    members = _MEMBERS.decode(text) or {}
    items = dict(enumerate(members)) if isinstance(members, list) else members
    for key, value in items.items():
        if path[0] in (_EACH, key):
            yield from _templates(value, path[1:], (*above, key))
