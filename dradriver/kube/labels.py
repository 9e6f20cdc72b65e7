"""Metrics with labels of known words, so that no text from outside ever becomes a time series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from prometheus_client import Counter, Gauge, Histogram

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
