"""The XML dialect of NCCL topology files: a parser that also reports everything that some NCCL would refuse.

NCCL has no XML library: ``xml.cc`` reads character by character. This parser accepts more, so that foreign files can be
imported. It reports every place that some NCCL from 2.18 to 2.30 would refuse or misread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn

import msgspec

from dradriver.topology.nccl.findings import Finding, Lines, Notes, finding

MAX_TEXT = 253  # MAX_STR_LEN is 255; the closing quote and the string's end take two
MAX_DEPTH = 64
_NAME = re.compile(r"[^\s=<>/\"']+")
_BLANK = re.compile(r"[ \t\r\n]*")
_VALUE = re.compile(r'"([^"]*)"|\'([^\']*)\'')
_BARE = re.compile(r"[^\s/>\"'<]*")
_CLOSING = re.compile(r"</\s*([^\s<>/]*)\s*/?>")
_ENTITY = re.compile(r"&#?\w+;")
_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]{1,15}|0[0-7]{0,15}|[1-9][0-9]{0,15})")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class Attribute(msgspec.Struct, frozen=True):
    """One attribute's value and the place of its name."""

    value: str
    place: tuple[int, int]


class Element(msgspec.Struct):
    """One XML element.

    ``blanks`` are the superfluous blanks in its tag. NCCL counts each as an attribute, and limits the number of
    attributes.
    """

    name: str
    place: tuple[int, int]
    attributes: dict[str, Attribute] = {}
    children: list[Element] = []
    blanks: int = 0

    def get(self, name: str) -> str | None:
        """Return the value of an XML element's attribute, or None."""
        found = self.attributes.get(name)
        return None if found is None else found.value

    def place_of(self, name: str) -> tuple[int, int]:
        """Return line and column of an attribute of the element.

        If the element has no such attribute, return the line and column of the element.
        """
        found = self.attributes.get(name)
        return self.place if found is None else found.place


class Document(msgspec.Struct):
    """A parsed file.

    Attributes:
        root: The first ``<system>``, else the first element; None for an empty file.
        others: Further elements at the top level.
        findings: The places that NCCL would refuse or misread.
        broken: The error after which reading stopped; None if there is none.
        whole: Whether the outermost element was read to its end.
    """

    root: Element | None = None
    others: list[Element] = []
    findings: list[Finding] = []
    broken: Finding | None = None
    whole: bool = False


class _BrokenError(Exception):
    """The rest of the file cannot be read. ``parse`` catches it."""

    def __init__(self, found: Finding) -> None:
        self.found = found


def parse(text: str) -> Document:
    """Return the XML elements of ``text``, and the places that NCCL's parser would refuse.

    The parser never raises.
    """
    parser = _Parser(text)
    broken = None
    try:
        parser.run()
    except _BrokenError as stop:
        broken = stop.found
    roots = parser.roots
    root = next((one for one in roots if one.name == "system"), roots[0] if roots else None)
    others = [one for one in roots if one is not root]
    return Document(root, others, parser.notes.findings(), broken, parser.whole)


def all_below(root: Element, name: str) -> Iterator[Element]:
    """Yield every XML element of that name below ``root``, in the file's order."""
    for child in root.children:
        if child.name == name:
            yield child
        yield from all_below(child, name)


def has_below(element: Element, name: str) -> bool:
    """Return whether an XML element of that name is anywhere below ``element``."""
    return next(all_below(element, name), None) is not None


