"""How many cases a test tries: a part of them in the fast run, all of them in the full run.

The fast run is ``make unit``. It leaves out the tests with the mark ``slow``, and ``tests/conftest.py`` loads the
Hypothesis profile ``fast`` for it. The full run is ``make test``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest
from hypothesis import settings

FULL_EXAMPLES: Final = 100  # Hypothesis' own default
FAST_EXAMPLES: Final = 10
_FAST_CASES: Final = 4


def examples(full_count: int) -> int:
    """Return how many examples a property tries in this run.

    Args:
        full_count: How many it tries in the full run.
    """
    return max(1, full_count * settings().max_examples // FULL_EXAMPLES)


def sampled(cases: Iterable[Any], *, fast: int = _FAST_CASES) -> list[Any]:
    """Return cases as parameters of a test, most of them with the mark ``slow``.

    Args:
        cases: All cases, which the full run tries.
        fast: How many of them the fast run tries. They are at equal distances.
    """
    listed = list(cases)
    is_fast = {number * len(listed) // fast for number in range(fast)}
    return [case if at in is_fast else pytest.param(case, marks=pytest.mark.slow) for at, case in enumerate(listed)]
