"""Reads a YAML text as dicts, lists and strings that know their lines, and converts it to a type.

The policies file and other files with a schema are read with it. Every scalar is read as text, and then converted to
its field's type. So ``0000:06:00.0`` and ``7.0`` need no quotes. An unknown field, a duplicate key, and a value that
contains itself through an alias are refused, with the line.

A place is the path of a value in the text, such as ``$.gpus[1].numa``. A form (``Form``) has the rules that one kind of
text must follow.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeVar

import msgspec
import yaml

from dradriver.errors import DriverError
from dradriver.yamltext.bounded import line_of, problem_of
from dradriver.yamltext.value_hints import misfits

_ROOT: Final = "$"
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")

T = TypeVar("T")


class Problem(NamedTuple):
    """An error in a YAML text, and where it is.

    Attributes:
        source: The name of the text, such as a file's.
        line: The line of the place.
        place: The path of the value, such as ``gpus[1].numa``; empty if the error concerns the text and not a value.
        says: What is wrong, and what to write.
    """

    source: str
    line: int
    place: str
    says: str

    def __str__(self) -> str:
        """Return the error with the file and line first, as compilers write it."""
        return ": ".join(filter(None, (f"{self.source}:{self.line}", self.place, self.says)))


class Form(NamedTuple):
    """The rules for a YAML text before its fields are read, with words for errors.

    Attributes:
        error: The class of the error that is raised, with a ``Problem`` as its only argument.
        key: The pattern that every key must match.
        keys: What ``key`` allows, in words: the end of the sentence "a key must be ...".
        start: A sentence that says how the text begins, for the message about an empty text. If it is empty, an empty
            text is valid.
        whole: What the whole text is, such as ``profile``, for the message about too many levels or values.
        deepest: The largest number of levels.
        most: The largest number of values. The values of an alias count each time that the alias is used.
    """

    error: type[DriverError]
    key: re.Pattern[str]
    keys: str
    start: str
    whole: str
    deepest: int = 8
    most: int = 20_000


class Text:
    """The data of a YAML text, with the line of each value.

    Attributes:
        data: Dicts, lists and strings, without the keys of ``key_problems``.
        key_problems: The keys that are not allowed or occur twice.
    """

    def __init__(
        self, data: object, lines: dict[str, int], key_problems: list[Problem], form: Form, source: str
    ) -> None:
        self.data = data
        self.key_problems = key_problems
        self._lines = lines
        self._form = form
        self._source = source

    def convert(self, wanted: type[T]) -> T:
        """Return the data of the YAML text, converted to the type ``wanted``.

        Raises:
            DriverError: A key is wrong, or a value does not fit the type. The error is of the class that the text's
                ``Form`` names. It has the line, the place, the bad value and what is allowed.
        """
        for problem in (*self.key_problems, *self.value_problems(wanted)):
            raise self._form.error(problem)
        return msgspec.convert(self.data, wanted, strict=False)

    def value_problems(self, wanted: type[object]) -> list[Problem]:
        """Return all values and keys of the YAML text that do not fit the type ``wanted``."""
        return [
            self.problem(misfit.place, misfit.says)._replace(line=self._line(misfit.key or misfit.place))
            for misfit in misfits(self.data, wanted)
        ]

    def refusal(self, at: str, says: str) -> DriverError:
        """Return an error about a place in the YAML text, with its line.

        ``at`` is the place, such as ``$.gpus[1].numa``. ``says`` is the message.
        """
        return self._form.error(self.problem(at, says))

    def problem(self, at: str, says: str) -> Problem:
        """Return what is wrong at a place in the YAML text, with its line.

        Args:
            at: The place, such as ``$.gpus[1].numa``; ``$.`` can be left out.
            says: The message.
        """
        place = at if at.startswith(_ROOT) else f"{_ROOT}.{at}"
        return Problem(self._source, self._line(place), place.removeprefix("$."), says)

    def _line(self, at: str) -> int:
        """Return the line of a place, or of the nearest place that contains it."""
        while at and at not in self._lines:
            at = at[: max(at.rfind("."), at.rfind("["))] if "." in at or "[" in at else ""
        return self._lines.get(at, 1)


def read(text: str, form: Form, *, source: str) -> Text:
    """Read a YAML text and return its data, whose values know their lines.

    Args:
        text: YAML.
        form: The rules for this kind of text, for example which keys are allowed.
        source: The file's name, for messages.

    Raises:
        DriverError: ``form.error``: the text is not YAML, or not of this form; with the line.
    """
    try:
        node = _Composing(text, form, source).get_single_node()
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two of "\UFFFFFFFF", which is no character
        raise form.error(Problem(source, line_of(error), "", f"The text is not YAML: {problem_of(error)}.")) from error
    if node is None and form.start:
        raise form.error(Problem(source, 1, "", f"The file is empty. {form.start}"))
    reading = _Reading(form, source)
    data = {} if node is None else reading.plain(node, _ROOT)
    return Text(data, reading.lines, reading.key_problems, form, source)


class _Composing(yaml.BaseLoader):
    """A YAML loader that fails early if a text is nested too deeply.

    Without the limit, 64 kB of ``[`` take a second to parse.
    """

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
    def __init__(self, form: Form, source: str) -> None:
        self.lines: dict[str, int] = {}
        self.key_problems: list[Problem] = []
        self._form = form
        self._source = source
        self._values = 0

    def plain(self, node: yaml.Node, at: str, depth: int = 0) -> object:
        """Return a YAML node as dicts, lists and strings; record the line of every place.

        ``at`` is the place of the node, such as ``$.gpus[1]``; ``depth`` is its level, from 0.
        """
        form, line = self._form, node.start_mark.line + 1
        self.lines.setdefault(at, line)
        self._values += 1
        if self._values > form.most:
            raise self._refusal(line, f"The {form.whole} has more than {form.most} values, including those of aliases.")
        if depth > form.deepest:  # by aliases; ``_Composing`` saw those without
            raise _too_deep(form, self._source, line)
        if isinstance(node, yaml.ScalarNode):
            if _SURROGATE.search(node.value):  # "\uD800" is one to the scanner
                raise self._refusal(
                    line, "The text contains half a character (a surrogate). Write the whole character."
                )
            return str(node.value)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(value, f"{at}[{i}]", depth + 1) for i, value in enumerate(node.value)]
        plain: dict[str, object] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or not form.key.fullmatch(key.value):
                self._add_key_problem(line, f"This key is not allowed. A key must be {form.keys}.")
                continue
            if key.value in plain:
                self._add_key_problem(line, f"The key {key.value} occurs twice. Write it once.")
                continue
            self.lines[f"{at}.{key.value}"] = line
            plain[key.value] = self.plain(value, f"{at}.{key.value}", depth + 1)
        return plain

    def _add_key_problem(self, line: int, says: str) -> None:
        self.key_problems.append(Problem(self._source, line, "", says))

    def _refusal(self, line: int, says: str) -> DriverError:
        return self._form.error(Problem(self._source, line, "", says))


def _too_deep(form: Form, source: str, line: int) -> DriverError:
    return form.error(Problem(source, line, "", f"The {form.whole} is nested too deeply, or an alias contains itself."))
