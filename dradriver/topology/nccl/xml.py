"""The dialect of XML that NCCL reads topology files in: a parser that knows which of its readers would refuse what.

NCCL has no XML library: ``xml.cc`` reads characters. What follows here is read more kindly, so that a foreign file can
be imported, and every place where some NCCL between 2.18 and 2.30 would stumble is noted as a ``Finding``.
"""

from __future__ import annotations

import re
from bisect import bisect_right

import msgspec

MAX_TEXT = 253  # MAX_STR_LEN is 255; the closing quote and the string's end take two
MAX_DEPTH = 64
_NAME = re.compile(r"[^\s=<>/\"']+")
_BLANK = re.compile(r"[ \t\r\n]*")
_VALUE = re.compile(r'"([^"]*)"|\'([^\']*)\'')
_BARE = re.compile(r"[^\s/>\"'<]*")
_CLOSING = re.compile(r"</\s*([^\s<>/]*)\s*/?>")
_ENTITY = re.compile(r"&#?\w+;")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong with a file.

    Attributes:
        line: From 1, as ``column``.
        column: Characters, not bytes.
        error: True where NCCL refuses or misreads the file, False where it works but may do harm.
        problem: What stands there and what NCCL does with it.
        cure: What to write instead.
    """

    line: int
    column: int
    error: bool
    problem: str
    cure: str


class Attribute(msgspec.Struct, frozen=True):
    """One attribute's value and the place of its name."""

    value: str
    line: int
    column: int


class Element(msgspec.Struct):
    """One element; ``blanks`` are the blanks too many in its tag, each of which NCCL counts as an attribute."""

    name: str
    line: int
    column: int
    attributes: dict[str, Attribute] = {}
    children: list[Element] = []
    blanks: int = 0

    def get(self, name: str) -> str | None:
        """Return an attribute's value, or None."""
        found = self.attributes.get(name)
        return None if found is None else found.value

    def place(self, name: str) -> tuple[int, int]:
        """Return line and column of an attribute, or of the element where it has none of that name."""
        found = self.attributes.get(name)
        return (self.line, self.column) if found is None else (found.line, found.column)


class Document(msgspec.Struct):
    """What was read: ``root`` is None for an empty file; ``broken`` is what nobody could read on after."""

    root: Element | None = None
    findings: list[Finding] = []
    broken: Finding | None = None


class _Broken(Exception):  # noqa: N818  # an inner jump, never seen outside
    def __init__(self, at: int, problem: str, cure: str) -> None:
        self.finding = (at, problem, cure)