def strtol(text: str) -> int:
    """Return the number that NCCL reads in an XML attribute, by C's ``strtol``.

    So 010 is 8, 0x10 is 16, and a word is 0.
    """
    match = _INTEGER.match(text)
    if match is None:
        return 0
    digits = match[2].lower()
    octal = digits[0] == "0" and digits[1:2] != "x"
    return int(match[1] + digits, 8 if octal else 0)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.roots: list[Element] = []
        self.open: list[Element] = []
        self.whole = False
        self.notes = Notes()
        self.lines = Lines(text)

    def note(self, rule: str, at: int, *, once: str = "", **words: object) -> None:
        self.notes.add(rule, self.lines.place(at), once=once, **words)

    def stop(self, rule: str, at: int, **words: object) -> NoReturn:
        raise _BrokenError(finding(rule, self.lines.place(at), **words))

    def run(self) -> None:
        control = _CONTROL.search(self.text)
        if control:
            self.note("control", control.start(), text=control[0])
        if self.text.startswith("\ufeff"):
            self.note("byte-order-mark", 0)
            self.at = 1
        while self._next():
            pass
        if self.open:
            self.stop("no-end", len(self.text), name=self.open[-1].name, line=self.open[-1].place[0])

    def _next(self) -> bool:
        """Read one tag, comment or declaration; return False at the end."""
        self._gap()
        rest = self.text[self.at : self.at + 4]
        if rest == "<!--":
            self._comment()
        elif rest.startswith("<?"):
            self._skip("?>", "declaration", "a declaration")
        elif rest.startswith("<!"):
            self._skip(">", "doctype", "a DOCTYPE or CDATA section")
        elif rest.startswith("</"):
            self._close()
        elif rest.startswith("<"):
            self._tag()
        elif rest:
            self.stop("text", self.at, text=self.text[self.at : self.at + 20].split("<")[0].strip())
        return bool(rest)

    def _gap(self) -> str:
        """Skip blanks and line breaks, and return them."""
        match = _BLANK.match(self.text, self.at)
        gap = match[0] if match else ""
        if "\t" in gap:
            self.note("tab", self.at + gap.index("\t"), once="tab")
        self.at += len(gap)
        return gap

    def _skip(self, end: str, rule: str, what: str) -> None:
        stop = self.text.find(end, self.at)
        if stop < 0:
            self.stop("cut", self.at, what=what, end=end)
        self.note(rule, self.at)
        self.at = stop + len(end)

    def _comment(self) -> None:
        stop = self.text.find("-->", self.at + 4)
        if stop < 0:
            self.stop("cut", self.at, what="a comment", end="-->")
        word = re.split(r"[ \r\n>/]", self.text[self.at + 1 : stop], maxsplit=1)[0]
        if "=" in word:
            self.note("comment", self.at, text=word[:40])
        elif len(word) > MAX_TEXT:
            self.note("long-comment", self.at, count=len(word))
        self.at = stop + 3

    def _close(self) -> None:
        match = _CLOSING.match(self.text, self.at)
        if match is None:
            self.stop("cut", self.at, what="a closing tag", end=">")
        name = match[1]
        if not self.open or self.open[-1].name != name:
            wanted = f"</{self.open[-1].name}>" if self.open else "nothing"
            self.stop("other-end", self.at, name=name, wanted=wanted)
        if match[0] != f"</{name}>":
            self.note("closing-tag", self.at, text=match[0], name=name)
        self.open.pop()
        self.whole = not self.open
        self.at = match.end()

    def _tag(self) -> None:
        start = self.at
        name = _NAME.match(self.text, start + 1)
        if name is None:
            self.stop("no-name", start)
        element = Element(name[0], self.lines.place(start))
        if len(element.name) > MAX_TEXT:
            self.note("long-element", start, count=len(element.name))
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.roots.append(element)
        self.at = name.end()
        if not self._attributes(element, start):
            self.whole = not self.open
            return
        if len(self.open) == MAX_DEPTH:
            self.stop("deep", start, most=MAX_DEPTH)
        self.open.append(element)

    def _attributes(self, element: Element, start: int) -> bool:
        """Read a tag from its first attribute to its end.

        The attributes are added to ``element``. ``start`` is the offset of the tag, for messages. Return whether
        children and a closing tag follow.
        """
        while True:
            at, gap = self.at, self._gap()
            if "\n" in gap or "\r" in gap:
                self.note("line-break", at)
            here = self.text[self.at : self.at + 2]
            if here[:1] == ">" or here == "/>":
                element.blanks += len(gap)
                self.at += len(here) if here == "/>" else 1
                return here != "/>"
            if not here:
                self.stop("cut", start, what=f"the tag <{element.name}", end="> or />")
            name = _NAME.match(self.text, self.at)
            if not gap or name is None:
                self.stop("bad-tag", self.at, text=here[0])
            element.blanks += len(gap) - 1
            self._attribute(element, name[0])

    def _attribute(self, element: Element, name: str) -> None:
        start = self.at
        self.at = start + len(name)
        before = self._gap()
        if self.text[self.at : self.at + 1] != "=":
            self.at = start + len(name)
            self.note("no-value", start, name=name)
            return
        self.at += 1
        if self._gap() or before:
            self.note("blank-at-equals", start, name=name)
        value = self._value(start, name)
        if len(name) > MAX_TEXT:
            self.note("long-name", start, count=len(name))
        if name in element.attributes:
            self.note("twice", start, name=name)
            return
        element.attributes[name] = Attribute(value, self.lines.place(start))

    def _value(self, start: int, name: str) -> str:
        match = _VALUE.match(self.text, self.at)
        if match is None:
            bare = _BARE.match(self.text, self.at)
            if bare is None or not bare[0]:
                self.stop("open-quote", self.at, name=name)
            self.note("no-quotes", start, name=name, text=bare[0])
            self.at = bare.end()
            return bare[0]
        self.at = match.end()
        value = match[2] if match[1] is None else match[1]
        size = len(value.encode("utf-8", "replace"))
        if match[1] is None:
            self.note("single-quotes", start, once="quotes")
        if size > MAX_TEXT:
            self.note("long-value", start, name=name, count=size)
        if _ENTITY.search(value):
            self.note("entity", start, name=name)
        if "<" in value or "\n" in value or "\t" in value:
            self.note("odd-value", start, name=name)
        return value
