"""Metrics with labels of known words, so that no text from outside ever becomes a time series."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

OTHER: Final = "other"
M = TypeVar("M", Counter, Gauge, Histogram)


class Labelled(Generic[M]):
    """A metric with labels, each with the words that it can hold; any other text counts as ``other``.

    ``words`` has them by label. docs/metrics.md is written from it.
    """

    def __init__(
        self, kind: Callable[[str, str, Sequence[str]], M], name: str, text: str, /, **words: Iterable[str]
    ) -> None:
        """Define the metric.

        Args:
            kind: ``Counter``, ``Gauge`` or ``Histogram``, or a partial of one.
            name: The metric's name.
            text: What it counts, in a sentence.
            words: The labels in their order, and what each can be.
        """
        self.name = name
        self.words = {label: tuple(dict.fromkeys(known)) for label, known in words.items()}
        self._metric: M = kind(name, text, tuple(words))

    def labels(self, *values: str) -> M:
        """Return the part of the metric that counts these values, one for each label in order.

        Raises:
            ValueError: More or fewer values than labels.
        """
        known = (value if value in words else OTHER for value, words in zip(values, self.words.values(), strict=True))
        part: M = self._metric.labels(*known)
        return part


class Names(Collector):
    """A metric that says which names belong together, for others' series to be joined with: its value is always 1.

    Its labels are the one exception to known words: names of objects, which the API server has checked. There are as
    many series as is said, however much there is to tell.
    """

    def __init__(
        self, name: str, text: str, /, *, most: int, registry: CollectorRegistry = REGISTRY, **labels: str
    ) -> None:
        """Define the metric.

        Args:
            name: The metric's name, which ends in ``_info``.
            text: What it says, in a sentence.
            most: How many series there can be.
            registry: Where it is served.
            labels: The labels in their order, and what each is.
        """
        self.name = name
        self.words = {label: (said,) for label, said in labels.items()}
        self._text = text
        self._most = most
        self._rows: dict[Hashable, tuple[tuple[str, ...], ...]] = {}
        registry.register(self)

    def set(self, key: Hashable, rows: Iterable[tuple[str, ...]]) -> None:
        """Have these series under a key from now on, each a value for every label; none takes the key away."""
        series = tuple(dict.fromkeys(rows))
        if series:
            self._rows[key] = series
        else:
            self._rows.pop(key, None)

    def clear(self) -> None:
        """Have no series."""
        self._rows.clear()

    def collect(self) -> Iterable[Metric]:
        """Return the metric as it is now."""
        family = InfoMetricFamily(self.name.removesuffix("_info"), self._text, labels=tuple(self.words))
        every = dict.fromkeys(row for rows in tuple(self._rows.values()) for row in rows)
        for row in list(every)[: self._most]:
            family.add_metric(row, {})
        return [family]


class Amounts(Collector):
    """A gauge by one name that the API server or an administrator has checked: the largest, and the others together."""

    def __init__(
        self, name: str, text: str, /, *, most: int, registry: CollectorRegistry = REGISTRY, **labels: str
    ) -> None:
        """Define the metric; see ``Names``."""
        self.name = name
        self.words = {label: (said,) for label, said in labels.items()}
        self._text = text
        self._most = most
        self._amounts: dict[str, float] = {}
        registry.register(self)

    def set(self, amounts: Mapping[str, float]) -> None:
        """Have these series from now on."""
        ranked = sorted(amounts.items(), key=lambda item: (-item[1], item[0]))
        self._amounts = dict(ranked[: self._most])
        if len(ranked) > self._most:
            self._amounts[OTHER] = sum(amount for _, amount in ranked[self._most :])

    def collect(self) -> Iterable[Metric]:
        """Return the metric as it is now."""
        family = GaugeMetricFamily(self.name, self._text, labels=tuple(self.words))
        for name, amount in self._amounts.items():
            family.add_metric((name,), amount)
        return [family]
