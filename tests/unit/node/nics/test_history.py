"""What ports did within an hour: links that go down again and again, errors that grow, and what is neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dradriver.node.nics import ports
from dradriver.node.nics.port_history import History
from tests.fakes.nic_tree import DOWN, INIT, UP, NicTree

EVERY_S = 15.0
HOUR = 240  # readings


class Story:
    """Readings of a tree, one every 15 s."""

    def __init__(self, tree: NicTree, layer: str = "InfiniBand") -> None:
        """Read once."""
        self.tree = tree
        self._layer = layer
        self._history = History()
        self._now = 0.0
        self.counters: dict[str, int] = {"link_downed": 1, "symbol_error": 7, "port_rcv_errors": 0}
        self.read()

    def read(self) -> dict[tuple[str, str], str]:
        """Return what is wrong now, by card and kind."""
        self._now += EVERY_S
        found = self._history.add(ports.read(self.tree.root), self._now)
        return {(one.at.nic, one.kind): one.said for one in found}

    def card(
        self, port: Mapping[str, str] = UP, grow: Mapping[str, int] | None = None, **more: Any
    ) -> dict[tuple[str, str], str]:
        """Read once more, with mlx5_3 as it is now and its counters grown by so much."""
        for counter, amount in (grow or {}).items():
            self.counters[counter] = self.counters.get(counter, 0) + amount
        self.tree.card(3, layer=self._layer, port=port, counters=self.counters, **more)
        return self.read()

    def quiet(self, readings: int) -> Iterator[dict[tuple[str, str], str]]:
        """Yield what is wrong at each of so many readings without news."""
        for _ in range(readings):
            yield self.read()


def few(root: Path, layer: str = "InfiniBand") -> NicTree:
    tree = NicTree(root)
    for number in (2, 3):
        tree.card(number, layer=layer)
    return tree


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(few(tmp_path))


def test_a_link_that_goes_down_again_and_again_by_its_counter(story: Story) -> None:
    for _ in range(2):
        assert story.card(grow={"link_downed": 1}) == {}
    assert story.card(grow={"link_downed": 1}) == {
        ("mlx5_3", "flapping"): "port 1 of mlx5_3 lost its link 3 times within 1 min"
    }


@pytest.mark.parametrize("down", [DOWN, INIT])
def test_a_link_that_was_seen_down_again_and_again_where_no_counter_tells(story: Story, down: dict[str, str]) -> None:
    story.counters = {}
    story.card()
    said = [story.card(port) for port in (down, UP, down, UP, down, UP)]
    assert said[:4] == [{}] * 4
    assert said[-1] == {("mlx5_3", "flapping"): "port 1 of mlx5_3 lost its link 3 times within 1 min"}


def test_what_is_seen_and_counted_is_one_loss_also_where_the_counter_is_late(story: Story) -> None:
    for _ in range(2):
        assert story.card(DOWN) == {}
        assert story.card(UP, grow={"link_downed": 1}) == {}


@pytest.mark.slow
def test_losses_that_are_far_apart_are_not_told(story: Story) -> None:
    for _ in range(8):
        assert story.card(grow={"link_downed": 1}) == {}
        assert not any(story.quiet(HOUR // 2))


def test_a_port_that_stays_down_lost_its_link_once(story: Story) -> None:
    story.card(DOWN, grow={"link_downed": 1})
    assert not any(story.quiet(HOUR))


@pytest.mark.slow
def test_an_episode_keeps_its_words_and_ends_once_an_hour_was_calm(story: Story) -> None:
    for _ in range(5):
        begun = story.card(grow={"link_downed": 1})
    assert begun == {("mlx5_3", "flapping"): "port 1 of mlx5_3 lost its link 3 times within 1 min"}
    said = list(story.quiet(HOUR + 1))
    assert said[: HOUR - 5] == [begun] * (HOUR - 5)
    assert said[-1] == {}


@pytest.mark.slow
def test_errors_that_grow_all_the_time(story: Story) -> None:
    said = [story.card(grow={"symbol_error": 1000, "port_rcv_errors": 1}) for _ in range(HOUR)]
    assert said[8] == {}, "one burst, or a few, say nothing"
    assert said[9] == {("mlx5_3", "errors"): "errors of port 1 of mlx5_3 grow: symbol_error by 10000 within 3 min"}
    assert said[-1] == said[9]


@pytest.mark.parametrize(
    ("counter", "most"), [("symbol_error", 120), ("port_rcv_errors", 120), ("link_error_recovery", 10)]
)
def test_so_many_errors_an_hour_are_told_and_fewer_are_not(story: Story, counter: str, most: int) -> None:
    for story.counters in ({}, {counter: 5}):
        story.card()
    for _ in range(9):
        assert story.card(grow={counter: most // 10}) == {}
    assert story.card(grow={counter: most // 10 - 1}) == {}
    said = story.card(grow={counter: 1})
    assert list(said) == [("mlx5_3", "errors")]
    assert f"{counter} by {most} within 3 min" in said["mlx5_3", "errors"]


@pytest.mark.slow
@pytest.mark.parametrize("counter", ["port_xmit_discards", "excessive_buffer_overrun_errors", "rx_icrc_encapsulated"])
def test_what_a_cable_does_not_cause_is_not_told(story: Story, counter: str) -> None:
    story.counters[counter] = 5
    story.card()
    assert not any(story.card(grow={counter: 1000}) for _ in range(HOUR // 4))


@pytest.mark.slow
def test_a_burst_is_not_told(story: Story) -> None:
    assert story.card(grow={"symbol_error": 60_000}) == {}
    assert not any(story.quiet(HOUR))


@pytest.mark.slow
def test_about_as_many_as_are_too_many_is_one_episode(story: Story) -> None:
    for _ in range(120):
        story.card(grow={"symbol_error": 1})
        said = story.read()
    assert said
    episode = [(story.card(grow={"symbol_error": int(n % 3 > 0)}), story.read()) for n in range(HOUR)]
    assert {text for both in episode for one in both for text in one.values()} == set(said.values())
    assert all(all(both) for both in episode)


def test_a_counter_that_starts_again_has_not_grown(story: Story) -> None:
    for total in (200, 0):
        story.counters = {"link_downed": total, "symbol_error": total}
        story.tree.take(3)
        assert story.read() == {}
        assert not any(story.card() for _ in range(2))
    story.counters = {"link_downed": 200, "symbol_error": 200}
    story.tree.take(3)
    assert [story.read(), story.card()] == [{}, {}], "another card, or another driver's count"
    for total in (150, 100, 50, 0):
        story.counters = {"link_downed": total, "symbol_error": total}
        assert story.card() == {}


def test_a_card_that_pods_take_again_and_again_lost_nothing(story: Story) -> None:
    for _ in range(20):
        story.tree.take(3)
        assert story.read() == {}
        assert story.card(DOWN, grow={"link_downed": 1, "symbol_error": 100}) == {}
        assert story.card() == {}


@pytest.mark.slow
def test_a_card_whose_interface_pods_take_lost_nothing(tmp_path: Path) -> None:
    story = Story(few(tmp_path, "Ethernet"), "Ethernet")
    for _ in range(20):
        assert story.card(DOWN, grow={"link_downed": 1, "symbol_error": 100}, interface=None) == {}
        assert story.card(DOWN, grow={"link_downed": 1, "symbol_error": 100}, flags="0x1002") == {}
        assert story.card(DOWN, grow={"symbol_error": 100}) == {}
        assert story.card() == {}


@pytest.mark.slow
def test_a_card_whose_interface_pods_have_up_lost_nothing(tmp_path: Path) -> None:
    story = Story(few(tmp_path, "Ethernet"), "Ethernet")
    for _ in range(20):
        for _ in range(3):
            assert story.card(grow={"link_downed": 1, "symbol_error": 100}, interface=None) == {}
        assert story.card(DOWN, grow={"link_downed": 1}) == {}
        assert story.card() == {}


def test_a_port_that_was_switched_off_is_healthy_again(tmp_path: Path) -> None:
    story = Story(few(tmp_path, "Ethernet"), "Ethernet")
    for _ in range(3):
        said = story.card(grow={"link_downed": 1})
    assert said
    assert story.card(DOWN, grow={"link_downed": 1}, flags="0x1002") == {}
    assert story.card() == {}, "and it begins anew"


def test_virtual_functions_are_not_judged(story: Story) -> None:
    for _ in range(HOUR // 10):
        assert story.card(DOWN, grow={"link_downed": 1}, parent=2) == {}
        assert story.card(UP, parent=2) == {}


def test_what_is_done_with_one_port_is_not_another_ports_fault(story: Story) -> None:
    for number in (2, 3, 2, 3):
        story.tree.card(number, port=DOWN)
        assert story.read() == {}
        story.tree.card(number)
        assert story.read() == {}


def test_what_cannot_be_read_is_no_loss(story: Story) -> None:
    for _ in range(5):
        (story.tree.port(3) / "state").unlink()
        (story.tree.port(3) / "counters/link_downed").unlink()
        assert story.read() == {}
        assert story.card() == {}
