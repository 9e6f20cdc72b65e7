"""``gputopo topo``: a machine as ``nvidia-smi topo -m`` shows it, and what that means for placement."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import click

from dradriver.cli.machine import machine_options, read
from dradriver.topology import codec, levels, profiles
from dradriver.topology.groups import SIZES, Groups, group
from dradriver.topology.machine import Machine
from dradriver.topology.topo_m import writer

_COLOURS = {"PIX": "cyan", "PXB": "cyan", "PHB": "yellow", "NODE": "yellow", "SYS": "red"}


@click.command()
@machine_options
@click.option("--list", "list_profiles", is_flag=True, help="List the profiles and stop.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml", "svg", "html"]), default="table", show_default=True,
    help="json and yaml hold the machine, its groups and domains; --machine reads json back. svg and html draw it.",
)  # fmt: skip
@click.option("--no-color", is_flag=True, help="No colours; the variable NO_COLOR does the same.")
@click.option("--cluster", "of_cluster", is_flag=True, help="Show a cluster's nodes, and who holds which GPU.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="With --cluster: only this node; may be repeated.")
@click.option("--kubeconfig", metavar="FILE", help="With --cluster: the kubeconfig; else KUBECONFIG, ~/.kube/config.")
@click.option("--context", metavar="NAME", help="With --cluster: the kubeconfig's context; else its current one.")
def topo(
    source: str | None,
    driver_root: Path | None,
    list_profiles: bool,
    output: str,
    no_color: bool,
    of_cluster: bool,
    nodes: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Show a machine: the matrix of nvidia-smi topo -m, groups of GPUs with the best links, NUMA nodes."""
    colour = not no_color and not os.environ.get("NO_COLOR") and _is_terminal()
    if of_cluster:
        if source is not None or driver_root is not None or list_profiles:
            raise click.UsageError(
                "--cluster shows a cluster's machines: leave out --machine, --driver-root and --list"
            )
        from dradriver.cli.cluster.show import show

        show(kubeconfig=kubeconfig, context=context, nodes=nodes, output=output, colour=colour)
        return
    if nodes or kubeconfig is not None or context is not None:
        raise click.UsageError("--node, --kubeconfig and --context are for --cluster")
    if list_profiles:
        _list()
        return
    machine = read(source, driver_root=driver_root)
    groups = group(machine)
    if output == "table":
        click.echo(table(machine, groups, colour=colour), color=colour)
        return
    if output in ("svg", "html"):
        from dradriver.cli import picture

        click.echo(picture.svg(machine, groups) if output == "svg" else picture.html(machine, groups), nl=False)
        return
    document = as_document(machine, groups)
    if output == "json":
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        import yaml

        click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _list() -> None:
    names = profiles.names()
    width = max(map(len, names))
    for name in names:
        click.echo(f"{name:{width}}  {_what(profiles.load(name))}")


def _what(machine: Machine) -> str:
    products = sorted({gpu.product or "GPU" for gpu in machine.gpus})
    return f"{len(machine.gpus)} x {' / '.join(products)}"


def as_document(machine: Machine, groups: Groups) -> dict[str, object]:
    """Return the codec's document with ``domains``, ``groups`` and ``order`` added, by the machine's GPU numbers."""
    document: dict[str, object] = json.loads(codec.encode(machine))
    document["domains"] = [_indices(machine, members) for members in _members(groups.domain)]
    document["groups"] = [
        {"size": size, "gpus": _indices(machine, members), "gbps": gbps}
        for size in SIZES
        for members, gbps in zip(_members(groups.by_size[size]), groups.gbps[size], strict=True)
    ]
    document["order"] = _indices(machine, groups.order)
    return document


def _indices(machine: Machine, positions: Iterable[int]) -> list[int]:
    return [machine.gpus[i].index for i in positions]


def _members(numbers: tuple[int | None, ...]) -> list[list[int]]:
    """Return the positions of every group, by group number."""
    count = max((n for n in numbers if n is not None), default=-1) + 1
    return [[i for i, n in enumerate(numbers) if n == number] for number in range(count)]


def table(machine: Machine, groups: Groups, *, colour: bool) -> str:
    """Return the whole text: matrix, legends, groups, NUMA nodes. ``topo_m.read`` reads it back."""
    lines = [*_matrix(machine, colour=colour), "", *writer.legend(machine).splitlines(), ""]
    lines += [f"Machine: {machine.name or 'unnamed'}, {_what(machine)}", *_mig_lines(machine), ""]
    lines += [*_group_lines(machine, groups), "", *_step_lines(machine), "", *_numa_lines(machine)]
    return "\n".join(lines)


def _mig_lines(machine: Machine) -> list[str]:
    return [
        f"  GPU{gpu.index} is in MIG mode:  {', '.join(device.profile or device.uuid for device in gpu.mig) or 'empty'}"
        for gpu in machine.gpus
        if gpu.mig is not None
    ]


def _matrix(machine: Machine, *, colour: bool) -> list[str]:
    rows = writer.cells(machine)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for i, row in enumerate(rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if colour:
            paint = _heading if i == 0 else _paint
            cells = [paint(cell) for cell in cells]
        lines.append("  ".join(cells).rstrip())
    return lines


def _heading(cell: str) -> str:
    text = cell.rstrip()
    return click.style(text, underline=True) + cell[len(text) :]


def _paint(cell: str) -> str:
    word = cell.strip()
    if word.startswith("NV"):
        return click.style(cell, fg="green", bold=True)
    return click.style(cell, fg=_COLOURS[word]) if word in _COLOURS else cell


def _group_lines(machine: Machine, groups: Groups) -> list[str]:
    lines = ["Groups with the best links (weakest step of the group's best ring, one direction):"]
    for size in SIZES:
        found = zip(_members(groups.by_size[size]), groups.gbps[size], strict=True)
        shown = [f"{_names(machine, members)} ({gbps:g} GB/s)" for members, gbps in found]
        lines.append(f"  of {size}:  {',  '.join(shown) or 'none'}")
    lines.append(f"  order: {_names(machine, groups.order)}")
    return lines


def _step_lines(machine: Machine) -> list[str]:
    """Return how many pairs of GPUs are how far apart, nearest first."""
    pairs: dict[levels.Step, list[float]] = {}
    for i, j in combinations(range(len(machine.gpus)), 2):
        pairs.setdefault(levels.step(machine, i, j), []).append(levels.step_gbps(machine, i, j))
    lines = ["Levels (pairs of GPUs, one direction):"]
    for step in sorted(pairs):
        low, high = min(pairs[step]), max(pairs[step])
        gbps = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        lines.append(f"  L{levels.topology_level(step)} {step.name}:  {len(pairs[step])} pairs, {gbps} GB/s")
    return lines if pairs else []


def _names(machine: Machine, positions: Iterable[int]) -> str:
    return " ".join(f"GPU{index}" for index in _indices(machine, positions))


def _numa_lines(machine: Machine) -> list[str]:
    cpus = {node.id: node.cpus for node in machine.numa}
    known = {gpu.numa for gpu in machine.gpus if gpu.numa is not None} | set(cpus)
    lines = ["NUMA nodes:"]
    for node in [*sorted(known), None]:
        gpus = [f"GPU{gpu.index}" for gpu in machine.gpus if gpu.numa == node]
        nics = [nic.name for nic in machine.nics if nic.numa == node]
        if node is not None:
            lines.append(f"  {node}:  {' '.join([*gpus, *nics])}  CPUs {cpus.get(node) or 'N/A'}")
        elif gpus or nics:
            lines.append(f"  not known:  {' '.join([*gpus, *nics])}")
    return lines
