"""What is kept of a machine is what a process that knows nothing reads, whatever happened before."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.errors import DriverError
from dradriver.node.vendors.nvidia.discovery import binding, nvidia_reading
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from dradriver.topology.machine import Machine
from tests.effort import examples
from tests.fakes import nvml
from tests.fakes.hardware import Server

Read = tuple[Any, ...]


class Fresh:
    """Another process, which begins each reading anew: without any earlier answer, session or handle."""

    def __init__(self) -> None:
        self._process = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._root = nvml.compiled()

    def read(self, server: Server) -> Read:
        """Return machine, faults and the GPUs that the driver calls sound."""
        return self._process.submit(_read, server.environment(), self._root, server.sys.root).result(timeout=60)

    def close(self) -> None:
        self._process.shutdown()


def _read(environment: dict[str, str], driver_root: Path, host_root: Path) -> Read:
    os.environ |= environment
    with binding.opened(driver_root=driver_root) as library:
        found = nvidia_reading.discover(library, root=host_root)
    return found.machine, dict(found.faults), found.sound


MACHINES = ("a100-x4-mesh", "gb200-nvl72-tray")  # links asked about one by one, and all at once
GPUS = 4
RENEWED = 34  # readings in which a session is begun again for a GPU that is lost


class Unsteady:
    """Publishes what is read at once."""

    def machine(self, read: Machine) -> Machine:
        return read


class World:
    """A server to which things happen."""

    def __init__(self, name: str, folder: Path, chance: random.Random) -> None:
        self.server = Server(name, folder)
        self.chance = chance
        self.table = self.server.table
        self.lost: set[int] = set()
        self.links = [
            key for key in self.table if key.startswith("nvmlDeviceGetNvLinkState") and self.table[key] == "1"
        ]
        self.plugged = 0
        with patch("dradriver.node.vendors.nvidia.discovery.nvidia_gpus.Debounce", Unsteady):
            self.agent = Hardware(driver_root=nvml.compiled(), host_root=self.server.sys.root)

    def seen(self, *, readings: int = 1) -> list[tuple[object, ...]]:
        """What the agent makes of so many readings."""
        self.server.environment()
        found: list[tuple[object, ...]] = []
        for _ in range(readings):
            try:
                found.append((self.agent.read(), dict(self.agent.faults), self.agent.sound))
            except DriverError as error:
                found.append((str(error),))
        return found

    # What happens while nothing else does: the next reading shows it.

    def link(self) -> None:
        """A link goes down or comes back, or is down for a reading and has another end then."""
        state = self.chance.choice(self.links)
        if self.chance.random() < 0.3:
            self.table[state] = str(1 - int(self.table[state]))
            return
        self.table[state] = "0"
        self.seen()
        gpu, number = state.split()[1:]
        ends = [self.table[f"nvmlDeviceGetPciInfo_v3 {n}"] for n in range(GPUS)] + [nvml.UNSEEN_SWITCH]
        nvml.add_link(self.table, int(gpu), int(number), self.chance.choice(ends))

    def peers(self) -> None:
        a, b = self.chance.sample(range(GPUS), 2)
        for one, other in ((a, b), (b, a)):
            self.table[f"nvmlDeviceGetP2PStatus 2 {one} {other}"] = self.chance.choice("05")

    def condition(self) -> None:
        gpu = self.chance.randrange(GPUS)
        for query, answers in (
            ("nvmlDeviceGetTotalEccErrors", ("0", "2", "!3")),
            ("nvmlDeviceGetRemappedRows", ("0 0 0 0", "0 1 1 0", "0 1 0 1", "!3")),
            ("nvmlDeviceGetCurrentClocksEventReasons", ("0", "64", "128")),
            ("nvmlDeviceGetPersistenceMode", ("0", "1")),
            ("nvmlDeviceGetGpuFabricInfoV", (f"3 0 7 {'6c' * 16}", f"2 0 0 {'0' * 32}", f"3 9 0 {'0' * 32}", "!3")),
        ):
            self.table[f"{query} {gpu}"] = self.chance.choice(answers)
        self.table[f"nvmlDeviceGetFieldValues {gpu} 230 0"] = self.chance.choice("0123")
        if f"nvmlDeviceGetFieldValues {gpu} 170 0" in self.table:
            self.table[f"nvmlDeviceGetFieldValues {gpu} 171 {self.chance.randrange(5)}"] = self.chance.choice("01")

    def mode(self) -> None:
        """The MIG mode changes, and with it may change whatever else the GPU says; or it waits for a reset."""
        gpu = self.chance.randrange(GPUS)
        at = f"nvmlDeviceGetMigMode {gpu}"
        before, self.table[at] = self.table[at], self.chance.choice(("0 0", "0 1", "1 0", "1 1"))
        if before[0] != self.table[at][0]:
            self.table[f"nvmlDeviceGetMaxMigDeviceCount {gpu}"] = "7"
            self.instances(gpu)
            self.facts(gpu)

    def instances(self, gpu: int | None = None) -> None:
        """MIG devices are made and destroyed; a uuid may come back with another profile and elsewhere."""
        gpu = self.chance.randrange(GPUS) if gpu is None else gpu
        whole = self.server.machine.gpus[gpu]
        for slot in range(3):
            name = f"{gpu}/{slot}"
            handle = f"nvmlDeviceGetMigDeviceHandleByIndex {gpu} {slot}"
            self.table.pop(handle, None)
            if self.chance.random() < 0.5:
                continue
            profile = self.chance.choice(whole.profiles)
            start = self.chance.choice(profile.starts)
            self.table |= {
                handle: "",
                f"nvmlDeviceGetUUID {name}": f"MIG-0000000{gpu}-0000-0000-0000-00000000000{slot}",
                f"nvmlDeviceGetName {name}": f"{whole.product} MIG {profile.name}",
                f"nvmlDeviceGetMemoryInfo {name}": str(profile.memory_mib << 20),
                f"nvmlDeviceGetGpuInstanceId {name}": str(slot + 1),
                f"nvmlDeviceGetComputeInstanceId {name}": "0",
                f"nvmlDeviceGetGpuInstanceById {gpu} {slot + 1}": "",
                f"nvmlGpuInstanceGetInfo {gpu}/gi{slot + 1}": f"{profile.id} {start} {profile.size}",
            }

    def failure(self) -> None:
        """A question fails for once, which teaches nothing."""
        key = self.chance.choice([key for key in self.table if " " in key and not key.startswith("lost")])
        answer, self.table[key] = self.table[key], "!999"
        self.seen()
        self.table[key] = answer

    # What the agent's session does not outlive: it is begun anew, at once or after some readings.

    def lose(self) -> None:
        """A GPU falls off its bus; when it is back, after a reset, it may say anything."""
        gpu = self.chance.randrange(GPUS)
        if gpu not in self.lost:
            self.lost.add(gpu)
            self.table[f"lost {gpu}"] = "0"
            return
        self.lost.remove(gpu)
        del self.table[f"lost {gpu}"]
        self.facts(gpu)

    def hotplug(self) -> None:
        self.plugged += 1
        self.server.sys.file(f"sys/bus/pci/drivers/nvidia/0000:{self.plugged % 200:02x}:1f.0", "")
        self.renumber()

    def driver(self) -> None:
        """The driver is let go and comes back, as another one for all that is known."""
        self.agent.close()
        self.table["nvmlSystemGetDriverVersion"] = f"580.{self.chance.randrange(100)}"
        self.table["nvmlSystemGetCudaDriverVersion_v2"] = self.chance.choice(("12080", "13000"))
        self.renumber()

    def renumber(self) -> None:
        a, b = self.chance.sample(range(GPUS), 2)
        one, other = f"nvmlDeviceGetUUID {a}", f"nvmlDeviceGetUUID {b}"
        self.table |= {one: self.table[other], other: self.table[one]}
        for gpu in range(GPUS):
            self.facts(gpu)

    def facts(self, gpu: int) -> None:
        chance = self.chance
        minors = {int(self.table[f"nvmlDeviceGetMinorNumber {n}"]) for n in range(GPUS)}
        free = sorted(set(range(GPUS + 4)) - minors)
        self.table |= {
            f"nvmlDeviceGetMinorNumber {gpu}": str(chance.choice(free)),
            f"nvmlDeviceGetName {gpu}": chance.choice(("NVIDIA A", "NVIDIA B")),
            f"nvmlDeviceGetMemoryInfo {gpu}": str(chance.choice((40, 80)) << 30),
            f"nvmlDeviceGetPowerManagementDefaultLimit {gpu}": chance.choice(("400000", "700000")),
            f"nvmlDeviceGetMaxPcieLinkWidth {gpu}": chance.choice(("8", "16")),
            f"nvmlDeviceGetCudaComputeCapability {gpu}": chance.choice(("8 0", "9 0")),
        }
        for key in [
            key for key in self.table if key.startswith(f"nvmlDeviceGetGpuInstancePossiblePlacements_v2 {gpu} ")
        ]:
            self.table[key] = chance.choice((self.table[key], self.table[key].split(" ")[0]))
        for other in set(range(GPUS)) - {gpu}:
            level = str(chance.choice((10, 20, 30, 40, 50)))
            for one, two in ((gpu, other), (other, gpu)):
                self.table[f"nvmlDeviceGetTopologyCommonAncestor {one} {two}"] = level


EVENTS: tuple[Callable[[World], None], ...] = (
    World.link,
    World.peers,
    World.condition,
    World.mode,
    World.instances,
    World.failure,
    World.hotplug,
    World.driver,
    World.lose,
)


@pytest.fixture(scope="module")
def fresh() -> Iterator[Fresh]:
    process = Fresh()
    yield process
    process.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
@settings(max_examples=examples(25))
@given(events=st.lists(st.sampled_from(EVENTS), min_size=1, max_size=8), seed=st.integers(0, 1 << 32))
def test_a_kept_fact_is_what_a_fresh_process_reads(
    name: str, fresh: Fresh, events: list[Callable[[World], None]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(name, Path(folder), random.Random(seed))
        with patch.dict(os.environ, world.server.environment()):
            world.seen()
            for event in events:
                event(world)
                found = world.seen(readings=RENEWED if event is World.lose else 1)
                assert found[-1] == fresh.read(world.server), event.__name__
            world.agent.close()
