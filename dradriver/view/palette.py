"""All colours, for terminals, pages and pictures. Pages and pictures follow the reader's setting for light or dark.

Text is readable on every colour: the contrast is at least 4.5, as WCAG 2.2 requires in 1.4.3. If a colour has a
meaning, the text has it, too.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dradriver.view.document import Tone


class Shade(NamedTuple):
    """One colour on a light page and on a dark one."""

    light: str
    dark: str


PAGE: Final = Shade("#ffffff", "#16181d")
INK: Final = Shade("#1a1a1a", "#eceef1")
QUIET: Final = Shade("#5c5f66", "#a4a9b3")  # words that matter less
LINE: Final = Shade("#c9ccd1", "#4a4e57")

BOX: Final = Shade("#dfe3ea", "#353d4a")  # a rectangle with no fill of its own, which SVG would draw black

FILLS: Final[Mapping[Tone, Shade]] = {
    Tone.SELF: Shade("#d9d9d9", "#3a3e46"),
    Tone.NV: Shade("#7bc96f", "#22662f"),
    Tone.PIX: Shade("#9ecae1", "#1f5278"),
    Tone.PXB: Shade("#c6dbef", "#33475e"),
    Tone.PHB: Shade("#fee391", "#5e4d0a"),
    Tone.NODE: Shade("#fdd0a2", "#6b4318"),
    Tone.SYS: Shade("#fcbba1", "#78302a"),
    Tone.BLOCKED: Shade("#d9d9d9", "#3a3e46"),
    Tone.OURS: Shade("#6aa3dc", "#2a66a5"),
    Tone.OTHERS: Shade("#b4bac2", "#555b66"),
}
GROUPS: Final = (
    Shade("#9dbfe0", "#2f5d8c"),
    Shade("#f7b877", "#85510f"),
    Shade("#9fd096", "#2f6b35"),
    Shade("#d3b1d3", "#704674"),
)
INKS: Final[Mapping[Tone, Shade]] = {
    Tone.FREE: Shade("#1a7032", "#6fcf83"),
    Tone.BLOCKED: QUIET,
    Tone.ERROR: Shade("#b3261e", "#ff8f85"),
    Tone.WARNING: Shade("#8a5300", "#f0bd50"),
}
TERMINAL: Final[Mapping[Tone, Mapping[str, Any]]] = {  # what click.style takes
    Tone.NV: {"fg": "green", "bold": True},
    Tone.PIX: {"fg": "cyan"},
    Tone.PXB: {"fg": "cyan"},
    Tone.PHB: {"fg": "yellow"},
    Tone.NODE: {"fg": "yellow"},
    Tone.SYS: {"fg": "red"},
    Tone.FREE: {"fg": "green"},
    Tone.PROMISED: {"fg": "yellow"},
    Tone.BLOCKED: {"dim": True},
    Tone.ERROR: {"fg": "red", "bold": True},
    Tone.WARNING: {"fg": "yellow"},
}


def series(number: int) -> Shade:
    """Return the colour with this number, for one of many things in a picture, such as the users of GPUs.

    There is a colour for every number. Consecutive numbers have very different colours.
    """
    hue, shade = (0.08 + number * 0.618) % 1, number // 8 % 3  # after eight steps hues come near to earlier ones
    return Shade(_rgb(hue, (0.78, 0.7, 0.87)[shade], 0.7), _rgb(hue, (0.27, 0.21, 0.15)[shade], 0.5))


def _rgb(hue: float, lightness: float, saturation: float) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, saturation))


def _rules(colours: int) -> list[tuple[str, str, Shade]]:
    """Return the palette's CSS rules, as CSS selector, CSS property and colour.

    Args:
        colours: How many colours of ``series`` the page or picture uses.
    """
    return [
        ("body, .page", "background", PAGE), (".page", "fill", PAGE), ("body", "color", INK), ("text", "fill", INK),
        ("th, td, h2", "border-color", LINE), ("rect", "fill", BOX), ("rect", "stroke", PAGE),
        (".frame, .promised", "stroke", INK),
        (".bar, .swatch", "stroke", QUIET), ("rect.free", "stroke", LINE),
        *((f"rect.{tone.value}", "fill", shade) for tone, shade in FILLS.items()),
        *((f"td.{tone.value}", "color", shade) for tone, shade in INKS.items()),
        *((f".g{number}", "fill", shade) for number, shade in enumerate(GROUPS)),
        *((f".s{number}", "fill", series(number)) for number in range(colours)),
    ]  # fmt: skip


def css(colours: int = 0) -> str:
    """Return the palette as CSS rules: light colours, and dark ones for dark screens.

    The reader's system setting decides; ``page_css`` also lets the reader of a page decide.

    Args:
        colours: How many colours of ``series`` the page or picture uses.
    """
    rules = _rules(colours)
    light = [f"{selector} {{ {what}: {shade.light} }}" for selector, what, shade in rules]
    dark = [f"{selector} {{ {what}: {shade.dark} }}" for selector, what, shade in rules]
    return "\n".join([*light, "@media (prefers-color-scheme: dark) {", *dark, "}"]) + "\n"


def page_css(colours: int) -> str:
    """Return the palette as CSS rules for a page whose reader can choose light or dark.

    Args:
        colours: How many colours of ``series`` the page uses.
    """
    return "".join(f"{selector} {{ {what}: {_either(shade)} }}\n" for selector, what, shade in _rules(colours))


def _either(shade: Shade) -> str:
    return f"light-dark({shade.light}, {shade.dark})"
