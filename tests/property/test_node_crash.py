"""Claims are prepared and given back by two instances that are killed at any line of it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.bench.crashes import story
from tests.effort import examples, sampled
from tests.fakes.crashes import Kill, Node
from tests.fakes.crowd import CLAIMS

KILL = st.one_of(
    st.none(),
    st.builds(Kill, st.just("line"), st.integers(0, 900)),
    st.builds(Kill, st.just("operation"), st.integers(0, 60)),
)
NAME = st.sampled_from(sorted(CLAIMS))
WHICH = st.integers(0, 1)


class Crashes(RuleBasedStateMachine):
    """Two instances on a node, in any order of calls and kills."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node()

    def teardown(self) -> None:
        self.node.end()
        self.node.close()

    @rule(which=WHICH, name=NAME, kill=KILL, again=KILL)
    def prepare(self, which: int, name: str, kill: Kill | None, again: Kill | None) -> None:
        self.node.prepare(which, name, kill, again)

    @rule(which=WHICH, name=NAME, kill=KILL, again=KILL)
    def unprepare(self, which: int, name: str, kill: Kill | None, again: Kill | None) -> None:
        self.node.unprepare(which, name, kill, again)

    @rule(which=WHICH, again=KILL)
    def reboot(self, which: int, again: Kill | None) -> None:
        self.node.reboot(which, again)

    @invariant()
    def nothing_is_lost_double_or_left(self) -> None:
        self.node.check()


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=examples(40), stateful_step_count=15, deadline=None)


@pytest.mark.parametrize("seed", sampled(range(150)))
def test_a_seeded_story(seed: int) -> None:
    story(seed)
