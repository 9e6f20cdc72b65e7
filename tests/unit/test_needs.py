"""What becomes of tests that cannot be run here."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
from tests import needs

def pytest_configure(config):
    for mark in ("data", "tool"):
        config.addinivalue_line("markers", mark)

def pytest_collection_modifyitems(config, items):
    items[:], gone = needs.left_out(items, {"data": lambda: "no data", "tool": lambda: TOOL})
    config.hook.pytest_deselected(items=gone)
"""
TESTS = """
import pytest

@pytest.mark.data
@pytest.mark.parametrize("n", range(5))
def test_of_data(n): ...

@pytest.mark.data
@pytest.mark.parametrize("file", [])
def test_of_each_file(file): ...

@pytest.mark.tool
def test_of_a_tool(): ...

def test_of_nothing(): ...
"""


QUIET = ("-rs", "-p", "no:cacheprovider", "-p", "no:asyncio")


@pytest.fixture
def files(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(TESTS)
    return pytester


def test_tests_without_what_they_need_are_one_skip_that_counts_them(files: pytest.Pytester) -> None:
    files.makeconftest(CONFTEST.replace("TOOL", '""'))
    result = files.runpytest(*QUIET)
    result.assert_outcomes(passed=2, skipped=1, deselected=5)
    result.stdout.fnmatch_lines(["SKIPPED*6 tests: no data"])


def test_each_need_has_a_reason_of_its_own(files: pytest.Pytester) -> None:
    files.makeconftest(CONFTEST.replace("TOOL", '"no tool"'))
    result = files.runpytest(*QUIET)
    result.assert_outcomes(passed=1, skipped=2, deselected=5)
    result.stdout.fnmatch_lines_random(["SKIPPED*6 tests: no data", "SKIPPED*1 tests: no tool"])


def test_a_mark_on_an_empty_set_of_cases_gives_the_reason_as_well(pytester: pytest.Pytester) -> None:
    pytester.makepyfile('import pytest\n@pytest.mark.data\n@pytest.mark.parametrize("f", [])\ndef test_f(f): ...')
    pytester.makeconftest(CONFTEST.replace("TOOL", '""'))
    pytester.runpytest(*QUIET).stdout.fnmatch_lines(["SKIPPED*1 tests: no data"])
