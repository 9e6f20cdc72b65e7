"""``gputopo fault``: breaks GPUs of a simulated node, and repairs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec

from dradriver.node.discovery import simulated_failures, simulated_machine
from dradriver.node.discovery.simulated_failures import Failure
from dradriver.node.errors import SetupError
from dradriver.node.faults import KINDS
from dradriver.node.health.faults_in_force import CALM_S, MOST_S
from dradriver.topology.natural import natural

_NODE = click.option("--node", required=True, help="The name of the simulated node.")
_FOLDER = click.option(
    "--dir", "folder", type=click.Path(path_type=Path), default=simulated_failures.FOLDER, show_default=True,
    help="The folder that the agent has as --simulated-dir.",
)  # fmt: skip


@click.group()
def fault() -> None:
    """Break and repair GPUs of a simulated node; run it where the node agent runs.

    The command writes the file <dir>/<node>.json, which the agent reads every ten seconds. The command refuses nodes
    that are not simulated.
    """


@fault.command()
@_NODE
@click.argument("gpu")
@click.option("--nvlink", "links", multiple=True, type=int, metavar="N", help="NVLink N is down. It can be repeated.")
@click.option("--xid", type=int, help="The kernel's log contains this XID.")
@click.option("--lost", is_flag=True, help="The driver does not report the GPU any more.")
@click.option("--fault", "kinds", multiple=True, type=click.Choice(sorted(KINDS)), help="Another kind of fault.")
@_FOLDER
def fail(
    node: str, gpu: str, links: tuple[int, ...], xid: int | None, lost: bool, kinds: tuple[str, ...], folder: Path
) -> None:
    """Break a GPU. GPU is gpu-3, for example, or its uuid.

    Faults that the GPU has already stay.
    """
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
    _print_broken(node, broken)
    for kind in sorted(broken[name].kinds - old.kinds):
        if seconds := KINDS[kind].comes_s:
            click.echo(f"It reports the fault {kind} {seconds:.0f} s after that.")


@fault.command()
@_NODE
@click.argument("gpus", nargs=-1)
@_FOLDER
def heal(node: str, gpus: tuple[str, ...], folder: Path) -> None:
    """Repair the GPUs in GPUS; without GPUS, repair all GPUs of the node.

    Most faults and their taints stay for a minute after the repair. The command prints how long.
    """
    names, file = _names(folder, node, gpus), simulated_failures.path(folder, node)
    before = simulated_failures.read(file)
    left = {name: failure for name, failure in before.items() if names and name not in names}
    simulated_failures.write(file, left)
    _print_broken(node, left)
    _print_endings({name: failure for name, failure in before.items() if name not in left})


def _print_endings(healed: Mapping[str, Failure]) -> None:
    """Print how long the faults of healed GPUs stay: a fault is over when it has been gone for a while."""
    by_seconds: dict[float, list[str]] = {}
    for name, failure in healed.items():
        by_seconds.setdefault(max(KINDS[kind].leaves_s for kind in failure.kinds), []).append(name)
    for seconds, names in sorted(by_seconds.items()):
        gpus = ", ".join(sorted(names, key=natural))
        later = f"{seconds:.0f} s after that" if seconds else "with this reading"
        click.echo(f"The faults of {gpus} and their taints end {later}.")
    if any(by_seconds):
        click.echo(
            f"A fault that came again within {CALM_S / 60:.0f} minutes stays four times as long as the last time, at "
            f"most {MOST_S / 60:.0f} minutes."
        )


def _print_broken(node: str, broken: Mapping[str, Failure]) -> None:
    gpus = ", ".join(sorted(broken, key=natural)) or "none"
    click.echo(f"Broken GPUs of node {node}: {gpus}. The node agent reads this within ten seconds.")


def _names(folder: Path, node: str, gpus: Sequence[str]) -> list[str]:
    """Return the names of a node's GPUs as the file of simulated failures writes them.

    ``folder`` has that file. ``gpus`` are the names that the user gave.

    Raises:
        SetupError: The node is not simulated, or does not have one of these GPUs.
    """
    uuids = simulated_machine.gpus_of(folder, node)
    names = [simulated_failures.name(gpu) for gpu in gpus]
    known = {*uuids, *(f"gpu-{number}" for number in range(len(uuids)))}
    if unknown := [name for name in names if name not in known]:
        raise SetupError(f"node {node} has no GPU {unknown[0]}. Its GPUs are gpu-0 to gpu-{len(uuids) - 1}.")
    return names
