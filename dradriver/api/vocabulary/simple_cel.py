"""Reads simple CEL selectors: conditions on single attributes of a device, joined by ``&&``.

The scheduler can evaluate all of CEL. When the controller chooses NICs, the NICs must also match the author's
selectors. So the controller must evaluate these selectors itself. If it cannot read one, it chooses no NICs for the
request, and leaves the choice to the scheduler.
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
    """The value of an attribute that is a version or a list. It never equals a literal of CEL.

    Attributes:
        kind: The field of the slice: ``version``, ``strings``; empty for an unknown field.
        text: The value as text, which can be compared with another device's value.
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
    """One condition of a selector.

    Attributes:
        attribute: The attribute's full name; ``driver`` for the device's driver.
        operation: A comparison, ``in``, or a method of strings (``startsWith``).
        value: The value to compare with.
        otherwise: The value that counts for a device without the attribute (``orValue``). None if there is no such
            value, so that the evaluation fails for this device.
    """

    attribute: str
    operation: str
    value: Literal | tuple[Literal, ...]
    otherwise: Literal | None = None

    def of(self, driver: str, attributes: Mapping[str, Value]) -> bool:
        """Return whether a device meets the condition; false if the scheduler's evaluation would fail.

        Values of different types are unequal, which is not a failure. Every other operation on different types fails,
        and every operation fails on a missing attribute (cel-go, ``common/types``; the CEL values of attributes:
        k8s.io/dynamic-resource-allocation, ``cel/compile.go``).

        Args:
            driver: The name of the device's driver.
            attributes: The device's attributes, by full name.
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
    """The expression has syntax that this reader does not support."""


@functools.lru_cache(maxsize=1024)
def read(expression: str) -> tuple[Term, ...] | None:
    """Return the terms of a CEL expression; None if it has unsupported syntax.

    Supported are terms joined by ``&&``. A term is ``device.driver ==``, or a condition on an attribute of the device.

    - The attribute is written as ``device.attributes["dra.net"].rdma``, with its name after a dot or in brackets, or as
      ``.?rdma.orValue(false)``.
    - The condition is a comparison with a text, number or bool, ``in`` with a list of these, or ``startsWith``,
      ``endsWith`` or ``contains``. An attribute that is a bool is a condition itself, also after ``!``.
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
    """Return whether a device meets all conditions of a selector.

    Args:
        terms: The conditions, as ``read`` returns them.
        driver: The name of the device's driver.
        attributes: The device's attributes, by full name.
    """
    return all(term.of(driver, attributes) for term in terms)


def _checked_term(
    attribute: str, operation: str, value: Literal | tuple[Literal, ...], otherwise: Literal | None
) -> Term:
    """Return a condition, if the API server accepts it in a selector.

    ``device.driver`` can only be compared with a text, and all values of a list must have one type.

    ``attribute`` is the attribute's full name, and ``value`` the value to compare with. ``otherwise`` is the value for
    a device without the attribute; None if there is none.

    Raises:
        _NotReadableError: The API server does not accept it.
    """
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
    """A recursive descent parser of the syntax that ``read`` lists.

    The parser raises ``_NotReadableError`` for other syntax.
    """

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
        """Parse the text after an attribute and return the condition: ``== 1``, ``in [1, 2]``, ``.startsWith("a")``.

        If the text begins with none of these, the attribute itself is the condition: it must be true.

        Args:
            attribute: The attribute's full name.
            otherwise: The value that counts for a device without the attribute; None if the expression has none.
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
        """Parse ``device.driver``, or an attribute in one of its three forms.

        After ``device.attributes``, the forms are ``["domain"]["name"]``, ``["domain"].name`` and
        ``["domain"].?name.orValue(x)``.

        Returns:
            The attribute's full name, and the value that counts for a device without the attribute: the ``x`` of
            ``orValue``, or None for the other forms.
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
        """Return whether the next token has this kind and text. If it has, consume it."""
        if self._peek() == (kind, text):
            self._position += 1
            return True
        return False

    def _expect(self, kind: str, text: str) -> None:
        """Consume the next token, which must have this kind and text; raise otherwise."""
        if not self._accept(kind, text):
            raise _NotReadableError
