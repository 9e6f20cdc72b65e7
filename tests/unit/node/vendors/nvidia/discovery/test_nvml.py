"""A machine is read exactly as it is, through the real binding."""

from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.topology import machine_codec, profiles
from tests.effort import sampled
from tests.fakes.hardware import Server


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(profiles.names("nvidia"), fast=8))
def test_a_machine_is_read_exactly_as_it_is(name: str, tmp_path: Path) -> None:
    server = Server(name, tmp_path)
    reading = server.read()
    assert reading.machine == server.machine
    assert reading.problems == ()
    assert machine_codec.decode(machine_codec.encode(reading.machine)) == reading.machine


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100"])
def test_what_is_read_fits_the_annotation(name: str, tmp_path: Path) -> None:
    assert len(machine_codec.encode(Server(name, tmp_path).read().machine)) <= 16 * 1024
