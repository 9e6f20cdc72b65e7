"""``gputopo slices``: the ResourceSlices that a future node will publish, for autoscalers that scale from zero."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from dradriver.api.policies.gpu_modes import Mode, mode_of
from dradriver.api.slices import resource_slices
from dradriver.cli.cluster.cluster_options import output_formats
from dradriver.cli.inputs import policies_of
from dradriver.cli.machine_source import machine_options, read
from dradriver.topology.machine import Machine
from dradriver.view.document import report, table
from dradriver.view.output import show_as, show_documents

NODE: Final = "template"
_GENERATION: Final = 1
_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)


@click.command()
@machine_options
@click.option("--node", default=NODE, show_default=True, metavar="NAME", help="The name of the node.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="A label of the node, which the rules in --policies can select.",
)
@click.option(
    "--policies", "policies_file", metavar="FILE",
    help="The policies file, which says which GPUs are divided or shared. Default: the built-in defaults. The command "
         "does not ask a cluster.",
)  # fmt: skip
@output_formats(usual="yaml")
def slices(
    source: str | None,
    driver_root: Path | None,
    product: str,
    cpu: str,
    node: str,
    labels: tuple[str, ...],
    policies_file: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print the ResourceSlices that the node agent would publish for a machine, as an API server of 1.36 keeps them.

    UUIDs and bus ids are those of the profile. A real node has other UUIDs and bus ids.
    """
    if not _NAME.fullmatch(node):
        raise click.UsageError(
            f"--node: {node!r} is no name of a node. Write lower-case letters, digits, - and . only."
        )
    machine = read(source, driver_root=driver_root, product=product, cpu=cpu)
    resource_slices = template(machine, node, _modes(machine, node, labels, policies_file))
    if output == "yaml":
        show_documents(resource_slices)
        return
    show_as(
        output,
        document=lambda: report(table("slice", "device", "type", "product", rows=_rows(resource_slices))),
        data=lambda: {"apiVersion": "v1", "kind": "List", "items": resource_slices},
        no_color=no_color,
    )


def template(machine: Machine, node: str, modes: dict[str, Mode]) -> list[dict[str, Any]]:
    """Return the ResourceSlices of a node that does not exist yet, for ``gputopo slices``.

    ``node`` is the name that the node will have. The slices have no uid of a node. ``modes`` says how GPUs are divided,
    by GPU uuid.
    """
    made = resource_slices.build(machine, node=node, node_uid="", modes=modes)
    for piece in made:
        del piece["metadata"]["ownerReferences"]
        piece["spec"]["pool"]["generation"] = _GENERATION
    return made


def _modes(machine: Machine, node: str, labels: tuple[str, ...], policies_file: str | None) -> dict[str, Mode]:
    policies = policies_of(policies_file)
    if wrong := [text for text in labels if "=" not in text]:
        raise click.UsageError(f"--label: {wrong[0]!r} is no label. Write KEY=VALUE.")
    known = dict(text.split("=", 1) for text in labels)
    modes = {gpu.uuid: mode_of(policies, node=node, labels=known, gpu=gpu) for gpu in machine.gpus}
    return {uuid: mode for uuid, mode in modes.items() if mode is not None}


def _rows(made: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    def said(device: dict[str, Any], attribute: str) -> str:
        return str(device["attributes"].get(attribute, {}).get("string", ""))

    return [
        (piece["metadata"]["name"], device["name"], said(device, "type"), said(device, "productName"))
        for piece in made
        for device in piece["spec"].get("devices", ())
    ]
