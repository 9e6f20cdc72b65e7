"""The files by which the agent says what it wants of MPS, and is answered."""

from __future__ import annotations

import os
import time

import pytest

from dradriver.node.mps.mps_files import STALE_S, Server
from dradriver.node.mps.supervisor import KEEP_S
from tests.fakes.mps_node import A, Node


def test_an_answer_is_kept_fresh_and_one_that_is_not_kept_does_not_count(node: Node) -> None:
    node.files.want(A, Server())
    node.look()
    file = node.files.of(A) / "ready.json"
    os.utime(file, (0, 0))
    assert node.files.ready(A) is None
    node.look()
    assert node.files.ready(A) is None  # it was said a moment ago
    node.now += KEEP_S
    node.look()
    assert node.files.ready(A) is not None
    assert KEEP_S < STALE_S / 3
    ahead_s = time.time() + 2 * STALE_S  # the clock was put back since
    os.utime(file, (ahead_s, ahead_s))
    assert node.files.ready(A) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"gpu": 1}', '{"gpu":"GPU-x","boot":"b","server":{}}'])
def test_what_no_part_of_ours_wrote_wants_nothing(text: str, node: Node) -> None:
    node.files.of(A).mkdir(parents=True)
    (node.files.of(A) / "wanted.json").write_text(text)
    node.look()
    assert node.files.ready(A) is None
