"""Every object that the code builds keeps to Kubernetes' schemas: what needs no API server of ``tests/contract``."""

from __future__ import annotations

import copy

import pytest

from tests import schema
from tests.contract.built import BUILDERS
from tests.effort import sampled

OWN = [what for what in BUILDERS if not what.startswith("chart")]  # tests of the chart render it


@pytest.mark.slow
@pytest.mark.parametrize("what", sampled(OWN, fast=10))
def test_every_object_keeps_to_the_schemas(what: str) -> None:
    made = BUILDERS[what]("1.36.3")
    assert made
    for one in made:
        schema.check(copy.deepcopy(one), minors=("1.34", "1.36"))
