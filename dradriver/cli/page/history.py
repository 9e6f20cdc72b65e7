"""The page's history of the last day, in bounded memory: free GPUs, allocated GPUs, and waiting pods."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

STEP_S: Final = 300  # from one sample to the next
_MOST: Final = 24 * 3600 // STEP_S


class Sample(NamedTuple):
    """The figures of the page's history at one time: GPUs and waiting pods."""

    at_s: int  # since the epoch
    free: int
    allocated: int
    waiting: int


class History:
    """The samples of the last day, at most one every ``STEP_S`` seconds.

    The history begins when the page's server starts.

    Attributes:
        samples: The samples, oldest first.
    """

    def __init__(self) -> None:
        """Begin without samples."""
        self.samples: deque[Sample] = deque(maxlen=_MOST)

    def note(self, sample: Sample) -> None:
        """Add a sample to the page's history, unless the last one is younger than ``STEP_S``."""
        if not self.samples or sample.at_s >= self.samples[-1].at_s + STEP_S:
            self.samples.append(sample)
