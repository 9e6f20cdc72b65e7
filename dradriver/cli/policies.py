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
@output_formats(said="json and yaml contain the policies with this file, including the defaults.")
def check(file: str, output: str, no_color: bool) -> None:
    """Print whether the policies file FILE (- is standard input) is valid, and which of its fields have no effect yet.

    Exit status: 0 the file is valid, 1 it is not (the output has the errors and their lines).
    """
    source = "standard input" if file == _STDIN else file
    result: Policies | PoliciesError
    try:
        result = load(file)
    except PoliciesError as error:
        result = error
    show_as(
        output,
        document=lambda: _document(source, result),
        data=lambda: _data(result),
        no_color=no_color,
    )
    if isinstance(result, PoliciesError):
        raise click.exceptions.Exit(1)


def load(file: str) -> Policies:
    """Return the policies of the file that ``gputopo policies check`` gets; ``-`` is standard input.

    Raises:
        PoliciesError: The file cannot be read, or is not a valid policies file.
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


def _document(source: str, result: Policies | PoliciesError) -> Document:
    if isinstance(result, PoliciesError):
        return report(Notes(lines=tuple(Cell(f"error: {problem}", Tone.ERROR) for problem in result.problems)))
    counts = f"gpus: {len(result.gpus)} rules, policies: {len(result.policies)}"
    counts += f", nccl.servers: {len(result.nccl.servers)}, tenants: {len(result.tenants)}"
    warnings = (Cell(f"warning: {note}", Tone.WARNING) for note in notes(result))
    return report(Notes(lines=(*warnings, Cell(f"{source}: good ({counts})"))))


def _data(result: Policies | PoliciesError) -> dict[str, Any]:
    if isinstance(result, PoliciesError):
        return {"valid": False, "error": str(result), "errors": list(map(str, result.problems))}
    return {"valid": True, "warnings": notes(result), "policies": dict(plain(result))}
