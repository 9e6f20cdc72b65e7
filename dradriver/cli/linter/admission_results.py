"""The webhook's answers to an object of a manifest, by a direct call of the webhook's code.

``lint`` calls this module.
"""

from __future__ import annotations

import base64
import copy
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.gangs import gang_size_of_owner
from dradriver.api.pod import misspelled
from dradriver.api.pod.annotations import is_written
from dradriver.api.vocabulary import annotation_words
from dradriver.cli.linter import inference_services
from dradriver.cli.linter.manifest_documents import Document
from dradriver.cli.linter.patched import patched
from dradriver.cli.linter.pod_templates import CLAIMS, Path, PodOf, asks_by_limits, pods
from dradriver.view.terminal_text import plain
from webhook import review
from webhook.admission import Admission
from webhook.translate import translate as by_limits

_KEY: Final = re.compile(r"(?:The annotation )?'?((?:gpu\.topology|gpu-topology\.example\.com)/[\w.-]+)")
_CONTAINER: Final = re.compile(r"(?:The containers [^(]+\()?(?:init )?container '([^']+)'")
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
_BY_LIMITS: Final = "containers' limits"  # in messages: an annotation and the limits contradict each other
_OF_PODS: Final = frozenset(annotation_words.KEYS)
_ARGO: Final = "argoproj.io"
_OF_GPUS: Final = (names.PREFIX, names.ALIAS_PREFIX, "nvidia.com/", "aliyun.com/gpu-")
_LEFT: Final = (
    "it requests GPUs by limits and has no annotation of this driver, so the webhook does not change it. In a "
    "namespace labelled gpu.topology/translate=true (--translate) "
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """An error or a warning of the webhook.

    Attributes:
        line: The line in the file, from 1.
        message: The webhook's message.
    """

    line: int
    message: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The webhook's answer to one pod, pod template or claim of an object; or to the object if it has none of these.

    Attributes:
        source: The file.
        document: The number of the document in the file.
        line: The line at which the object begins.
        kind: The object's kind.
        name: The object's name, with its namespace if it has one.
        path: The path of the pod template in the object; empty for a pod.
        ours: Whether the webhook changes or refuses it.
        errors: The errors for which the webhook refuses it.
        warnings: The warnings of the webhook if it admits it.
        notes: For a pod that requests GPUs only by limits: what the webhook would do in a namespace whose pods are
            translated into claims.
        pod: The pod as it would be stored; None if there is no pod, or it is refused or not changed.
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
    """Yield the webhook's answers to the pods of one object of a manifest.

    Args:
        document: The object.
        admission: The webhook.
        translate: Whether pods of its namespace that only have GPU limits are translated into claims.

    Yields:
        A result for each pod or pod template. If the object has none, is a claim, or is refused itself, one result for
        the object.
    """
    kind = document.data["kind"]
    object_result = Result(
        source=document.source, document=document.number, line=document.line(), kind=plain(kind), name=_name(document)
    )  # fmt: skip
    if kind in CLAIMS:
        yield _claim(object_result, document, admission)
        return

    # 1. The webhook copies annotations of a workload, as a JobSet, into its pod templates. It can refuse the workload.
    #    A refused one is looked through all the same, so that its templates' errors are found, too.
    answer, errors, data = _errors(document, (), document.data, lambda data: _admit_workload(document, data, admission))
    if errors:
        object_result = msgspec.structs.replace(object_result, ours=True, errors=errors)
        yield object_result
    # As the API server would store it: with the webhook's JSON Patch applied.
    admitted = msgspec.structs.replace(document, data=patched(data, answer.ops) if answer.ops else data)

    # 2. Its pods. Misspelled annotations of the object are reported once, with the first pod.
    object_warnings = () if kind == "Pod" else _near_misses(document)
    is_service = inference_services.is_inference_service(document)
    made = list(inference_services.components(document) if is_service else pods(admitted))
    # Pods whose template lacks the annotations that stand on the object, from which the webhook copies none.
    advised = [] if is_service or _is_copied(document) else _advised(document, made)
    for number, pod in enumerate(made):
        if is_service:
            result = _component(object_result, document, admission, pod, translate)
        else:
            result = _pod(object_result, document, admission, pod, translate)
        if number == 0:
            result = msgspec.structs.replace(result, warnings=(*object_warnings, *result.warnings))
        if pod in advised and not result.errors:
            result = _warn_of_uncopied_annotations(result, document, admission, pod)
        if not errors:
            yield result
        elif new_errors := tuple(error for error in result.errors if error not in errors):
            yield msgspec.structs.replace(result, errors=new_errors)

    # 3. An object without pods.
    if not made and not errors:
        object_result = msgspec.structs.replace(object_result, warnings=object_warnings)
        if not is_service:
            object_result = _warn_of_annotations_without_pod(object_result, document)
        yield _warn_of_unread_steps(object_result, document)


def _admit_workload(document: Document, data: dict[str, Any], admission: Admission) -> _Response:
    """Return the webhook's answer to an object that creates pods.

    The webhook is called only for kinds from which it copies annotations; other objects are admitted.
    """
    if not _is_copied(document):
        return _Response(allowed=True)
    return _answer(admission.mutate_workload(_request(data, document.data["kind"]))[0])


def _errors(
    document: Document, path: Path, manifest: dict[str, Any], ask: Callable[[dict[str, Any]], _Response]
) -> tuple[_Response, tuple[Finding, ...], dict[str, Any]]:
    """Return the webhook's answer to an object or its pod, all errors, and the manifest without the faulty fields.

    The webhook reports only the first error. So the annotation, field or limits of that error are removed, and the
    webhook is asked again until it admits the manifest. An error that can follow from a removal does not count: for
    example, another annotation needs the removed one.

    Args:
        document: The object.
        path: The place of the pod template in the object; empty for a pod or the object itself.
        manifest: The pod, or the object itself.
        ask: Returns the webhook's answer to a manifest.
    """
    first = answer = ask(manifest)
    errors: list[Finding] = []
    left_out: list[str] = []  # words of messages that can follow from what was left out
    while not answer.allowed:
        message = answer.status.message
        place = _place(document, path, message)
        if not any(word in message for word in left_out) and (place[len(path) + 1 :] or not errors):
            errors.append(_finding(document, path, message))
        if not left_out:
            manifest = copy.deepcopy(manifest)
        word = _leave_out(manifest, place[len(path) :] if place[: len(path)] == path else place)
        if word is None:
            break
        left_out.append(word)
        answer = ask(manifest)
    return first, tuple(sorted(errors, key=lambda error: error.line)), manifest


def _leave_out(manifest: dict[str, Any], place: Path) -> str | None:
    """Remove from a manifest the field at ``place``, which an error is about.

    If it belongs to a container, the container's resources are removed instead.

    Returns:
        A word by which to recognize the messages that are only a result of the removal; None if nothing was removed.
    """
    if len(place) > 2 and place[-2] in ("containers", "initContainers"):
        place = (*place, "resources")
    *above, last = place or ("",)
    try:
        around = _at(manifest, tuple(above))
        if not above or not isinstance(around, dict):
            return None
        del around[last]
    except (KeyError, IndexError, TypeError):
        return None
    return _BY_LIMITS if last == "resources" else str(last)


def _is_copied(document: Document) -> bool:
    """Return whether the webhook copies annotations from an object of this kind into its pod templates."""
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
    object_result: Result,
    document: Document,
    admission: Admission,
    pod: PodOf,
    translate: bool,
) -> Result:
    """Return the webhook's answer to a pod.

    Args:
        object_result: The result of the object, which names it.
        document: The object.
        admission: The webhook.
        pod: The pod.
        translate: Whether pods of its namespace that only have GPU limits are translated into claims.
    """
    path, manifest = pod.path, pod.manifest
    result = msgspec.structs.replace(object_result, path=plain(".".join(map(str, path))))

    def ask(manifest: dict[str, Any], *, translate: bool = translate) -> _Response:
        request = _request(manifest, "Pod")  # an AdmissionReview; ``mutate_pod`` returns the answer first
        answer = _answer(admission.mutate_pod(request)[0])
        # A pod that is admitted without a change has no annotations of ours, but its GPU limits can be translated.
        if translate and answer.allowed and not answer.ops:
            answer = _answer(admission.mutate_pod(request, created=by_limits)[0])
        return answer

    answer, errors, _ = _errors(document, path, manifest, ask)
    if errors:
        return msgspec.structs.replace(result, ours=True, errors=errors)
    # ``answer`` holds for the pod's namespace, ``translated`` for one that is labelled for translation.
    translated = answer if translate or answer.ops else ask(manifest, translate=True)
    notes = []
    if translated is not answer and (translated.ops or not translated.allowed):
        outcome = "it gets ours" if translated.allowed else f"it is refused: {translated.status.message}"
        notes.append(Finding(line=document.line((*path, "spec")), message=plain(_LEFT + outcome)))
    return msgspec.structs.replace(
        result,
        ours=bool(answer.ops),
        warnings=tuple(_finding(document, path, text) for text in answer.warnings),
        notes=tuple(notes),
        pod=patched(manifest, answer.ops) if answer.ops else None,
    )


