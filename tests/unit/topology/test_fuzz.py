from __future__ import annotations

import random

import pytest

from tests.bench import fuzz


@pytest.mark.slow
@pytest.mark.parametrize("parser", fuzz.parsers(), ids=lambda parser: parser.name)
def test_damage_is_refused_by_our_error_or_read(parser: fuzz.Parser) -> None:
    assert fuzz.fuzz(parser, inputs=30, rng=random.Random(2)) is None
    assert parser.accepted + parser.refused == 30


def test_a_parser_that_fails_is_told() -> None:
    broken = fuzz.Parser("broken", lambda text: text.index("not there"), ["text"])
    assert "ValueError" in (fuzz.fuzz(broken, inputs=1, rng=random.Random(1)) or "")
