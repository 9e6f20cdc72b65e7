"""Programs that tests run are built once for each set of inputs, and again if the cache does not have them whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.build import Target


class Tool:
    """Something to build that counts how often it is built."""

    def __init__(self) -> None:
        self.builds = 0

    def build(self, target: Target, folder: Path, log: Path) -> None:
        self.builds += 1
        (folder / "bin").mkdir()
        (folder / "bin/tool").write_text("a program")
        (folder / "link").symlink_to("bin/tool")

    def target(self, inputs: str = "1.0 -trimpath") -> Target:
        return Target("tool-1.0", inputs, 1, self.build)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    monkeypatch.setenv("GPU_TOPOLOGY_CACHE", str(tmp_path))
    return Tool()


def test_what_is_whole_is_not_built_again(tool: Tool) -> None:
    folder = tool.target().ensure()
    assert tool.target().built
    assert tool.target().ensure() == folder
    assert tool.builds == 1


def test_other_flags_are_built_again(tool: Tool) -> None:
    tool.target().ensure()
    assert not tool.target("1.0 -race").built
    tool.target("1.0 -race").ensure()
    assert tool.builds == 2


def shorter(folder: Path) -> None:
    (folder / "bin/tool").write_text("a prog")


def as_long(folder: Path) -> None:
    (folder / "bin/tool").write_text("A program")


def away(folder: Path) -> None:
    (folder / "bin/tool").unlink()


def leads_elsewhere(folder: Path) -> None:
    (folder / "link").unlink()
    (folder / "link").symlink_to("tool")


def without_stamp(folder: Path) -> None:
    for stamp in folder.glob("*.json"):
        stamp.unlink()


def with_half_a_stamp(folder: Path) -> None:
    for stamp in folder.glob("*.json"):
        stamp.write_text(stamp.read_text()[:20])


@pytest.mark.parametrize(
    "broken", [shorter, as_long, away, leads_elsewhere, without_stamp, with_half_a_stamp], ids=lambda how: how.__name__
)
def test_a_broken_entry_is_built_again(tool: Tool, broken: Callable[[Path], None]) -> None:
    folder = tool.target().ensure()
    broken(folder)
    assert not tool.target().built
    tool.target().ensure()
    assert tool.builds == 2
    assert (folder / "link").read_text() == "a program"


def test_a_build_that_ends_half_way_leaves_nothing_that_counts(tool: Tool) -> None:
    def fails(target: Target, folder: Path, log: Path) -> None:
        (folder / "tool").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Target("tool-1.0", "1.0 -trimpath", 1, fails).ensure()
    assert not tool.target().built
    assert (tool.target().ensure() / "bin/tool").read_text() == "a program"