def parse(text: str) -> Document:
    """Return the elements of ``text`` and all that NCCL's parser would stumble over in its form; never fails."""
    parser = _Parser(text)
    try:
        parser.run()
    except _Broken as stop:
        at, problem, cure = stop.finding
        parser.document.broken = parser.finding(at, problem, cure)
    return parser.document


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.document = Document()
        self.open: list[Element] = []
        self.starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self.once: set[str] = set()

    def finding(self, at: int, problem: str, cure: str, *, error: bool = True) -> Finding:
        line = bisect_right(self.starts, at)
        return Finding(line, at - self.starts[line - 1] + 1, error, problem, cure)

    def note(self, at: int, problem: str, cure: str, *, error: bool = True, once: str = "") -> None:
        if once and once in self.once:
            return
        self.once.add(once)
        self.document.findings.append(self.finding(at, problem, cure, error=error))

    def run(self) -> None:
        control = _CONTROL.search(self.text)
        if control:
            self.note(control.start(), f"control character {control[0]!r}", "remove it")
        if self.text.startswith("\ufeff"):
            self.note(0, "a byte order mark: every NCCL refuses the file", "save it as UTF-8 without one")
            self.at = 1
        while self._next():
            pass
        if self.open:
            last = self.open[-1]
            raise _Broken(
                len(self.text), f"the file ends inside <{last.name}> of line {last.line}", f"write </{last.name}>"
            )

    def _next(self) -> bool:
        """Read one tag, comment or declaration; return False at the end."""
        self._gap()
        if self.at >= len(self.text):
            return False
        rest = self.text[self.at : self.at + 4]
        if rest == "<!--":
            self._comment()
        elif rest.startswith("<?"):
            self._skip("?>", "an XML declaration or processing instruction", 'start the file with <system version="1">')
        elif rest.startswith("<!"):
            self._skip(">", "a DOCTYPE or CDATA section", "remove it")
        elif rest.startswith("</"):
            self._close()
        elif rest.startswith("<"):
            self._tag()
        else:
            shown = self.text[self.at : self.at + 20].split("<")[0].strip()
            raise _Broken(self.at, f"text between elements ({shown!r}): every NCCL refuses the file", "remove it")
        return True

    def _gap(self) -> str:
        """Skip blanks and return them; a tab is noted, the first time."""
        match = _BLANK.match(self.text, self.at)
        gap = match[0] if match else ""
        if "\t" in gap:
            at = self.at + gap.index("\t")
            self.note(at, "a tab: every NCCL refuses the file", "indent with blanks, in the whole file", once="tab")
        self.at += len(gap)
        return gap

    def _skip(self, end: str, what: str, cure: str) -> None:
        self.note(self.at, f"{what}: every NCCL refuses the file", cure)
        stop = self.text.find(end, self.at)
        if stop < 0:
            raise _Broken(self.at, f"{what} that does not end", cure)
        self.at = stop + len(end)

    def _comment(self) -> None:
        stop = self.text.find("-->", self.at + 4)
        if stop < 0:
            raise _Broken(self.at, "a comment that does not end", "write --> after it")
        word = re.split(r"[ \r\n>/]", self.text[self.at + 1 : stop], maxsplit=1)[0]
        if "=" in word:
            self.note(self.at, f"a comment that starts with {word!r}: to NCCL an attribute, it refuses the file",
                      "begin the comment with a blank")  # fmt: skip
        elif len(word) > MAX_TEXT:
            self.note(self.at, f"a comment whose first word has {len(word)} characters", "begin it with a blank")
        self.at = stop + 3

    def _close(self) -> None:
        start = self.at
        match = _CLOSING.match(self.text, start)
        if match is None:
            raise _Broken(start, "a closing tag that does not end", "write </name>")
        name = match[1]
        if not self.open or self.open[-1].name != name:
            last = self.open[-1] if self.open else None
            wanted = f"</{last.name}>, for line {last.line}," if last else "the end of the file"
            cure = f"write </{last.name}>" if last else "remove it"
            raise _Broken(start, f"</{name}> where {wanted} should stand: every NCCL refuses the file", cure)
        if match[0] != f"</{name}>":
            self.note(start, f"{match[0]!r}: every NCCL refuses the file", f"write </{name}>")
        self.open.pop()
        self.at = match.end()

    def _tag(self) -> None:
        start = self.at
        name = _NAME.match(self.text, start + 1)
        if name is None:
            raise _Broken(start, "a '<' without an element's name", "write <name …>; '<' has no other use here")
        line = self.finding(start, "", "")
        element = Element(name=name[0], line=line.line, column=line.column)
        self._append(start, element)
        self.at = name.end()
        while True:
            gap_at, gap = self.at, self._gap()
            if "\n" in gap or "\r" in gap:
                self.note(
                    gap_at, "a line break inside a tag: every NCCL refuses the file", "write each tag on one line"
                )
            here = self.text[self.at : self.at + 2]
            if here[:1] == ">" or here == "/>":
                element.blanks += len(gap)
                break
            if not here:
                raise _Broken(start, f"the file ends inside the tag <{element.name}", "write > or />")
            if not gap or not _NAME.match(self.text, self.at):
                raise _Broken(
                    self.at, f"{here[0]!r} where an attribute or the tag's end should stand", 'write name="value"'
                )
            element.blanks += len(gap) - 1
            self._attribute(element)
        self.at += 1 if here[0] == ">" else 2
        if here[0] == ">":
            if len(self.open) == MAX_DEPTH:
                raise _Broken(start, f"nested deeper than {MAX_DEPTH} elements", "this describes no machine")
            self.open.append(element)

    def _append(self, start: int, element: Element) -> None:
        if self.open:
            self.open[-1].children.append(element)
        elif self.document.root is None:
            self.document.root = element
        else:
            raise _Broken(start, f"a second outermost element, <{element.name}>", "keep one <system>")

    def _attribute(self, element: Element) -> None:
        start = self.at
        name = _NAME.match(self.text, start)
        assert name is not None
        self.at = name.end()
        before = self._gap()
        if self.text[self.at : self.at + 1] != "=":
            self.at = name.end()
            self.note(start, f"{name[0]} has no value", f'write {name[0]}="…" or remove it')
            return
        self.at += 1
        if before or self._gap():
            self.note(start, f"blanks beside the = of {name[0]}: NCCL misreads the attribute", f'write {name[0]}="…"')
        value = self._value(start, name[0])
        if len(name[0]) > MAX_TEXT:
            self.note(start, f"an attribute's name of {len(name[0])} characters", f"use {MAX_TEXT} at most")
        if name[0] in element.attributes:
            self.note(start, f"{name[0]} is given twice: NCCL takes the first", "write it once")
            return
        place = self.finding(start, "", "")
        element.attributes[name[0]] = Attribute(value, place.line, place.column)

    def _value(self, start: int, name: str) -> str:
        match = _VALUE.match(self.text, self.at)
        if match is None:
            bare = _BARE.match(self.text, self.at)
            if bare is None or not bare[0]:
                raise _Broken(self.at, f"the value of {name} does not start or end with a quote", f'write {name}="…"')
            self.note(
                start, f"the value of {name} has no quotes: every NCCL refuses the file", f'write {name}="{bare[0]}"'
            )
            self.at = bare.end()
            return bare[0]
        self.at = match.end()
        value = match[1] if match[1] is not None else match[2]
        if match[1] is None:
            self.note(start, "single quotes: NCCL before 2.27 refuses the file", "use double quotes", once="quotes")
        if len(value.encode("utf-8", "replace")) > MAX_TEXT:
            self.note(start, f"{name} has {len(value)} characters: NCCL refuses it from 2.27 on, before it overflows",
                      f"use {MAX_TEXT} at most")  # fmt: skip
        if _ENTITY.search(value):
            self.note(
                start, f"{name} has an entity: NCCL does not decode it", "write the character itself", error=False
            )
        if "<" in value or "\n" in value or "\t" in value:
            self.note(start, f"{name} has '<', a tab or a line break in its value", "remove it", error=False)
        return value
