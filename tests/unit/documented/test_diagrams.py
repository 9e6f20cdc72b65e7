"""The diagrams in docs/images are those that the script draws, and their text stays inside the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from docs import diagrams

SVG = "{http://www.w3.org/2000/svg}"
CHARACTER = 7.3  # pixels: wider than the mean letter of the fonts at 13 pixels


def test_the_pictures_are_up_to_date() -> None:
    drawn = diagrams.pictures()
    assert {path: path.read_text("utf-8") for path in diagrams.FOLDER.glob("*.svg")} == drawn, "run make reference"


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_a_picture_is_for_light_and_dark_pages_and_says_what_it_shows(name: str) -> None:
    light, dark = ((diagrams.FOLDER / f"{name}-{theme}.svg").read_text("utf-8") for theme in ("light", "dark"))
    assert light != dark
    for text in (light, dark):
        picture = ET.fromstring(text)
        assert picture.findtext(f"{SVG}title")
        wide = float(picture.get("width", "0"))
        for label in picture.iter(f"{SVG}text"):
            half = len(label.text or "") * CHARACTER / 2
            assert half <= float(label.get("x", "0")) <= wide - half, label.text
