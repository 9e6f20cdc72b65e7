"""What an SVG element shows and where, for tests that read pictures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from dradriver.view.svg_elements import CHARACTER

SVG = "{http://www.w3.org/2000/svg}"


class Seen(NamedTuple):
    """A text or a rectangle, and the space that it takes."""

    element: ET.Element
    words: str
    kind: str
    left: float
    top: float
    right: float
    bottom: float


def seen(element: ET.Element, x: float = 0, y: float = 0) -> Iterator[Seen]:
    """All texts and rectangles in the order in which they are painted; text is as wide as its ASCII characters."""
    for child in element:
        if child.tag == f"{SVG}g":
            right, down = map(float, re.findall(r"[\d.]+", child.get("transform", "")))
            yield from seen(child, x + right, y + down)
        elif child.tag == f"{SVG}rect":
            left, top = x + float(child.get("x", "")), y + float(child.get("y", ""))
            right, bottom = left + float(child.get("width", "")), top + float(child.get("height", ""))
            yield Seen(child, "", child.get("class", ""), left, top, right, bottom)
        elif child.tag == f"{SVG}text":
            words, kind = child.text or "", child.get("class", "")
            size = (10 / 12 if "small" in kind else 1) * CHARACTER * len(words)
            back = size if "end" in kind else 0 if "start" in kind or "title" in kind else size / 2
            left, middle = x + float(child.get("x", "")) - back, y + float(child.get("y", ""))
            yield Seen(child, words, kind, left, middle - 6, left + size, middle + 6)


def texts(element: ET.Element) -> list[Seen]:
    """The texts alone."""
    return [one for one in seen(element) if one.element.tag == f"{SVG}text"]


def boxes(element: ET.Element, kind: str = "") -> list[Seen]:
    """The rectangles, or those with a word among their classes."""
    found = (one for one in seen(element) if one.element.tag == f"{SVG}rect")
    return [one for one in found if not kind or kind in one.kind.split()]


def tip(one: Seen) -> str:
    """What is said where a pointer rests."""
    return one.element.findtext(f"{SVG}title") or ""


def check_nothing_overlaps(picture: str) -> None:
    """Check that all texts lie in the picture, that none covers another, and that none crosses the edge of a box."""
    root = ET.fromstring(picture)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    found = texts(root)
    for one in seen(root):
        assert one.left >= 0, one
        assert one.top >= 0, one
        assert one.right <= width, one
        assert one.bottom <= height, one
    for one, other in combinations(found, 2):
        apart = one.right <= other.left or other.right <= one.left
        assert apart or one.bottom <= other.top or other.bottom <= one.top, (one, other)
    for box in boxes(root):
        if {"frame", "page", "bar"} & set(box.kind.split()):
            continue
        for one in found:
            if box.top < one.top < one.bottom < box.bottom and one.left < box.right and one.right > box.left:
                assert box.left <= one.left, (box, one)
                assert one.right <= box.right, (box, one)
