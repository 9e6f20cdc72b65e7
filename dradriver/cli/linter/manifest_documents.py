"""The objects of a YAML or JSON text as Kubernetes reads them, with their line numbers.

Kubernetes reads YAML 1.1 without dates and without numbers in base 60: ``12:30`` and ``2026-01-31`` are text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import msgspec
import yaml

from dradriver.errors import DriverError
from dradriver.yamltext import bounded

_DEEPEST: Final = 200  # levels; deeper than any object
_MOST_VALUES: Final = 1_000_000  # of one document, those behind aliases as often as they stand there
_BRACKETS: Final = re.compile(r"[\[\]{}]")
_INDENT: Final = re.compile(r"(?m)^[ \t?:-]*")

_MARKER: Final = re.compile(r"(?m)^---(?=\s|$)")  # begins a document, wherever it stands
_NOTHING: Final = re.compile(r"(?:[ \t]*(?:[#%].*)?\n)*")

_MERGE: Final = "tag:yaml.org,2002:merge"

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, regexp) for tag, regexp in some if not tag.endswith((":timestamp", ":int", ":float"))]
        for first, some in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
        """Return a mapping of a manifest with text keys, as JSON has them.

        A repeated key is an error, as for kubectl.
        """
        said = [(key.value, key.start_mark) for key, _ in node.value if key.tag != _MERGE]
        if len({str(value) for value, _ in said}) < len(said):
            values = [str(value) for value, _ in said]
            mark = next(mark for at, (_, mark) in enumerate(said) if values[at] in values[:at])
            raise yaml.constructor.ConstructorError(None, None, "a key is given twice", mark)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        if all(type(key) is str for key in mapping):
            return mapping
        return {_key(key, node.start_mark): value for key, value in mapping.items()}

    def construct_yaml_float(self, node: Any) -> float:
        """Return a number of a manifest.

        Numbers that JSON cannot write (infinity, nan) are an error.
        """
        number = float(super().construct_yaml_float(node))
        if not math.isfinite(number):
            raise yaml.constructor.ConstructorError(None, None, f"not a valid number: {node.value}", node.start_mark)
        return number

    def construct_other(self, node: Any) -> None:
        """Refuse a value in a manifest whose type JSON does not have, such as a set or bytes."""
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        raise yaml.constructor.ConstructorError(None, None, f"a value of the type !!{tag}", node.start_mark)


def _key(key: object, mark: Any) -> str:
    match key:
        case str():
            return key
        case bool():
            return "true" if key else "false"
        case int() | float():
            return str(key)
        case _:
            raise yaml.constructor.ConstructorError(None, None, f"a key that is no text: {bounded.shown(key)}", mark)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$"), [*"-+0123456789"]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$"
    ),
    [*"-+.0123456789"],
)


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
for _tag in ("binary", "omap", "pairs", "set", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_other)


class DocumentError(DriverError):
    """A text cannot be read as objects. The message has the file and the line."""

    reason = "NoManifest"


class Document(msgspec.Struct, frozen=True):
    """One object of a manifest.

    Attributes:
        source: The file's name, or ``standard input``.
        number: The number of its document in the file, from 1; empty documents count.
        data: The object.
        node: The object as YAML nodes with line numbers.
        lines_before: Number of lines of the file before the first line that ``node`` counts.
    """

    source: str
    number: int
    data: dict[str, Any]
    node: Any
    lines_before: int = 0

    def line(self, path: Sequence[str | int] = ()) -> int:
        """Return the line of a place in the manifest, from 1.

        If the manifest does not have the place, this is the line of the nearest enclosing place.
        """
        node, line = self.node, self.node.start_mark.line
        for step in path:
            child = _child(node, step)
            if child is None:
                break
            line, node = child
        return self.lines_before + int(line) + 1


def _child(node: Any, step: str | int) -> tuple[int, Any] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark.line, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark.line, node.value[step]
    return None


def documents(text: bytes, source: str) -> Iterator[Document | DocumentError]:
    """Yield the objects of a YAML or JSON manifest.

    The items of a ``List`` are yielded one by one. A document that cannot be read yields an error in its place. The
    documents after it are still read.

    Args:
        text: The manifest.
        source: Its file name, for messages.
    """
    try:
        manifest = text.decode()
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        yield DocumentError(f"{source}:{line}: no UTF-8")
        return
    number = lines_before = 0
    for piece in _pieces(manifest):
        try:
            for document in _read(piece, Document(source, number, {}, None, lines_before)):
                number = document.number
                yield from _objects(document)
        except _UnreadableError as error:
            number += 1
            yield DocumentError(f"{source}:{lines_before + error.line}: document {number}: {error}")
        lines_before += piece.count("\n")


def _pieces(manifest: str) -> Iterator[str]:
    """Yield the documents of a manifest as text, split at ``---``.

    Text above the first ``---`` belongs to the first.
    """
    begin = 0
    for end in (*(match.start() for match in _MARKER.finditer(manifest)), len(manifest)):
        if not _NOTHING.fullmatch(manifest, begin, end):
            yield manifest[begin:end]
            begin = end


class _UnreadableError(Exception):
    """A document cannot be read. The message says why.

    Attributes:
        line: Where, from 1.
    """

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def _read(text: str, before: Document) -> Iterator[Document]:
    """Yield the document of a text; several if lines with ``...`` separate them.

    Args:
        text: The text.
        before: The document before it, with its number.

    Raises:
        _UnreadableError: The rest of the text cannot be read.
    """
    number = before.number
    # A rough check before the text is parsed: deep nesting would end the process in PyYAML's C parser.
    _check_depth(text)
    try:
        loader = _Loader(text)
        while loader.check_node():  # one node for each document; empty documents have none
            number += 1
            node = loader.get_node()
            # The exact check before the data are constructed: aliases can make a small text into endless data.
            bounded.check(node, deepest=_DEEPEST, most=_MOST_VALUES)
            yield msgspec.structs.replace(before, number=number, data=loader.construct_document(node), node=node)
    except bounded.OutOfBoundsError as error:
        raise _UnreadableError(str(error), error.line) from None
    except bounded.FAILURES as error:
        raise _UnreadableError(f"not YAML: {bounded.problem_of(error)}", bounded.line_of(error)) from None


def _objects(document: Document) -> Iterator[Document | DocumentError]:
    data: Any = document.data  # anything that YAML can be
    if data is None:
        return
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        place = f"{document.source}:{document.line()}: document {document.number}"
        yield DocumentError(f"{place}: no Kubernetes object: it has no kind")
        return
    items = data.get("items")
    if not data["kind"].endswith("List") or not isinstance(items, list):
        yield document
        return
    found = _child(document.node, "items")
    for item, node in zip(items, found[1].value if found is not None else (), strict=False):
        yield from _objects(msgspec.structs.replace(document, data=item, node=node))


def _check_depth(text: str) -> None:
    """Refuse a document that is nested so deeply that the YAML reader, written in C, could crash the process."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += 1 if match[0] in "[{" else -1 if depth else 0
        if depth > _DEEPEST:
            raise _UnreadableError("nested deeper than any object", text.count("\n", 0, match.start()) + 1)
    for match in _INDENT.finditer(text):
        if len(match[0]) > 2 * _DEEPEST:
            raise _UnreadableError("nested deeper than any object", text.count("\n", 0, match.start()) + 1)
