"""Metrics with a limited number of time series, so that a text from outside cannot create any number of them.

``Labelled`` is for labels whose values are known in advance. The other classes are for labels that hold names of
objects.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

OTHER: Final = "other"
_FROM_THE_START: Final = 64  # series that a counter has before anything is counted
M = TypeVar("M", Counter, Gauge, Histogram)
Name = TypeVar("Name", bound=str | tuple[str, ...])


class Labelled(Generic[M]):
    """A metric whose label values are listed in advance.

    Any other value is counted as ``other``. ``words`` has the listed values by label. docs/reference/metrics.md is
    generated from it.
    """

    def __init__(
        self, kind: Callable[[str, str, Sequence[str]], M], name: str, text: str, /, **words: Iterable[str]
    ) -> None:
        """Define the metric.

        Args:
            kind: ``Counter``, ``Gauge`` or ``Histogram``, or a partial of one of them.
            name: The metric's name.
            text: A sentence that says what the metric counts.
            words: The labels in their order, each with its values.
        """
        self.name = name
        self.words = {label: tuple(dict.fromkeys(known)) for label, known in words.items()}
        self._metric: M = kind(name, text, tuple(words))
        made: object = self._metric
        if isinstance(made, Counter):
            for values in itertools.islice(itertools.product(*self.words.values()), _FROM_THE_START):
                made.labels(*values)  # else the first one that is counted is no increase

    def labels(self, *values: str) -> M:
        """Return the child metric for these label values, in the order of the labels.

        Raises:
            ValueError: The number of values is not the number of labels.
        """
        known = (value if value in words else OTHER for value, words in zip(values, self.words.values(), strict=True))
        part: M = self._metric.labels(*known)
        return part


class Names(Collector):
    """A metric whose labels relate names, such as a GPU's uuid and its node.

    Its value is always 1; queries join it with other series. The label values are not known in advance: they are names
    of objects, which the API server has checked. At most ``most`` series are shown; further ones are left out.
    """

    def __init__(
        self, name: str, text: str, /, *, most: int, registry: CollectorRegistry = REGISTRY, **labels: str
    ) -> None:
        """Define the metric.

        Args:
            name: The metric's name, which ends in ``_info``.
            text: A sentence that describes it.
            most: The largest number of series.
            registry: The registry that serves it.
            labels: The labels in their order, each with its description.
        """
        self.name = name
        self.words = {label: (said,) for label, said in labels.items()}
        self._text = text
        self._most = most
        self._rows: dict[Hashable, tuple[tuple[str, ...], ...]] = {}  # by key: its series, as label values
        registry.register(self)

    def set(self, key: Hashable, rows: Iterable[tuple[str, ...]]) -> None:
        """Replace the series that belong to one key, such as a node's name.

        ``key`` is any value by which the caller groups series. Each row is a series: one value for every label. If
        ``rows`` is empty, the key's series are removed.
        """
        series = tuple(dict.fromkeys(rows))
        if series:
            self._rows[key] = series
        else:
            self._rows.pop(key, None)

    def clear(self) -> None:
        """Remove all series of the metric."""
        self._rows.clear()

    def collect(self) -> Iterable[Metric]:
        """Return the metric with its current series, for Prometheus."""
        family = InfoMetricFamily(self.name.removesuffix("_info"), self._text, labels=tuple(self.words))
        every = dict.fromkeys(row for rows in tuple(self._rows.values()) for row in rows)
        for row in list(every)[: self._most]:
            family.add_metric(row, {})
        return [family]


class Amounts(Collector):
    """A gauge with a series for each of the names with the largest amounts.

    All other names share the series ``other``. The names are the values of the metric's first label, such as tenants or
    nodes. They come from objects that the API server has checked, or from the administrator. Further labels can hold
    known values, or names of GPU products.
    """

    def __init__(
        self, name: str, text: str, /, *, most: int, registry: CollectorRegistry = REGISTRY, **labels: str
    ) -> None:
        """Define the metric. Its first label holds the name.

        Args:
            name: The metric's name.
            text: A sentence that describes it.
            most: The largest number of names that have series of their own.
            registry: The registry that serves it.
            labels: The labels in their order, each with its description.
        """
        self.name = name
        self.words = {label: (said,) for label, said in labels.items()}
        self._text = text
        self._most = most
        self._amounts: dict[tuple[str, ...], float] = {}  # the gauge by label values
        registry.register(self)

    def set(self, amounts: Mapping[Name, float], *, always: Collection[str] = ()) -> None:
        """Set all amounts of the metric.

        A key is a name, or a tuple of all label values. Names in ``always`` have series of their own, however small
        their amounts are.
        """
        every: dict[tuple[str, ...], float] = {}
        for key, amount in amounts.items():
            every[key if isinstance(key, tuple) else (str(key),)] = amount
        sums: dict[str, float] = {}
        for (name, *_), amount in every.items():
            sums[name] = sums.get(name, 0.0) + amount
        ranked = sorted(sums, key=lambda name: (name not in always, -sums[name], name))
        others = {OTHER, *ranked[max(self._most, len(always)) :]}  # who is called so cannot be told apart from the rest
        told: dict[tuple[str, ...], float] = {}
        for row, amount in every.items():
            shown = (OTHER, *row[1:]) if row[0] in others else row
            told[shown] = told.get(shown, 0.0) + amount
        self._amounts = told

    def collect(self) -> Iterable[Metric]:
        """Return the metric with its current amounts, for Prometheus."""
        family = GaugeMetricFamily(self.name, self._text, labels=tuple(self.words))
        for key, amount in self._amounts.items():
            family.add_metric(key, amount)
        return [family]


class _Largest:
    """Decides which names of a growing metric have series of their own: the names with the largest sums.

    All other names share the series ``other``. If the sum of a name in ``other`` becomes larger than the smallest sum
    of a name with its own series, the first name replaces the second. The series of the second name ends. New counts of
    the first name are added to its own series. Its earlier counts stay in ``other``, so no series ever falls. Sums are
    remembered for a limited number of names.
    """

    _REMEMBERED: Final = 16  # times as many as are told apart
    _MARGIN: Final = 1.1  # by so much one must be larger: two that are equal would take turns

    def __init__(self, most: int) -> None:
        self._most = most
        self._sums: dict[str, float] = {}  # by name: the sum of what was counted
        self._own_series: set[str] = set()  # names that have series of their own
        self._smallest_sum = 0.0  # no sum of those that are told apart is less

    def name(self, name: str, amount: float) -> tuple[str, str | None]:
        """Add an amount to a name's sum.

        Returns:
            The label value to use (the name, or ``other``). Then the name whose series ends, because this name gets a
            series in its place; None if no series ends.
        """
        # 1. A name that has a series, or gets one because there is room.
        if name == OTHER:
            return OTHER, None
        total = self._sums[name] = self._sums.get(name, 0.0) + amount
        if name in self._own_series:
            return name, None
        if len(self._own_series) < self._most:
            self._own_series.add(name)
            return name, None

        # 2. It must outgrow the smallest name that has a series. That one's sum is found only if it may be so.
        if total <= self._smallest_sum * self._MARGIN:
            self._forget()
            return OTHER, None
        smallest = min(self._own_series, key=self._sums.__getitem__)
        self._smallest_sum = self._sums[smallest]
        if total <= self._smallest_sum * self._MARGIN:
            return OTHER, None

        # 3. It takes that one's place.
        self._own_series.discard(smallest)
        self._own_series.add(name)
        return name, smallest

    def _forget(self) -> None:
        """Forget half of the remembered names without series of their own, if there are many.

        The names with the smallest sums are forgotten, to bound the memory.
        """
        if len(self._sums) > self._REMEMBERED * self._most:
            others = sorted(self._sums.keys() - self._own_series, key=self._sums.__getitem__)
            for name in others[: len(others) // 2]:
                del self._sums[name]


class Totals(Collector):
    """A counter with a series for each of the names with the largest counts.

    All other names share the series ``other``. The names are the values of the metric's first label, such as tenants.
    Further labels can hold known values. A new series shows 0 at its first collection, even if something was counted
    before. Prometheus computes increases, and would not see a first value above 0 as one.
    """

    def __init__(
        self, name: str, text: str, /, *, most: int, registry: CollectorRegistry = REGISTRY, **labels: str
    ) -> None:
        """Define the metric. Its first label holds the name.

        Args:
            name: The metric's name, which ends in ``_total``.
            text: A sentence that describes it.
            most: The largest number of names with series of their own.
            registry: The registry that serves it.
            labels: The labels, each with its description.
        """
        self.name = name
        self.words = {label: (said,) for label, said in labels.items()}
        self._text = text
        self._largest = _Largest(most)
        self._totals: dict[tuple[str, ...], float] = {}  # the counter by label values
        self._shown: dict[tuple[str, ...], float] = {}  # as they were collected last
        registry.register(self)

    def add(self, amount: float, name: str, *words: str) -> None:
        """Add an amount to the counter of a name; ``words`` are the values of the further labels."""
        told, ended = self._largest.name(name, amount)
        for key in [key for key in self._totals if key[0] == ended]:  # what nobody has seen of it is the others'
            self._add(self._totals.pop(key) - self._shown.pop(key, 0.0), (OTHER, *key[1:]))
        self._add(amount, (told, *words))

    def _add(self, amount: float, key: tuple[str, ...]) -> None:
        self._totals[key] = self._totals.get(key, 0.0) + amount

    def collect(self) -> Iterable[Metric]:
        """Return the counter with its current values, for Prometheus."""
        family = CounterMetricFamily(self.name, self._text, labels=tuple(self.words))
        self._shown = {key: total if key in self._shown else 0.0 for key, total in self._totals.items()}
        for key, total in self._shown.items():
            family.add_metric(key, total)
        return [family]


class Spans(Collector):
    """A histogram of seconds, with series for each of the most frequent names.

    All other names share the series ``other``. The names are the values of the metric's first label, such as tenants. A
    new series shows 0 at its first collection, even if something was counted before.
    """

    def __init__(
        self,
        name: str,
        text: str,
        /,
        *,
        most: int,
        buckets: Sequence[float],
        registry: CollectorRegistry = REGISTRY,
        **labels: str,
    ) -> None:
        """Define the metric. Its first label holds the name.

        Args:
            name: The metric's name.
            text: A sentence that describes it.
            most: The largest number of names that have series of their own.
            buckets: The upper bounds in seconds, ascending, without the last one (infinity).
            registry: The registry that serves it.
            labels: The labels in their order, each with its description.
        """
        self.name = name
        self.words = {label: (said,) for label, said in labels.items()}
        self._text = text
        self._buckets = (*buckets, math.inf)
        self._largest = _Largest(most)
        self._seen: dict[tuple[str, ...], tuple[list[int], float]] = {}  # by label values: bucket counts and the sum
        self._shown: set[tuple[str, ...]] = set()  # label values that were collected before
        registry.register(self)

    def observe(self, seconds: float, name: str, *words: str) -> None:
        """Count one duration in the histogram; ``words`` are the values of the further labels."""
        told, ended = self._largest.name(name, 1.0)
        if ended is not None:
            self._seen = {key: seen for key, seen in self._seen.items() if key[0] != ended}
            self._shown &= self._seen.keys()
        counts, total = self._seen.get((told, *words), ([0] * len(self._buckets), 0.0))
        counts[bisect.bisect_left(self._buckets, seconds)] += 1
        self._seen[told, *words] = counts, total + seconds

    def collect(self) -> Iterable[Metric]:
        """Return the histogram with its current values, for Prometheus."""
        family = HistogramMetricFamily(self.name, self._text, labels=tuple(self.words))
        nothing = [0] * len(self._buckets), 0.0
        for key, seen in self._seen.items():
            counts, total = seen if key in self._shown else nothing
            ends = ("+Inf" if end == math.inf else str(float(end)) for end in self._buckets)
            family.add_metric(key, list(zip(ends, itertools.accumulate(counts), strict=True)), total)
        self._shown.update(self._seen)
        return [family]
