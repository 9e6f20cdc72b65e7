"""The tables and charts that ``gputopo simulate`` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from dradriver.cli.simulator import mixed_replay
from dradriver.cli.simulator.order_figures import OrderResult
from dradriver.cli.simulator.orders import SAME_ALONE
from dradriver.cli.simulator.policy_replay import Result
from dradriver.view.document import Bars, Cell, Column, Document, Notes, Panel, Table, Tone, report, words

_POLICIES: Final = (
    "policy", "best set", "bandwidth", "mean wait", "median wait", "utilisation", "fragmented", "gangs released",
)  # fmt: skip
_MIXED: Final = (
    "policy",
    "fractions served",
    "slices served",
    "whole GPUs served",
    "GPU time served",
    "empty GPUs",
    "empty quads",
    "decision",
)
_WAITS: Final = ("order", "GPUs", "jobs", "mean wait", "p99", "largest")
_ORDERS: Final = (
    "order", "utilisation", "best set", "bandwidth", "unfair", "one job", "contended", "reservations",
    "reserved idle", "ended",
)  # fmt: skip
_SAME: Final = f"With one tenant {', '.join(f'{order} is {other}' for order, other in SAME_ALONE.items())}."
_NOTHING: Final = "-"
_EIGHT: Final = "5-8"

R = TypeVar("R")


def of_policies(results: Sequence[Result]) -> Document:
    """Return a table of ``gputopo simulate`` with a row for each policy."""
    rows = (
        words(
            result.policy, f"{result.best_share:.1%}", f"{result.bandwidth:.1%}", _minutes(result.mean_wait_s),
            _minutes(result.median_wait_s), f"{result.utilisation:.1%}", f"{result.fragmentation:.1%}",
            str(result.given_up),
        )
        for result in results
    )  # fmt: skip
    return report(Table(columns=_columns(_POLICIES), rows=tuple(rows)))


def of_parts(results: Sequence[mixed_replay.Result]) -> Document:
    """Return the table of ``gputopo simulate --fractions``: a row for each policy of whole GPUs and fractions."""
    rows = (
        words(
            result.policy, f"{result.fractions_served:.1%}", f"{result.slices_served:.1%}",
            f"{result.whole_gpus_served:.1%}", f"{result.gpu_time_served:.1%}",
            f"{result.empty_gpus:.1%}", f"{result.empty_quads:.1%}",
            f"{result.decision_s * 1e6:.0f} us",
        )
        for result in results
    )  # fmt: skip
    return report(Table(columns=_columns(_MIXED), rows=tuple(rows)))


def of_orders(results: Sequence[OrderResult], *, tenants: int) -> Document:
    """Return two tables of ``gputopo simulate``: waiting times by order and size, and other figures of each order."""
    waits = tuple(
        words(
            result.order if number == 0 else "", wait.gpus, f"{wait.jobs:.0f}", _minutes(wait.mean_s),
            _minutes(wait.p99_s), _minutes(wait.largest_s),
        )
        for result in results
        for number, wait in enumerate(result.waits)
    )  # fmt: skip
    rows = tuple(
        words(
            result.order, f"{result.utilisation:.1%}", f"{result.best_share:.1%}", f"{result.bandwidth:.1%}",
            _percent(result.unfairness), _percent(result.one_job), f"{result.contended:.0%}",
            f"{result.reservations:.0f}", f"{result.reserved_idle:.1%}", f"{result.ended:.0f}",
        )
        for result in results
    )  # fmt: skip
    blocks = [Table(columns=_columns(_WAITS), rows=waits), Table(columns=_columns(_ORDERS), rows=rows)]
    return report(*blocks, *([] if tenants > 1 else [Notes(lines=(Cell(_SAME),))]))


def picture_of_policies(results: Sequence[Result], *, title: str) -> Document:
    """Return the chart of ``gputopo simulate``: a panel for each figure with a bar for each policy."""

    def panel(name: str, figure: Callable[[Result], float]) -> Panel:
        return _panel(name, results, figure, lambda result: result.policy)

    return _picture(
        title,
        panel("jobs on the best set (%)", lambda result: result.best_share * 100),
        panel("bandwidth against best (%)", lambda result: result.bandwidth * 100),
        panel("mean waiting time (min)", lambda result: result.mean_wait_s / 60),
        panel("utilisation (%)", lambda result: result.utilisation * 100),
        panel("fragmentation (%)", lambda result: result.fragmentation * 100),
    )


def picture_of_orders(results: Sequence[OrderResult], *, title: str) -> Document:
    """Return the chart of ``gputopo simulate``: a panel for each figure with a bar for each order of the queue."""

    def panel(name: str, figure: Callable[[OrderResult], float]) -> Panel:
        return _panel(name, results, figure, lambda result: result.order)

    def eight(result: OrderResult) -> tuple[float, float]:
        found = result.of(_EIGHT)
        return (0.0, 0.0) if found is None else (found.p99_s, found.largest_s)

    return _picture(
        title,
        panel("mean waiting time (min)", lambda result: result.waits[-1].mean_s / 60),
        panel(f"p99 of jobs of {_EIGHT} GPUs (min)", lambda result: eight(result)[0] / 60),
        panel(f"longest wait of jobs of {_EIGHT} GPUs (min)", lambda result: eight(result)[1] / 60),
        panel("utilisation (%)", lambda result: result.utilisation * 100),
        panel("unfairness (%)", lambda result: (result.unfairness or 0.0) * 100),
    )


def _panel(name: str, results: Sequence[R], figure: Callable[[R], float], label: Callable[[R], str]) -> Panel:
    def tone(result: R) -> Tone:
        return Tone.OURS if label(result).startswith("ours") else Tone.OTHERS

    return Panel(title=name, bars=tuple((label(result), figure(result), tone(result)) for result in results))


def _picture(title: str, *panels: Panel) -> Document:
    return report(Bars(title=title, panels=panels), title=title)


def _columns(heads: Sequence[str]) -> tuple[Column, ...]:
    return tuple(Column(head, number=number > 0) for number, head in enumerate(heads))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


def _percent(share: float | None) -> str:
    return _NOTHING if share is None else f"{share:.1%}"
