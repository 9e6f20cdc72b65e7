"""No text makes a reader fail otherwise than by its own error, in a short message."""

from __future__ import annotations

import random
from typing import Final

import pytest

from tests.bench import fuzz
from tests.effort import examples

READERS: Final = ("pasted texts", "files of machines", "files of manifests", "policies", "kubeconfigs")
INPUTS: Final = 20_000
MOST: Final = 1_000_000


def reader(name: str) -> fuzz.Parser:
    return next(parser for parser in fuzz.parsers() if parser.name == name)


def check(name: str, inputs: int, seed: int) -> None:
    parser = reader(name)
    assert fuzz.fuzz(parser, inputs=inputs, rng=random.Random(f"{seed} {name}")) is None
    assert parser.accepted + parser.refused == inputs
    assert parser.accepted > inputs // 50


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", READERS)
def test_any_text_is_read_or_refused(name: str) -> None:
    check(name, examples(INPUTS), 1)


@pytest.mark.extended
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("name", READERS)
def test_a_million_texts_are_read_or_refused(name: str) -> None:
    check(name, MOST, 2)
