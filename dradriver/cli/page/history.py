"""What the page keeps of the last day, in bounded memory: free GPUs, held GPUs, and pods that waited."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

STEP_S: Final = 300  # from one sample to the next
_MOST: Final = 24 * 3600 // STEP_S


class Sample(NamedTuple):
    """Figures of the page's history at one time."""

    at_s: int  # since the epoch
    free: int
    held: int
    waiting: int


class History:
    """The samples of the last day, one every ``STEP_S`` at most; it begins when the page's server starts.

    Attributes:
        samples: The oldest first.
    """

    def __init__(self) -> None:
        """Begin without samples."""
        self.samples: deque[Sample] = deque(maxlen=_MOST)

    def note(self, sample: Sample) -> None:
        """Add a sample to the page's history, unless the last one is younger than ``STEP_S``."""
        if not self.samples or sample.at_s >= self.samples[-1].at_s + STEP_S:
            self.samples.append(sample)