def _component(object_result: Result, document: Document, admission: Admission, pod: PodOf, translate: bool) -> Result:
    """Return the webhook's answer to a component of an InferenceService.

    If the webhook admits the component's Deployment, the answer is about the component's pod; else it is the refusal of
    the Deployment. ``object_result`` is the result of the whole object, which names it. ``translate`` says whether pods
    of the namespace that only have GPU limits are translated into claims.
    """
    template = {key: pod.manifest[key] for key in ("metadata", "spec")}
    deployment = {"kind": "Deployment", "metadata": pod.manifest["metadata"], "spec": {"template": template}}
    answer = _answer(admission.mutate_workload(_request(deployment, "Deployment"))[0])
    if answer.allowed:
        result = _pod(object_result, document, admission, pod, translate)
    else:
        finding = _finding(document, pod.path, answer.status.message)
        result = msgspec.structs.replace(object_result, path=".".join(map(str, pod.path)), ours=True, errors=(finding,))
    is_copied = _words(document.data) and not _words({"metadata": _at(document.data, pod.path)})
    if not is_copied or asks_by_limits(pod.manifest):
        return result
    copied = tuple(
        Finding(line=error.line, message=plain(f"{error.message}. {inference_services.COPIED}"))
        for error in result.errors
    )
    return msgspec.structs.replace(result, errors=copied)


