"""A YAML text as dicts, lists and strings that know their lines, and as a type.

Every scalar is read as text and converted to its field's type, so ``0000:06:00.0`` and ``7.0`` need no quotes. A field
that the type does not know, a key given twice and an alias of itself are refused, with the line.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeVar

import msgspec
import yaml

from dradriver.errors import DriverError
from dradriver.yamltext.bounded import line_of, problem_of
from dradriver.yamltext.value_hints import cure

_ROOT: Final = "$"
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")

T = TypeVar("T")


class Form(NamedTuple):
    """What a kind of text may look like before its fields are looked at.

    Attributes:
        error: What is raised.
        key: What a key is made of.
        keys: The same in words, after "a key must be".
        start: What it starts with, for who has written nothing; empty where nothing is a text too.
        whole: What it is, for who nested too deeply: ``profile``.
        deepest: Most levels.
        most: Most values, those behind an alias as often as it stands there.
    """

    error: type[DriverError]
    key: re.Pattern[str]
    keys: str
    start: str
    whole: str
    deepest: int = 8
    most: int = 20_000


class Text:
    """What a text holds.

    Attributes:
        data: Dicts, lists and strings.
    """

    def __init__(self, data: object, lines: dict[str, int], form: Form, source: str) -> None:
        self.data = data
        self._lines = lines
        self._form = form
        self._source = source

    def convert(self, wanted: type[T]) -> T:
        """Return the data that was read from a YAML text as a type.

        Raises:
            DriverError: The form's, with the line, the place, the bad value and what is allowed.
        """
        try:
            return msgspec.convert(self.data, wanted, strict=False)
        except msgspec.ValidationError as error:
            at, says = cure(error, self.data, wanted)
            raise self.refusal(at, says) from None

    def refusal(self, at: str, says: str) -> DriverError:
        """Return the error about a place in a YAML text that was read: ``$.gpus[1].numa``, or without ``$.``."""
        place = at if at.startswith(_ROOT) else f"{_ROOT}.{at}"
        return self._form.error(f"{self._source}:{self._line(place)}: {place.removeprefix('$.')}: {says}")

    def _line(self, at: str) -> int:
        """Return the line of the place, or of the nearest place around it."""
        while at and at not in self._lines:
            at = at[: max(at.rfind("."), at.rfind("["))] if "." in at or "[" in at else ""
        return self._lines.get(at, 1)


def read(text: str, form: Form, *, source: str) -> Text:
    """Read a YAML text and return its data, whose values know their lines.

    Args:
        text: YAML.
        form: What it may look like.
        source: The file's name, for messages.

    Raises:
        DriverError: The form's: no YAML, or of another form; with the line.
    """
    try:
        node = _Composing(text, form, source).get_single_node()
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two of "\UFFFFFFFF", which is no character
        raise form.error(f"{source}:{line_of(error)}: not YAML: {problem_of(error)}") from error
    if node is None and form.start:
        raise form.error(f"{source}:1: empty; {form.start}")
    lines: dict[str, int] = {}
    data = {} if node is None else _Reading(form, source, lines).plain(node, _ROOT)
    return Text(data, lines, form, source)


class _Composing(yaml.BaseLoader):
    """A loader that stops where a text is nested too deeply: it takes a second for 64 kB of ``[``."""

    def __init__(self, text: str, form: Form, source: str) -> None:
        super().__init__(text)
        self._form = form
        self._source = source
        self._depth = -1

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > self._form.deepest:
            raise _too_deep(self._form, self._source, self.line + 1)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Reading:
    def __init__(self, form: Form, source: str, lines: dict[str, int]) -> None:
        self._form = form
        self._source = source
        self._lines = lines
        self._values = 0

    def plain(self, node: yaml.Node, at: str, depth: int = 0) -> object:
        """Return what is read of a node as dicts, lists and strings.

        The line of every place is recorded on the way.
        """
        form, line = self._form, node.start_mark.line + 1
        self._lines.setdefault(at, line)
        self._values += 1
        if self._values > form.most:
            raise self._refusal(line, f"more than {form.most} values, those behind aliases counted")
        if depth > form.deepest:  # by aliases; ``_Composing`` saw those without
            raise _too_deep(form, self._source, line)
        if isinstance(node, yaml.ScalarNode):
            if _SURROGATE.search(node.value):  # "\uD800" is one to the scanner
                raise self._refusal(line, "half of a character (a surrogate); write the whole one")
            return str(node.value)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(value, f"{at}[{i}]", depth + 1) for i, value in enumerate(node.value)]
        plain: dict[str, object] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or not form.key.fullmatch(key.value):
                raise self._refusal(line, f"a key must be {form.keys}")
            if key.value in plain:
                raise self._refusal(line, f"{key.value} is given twice; write it once")
            self._lines[f"{at}.{key.value}"] = line
            plain[key.value] = self.plain(value, f"{at}.{key.value}", depth + 1)
        return plain

    def _refusal(self, line: int, says: str) -> DriverError:
        return self._form.error(f"{self._source}:{line}: {says}")


def _too_deep(form: Form, source: str, line: int) -> DriverError:
    return form.error(f"{source}:{line}: nested deeper than any {form.whole}, or an alias of itself")
