"""What the webhook answers to an object: its own code, with no server between."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.gangs import gang_size_of_owner
from dradriver.api.pod import misspelled
from dradriver.api.pod.annotations import is_written
from dradriver.api.vocabulary import annotation_words
from dradriver.cli.linter.manifest_documents import Document
from dradriver.cli.linter.patched import patched
from dradriver.cli.linter.pod_templates import CLAIMS, Path, pods
from dradriver.view.terminal_text import plain
from webhook import review
from webhook.admission import Admission
from webhook.translate import translate as by_limits

_KEY: Final = re.compile(r"(?:annotation )?'?((?:gpu\.topology|gpu-topology\.example\.com)/[\w.-]+)")
_CONTAINER: Final = re.compile(r"(?:init )?container '([^']+)'")
_FIELD: Final = re.compile(r"spec((?:\.\w+|\[\d+\])+)")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")
# API groups of the kinds whose words the webhook copies into their templates; it is not asked of others' kinds.
GROUPS: Final = {
    "Job": "batch",
    "CronJob": "batch",
    "Deployment": "apps",
    "StatefulSet": "apps",
    "JobSet": "jobset.x-k8s.io",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io",
    **dict.fromkeys(gang_size_of_owner.REPLICAS, "kubeflow.org"),
}
_OF_PODS: Final = frozenset(annotation_words.KEYS)
_ARGO: Final = "argoproj.io"
_OF_GPUS: Final = (names.PREFIX, names.ALIAS_PREFIX, "nvidia.com/", "aliyun.com/gpu-")
_LEFT: Final = (
    "it asks for GPUs by limits and has no word of ours, so it stays as it is; in a namespace labelled "
    "gpu.topology/translate=true (--translate) "
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, or may be.

    Attributes:
        line: Where, from 1.
        message: As the webhook says it.
    """

    line: int
    message: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one pod, claim or template of an object; of an object without any, of the object.

    Attributes:
        source: The file.
        document: Which of its documents.
        line: Where the object begins.
        kind: The object's kind.
        name: Its name, with its namespace where it says one.
        path: Where in it the pod's template stands; empty for a pod.
        ours: Whether the driver has to do with it.
        errors: Why it is refused.
        warnings: What would be said, though it is admitted.
        notes: What becomes of a pod that asks for GPUs by limits alone, here and where such pods are translated.
        pod: The pod as it would be stored; None where there is none, or it is refused, or it stays as it is.
    """

    source: str
    document: int
    line: int
    kind: str
    name: str
    path: str = ""
    ours: bool = False
    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    pod: dict[str, Any] | None = None


def results(document: Document, admission: Admission, *, translate: bool = False) -> Iterator[Result]:
    """Yield what the webhook would answer to the pods and claims of a manifest.

    Args:
        document: The object.
        admission: The webhook.
        translate: Whether its namespace is one where pods without our words are translated.
    """
    kind = document.data["kind"]
    head = Result(
        source=document.source, document=document.number, line=document.line(), kind=plain(kind), name=_name(document)
    )  # fmt: skip
    if kind in CLAIMS:
        yield _claim(head, document, admission)
        return
    answer = _copied(document, admission)
    if not answer.allowed:
        yield msgspec.structs.replace(head, ours=True, errors=(_finding(document, (), answer.status.message),))
        return
    near_misses = () if kind == "Pod" else _near_misses(document)
    made = document
    if answer.ops:
        made = msgspec.structs.replace(document, data=patched(document.data, answer.ops))
    found = False
    for pod in pods(made):
        found = True
        result = _pod(head, document, admission, pod.path, pod.manifest, translate)
        result, near_misses = msgspec.structs.replace(result, warnings=(*near_misses, *result.warnings)), ()
        yield result if result.errors or _copies(document) or not pod.path else _with_missed(result, document, pod.path)
    if not found:
        head = msgspec.structs.replace(head, warnings=near_misses)
        yield _with_unread_templates(_with_words_of_no_pod(head, document), document)


def _copied(document: Document, admission: Admission) -> _Response:
    """Return what the webhook answers to what makes pods, before there are any."""
    if not _copies(document):
        return _Response(allowed=True)
    return _answer(admission.mutate_workload(_request(document.data, document.data["kind"]))[0])


def _copies(document: Document) -> bool:
    """Return whether the webhook copies words from an object into its pods' templates."""
    return GROUPS.get(document.data["kind"]) == str(document.data.get("apiVersion")).partition("/")[0]


def _name(document: Document) -> str:
    metadata = document.data.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = metadata.get("name") or metadata.get("generateName") or "(no name)"
    namespace = metadata.get("namespace")
    return plain(f"{namespace}/{name}" if namespace else str(name))


def _claim(head: Result, document: Document, admission: Admission) -> Result:
    answer = _answer(admission.validate_claim(_request(document.data, head.kind))[0])
    ours = "gpu.topology" in str(document.data.get("spec"))
    errors = () if answer.allowed else (_finding(document, (), answer.status.message),)
    warnings = tuple(_finding(document, (), text) for text in answer.warnings)
    return msgspec.structs.replace(head, ours=ours, errors=errors, warnings=warnings)


