"""What is shown of a comparison: a table of all figures, and bars of those that a picture is for."""

from __future__ import annotations

from collections.abc import Sequence

from dradriver.cli.simulator import mixed as mixed_results
from dradriver.cli.simulator.replay import Result
from dradriver.view.document import Bars, Column, Document, Panel, Table, Tone, report, words

_COLUMNS = ("policy", "best set", "bandwidth", "mean wait", "median wait", "utilisation", "fragmented", "given up")
_MIXED = ("policy", "parts", "slices", "wholes", "GPU time", "empty GPUs", "empty quads", "decision")
_PANELS = (
    ("best_share", "jobs on the best set", "%"),
    ("bandwidth", "bandwidth against best", "%"),
    ("mean_wait_s", "mean waiting time", "min"),
    ("utilisation", "utilisation", "%"),
    ("fragmentation", "fragmentation", "%"),
)


def comparison(results: Sequence[Result]) -> Document:
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


def mixed(results: Sequence[mixed_results.Result]) -> Document:
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


def figures(results: Sequence[Result], *, title: str) -> Document:
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
