"""What the webhook answers to an object: its own code, with no server between."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from dradriver.api.annotations import is_ours, is_written
from dradriver.cli.linter.documents import Document
from dradriver.cli.linter.patched import patched
from dradriver.cli.linter.templates import CLAIMS, Path, pods
from dradriver.cli.render.plain import plain
from webhook import review
from webhook.admission import Admission, validate_claim

_KEY: Final = re.compile(r"(?:annotation )?'?((?:gpu\.topology|gpu-topology\.example\.com)/[\w.-]+)")
_CONTAINER: Final = re.compile(r"(?:init )?container '([^']+)'")
_FIELD: Final = re.compile(r"spec((?:\.\w+|\[\d+\])+)")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


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
    pod: dict[str, Any] | None = None


def results(document: Document, admission: Admission) -> Iterator[Result]:
    """Yield what becomes of an object."""
    kind = document.data["kind"]
    head = Result(
        source=document.source, document=document.number, line=document.line(), kind=plain(kind), name=_name(document)
    )  # fmt: skip
    if kind in CLAIMS:
        yield _claim(head, document)
        return
    found = False
    for pod in pods(document):
        found = True
        yield _pod(head, document, admission, pod.path, pod.manifest)
    if not found:
        yield head


def _name(document: Document) -> str:
    metadata = document.data.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = metadata.get("name") or metadata.get("generateName") or "(no name)"
    namespace = metadata.get("namespace")
    return plain(f"{namespace}/{name}" if namespace else str(name))


def _claim(head: Result, document: Document) -> Result:
    answer = _answer(validate_claim(_request(document.data, head.kind))[0])
    ours = "gpu.topology" in str(document.data.get("spec"))
    errors = () if answer.allowed else (_finding(document, (), answer.status.message),)
    return msgspec.structs.replace(head, ours=ours, errors=errors)


def _pod(head: Result, document: Document, admission: Admission, path: Path, manifest: dict[str, Any]) -> Result:
    where = plain(".".join(map(str, path)))
    answer = _answer(admission.mutate_pod(_request(manifest, "Pod"))[0])
    if not answer.allowed:
        return msgspec.structs.replace(
            head, path=where, ours=True, errors=(_finding(document, path, answer.status.message),)
        )
    ops = msgspec.json.decode(base64.b64decode(answer.patch)) if answer.patch else []
    warnings = [_finding(document, path, text) for text in answer.warnings]
    if not ops and path and (missed := _misplaced(document.data, manifest)):
        warnings.append(
            Finding(
                line=document.line(("metadata", "annotations", missed)),
                message=f"{plain(missed)} stands on the {head.kind} and does not reach its pods; write it in "
                f"{where}.metadata.annotations",
            )
        )
    return msgspec.structs.replace(
        head, path=where, ours=bool(ops), warnings=tuple(warnings), pod=patched(manifest, ops) if ops else None
    )  # fmt: skip


def _misplaced(data: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Return a word of ours that stands on the object around a template which has none."""

    def words(of: dict[str, Any]) -> list[str]:
        metadata = of.get("metadata")
        annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
        every = annotations if isinstance(annotations, dict) else {}
        return [key for key in every if isinstance(key, str) and is_ours(key) and not is_written(key)]

    return "" if words(manifest) else next(iter(words(data)), "")


class _Status(msgspec.Struct, frozen=True):
    message: str = ""


class _Response(msgspec.Struct, frozen=True):
    allowed: bool
    patch: str = ""
    warnings: tuple[str, ...] = ()
    status: _Status = _Status()


class _Review(msgspec.Struct, frozen=True):
    response: _Response


_REVIEW: Final = msgspec.json.Decoder(_Review)


def _answer(body: bytes) -> _Response:
    return _REVIEW.decode(body).response


def _request(data: dict[str, Any], kind: str) -> review.Request:
    return review.Request(
        uid="lint", operation="CREATE", kind=review.Kind(kind), object=msgspec.Raw(msgspec.json.encode(data))
    )


def _finding(document: Document, path: Path, message: str) -> Finding:
    return Finding(line=document.line(_place(document, path, message)), message=plain(message))


def _place(document: Document, path: Path, message: str) -> Path:
    """Return the place that a message is about, as far as it says one."""
    if (found := _KEY.match(message)) is not None:
        return (*path, "metadata", "annotations", found[1])
    if (found := _FIELD.match(message)) is not None:
        steps = [name or int(number) for name, number in _STEP.findall(found[1])]
        return (*path, "spec", *steps)
    if (found := _CONTAINER.match(message)) is not None:
        data: Any = document.data
        for step in path:
            data = data[step]
        for group in ("containers", "initContainers"):
            for number, one in enumerate(data["spec"].get(group) or ()):
                if isinstance(one, dict) and one.get("name") == found[1]:
                    return (*path, "spec", group, number)
    return (*path, "metadata") if path else ()
