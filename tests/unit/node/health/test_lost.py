"""How long a GPU that the node lost is told of, over restarts of the agent, reboots and repairs."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.slices.lost_gpus import LostGpu
from dradriver.node.discovery.simulated_machine import without
from dradriver.node.health.faults_in_force import Record
from dradriver.node.health.health_watch import REMEMBERED_S, HealthWatch
from dradriver.topology.machine import Machine
from tests.fakes.agents import Hanging
from tests.fakes.node import machine

BEGIN_S = 1_700_000_000


class Agent:
    """What one process of the agent knows of the node's GPUs, with a clock of its own."""

    def __init__(self, *, now_s: float = BEGIN_S) -> None:
        self.now_s = now_s
        self.record = Record()
        self.watch = HealthWatch(self.record, Hanging(), None, wall=lambda: self.now_s)

    def reads(self, found: Machine) -> None:
        self.watch.looked(found, None)

    @property
    def published(self) -> list[str]:
        return [gpu.uuid for gpu in self.watch.lost()]

    @property
    def told(self) -> list[str]:
        standing = self.record.standing().items()
        return sorted(uuid for uuid, some in standing if any(one.fault.kind == "lost" for one in some))


WHOLE = machine()
GONE = WHOLE.gpus[2]
LEFT = without(WHOLE, {"2"})
ENTRY = LostGpu(2, GONE.pci, GONE.uuid, BEGIN_S)


def lost_by(now_s: float = BEGIN_S) -> Agent:
    """Return an agent that saw a GPU being lost."""
    agent = Agent(now_s=now_s)
    agent.reads(WHOLE)
    agent.reads(LEFT)
    return agent


def replaced(found: Machine, *, uuid: str) -> Machine:
    """Return the machine with another GPU in the place of the lost one."""
    gpus = tuple(msgspec.structs.replace(gpu, uuid=uuid) if gpu.uuid == GONE.uuid else gpu for gpu in found.gpus)
    return msgspec.structs.replace(found, gpus=gpus)


def renumbered(found: Machine) -> Machine:
    """Return the machine with the lost GPU's address at the next GPU, as after the bus was numbered again."""
    after = WHOLE.gpus[3].uuid
    gpus = tuple(msgspec.structs.replace(gpu, pci=GONE.pci) if gpu.uuid == after else gpu for gpu in found.gpus)
    return msgspec.structs.replace(found, gpus=gpus)


def test_it_is_noted_when_it_was_lost() -> None:
    agent = lost_by()
    agent.now_s += 60
    agent.reads(LEFT)
    assert agent.watch.lost() == (ENTRY,)


def test_it_ends_when_it_is_back() -> None:
    agent = lost_by()
    assert (agent.published, agent.told) == ([GONE.uuid], [GONE.uuid])
    agent.reads(WHOLE)
    assert (agent.published, agent.told) == ([], [])


def test_it_ends_a_week_after_it_was_lost_and_what_is_published_still_does_not_begin_it_again() -> None:
    agent = lost_by()
    agent.now_s += REMEMBERED_S - 1
    agent.reads(LEFT)
    assert (agent.published, agent.told) == ([GONE.uuid], [GONE.uuid])
    agent.now_s += 1
    agent.reads(LEFT)
    agent.watch.adopt([ENTRY], LEFT)
    assert (agent.published, agent.told) == ([], [])
    agent.reads(WHOLE)
    agent.reads(LEFT)
    assert (agent.published, agent.told) == ([GONE.uuid], [GONE.uuid]), "it was back, and is lost again"


@pytest.mark.parametrize("is_read_first", [True, False])
@pytest.mark.parametrize(
    ("entry", "after_s", "is_told"),
    [
        (ENTRY, 60, True),
        (ENTRY, REMEMBERED_S, False),
        (LostGpu(2, GONE.pci, GONE.uuid), REMEMBERED_S, True),  # an older release wrote it
        (ENTRY, -60, True),
    ],
)
def test_a_restarted_agent_tells_of_it_until_then(
    entry: LostGpu, after_s: int, is_told: bool, is_read_first: bool
) -> None:
    agent = Agent(now_s=BEGIN_S + after_s)
    if is_read_first:
        agent.reads(LEFT)
    agent.watch.adopt([entry], LEFT)
    agent.reads(LEFT)
    assert (agent.published, agent.told) == (([GONE.uuid], [GONE.uuid]) if is_told else ([], []))
    agent.now_s += REMEMBERED_S
    agent.reads(LEFT)
    assert (agent.published, agent.told) == ([], [])


def test_a_clock_that_was_set_back_keeps_it_no_longer() -> None:
    agent = Agent(now_s=BEGIN_S - 60)
    agent.reads(LEFT)
    agent.watch.adopt([ENTRY], LEFT)
    assert [gpu.since for gpu in agent.watch.lost()] == [BEGIN_S - 60]


def test_another_gpu_in_its_place_ends_what_is_published() -> None:
    """Pods that hold the old GPU are still told that it is lost, until the agent starts again."""
    agent = lost_by()
    agent.reads(replaced(WHOLE, uuid="GPU-new"))
    assert (agent.published, agent.told) == ([], [GONE.uuid])


@pytest.mark.parametrize("is_read_first", [True, False])
def test_another_gpu_that_was_put_into_its_place_while_no_agent_ran_ends_it(is_read_first: bool) -> None:
    agent = Agent()
    now = replaced(WHOLE, uuid="GPU-new")
    if is_read_first:
        agent.reads(now)
    agent.watch.adopt([ENTRY], LEFT)
    agent.reads(now)
    assert (agent.published, agent.told) == ([], [])


@pytest.mark.parametrize("earlier", [LEFT, None])
@pytest.mark.parametrize("is_read_first", [True, False])
def test_a_known_gpu_that_has_its_address_now_does_not_end_it(earlier: Machine | None, is_read_first: bool) -> None:
    agent = Agent()
    now = renumbered(LEFT)
    if is_read_first:
        agent.reads(now)
    agent.watch.adopt([ENTRY], earlier)
    agent.reads(now)
    assert (agent.published, agent.told) == ([GONE.uuid], [GONE.uuid])


def test_the_same_while_the_agent_runs() -> None:
    agent = lost_by()
    agent.reads(renumbered(LEFT))
    assert (agent.published, agent.told) == ([GONE.uuid], [GONE.uuid])


def test_a_gpu_that_was_lost_too_and_is_back_at_its_address_does_not_end_it() -> None:
    other = WHOLE.gpus[3]
    agent = Agent()
    agent.reads(renumbered(LEFT))
    agent.watch.adopt([ENTRY, LostGpu(3, other.pci, other.uuid, BEGIN_S)], without(WHOLE, {"2", "3"}))
    assert agent.published == [GONE.uuid]