def _advised(document: Document, made: Sequence[PodOf]) -> list[PodOf]:
    """Return the pods whose pod template should get annotations that only the object has.

    The webhook does not copy the annotations of this object to its pods (``made``). The result has the pods that
    request GPUs by limits. If no pod does, all count, because an annotation may set the number of GPUs.
    """
    if not _words(document.data):
        return []
    asking = [pod for pod in made if asks_by_limits(pod.manifest)] or made
    return [pod for pod in asking if pod.path and not _words(_at(document.data, pod.path))]


def _warn_of_uncopied_annotations(result: Result, document: Document, admission: Admission, pod: PodOf) -> Result:
    """Return the result with a warning that the object's annotations are missing in its pod template.

    ``document`` is the object, ``pod`` a pod that it creates. First the webhook is called with the annotations in the
    pod template. The warning advises to move them only if the webhook admits them there.
    """
    words = {key: document.data["metadata"]["annotations"][key] for key in _words(document.data)}
    annotations = {key: pod.manifest["metadata"]["annotations"][key] for key in _keys(pod.manifest, "annotations")}
    metadata = pod.manifest["metadata"] | {"annotations": annotations | words}
    answer = _answer(admission.mutate_pod(_request(pod.manifest | {"metadata": metadata}, "Pod"))[0])
    key = next(iter(words))
    advice = f". Write it in {result.path}.metadata.annotations"
    if not answer.allowed:
        advice = f", and the pods of {result.path} cannot have it: {answer.status.message}"
    message = f"{plain(key)} stands on the {result.kind}, from which it is not copied to the pods{advice}"
    finding = Finding(line=document.line(("metadata", "annotations", key)), message=plain(message))
    return msgspec.structs.replace(result, warnings=(*result.warnings, finding))


def _warn_of_annotations_without_pod(result: Result, document: Document) -> Result:
    """Return the result of an object without pods, with a warning if it has annotations that belong on pods."""
    key = next((key for key in _words(document.data) if key in _OF_PODS or key.startswith(names.ALIAS_PREFIX)), "")
    if not key:
        return result
    message = f"{plain(key)} stands on the {result.kind}, which has no pod template: write it where its pods get theirs"
    finding = Finding(line=document.line(("metadata", "annotations", key)), message=message)
    return msgspec.structs.replace(result, warnings=(*result.warnings, finding))


def _warn_of_unread_steps(result: Result, document: Document) -> Result:
    """Return the result with a warning if the object is an Argo workflow with GPUs: its steps are not checked."""
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
    """Return a warning for each annotation or label of an object that looks like a misspelled one of this driver."""
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
        """Return the JSON Patch operations of the webhook's answer."""
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
    """Return the path in the document that a webhook's message is about.

    The message begins with the name of an annotation, a label, a field or a container, which is looked for in the
    document. ``path`` is the place of the pod in the document.
    """
    # A message begins with an annotation or label (misspelled ones first), a field, or a container.
    key = message.partition(":")[0]
    for what, name in (("annotations", key), ("labels", key.removeprefix("label "))):
        if not names.is_ours(key) and name in _keys(_at(document.data, path), what):
            return (*path, "metadata", what, name)
    if (match := _KEY.match(message)) is not None:
        # The annotation may stand on the object that makes the pods.
        above = path and match[1] in _words(document.data) and match[1] not in _words(_at(document.data, path))
        return (*(() if above else path), "metadata", "annotations", match[1])
    if (match := _FIELD.match(message)) is not None:
        steps = [name or int(number) for name, number in _STEP.findall(match[1])]
        return (*path, "spec", *steps)
    if (match := _CONTAINER.match(message)) is not None:
        data = _at(document.data, path)
        below = ("spec",) if "spec" in data else ()  # a component of an InferenceService is a pod's spec itself
        for group in ("containers", "initContainers"):
            for number, container in enumerate(_at(data, below).get(group) or ()):
                if isinstance(container, dict) and container.get("name") == match[1]:
                    return (*path, *below, group, number)
    return (*path, "metadata") if path else ()


def _at(data: Any, path: Path) -> Any:
    for step in path:
        data = data[step]
    return data