def _pod(
    head: Result, document: Document, admission: Admission, path: Path, manifest: dict[str, Any], translate: bool
) -> Result:
    head = msgspec.structs.replace(head, path=plain(".".join(map(str, path))))
    request = _request(manifest, "Pod")
    answer = _answer(admission.mutate_pod(request)[0])
    limited = (
        answer if answer.ops or not answer.allowed else _answer(admission.mutate_pod(request, created=by_limits)[0])
    )
    if translate:
        answer = limited
    if not answer.allowed:
        return msgspec.structs.replace(
            head, ours=True, errors=(_finding(document, path, answer.status.message),)
        )  # fmt: skip
    notes = []
    if limited is not answer and (limited.ops or not limited.allowed):
        there = "it gets ours" if limited.allowed else f"it is refused: {limited.status.message}"
        notes.append(Finding(line=document.line((*path, "spec")), message=plain(_LEFT + there)))
    return msgspec.structs.replace(
        head,
        ours=bool(answer.ops),
        warnings=tuple(_finding(document, path, text) for text in answer.warnings),
        notes=tuple(notes),
        pod=patched(manifest, answer.ops) if answer.ops else None,
    )


def _with_missed(result: Result, document: Document, path: Path) -> Result:
    """Return the result with a warning where words stand above a template that has none."""
    missed = next(iter(_words(document.data)), "")
    if not missed or _words(_at(document.data, path)):
        return result
    message = (
        f"{plain(missed)} stands on the {result.kind}, from which it is not copied to the pods; write it in "
        f"{result.path}.metadata.annotations"
    )
    finding = Finding(line=document.line(("metadata", "annotations", missed)), message=message)
    return msgspec.structs.replace(result, warnings=(*result.warnings, finding))


def _with_words_of_no_pod(result: Result, document: Document) -> Result:
    """Return the result of an object without a pod's template, with a warning where a pod's words stand on it."""
    key = next((key for key in _words(document.data) if key in _OF_PODS or key.startswith(names.ALIAS_PREFIX)), "")
    if not key:
        return result
    message = f"{plain(key)} stands on the {result.kind}, which has no pod template: write it where its pods get theirs"
    finding = Finding(line=document.line(("metadata", "annotations", key)), message=message)
    return msgspec.structs.replace(result, warnings=(*result.warnings, finding))


def _with_unread_templates(result: Result, document: Document) -> Result:
    """Return the result with a warning where it is of an Argo workflow with GPUs: its steps are no pod templates."""
    group = str(document.data.get("apiVersion")).partition("/")[0]
    text = msgspec.json.encode(document.data).decode()
    if group != _ARGO or not any(word in text for word in _OF_GPUS):
        return result
    message = (
        f"the steps of a {result.kind} (container, script, podSpecPatch) are not looked into: put the pod that a step "
        f"comes to into a file of its own, with the step's metadata.annotations"
    )
    finding = Finding(line=document.line(("spec",)), message=message)
    return msgspec.structs.replace(result, warnings=(*result.warnings, finding))


def _near_misses(document: Document) -> tuple[Finding, ...]:
    """Return a warning for each key that nobody reads on what makes pods, or on what has none."""
    keys = _keys(document.data, "annotations"), _keys(document.data, "labels")
    return tuple(_finding(document, (), text) for text in misspelled.warnings(*keys))


def _words(of: dict[str, Any]) -> list[str]:
    return [key for key in _keys(of, "annotations") if names.is_ours(key) and not is_written(key)]


def _keys(of: dict[str, Any], what: str) -> list[str]:
    metadata = of.get("metadata")
    found = metadata.get(what) if isinstance(metadata, dict) else None
    return [key for key in found if isinstance(key, str)] if isinstance(found, dict) else []


class _Status(msgspec.Struct, frozen=True):
    message: str = ""


class _Response(msgspec.Struct, frozen=True):
    allowed: bool
    patch: str = ""
    warnings: tuple[str, ...] = ()
    status: _Status = _Status()

    @property
    def ops(self) -> list[dict[str, Any]]:
        """The patch's operations."""
        return msgspec.json.decode(base64.b64decode(self.patch), type=list[dict[str, Any]]) if self.patch else []


class _Review(msgspec.Struct, frozen=True):
    response: _Response


_REVIEW: Final = msgspec.json.Decoder(_Review)


def _answer(body: bytes) -> _Response:
    return _REVIEW.decode(body).response


def _request(data: dict[str, Any], kind: str) -> review.Request:
    return review.Request(
        uid="lint",
        operation="CREATE",
        kind=review.GroupVersionKind(kind),
        object=msgspec.Raw(msgspec.json.encode(data)),
    )


def _finding(document: Document, path: Path, message: str) -> Finding:
    return Finding(line=document.line(_place(document, path, message)), message=plain(message))


def _place(document: Document, path: Path, message: str) -> Path:
    """Return the place that a message is about, as far as it says one."""
    key = message.partition(":")[0]
    for what, name in (("annotations", key), ("labels", key.removeprefix("label "))):
        if not names.is_ours(key) and name in _keys(_at(document.data, path), what):
            return (*path, "metadata", what, name)
    if (match := _KEY.match(message)) is not None:
        above = path and match[1] in _words(document.data) and match[1] not in _words(_at(document.data, path))
        return (*(() if above else path), "metadata", "annotations", match[1])
    if (match := _FIELD.match(message)) is not None:
        steps = [name or int(number) for name, number in _STEP.findall(match[1])]
        return (*path, "spec", *steps)
    if (match := _CONTAINER.match(message)) is not None:
        data = _at(document.data, path)
        for group in ("containers", "initContainers"):
            for number, one in enumerate(data["spec"].get(group) or ()):
                if isinstance(one, dict) and one.get("name") == match[1]:
                    return (*path, "spec", group, number)
    return (*path, "metadata") if path else ()


def _at(data: Any, path: Path) -> Any:
    for step in path:
        data = data[step]
    return data
