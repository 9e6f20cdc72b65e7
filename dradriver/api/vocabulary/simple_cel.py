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
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = MappingProxyType(
    {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
)
_STRING_METHODS: Final[Mapping[str, Callable[[str, str], bool]]] = MappingProxyType(
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
        compare = _COMPARISONS.get(self.operation) or _STRING_METHODS[self.operation]
        return bool(compare(have, self.value))  # type: ignore[arg-type]


def _is_alike(value: Value, literal: Literal) -> bool:
    return type(value) is type(literal)


class _NotReadableError(Exception):
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
    except _NotReadableError:
        return None


def hold(terms: Sequence[Term], driver: str, attributes: Mapping[str, Value]) -> bool:
    """Return whether all CEL terms hold of a device with these attributes, by their full names."""
    return all(term.of(driver, attributes) for term in terms)


def _checked_term(
    attribute: str, operation: str, value: Literal | tuple[Literal, ...], otherwise: Literal | None
) -> Term:
    """Return a term that the API server takes: the driver is a text, and the values of a list have one type."""
    values = value if isinstance(value, tuple) else (value,)
    if len(set(map(type, values))) > 1 or (attribute == "driver" and not isinstance(values[0], str)):
        raise _NotReadableError
    return Term(attribute, operation, value, otherwise)


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at, end = 0, len(expression.rstrip())
    while at < end:
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None:
            raise _NotReadableError
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


class _Parser:
    """A parser by recursive descent; it raises ``_NotReadableError`` at anything else than what ``read`` lists."""

    def __init__(self, tokens: tuple[tuple[str, str], ...]) -> None:
        self._tokens, self._position, self._depth = tokens, 0, 0

    @property
    def done(self) -> bool:
        return self._position == len(self._tokens)

    def all_of(self) -> tuple[Term, ...]:
        terms = self._condition()
        while self._accept("sign", "&&"):
            terms += self._condition()
        return terms

    def _condition(self) -> tuple[Term, ...]:
        if self._accept("sign", "("):
            self._depth += 1
            if self._depth > _MOST_TERMS:
                raise _NotReadableError
            inner = self.all_of()
            self._expect("sign", ")")
            return inner
        if self._accept("sign", "!"):
            attribute, otherwise = self._attribute()
            return (_checked_term(attribute, "==", False, otherwise),)
        return (self._comparison(*self._attribute()),)

    def _comparison(self, attribute: str, otherwise: Literal | None) -> Term:
        """Parse what follows an attribute, and return the condition: ``== 1``, ``in [1, 2]``, ``.startsWith("a")``.

        Without any of these the attribute itself is the condition: it must be true.

        Args:
            attribute: The attribute's full name.
            otherwise: The value that a device without the attribute has; None if the expression gives none.
        """
        kind, text = self._peek()
        if kind == "sign" and text in _COMPARISONS:
            self._position += 1
            value = self._literal()
            if text not in ("==", "!=") and isinstance(value, bool):  # bools have no order here
                raise _NotReadableError
            return _checked_term(attribute, text, value, otherwise)
        if self._accept("word", "in"):
            self._expect("sign", "[")
            values = [self._literal()]
            while self._accept("sign", ","):
                values.append(self._literal())
            self._expect("sign", "]")
            return _checked_term(attribute, "in", tuple(values), otherwise)
        if self._accept("sign", "."):
            function = self._identifier()
            if function not in _STRING_METHODS:
                raise _NotReadableError
            self._expect("sign", "(")
            value = self._literal()
            self._expect("sign", ")")
            if not isinstance(value, str):
                raise _NotReadableError
            return _checked_term(attribute, function, value, otherwise)
        return _checked_term(attribute, "==", True, otherwise)

    def _attribute(self) -> tuple[str, Literal | None]:
        """Parse ``device.driver`` or ``device.attributes["domain"].name`` in its three forms.

        The forms are ``["domain"]["name"]``, ``["domain"].name`` and ``["domain"].?name.orValue(x)``.

        Returns:
            The attribute's full name, and the value that a device without it has; None if the expression gives none.
        """
        self._expect("word", "device")
        self._expect("sign", ".")
        field = self._identifier()
        if field == "driver":
            return "driver", None
        if field != "attributes":
            raise _NotReadableError
        self._expect("sign", "[")
        domain = self._string_literal()
        self._expect("sign", "]")
        if self._accept("sign", "["):
            name = self._string_literal()
            self._expect("sign", "]")
            return f"{domain}/{name}", None
        if self._accept("sign", "."):
            return f"{domain}/{self._identifier()}", None
        # ``.?`` makes the attribute optional, and ``orValue`` gives the value of a device without it.
        self._expect("sign", ".?")
        name = self._identifier()
        self._expect("sign", ".")
        self._expect("word", "orValue")
        self._expect("sign", "(")
        otherwise = self._literal()
        self._expect("sign", ")")
        return f"{domain}/{name}", otherwise

    def _literal(self) -> Literal:
        kind, text = self._peek()
        self._position += 1
        if kind == "text":
            return text[1:-1]
        if kind == "number":
            return int(text)
        if kind == "word" and text in ("true", "false"):
            return text == "true"
        raise _NotReadableError

    def _string_literal(self) -> str:
        value = self._literal()
        if not isinstance(value, str):
            raise _NotReadableError
        return value

    def _identifier(self) -> str:
        kind, text = self._peek()
        self._position += 1
        if kind != "word":
            raise _NotReadableError
        return text

    def _peek(self) -> tuple[str, str]:
        """Return kind and text of the next token without consuming it; empty texts at the end."""
        return self._tokens[self._position] if self._position < len(self._tokens) else ("", "")

    def _accept(self, kind: str, text: str) -> bool:
        """Consume the next token if it is this one; return whether it was."""
        if self._peek() == (kind, text):
            self._position += 1
            return True
        return False

    def _expect(self, kind: str, text: str) -> None:
        """Consume the next token, which must be this one."""
        if not self._accept(kind, text):
            raise _NotReadableError
