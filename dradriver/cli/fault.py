"""``gputopo fault``: breaking GPUs of a simulated node, and mending them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from dradriver.node.discovery import simulated_failures, simulated_machine
from dradriver.node.discovery.simulated_failures import Failure
from dradriver.node.errors import SetupError
from dradriver.node.faults import KINDS

_NODE = click.option("--node", required=True, help="The simulated node's name.")
_FOLDER = click.option(
    "--dir", "folder", type=click.Path(path_type=Path), default=simulated_failures.FOLDER, show_default=True,
    help="The agent's --simulated-dir.",
)  # fmt: skip


@click.group()
def fault() -> None:
    """Break GPUs of a simulated node, and mend them; run it where the node agent runs.

    It writes a file, <dir>/<node>.json, which the agent reads every ten seconds. Other machines than those of a demo
    are refused.
    """


@fault.command()
@_NODE
@click.argument("gpu")
@click.option("--nvlink", "links", multiple=True, type=int, metavar="N", help="NVLink N is down; may be repeated.")
@click.option("--xid", type=int, help="The kernel's log has this XID.")
@click.option("--lost", is_flag=True, help="It has fallen off the bus.")
@click.option("--fault", "kinds", multiple=True, type=click.Choice(sorted(KINDS)), help="Another fault.")
@_FOLDER
def fail(
    node: str, gpu: str, links: tuple[int, ...], xid: int | None, lost: bool, kinds: tuple[str, ...], folder: Path
) -> None:
    """Break GPU (gpu-3, or its uuid): what is broken already stays so."""
    if not (links or xid is not None or lost or kinds):
        raise click.UsageError("say what is broken: --nvlink, --xid, --lost or --fault")
    (name,), file = _names(folder, node, (gpu,)), simulated_failures.path(folder, node)
    broken = dict(simulated_failures.read(file))
    old = broken.get(name, Failure())
    broken[name] = msgspec.structs.replace(
        old,
        nvlink=tuple(sorted({*old.nvlink, *links})),
        xid=old.xid if xid is None else xid,
        lost=old.lost or lost,
        faults=tuple(sorted({*old.faults, *kinds})),
    )
    simulated_failures.write(file, broken)


@fault.command()
@_NODE
@click.argument("gpus", nargs=-1)
@_FOLDER
def heal(node: str, gpus: tuple[str, ...], folder: Path) -> None:
    """Mend these GPUs, or all."""
    names, file = _names(folder, node, gpus), simulated_failures.path(folder, node)
    left = {name: failure for name, failure in simulated_failures.read(file).items() if names and name not in names}
    simulated_failures.write(file, left)


def _names(folder: Path, node: str, gpus: Sequence[str]) -> list[str]:
    """Return how the file of simulated failures names GPUs of a node.

    Raises:
        SetupError: The node is no simulated one, or has no such GPU.
    """
    uuids = simulated_machine.gpus_of(folder, node)
    names = [simulated_failures.name(gpu) for gpu in gpus]
    known = {*uuids, *(f"gpu-{number}" for number in range(len(uuids)))}
    if unknown := [name for name in names if name not in known]:
        raise SetupError(f"node {node} has no GPU {unknown[0]}; it has gpu-0 to gpu-{len(uuids) - 1}")
    return names
