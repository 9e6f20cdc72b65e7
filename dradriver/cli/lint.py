"""``gputopo lint``: whether the webhook would admit manifests, and how it would change their pods."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from dradriver.cli.cluster.cluster_options import allocating_driver_option, output_options
from dradriver.cli.inputs import called, content, policies_of
from dradriver.cli.linter.admission_results import Result, results
from dradriver.cli.linter.manifest_documents import DocumentError, documents
from dradriver.counted import counted
from dradriver.process.policies_file import PoliciesFile
from dradriver.view.document import Cell, Document, Notes, Tone, report
from dradriver.view.output import show_as, show_documents
from webhook.admission import Admission


@click.command()
@click.argument("files", metavar="[FILE]...", nargs=-1)
@click.option(
    "-f", "--filename", "more_files", multiple=True, metavar="FILE", help="A manifest, like FILE. It can be repeated."
)
@click.option(
    "--policies", "policies_file", metavar="FILE",
    help="The policies file to use. Default: the built-in defaults. The command does not ask a cluster.",
)  # fmt: skip
@click.option(
    "--translate", is_flag=True, help="Assume that the namespaces have the label gpu.topology/translate=true."
)
@allocating_driver_option
@output_options
def lint(
    files: Sequence[str],
    more_files: Sequence[str],
    policies_file: str | None,
    translate: bool,
    output: str,
    no_color: bool,
) -> None:
    """Print whether the webhook would admit the objects in FILE... (- is standard input).

    The objects are pods; objects with pod templates, such as Deployments, Jobs, CronJobs, JobSets, LeaderWorkerSets and
    PyTorchJobs; ResourceClaims and their templates. Annotations that the webhook copies from an object to its pods are
    included. -o yaml prints the pods as they would be stored.

    Exit status: 0 all objects are admitted, 1 some are not, or cannot be read, 2 wrong usage.
    """
    if not (files or more_files):
        raise click.UsageError("name a FILE, or - for standard input")
    contents = [(name, content(name)) for name in (*files, *more_files)]
    # The webhook's own code is asked, with the policies of the file and without a controller.
    policies = PoliciesFile()
    policies.in_force = policies_of(policies_file)
    admission = Admission(controller_user="", policies=policies)
    outcomes: list[Result] = []
    troubles: list[str] = []
    for name, text in contents:
        for document in documents(text, called(name)):
            if isinstance(document, DocumentError):
                troubles.append(str(document))
            else:
                outcomes += results(document, admission, translate=translate)
    if output == "yaml":
        show_documents([outcome.pod for outcome in outcomes if outcome.pod is not None])
        # Standard output has the YAML alone: errors and warnings go to stderr.
        for line in _lines(outcomes, troubles):
            if line.tone is not Tone.PLAIN:
                click.echo(line.text, err=True)
    else:
        show_as(
            output,
            document=lambda: _document(outcomes, troubles),
            data=lambda: {"results": msgspec.to_builtins(outcomes), "unreadable": troubles},
            no_color=no_color,
        )
    if troubles or any(outcome.errors for outcome in outcomes):
        raise click.exceptions.Exit(1)


def _document(outcomes: Sequence[Result], troubles: Sequence[str]) -> Document:
    return report(Notes(lines=tuple(_lines(outcomes, troubles))))


def _lines(outcomes: Sequence[Result], troubles: Sequence[str]) -> list[Cell]:
    lines: list[Cell] = []
    for outcome in outcomes:
        object_text = f"{outcome.kind} {outcome.name}"
        for findings, word, tone in (
            (outcome.errors, "error", Tone.ERROR),
            (outcome.warnings, "warning", Tone.WARNING),
            (outcome.notes, "note", Tone.PLAIN),
        ):
            for finding in findings:
                where = f"{outcome.source}:{finding.line}: document {outcome.document}, {object_text}"
                lines.append(Cell(f"{where}: {word}: {finding.message}", tone))
    lines += [Cell(f"error: {trouble}", Tone.ERROR) for trouble in troubles]
    ours = sum(outcome.ours for outcome in outcomes)
    refused = sum(bool(outcome.errors) for outcome in outcomes)
    warned = sum(len(outcome.warnings) for outcome in outcomes)
    count = f"{counted(len(outcomes), 'object or template', 'objects and templates')}, {ours} of them for this driver"
    summary = f"{count}: {refused} refused, {counted(warned, 'warning')}"
    lines.append(Cell(summary + (f"; {counted(len(troubles), 'document')} not readable" if troubles else "")))
    return lines
