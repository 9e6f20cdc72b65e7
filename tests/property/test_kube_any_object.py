"""Whatever stands in an object, the good ones beside it are shown: in lists, watches and to the picture."""

from __future__ import annotations

import random

import msgspec
import pytest

from tests import needs
from tests.bench import fuzz_objects

pytestmark = pytest.mark.helm

KINDS = [] if needs.no_helm() else fuzz_objects.kinds()  # two of them are rendered from the chart


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_good_objects_are_shown_among_odd_ones(kind: fuzz_objects.Kind) -> None:
    assert await fuzz_objects.fuzz(kind, objects=60, rng=random.Random(3)) is None


async def test_a_reader_that_is_stopped_by_one_is_told() -> None:
    kind = KINDS[0]

    def stops(*_: object) -> None:
        raise ZeroDivisionError

    told = await fuzz_objects.fuzz(msgspec.structs.replace(kind, changed=stops), objects=5, rng=random.Random(1))
    assert told is not None
    assert "a handler failed" in told
