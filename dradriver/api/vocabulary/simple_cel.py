"""Selectors that can be read here: what a device's own attributes must be, said one by one and joined by ``&&``.

The scheduler reads all of CEL. What is chosen for it must hold of an author's selectors, too, so of NICs those are
chosen that meet what can be read, and where a selector cannot be read nothing is.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec

Literal: TypeAlias = str | int | bool
"""What a selector can write."""


class Other(msgspec.Struct, frozen=True):
    """A value that no literal equals: a version or a list.

    Attributes:
        kind: The field of the slice: ``version``, ``strings``; empty for one that is not known here.
        text: The value, to compare it with that of another device.
    """

    kind: str
    text: str


Value: TypeAlias = Literal | Other
"""What an attribute of a device can be."""

LONGEST: Final = 4096  # characters of an expression
_MOST_TERMS: Final = 64

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"[^"\\\n]*"|'[^'\\\n]*')|(?P<number>-?\d{1,18})(?![\w.])|(?P<word>[A-Za-z_]\w*)"""
    r"""|(?P<sign>&&|==|!=|<=|>=|\.\?|[().,!<>\[\]]))"""
)
_COMPARES: Final[Mapping[str, Callable[[Any, Any], bool]]] = MappingProxyType(
    {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
)
_OF_TEXT: Final[Mapping[str, Callable[[str, str], bool]]] = MappingProxyType(
    {"startsWith": str.startswith, "endsWith": str.endswith, "contains": operator.contains}
)


class Term(msgspec.Struct, frozen=True):
    """One thing that must hold.

    Attributes:
        attribute: The attribute's full name; ``driver`` for the device's driver.
        operation: A comparison, ``in``, or what texts are asked (``startsWith``).
        value: What it is compared with.
        otherwise: What a device has in its place that has no such attribute; None where the scheduler fails at that.
    """

    attribute: str
    operation: str
    value: Literal | tuple[Literal, ...]
    otherwise: Literal | None = None

    def of(self, driver: str, attributes: Mapping[str, Value]) -> bool:
        """Return whether the scheduler finds a CEL term to hold of a device; not if it fails there.

        Values of different types are not equal, and that is no failure. Every other operation fails on them, as any
        does on an attribute that is missing (cel-go, ``common/types``; what a value is to CEL:
        k8s.io/dynamic-resource-allocation, ``cel/compile.go``).
        """
        have = driver if self.attribute == "driver" else attributes.get(self.attribute, self.otherwise)
        if have is None or (isinstance(have, Other) and not have.kind):
            return False
        if self.operation == "in":
            assert isinstance(self.value, tuple)
            return any(_is_alike(have, literal) and have == literal for literal in self.value)
        if isinstance(self.value, tuple) or not _is_alike(have, self.value):
            return self.operation == "!="
        compare = _COMPARES.get(self.operation) or _OF_TEXT[self.operation]
        return bool(compare(have, self.value))  # type: ignore[arg-type]


def _is_alike(value: Value, literal: Literal) -> bool:
    return type(value) is type(literal)


class _OddError(Exception):
    """It says more than can be read here."""


@functools.lru_cache(maxsize=1024)
def read(expression: str) -> tuple[Term, ...] | None:
    """Return the terms of a CEL expression; None if it says more than can be read here.

    Read are ``&&`` of: an attribute of the device, as ``device.attributes["dra.net"].rdma``, with its name after a dot,
    in brackets, or as ``.?rdma.orValue(false)``, alone or behind ``!`` where it is a bool, compared with a text, number
    or bool, ``in`` a list of these, or asked ``startsWith``, ``endsWith`` or ``contains``; and ``device.driver ==``.
    """
    try:
        if len(expression) > LONGEST:
            return None
        parser = _Parser(tuple(_tokens(expression)))
        terms = parser.all_of()
        return terms if parser.done and len(terms) <= _MOST_TERMS else None
    except _OddError:
        return None


def hold(terms: Sequence[Term], driver: str, attributes: Mapping[str, Value]) -> bool:
    """Return whether all CEL terms hold of a device with these attributes, by their full names."""
    return all(term.of(driver, attributes) for term in terms)


def _term(attribute: str, operation: str, value: Literal | tuple[Literal, ...], otherwise: Literal | None) -> Term:
    """Return a term that the API server takes: the driver is a text, and the values of a list have one type."""
    values = value if isinstance(value, tuple) else (value,)
    if len(set(map(type, values))) > 1 or (attribute == "driver" and not isinstance(values[0], str)):
        raise _OddError
    return Term(attribute, operation, value, otherwise)


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at, end = 0, len(expression.rstrip())
    while at < end:
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None:
            raise _OddError
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


class _Parser:
    def __init__(self, tokens: tuple[tuple[str, str], ...]) -> None:
        self._tokens, self._at, self._deep = tokens, 0, 0

    @property
    def done(self) -> bool:
        return self._at == len(self._tokens)

    def all_of(self) -> tuple[Term, ...]:
        terms = self._one()
        while self._next("sign", "&&"):
            terms += self._one()
        return terms

    def _one(self) -> tuple[Term, ...]:
        if self._next("sign", "("):
            self._deep += 1
            if self._deep > _MOST_TERMS:
                raise _OddError
            inner = self.all_of()
            self._must("sign", ")")
            return inner
        if self._next("sign", "!"):
            attribute, otherwise = self._attribute()
            return (_term(attribute, "==", False, otherwise),)
        return (self._comparison(*self._attribute()),)

    def _comparison(self, attribute: str, otherwise: Literal | None) -> Term:
        """Parse what follows an attribute, and return the condition: ``== 1``, ``in [1, 2]``, ``.startsWith("a")``.

        Without any of these the attribute itself is the condition: it must be true.

        Args:
            attribute: The attribute's full name.
            otherwise: The value that a device without the attribute has; None if the expression gives none.
        """
        kind, text = self._peek()
        if kind == "sign" and text in _COMPARES:
            self._at += 1
            value = self._value()
            if text not in ("==", "!=") and isinstance(value, bool):
                raise _OddError
            return _term(attribute, text, value, otherwise)
        if self._next("word", "in"):
            self._must("sign", "[")
            values = [self._value()]
            while self._next("sign", ","):
                values.append(self._value())
            self._must("sign", "]")
            return _term(attribute, "in", tuple(values), otherwise)
        if self._next("sign", "."):
            function = self._word()
            if function not in _OF_TEXT:
                raise _OddError
            self._must("sign", "(")
            value = self._value()
            self._must("sign", ")")
            if not isinstance(value, str):
                raise _OddError
            return _term(attribute, function, value, otherwise)
        return _term(attribute, "==", True, otherwise)

    def _attribute(self) -> tuple[str, Literal | None]:
        """Parse ``device.driver`` or ``device.attributes["domain"].name`` in its three forms.

        The forms are ``["domain"]["name"]``, ``["domain"].name`` and ``["domain"].?name.orValue(x)``.

        Returns:
            The attribute's full name, and the value that a device without it has; None if the expression gives none.
        """
        self._must("word", "device")
        self._must("sign", ".")
        field = self._word()
        if field == "driver":
            return "driver", None
        if field != "attributes":
            raise _OddError
        self._must("sign", "[")
        domain = self._text()
        self._must("sign", "]")
        if self._next("sign", "["):
            name = self._text()
            self._must("sign", "]")
            return f"{domain}/{name}", None
        if self._next("sign", "."):
            return f"{domain}/{self._word()}", None
        self._must("sign", ".?")
        name = self._word()
        self._must("sign", ".")
        self._must("word", "orValue")
        self._must("sign", "(")
        otherwise = self._value()
        self._must("sign", ")")
        return f"{domain}/{name}", otherwise

    def _value(self) -> Literal:
        kind, text = self._peek()
        self._at += 1
        if kind == "text":
            return text[1:-1]
        if kind == "number":
            return int(text)
        if kind == "word" and text in ("true", "false"):
            return text == "true"
        raise _OddError

    def _text(self) -> str:
        value = self._value()
        if not isinstance(value, str):
            raise _OddError
        return value

    def _word(self) -> str:
        kind, text = self._peek()
        self._at += 1
        if kind != "word":
            raise _OddError
        return text

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")

    def _next(self, kind: str, text: str) -> bool:
        if self._peek() == (kind, text):
            self._at += 1
            return True
        return False

    def _must(self, kind: str, text: str) -> None:
        if not self._next(kind, text):
            raise _OddError
