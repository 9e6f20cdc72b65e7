"""Prints a command's output in the requested format. Warnings go to standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

import click

from dradriver.view import text
from dradriver.view.document import Document
from dradriver.view.terminal_text import plain

FORMATS: Final = ("table", "json", "yaml", "svg", "html")


def show(document: Document, *, no_color: bool = False) -> None:
    """Print a document as text, in colours if the terminal supports them.

    ``no_color``, or the variable ``NO_COLOR``, turns colours off.
    """
    colour = not no_color and not os.environ.get("NO_COLOR") and _is_terminal()
    click.echo(text.render(document, colour=colour), color=colour)


def show_as(
    output: str, *, document: Callable[[], Document], data: Callable[[], object], no_color: bool = False
) -> None:
    """Print a command's output: a document for people, or data for programs.

    Args:
        output: One of ``FORMATS``.
        document: Returns the document; called for the formats ``table``, ``svg`` and ``html``.
        data: Returns the data; called for the formats ``json`` and ``yaml``.
        no_color: Whether to print no colours.
    """
    match output:
        case "table":
            show(document(), no_color=no_color)
        case "svg":
            from dradriver.view import svg

            click.echo(svg.render(document()), nl=False)
        case "html":
            from dradriver.view import html

            click.echo(html.render(document()), nl=False)
        case "json":
            click.echo(safe_json(json.dumps(data(), ensure_ascii=False)))
        case _:
            click.echo(_yaml(data()), nl=False)


def show_documents(objects: Sequence[object]) -> None:
    """Print objects as YAML documents in one text, for ``kubectl apply -f -``."""
    for document in objects:
        click.echo("---")
        click.echo(_yaml(document), nl=False)


def safe_json(line: str) -> str:
    """Return a line of JSON with every unprintable character escaped, such as a control character.

    A terminal could act on such a character, for example clear the screen.
    """
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else _escape(c) for c in line)


def _escape(character: str) -> str:
    code = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))


def _yaml(data: object) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml writes five times as fast
    shown: str = yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True)
    if shown == plain(shown, keep="\n"):
        return shown
    escaped: str = yaml.dump(data, Dumper=dumper, sort_keys=False)
    return escaped


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def warn(message: str) -> None:
    """Print a one-line warning to standard error."""
    click.echo(f"warning: {plain(message)}", err=True)
