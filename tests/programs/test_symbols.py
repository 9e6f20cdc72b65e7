"""The tests' NVML beside what NVIDIA's programs are linked to."""

from __future__ import annotations

from tests.programs import symbols


def test_what_the_tests_library_lacks_is_named() -> None:
    """A program that calls one of these ends at once; python -m tests.programs.symbols writes the list."""
    assert symbols.missing() == symbols.FILE.read_text().split()
