"""The benchmark sees what must never be, runs, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.bench.gangs.seen import Allocation, Claim, ClaimStatus, Devices, Metadata, Owner, Pod, Result, Seen
from tests.bench.tenants import verdicts
from tests.bench.tenants.verdicts import SLACK_S, Team, Verdicts, Wish
from tests.cluster.nodeless import Nodeless
from tests.paths import REPO

WISHES = {
    "a-1": Wish("a", 4, 0), "a-2": Wish("a", 4, 0), "a-3": Wish("a", 8, 0), "a-4": Wish("a", 4, 100),
    "b-1": Wish("b", 4, 0), "b-2": Wish("b", 4, 0), "b-3": Wish("b", 4, 0),
}  # fmt: skip


class World:
    """Two teams, at a time that the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 0.0
        monkeypatch.setattr(verdicts, "now", lambda: self.time)
        self.seen = Seen()
        teams = {"a": Team("a", 1, 8), "b": Team("b", 1, 8)}
        self.verdicts = Verdicts(self.seen, teams, WISHES, ahead_s=600)

    def come(self, *names: str) -> None:
        """Have pods come, a good while before anything else."""
        for name in names:
            created = f"2026-01-01T00:00:{int(self.time):02}Z"
            self.seen.take(Pod(Metadata(name, namespace=name[0], creation_timestamp=created)), there=True)
            self.time += 2 * SLACK_S

    def place(self, name: str, *, given: bool = False, there: bool = True) -> None:
        """Have a pod's claim be there."""
        results = [Result("gpu.topology", "n", f"{name}-{i}") for i in range(WISHES[name].gpus)]
        status = ClaimStatus(Allocation(Devices(results)) if given else None)
        metadata = Metadata(f"gpus-{name}", namespace=name[0], owner_references=[Owner("uid", name)])
        self.seen.take(Claim(metadata, status), there=there)

    def wrong(self) -> list[str]:
        """Return the kinds of what is wrong a while later."""
        self.time += 2 * SLACK_S
        self.verdicts.look()
        return [kind for kind, which in self.verdicts.wrong.items() for _ in which]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world where nobody has anything."""
    return World(monkeypatch)


def test_more_than_a_cap_is_seen_and_parts_of_it_that_are_free_again_do_not_count(world: World) -> None:
    world.come("a-1", "a-2", "a-3")
    world.place("a-1", given=True)
    world.place("a-1", there=False)
    world.place("a-3", given=True)
    assert world.wrong() == []
    world.place("a-2", given=True)
    assert world.wrong() == ["beyond its cap"]
    assert world.verdicts.most == {"a": 12, "b": 0}


def test_the_older_of_a_team_is_first(world: World) -> None:
    world.come("a-1", "a-2")
    world.place("a-2")
    assert world.wrong() == ["before its turn"]


def test_who_follows_within_a_second_was_not_passed_by(world: World) -> None:
    world.come("a-1", "a-2")
    world.place("a-2")
    world.time += SLACK_S / 2
    world.place("a-1")
    assert world.wrong() == []


def test_the_higher_priority_is_first_but_not_beyond_its_cap(world: World) -> None:
    world.come("b-1", "a-4")
    world.place("b-1")
    assert world.wrong() == ["before its turn"]


def test_who_has_had_more_or_is_at_its_cap_waits(world: World) -> None:
    world.come("a-1", "a-2", "b-1", "b-2")
    world.place("a-1")
    world.time += 2 * SLACK_S
    world.place("a-2")
    assert world.wrong() == ["before its turn"]
    world.come("a-4")
    world.place("b-1")  # the higher priority is parked: its team has 8 of 8
    world.place("b-2")
    assert world.wrong() == ["before its turn"]


@pytest.mark.extended
@pytest.mark.cluster
def test_a_few_teams_keep_their_caps_and_turns(tmp_path: Path) -> None:
    needs.real_cluster()
    command = [sys.executable, "-m", "tests.bench.tenants", "--name", "tenants-test", "--json", str(tmp_path / "found")]
    size = ["--nodes", "4", "--pods", "40", "--teams", "3", "--lives", "0.5", "2"]
    subprocess.run([*command, *size], cwd=REPO, check=True)
    found = json.loads((tmp_path / "found").read_text())
    assert found["wrong"] == []
    assert len(found["waited_s"]) == 40
    assert not Nodeless("tenants-test").folder.exists()
