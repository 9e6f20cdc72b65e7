"""``gputopo simulate``: what each policy makes of the same jobs on the same simulated cluster."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import Progress, TaskID

from dradriver.cli.inputs import Number
from dradriver.cli.simulator import mixed, trace
from dradriver.cli.simulator.mixed_policies import POLICIES as MIXED
from dradriver.cli.simulator.policies import POLICIES
from dradriver.cli.simulator.replay import Replay, Result
from dradriver.errors import DriverError
from dradriver.topology.load import read_machine
from dradriver.view import svg
from dradriver.view.document import Bars, Column, Document, Panel, Table, Tone, report, words
from dradriver.view.output import show

_EVERY = list(dict.fromkeys((*POLICIES, *MIXED)))
_COLUMNS = ("policy", "best set", "bandwidth", "mean wait", "median wait", "utilisation", "fragmented", "given up")
_MIXED = ("policy", "parts", "slices", "wholes", "GPU time", "empty GPUs", "empty quads", "decision")
_PANELS = (
    ("best_share", "jobs on the best set", "%"),
    ("bandwidth", "bandwidth against best", "%"),
    ("mean_wait_s", "mean waiting time", "min"),
    ("utilisation", "utilisation", "%"),
    ("fragmentation", "fragmentation", "%"),
)


class SimulationError(DriverError):
    """A simulation that cannot be run."""

    reason = "BadSimulation"


@click.command()
@click.option(
    "-m", "--machine", "sources", multiple=True, default=("dgx1-v100",), show_default=True, metavar="FILE|PROFILE",
    help="What the nodes are; given several times the kinds take turns.",
)  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, 10_000), default=16, show_default=True)
@click.option("--jobs", type=click.IntRange(1, 1_000_000), default=2000, show_default=True, help="How many to draw.")
@click.option("--load", type=Number(0.01, 10), default=0.9, show_default=True, help="GPU time asked for.")
@click.option("--trace", "file", type=click.Path(path_type=Path), help="CSV instead: arrival_s,gpus,duration_s.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--communication", type=Number(0, 0.99), default=0.2, show_default=True,
    help="Share of a job's time that is all-reduce on the best set; it grows as bandwidth shrinks.",
)  # fmt: skip
@click.option(
    "--parts", type=Number(0.0, 1.0),
    help="Requests of whole GPUs, shares and MIG slices instead of jobs: which share of them wants a part of a GPU.",
)  # fmt: skip
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(_EVERY),
    help="Only these; else all.",
)
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="Write the figures as an SVG picture.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def simulate(
    sources: tuple[str, ...],
    nodes: int,
    jobs: int,
    load: float,
    file: Path | None,
    seed: int,
    communication: float,
    parts: float | None,
    policies: tuple[str, ...],
    picture: Path | None,
    output: str,
) -> None:
    """Replay jobs over a simulated cluster under several policies and compare them.

    best set: jobs of two GPUs and more whose set is as good as any machine here has. bandwidth: theirs against that
    best. fragmented: free GPUs in no free set of four that is as good as the machine has. given up: how often a job
    gave back some of its pods because the others found no place. utilisation and fragmented count until the last job
    comes. A model of NCCL is the judge, and our own policies choose by it.

    With --parts who finds no place at once is turned away: parts, slices, wholes: share of such requests that had a
    place. GPU time: what was served of it. empty GPUs, empty quads: with nothing on them, and fours of these joined by
    NVLink, mean over time. slices by count: what the scheduler does where MIG instances are made on demand.
    """
    known = POLICIES if parts is None else MIXED
    if strangers := [policy for policy in policies if policy not in known]:
        raise SimulationError(f"policy {strangers[0]!r} is none of these; there are {', '.join(known)}")
    kinds = [read_machine(source) for source in sources]
    machines = [kinds[number % len(kinds)] for number in range(nodes)]
    gpus = sum(len(machine.gpus) for machine in machines)
    if not gpus:
        raise SimulationError("these machines have no GPUs")
    if parts is not None:
        if file is not None or picture is not None:
            raise SimulationError("--parts: --trace and --plot are for jobs of whole GPUs; leave them out")
        arrivals = mixed.drawn(jobs, machines, load=load, parts=parts, seed=seed)
        found_parts = [mixed.replay(machines, arrivals, policy=policy) for policy in policies or tuple(MIXED)]
        _show(found_parts, _table_of_parts(found_parts), output=output)
        return
    trace_jobs = trace.read(file) if file is not None else trace.drawn(jobs, gpus=gpus, load=load, seed=seed)
    if largest := [job for job in trace_jobs if job.gpus > gpus]:
        raise SimulationError(f"job {largest[0].number} asks for {largest[0].gpus} GPUs; the cluster has {gpus}")
    results: list[Result] = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for policy in policies or tuple(POLICIES):
            task = bar.add_task(policy, total=len(trace_jobs))
            replay = Replay(machines, trace_jobs, policy=policy, communication=communication, seed=seed)
            results.append(replay.run(progress=partial(_advance, bar, task)))
    if picture is not None:
        _write(picture, _figures(results, title=f"{len(trace_jobs)} jobs on {nodes} x {', '.join(sources)}"))
    _show(results, _table_of_jobs(results), output=output)


def _show(results: Sequence[msgspec.Struct], document: Document, *, output: str) -> None:
    if output == "json":
        click.echo(msgspec.json.encode(results).decode())
    else:
        show(document)


def _write(path: Path, document: Document) -> None:
    try:
        path.write_text(svg.render(document), encoding="utf-8")
    except OSError as error:
        raise SimulationError(f"{path}: cannot be written: {error}") from error


def _advance(bar: Progress, task: TaskID, done: int) -> None:
    bar.update(task, completed=done)


def _table_of_jobs(results: Sequence[Result]) -> Document:
    """Return a table with a row a policy."""
    rows = (
        words(
            result.policy, f"{result.best_share:.1%}", f"{result.bandwidth:.1%}", f"{result.mean_wait_s / 60:.1f} min",
            f"{result.median_wait_s / 60:.1f} min", f"{result.utilisation:.1%}", f"{result.fragmentation:.1%}",
            str(result.given_up),
        )
        for result in results
    )  # fmt: skip
    columns = tuple(Column(head, number=number > 0) for number, head in enumerate(_COLUMNS))
    return report(Table(columns=columns, rows=tuple(rows)))


def _table_of_parts(results: Sequence[mixed.Result]) -> Document:
    """Return a table with a row a policy, of whole GPUs and parts."""
    columns = tuple(Column(head, number=number > 0) for number, head in enumerate(_MIXED))
    rows = (
        words(
            result.policy, f"{result.parts_served:.1%}", f"{result.slices_served:.1%}", f"{result.wholes_served:.1%}",
            f"{result.gpu_time_served:.1%}", f"{result.empty_gpus:.1%}", f"{result.empty_quads:.1%}",
            f"{result.decision_s * 1e6:.0f} us",
        )
        for result in results
    )  # fmt: skip
    return report(Table(columns=columns, rows=tuple(rows)))


def _figures(results: Sequence[Result], *, title: str) -> Document:
    """Return a panel a figure with a bar a policy; our own policies stand out."""
    panels = tuple(
        Panel(
            title=f"{name} ({unit})",
            bars=tuple(
                (
                    result.policy,
                    getattr(result, field) * (100 if unit == "%" else 1 / 60),
                    Tone.OURS if result.policy.startswith("ours") else Tone.OTHERS,
                )
                for result in results
            ),
        )
        for field, name, unit in _PANELS
    )
    return report(Bars(title=title, panels=panels), title=title)
