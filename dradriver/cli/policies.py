"""``gputopo policies``: a policies file as the driver reads it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from dradriver.api.policies.policies_reader import PoliciesError, notes, read
from dradriver.api.policies.policy_sections import MOST_BYTES, Policies, plain
from dradriver.cli.cluster.cluster_options import output_formats
from dradriver.view.document import Cell, Document, Notes, Tone, report
from dradriver.view.output import show_as

_STDIN = "-"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def policies() -> None:
    """Check policies files: the chart's value `policies`."""


@policies.command()
@click.argument("file")
@output_formats(said="json and yaml hold what is in force with this file, defaults included.")
def check(file: str, output: str, no_color: bool) -> None:
    """Say whether the driver takes FILE (- is standard input), and what in it has no effect yet.

    Exit status: 0 it does, 1 it does not (what is wrong, with the line).
    """
    source = "standard input" if file == _STDIN else file
    good: Policies | None = None
    trouble = ""
    try:
        good = load(file)
    except PoliciesError as error:
        trouble = str(error)
    show_as(
        output,
        document=lambda: _document(source, good, trouble),
        data=lambda: _data(good, trouble),
        no_color=no_color,
    )
    if good is None:
        raise click.exceptions.Exit(1)


def load(file: str) -> Policies:
    """Return the policies of a file that ``gputopo policies check`` is given; ``-`` is standard input.

    Raises:
        PoliciesError: It cannot be read, or is none.
    """
    return read(_content(file), source="standard input" if file == _STDIN else file)


def _content(file: str) -> bytes:
    try:
        if file == _STDIN:
            return sys.stdin.buffer.read(MOST_BYTES + 1)
        with Path(file).open("rb") as opened:
            return opened.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise PoliciesError(f"{file}: cannot be read: {error}") from error


def _document(source: str, good: Policies | None, trouble: str) -> Document:
    if good is None:
        return report(Notes(lines=(Cell(f"error: {trouble}", Tone.ERROR),)))
    counts = f"gpus: {len(good.gpus)} rules, policies: {len(good.policies)}, nccl.servers: {len(good.nccl.servers)}"
    counts += f", tenants: {len(good.tenants)}"
    warnings = (Cell(f"warning: {note}", Tone.WARNING) for note in notes(good))
    return report(Notes(lines=(*warnings, Cell(f"{source}: good ({counts})"))))


def _data(good: Policies | None, trouble: str) -> dict[str, Any]:
    if good is None:
        return {"valid": False, "error": trouble}
    return {"valid": True, "warnings": notes(good), "policies": dict(plain(good))}
