"""What holds for every test."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import looptime
import pytest
from hypothesis import HealthCheck, settings

from tests import needs
from tests.effort import FAST_EXAMPLES, FULL_EXAMPLES
from tests.paths import REPO

# A loaded machine is no failure, and CI tries the same examples every time.
_IN_CI: Final = bool(os.environ.get("CI"))
_PATIENT: Final = settings(deadline=None, derandomize=_IN_CI, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", _PATIENT, max_examples=FULL_EXAMPLES)
settings.register_profile("fast", _PATIENT, max_examples=FAST_EXAMPLES)
settings.load_profile("steady")

# Else pytest-asyncio asks for a default event loop before its first test, which nobody closes.
asyncio.set_event_loop(None)

# jsonschema imports this package for the format "iri", which no schema here has. It compiles 38 grammars in a second.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# How many rounds of the event loop without work looptime awaits before it moves time on. One thread runs a test and
# what it awaits, so nothing is left to run after one round. looptime's default is 42, which takes most of a test's CPU.
_IDLE_ROUNDS: Final = 2

_FAST_RUN: Final = "not slow"
_MEMORY: Final = "/dev/shm"
_ROOM: Final = 1 << 30  # bytes; containers often have 64 MiB

UNIT_LIMIT_S: Final = 60  # a hundred times what the longest takes: a loaded machine is no hang
_UNIT: Final = (REPO / "tests" / "unit", REPO / "tests" / "property")


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples in the fast run (``tests/effort.py``), and keep its files in memory."""
    if config.getoption("markexpr") != _FAST_RUN:
        return
    settings.load_profile("fast")
    # The fast run makes 100,000 small files, which takes ten times as much CPU on a disk.
    if "TMPDIR" not in os.environ and _is_fit_for_files(_MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY


@pytest.hookimpl(tryfirst=True)  # before tests are picked by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out together what this machine lacks the means for, and bound how long a unit test may take."""
    items[:], gone = needs.left_out(items)
    if gone:
        config.hook.pytest_deselected(items=gone)
    for item in items:
        if item.get_closest_marker("extended"):  # the fast run leaves out what is too slow for the full run
            item.add_marker(pytest.mark.slow)
        bounded = item.get_closest_marker("slow") or item.get_closest_marker("timeout")
        if not bounded and _is_unit_test(item.path):
            item.add_marker(pytest.mark.timeout(UNIT_LIMIT_S))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect without the garbage collector, and hide from it what was collected.

    All modules and the 12,000 tests stay to the end. Python would search them for garbage again and again.
    """
    gc.disable()
    done = yield
    gc.freeze()
    gc.enable()
    return done


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
    """Give a test with the mark ``looptime`` an event loop with a time of its own."""
    made = yield
    if isinstance(made, asyncio.Runner) and request.node.get_closest_marker("looptime"):
        loop = made.get_loop()
        assert isinstance(loop, asyncio.BaseEventLoop)
        looptime.patch_event_loop(loop, noop_cycles=_IDLE_ROUNDS)
    return made


@functools.cache
def _is_unit_test(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _UNIT)


def _is_fit_for_files(folder: str) -> bool:
    """Return whether tests can write to a folder and run what they wrote, with enough room."""
    if not os.access(folder, os.W_OK):
        return False
    system = os.statvfs(folder)
    return not system.f_flag & os.ST_NOEXEC and system.f_bavail * system.f_frsize >= _ROOM
