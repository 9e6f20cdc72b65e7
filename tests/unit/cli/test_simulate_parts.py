"""``gputopo simulate --fractions``: requests of whole GPUs, shares and MIG slices under each policy."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from click.testing import CliRunner, Result

from dradriver.allocator import Amount, Mig, Request, Share, Whole
from dradriver.allocator.request import MigPart, Part
from dradriver.cli.main import main
from dradriver.cli.simulator import mixed_replay
from dradriver.cli.simulator.mixed_policies import POLICIES, Taken
from dradriver.cli.simulator.mixed_replay import Arrival
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.fakes.instances import in_mig_mode

HGX = profiles.load("hgx-h100")
HALF = Share(amounts=(Amount(cores=50),))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def slice_(name: str) -> Mig:
    return Mig(profiles=((name,),))


def arrivals(*requests: Request, stays_s: float = 1e6) -> list[Arrival]:
    return [Arrival(float(n), request, stays_s, 1.0) for n, request in enumerate(requests, 1)]


def over(machine: Machine, held: Sequence[tuple[int, Part | None]]) -> bool:
    """Return whether GPUs are given out that are not there: one twice, too much of one, slices that overlap."""
    for gpu in machine.gpus:
        parts = [part for number, part in held if number == gpu.index]
        slices = [part for part in parts if isinstance(part, MigPart) and part.start >= 0]
        shares = [part for part in parts if part is not None and not isinstance(part, MigPart)]
        if (None in parts and len(parts) > 1) or (slices and shares):
            return True
        spans = [slot for part in slices for slot in range(part.start, part.start + part.size)]
        if len(set(spans)) < len(spans) or sum(part.amount.cores for part in shares) > 100:
            return True
    return False


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_gives_anything_twice_and_all_of_it_comes_back(policy: str) -> None:
    machines = [HGX, HGX]
    books = POLICIES[policy](machines)
    held: list[Taken] = []
    for n, arrival in enumerate(mixed_replay.drawn(300, machines, load=1.0, parts=0.7, seed=3)):
        if (taken := books.place(arrival.request)) is not None:
            held.append(taken)
        if n % 3 == 2 and held:
            books.give_back(held.pop(n % len(held)))
        for node in (0, 1):
            assert not over(HGX, [(gpu, one.part) for one in held if one.node == node for gpu in one.gpus])
    assert held
    for one in held:
        books.give_back(one)
    assert [len(left) for left in books.empty()] == [8, 8]


def test_what_is_served_is_counted() -> None:
    requests = arrivals(Whole(containers=(7,)), HALF, HALF, HALF, slice_("1g.10gb"))
    result = mixed_replay.replay([HGX], requests, policy="ours")
    assert (result.whole_gpus_served, result.fractions_served, result.slices_served) == (1, 0.5, 0)
    assert result.gpu_time_served == pytest.approx(3 / 5)


def test_free_slices_that_are_no_placement_are_lost_where_the_scheduler_only_counts() -> None:
    # Slice 7 is left in the end, and no 1g.10gb can be there.
    requests = arrivals(*[slice_("1g.10gb")] * 3, slice_("3g.40gb"), slice_("1g.10gb"))
    one = HGX.subset([0])
    served = {policy: mixed_replay.replay([one, one], requests, policy=policy).slices_served for policy in POLICIES}
    assert served == {"slices by count": 0.8, "least allocated": 1, "first fit": 1, "ours": 1}


def test_the_same_seed_gives_the_same_requests_and_load_is_what_they_ask_for() -> None:
    machines = [HGX] * 4
    drawn = mixed_replay.drawn(4000, machines, load=0.5, parts=0.6, seed=7)
    assert drawn == mixed_replay.drawn(4000, machines, load=0.5, parts=0.6, seed=7)
    assert sum(not isinstance(one.request, Whole) for one in drawn) / 4000 == pytest.approx(0.6, abs=0.03)
    asked = sum(one.gpus * one.duration_s for one in drawn) / (32 * drawn[-1].at_s)
    assert asked == pytest.approx(0.5, rel=0.25)


def test_machines_without_mig_are_asked_for_shares() -> None:
    drawn = mixed_replay.drawn(50, [profiles.load("dgx1-v100")], load=1.0, parts=1.0, seed=1)
    assert {type(one.request) for one in drawn} == {Share}


def test_the_command_shows_every_policy() -> None:
    found = run("--fractions", "0.6", "--jobs", "60", "--nodes", "2", "-m", "hgx-h100")
    assert found.exit_code == 0, found.output
    assert all(policy in found.output for policy in POLICIES)
    lines = json.loads(run("--fractions", "1", "--jobs", "20", "--policy", "ours", "-o", "json").output)
    assert [line["policy"] for line in lines] == ["ours"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--fractions", "0.5", "--policy", "random"), "policy 'random' is unknown. Write one of slices by count"),
        (("--policy", "slices by count"), "policy 'slices by count' is unknown. Write one of random"),
        (("--fractions", "0.5", "--trace", "jobs.csv"), "--seeds and --plot, which are for jobs of whole GPUs"),
    ],
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], told: str) -> None:
    found = run("--jobs", "5", *arguments)
    assert found.exit_code == 1
    assert told in found.output


@pytest.mark.parametrize("policy", POLICIES)
def test_instances_that_exist_are_all_that_any_policy_gives_of_their_gpu(policy: str) -> None:
    books = POLICIES[policy]([in_mig_mode(HGX, {0: [("2g.20gb", 4), ("2g.20gb", 0), ("1g.10gb", 6)]})])
    taken = [books.place(Whole(containers=(1,))) for _ in range(8)]
    assert [one is not None for one in taken] == [True] * 7 + [False]
    assert all(one.gpus != (0,) for one in taken if one is not None)
    asked = [slice_("2g.20gb"), slice_("3g.40gb"), slice_("1g.10gb"), slice_("2g.20gb"), slice_("1g.10gb")]
    slices = [books.place(one) for one in asked]
    assert [one is not None and one.served for one in slices] == [True, False, True, True, False]
    assert books.place(HALF) is None
