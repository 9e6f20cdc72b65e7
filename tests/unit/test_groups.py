"""Which tests of a real cluster run one after another in one process."""

from __future__ import annotations

import pytest

from tests.cluster.settings import DEFAULT_KUBERNETES
from tests.groups import group_of


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("tests/e2e/test_a.py::test_1", "tests/e2e/test_a.py::test_2[x]", True),
        ("tests/e2e/test_a.py::test_1", "tests/e2e/test_b.py::test_1", False),
        ("tests/contract/test_a.py::test_1[1.35.4]", "tests/contract/test_b.py::test_1[x-1.35.4]", True),
        ("tests/contract/test_a.py::test_1[1.35.4]", "tests/contract/test_a.py::test_1[1.37.2]", False),
        ("tests/contract/test_a.py::test_1[real]", f"tests/contract/test_b.py::test_1[{DEFAULT_KUBERNETES}]", True),
        ("tests/contract/test_stories.py::test_1[a]", "tests/contract/test_stories.py::test_1[b]", True),
        ("tests/contract/test_stories.py::test_1[a]", "tests/contract/test_a.py::test_1[real]", False),
        ("tests/programs/test_a.py::test_1", "tests/programs/test_a.py::test_2", False),
    ],
)
def test_what_shares_a_cluster_or_a_control_plane_is_one_group(
    first: str, second: str, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES", raising=False)
    assert (group_of(first) == group_of(second)) is together
