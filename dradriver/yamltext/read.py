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
from dradriver.yamltext.cures import cure

_ROOT: Final = "$"

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
        """Return the data as a type.

        Raises:
            DriverError: The form's, with the line, the place, the bad value and what is allowed.
        """
        try:
            return msgspec.convert(self.data, wanted, strict=False)
        except msgspec.ValidationError as error:
            at, says = cure(error, self.data, wanted)
            raise self.refusal(at, says) from None

    def refusal(self, at: str, says: str) -> DriverError:
        """Return the error about a place: ``$.gpus[1].numa``, or the same without ``$.``."""
        place = at if at.startswith(_ROOT) else f"{_ROOT}.{at}"
        return self._form.error(f"{self._source}:{self._line(place)}: {place.removeprefix('$.')}: {says}")

    def _line(self, at: str) -> int:
        """Return the line of the place, or of the nearest place around it."""
        while at and at not in self._lines:
            at = at[: max(at.rfind("."), at.rfind("["))] if "." in at or "[" in at else ""
        return self._lines.get(at, 1)


def read(text: str, form: Form, *, source: str) -> Text:
    """Return what a text holds.

    Args:
        text: YAML.
        form: What it may look like.
        source: The file's name, for messages.

    Raises:
        DriverError: The form's: no YAML, or of another form; with the line.
    """
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        raise form.error(f"{source}:{line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise form.error(f"{source}:1: not YAML: {error}") from error
    if node is None and form.start:
        raise form.error(f"{source}:1: empty; {form.start}")
    lines: dict[str, int] = {}
    data = {} if node is None else _Reading(form, source, lines).plain(node, _ROOT)
    return Text(data, lines, form, source)


class _Reading:
    def __init__(self, form: Form, source: str, lines: dict[str, int]) -> None:
        self._form = form
        self._source = source
        self._lines = lines
        self._values = 0

    def plain(self, node: yaml.Node, at: str) -> object:
        """Return the node as dicts, lists and strings, and note the line of every place on the way."""
        form, line = self._form, node.start_mark.line + 1
        self._lines.setdefault(at, line)
        self._values += 1
        if self._values > form.most:
            raise self._refusal(line, f"more than {form.most} values, those behind aliases counted")
        if at.count(".") + at.count("[") > form.deepest:
            raise self._refusal(line, f"nested deeper than any {form.whole}, or an alias of itself")
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(value, f"{at}[{i}]") for i, value in enumerate(node.value)]
        plain: dict[str, object] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or not form.key.fullmatch(key.value):
                raise self._refusal(line, f"a key must be {form.keys}")
            if key.value in plain:
                raise self._refusal(line, f"{key.value} is given twice; write it once")
            self._lines[f"{at}.{key.value}"] = line
            plain[key.value] = self.plain(value, f"{at}.{key.value}")
        return plain

    def _refusal(self, line: int, says: str) -> DriverError:
        return self._form.error(f"{self._source}:{line}: {says}")
