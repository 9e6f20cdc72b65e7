"""A node whose agents are killed at any line, and what must hold of it whatever dies when.

A kill is raised by a trace function before a line of the agent's own code, or by an operation of the file system that
then is done by half. What a dying process would still do by way of ``finally`` a killed one does not: no file changes
after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeVar
from unittest import mock

import msgspec

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.node import atomic_files
from dradriver.node.claims import cdi
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.prepare import Preparer
from dradriver.node.container_edits import Edits
from dradriver.node.devices.control_interface import DEFAULT, EXCLUSIVE_PROCESS
from dradriver.node.devices.hardware_journal import HardwareJournal, Made
from dradriver.node.errors import NotYetError
from dradriver.node.mps.mps_files import MpsFolder, Server
from dradriver.node.threads import Thread
from dradriver.topology.machine import Machine
from tests.fakes.crowd import (
    CLAIMS,
    MIG,
    MPS,
    STATIC,
    administer,
    administered,
    allocated,
    device_manager,
    overlap,
    parts,
)
from tests.fakes.failing import FailingGpus
from tests.fakes.node import NODE, machine, typed, uuid
from tests.fakes.parts import sliceable
from tests.paths import REPO

T = TypeVar("T")

UNKNOWN = 999  # NVML's word for what it has no other for

_CHANGING = {"open", "write", "fsync", "close", "replace", "unlink", "utime"}
_CODE = tuple(str(REPO / "dradriver/node" / part) for part in ("claims/", "devices/", "journal.py", "atomic_files.py"))
_HELD = str(REPO / "dradriver/node/lock.py")  # a lock goes with its process, whose lines do not matter


class Kill(NamedTuple):
    """When a process dies: before so many lines of code, or in the operation after so many."""

    at: Literal["line", "operation"]
    after: int


class Killed(BaseException):
    """The process is gone: nothing that it would still have done is done."""


class Inline(Thread):
    """A thread that is none, so that one trace function sees all."""

    async def run(self, work: Callable[[], T], *, question: bool = False) -> T:
        await asyncio.sleep(0)
        return work()


class _Mortal:
    """The os module, and the trace function, of a process that dies."""

    def __init__(self, kill: Kill | None) -> None:
        self._lines = kill.after if kill is not None and kill.at == "line" else None
        self._operations = kill.after if kill is not None and kill.at == "operation" else None
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in _CHANGING:
            return real

        def call(*args: Any, **more: Any) -> Any:
            if self.dead and name != "close":
                raise Killed
            if self._operations is not None:
                if self._operations == 0:
                    self.dead = True
                    if name == "write":
                        real(args[0], bytes(args[1])[: len(args[1]) // 2])
                    raise Killed
                self._operations -= 1
            return None if name == "fsync" else real(*args, **more)

        return call

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(_CODE) or path == _HELD:
            return None
        if event == "line" and self._lines is not None:
            if self._lines <= 0:
                self._lines = None
                self.dead = True
                raise Killed
            self._lines -= 1
        return self.trace

    @contextlib.contextmanager
    def living(self) -> Iterator[None]:
        before = sys.gettrace()
        with mock.patch.object(atomic_files, "os", self):
            if self._lines is not None:
                sys.settrace(self.trace)
            try:
                yield
            finally:
                sys.settrace(before)


class Node:
    """Two instances of the agent on one node, a kubelet's memory of them, and hardware that can be changed.

    Attributes:
        told: Which claims the kubelet was told are prepared, as it was told, and it has not given back.
        unsure: Which may be prepared or not: a call was cut off.
        kills: How often an instance died.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gt-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.told: dict[str, PreparedClaim] = {}
        self.unsure: set[str] = set()
        self.boots = 1
        self.kills = 0
        self.gpus = FailingGpus(self.folder / "hardware.json")
        self.lost: set[str] = set()  # GPUs that were lost at some time
        self.gpus.reload()
        administer(self.gpus)
        self.instances = [self._instance(), self._instance()]
        self.restart(0)
        self.restart(1)

    def close(self) -> None:
        self.runner.close()
        shutil.rmtree(self.folder)

    def prepare(self, which: int, name: str, kill: Kill | None, again: Kill | None) -> None:
        others = [other for other in self.there if other != name]
        taken = {part for other in others for part in parts(CLAIMS[other])}
        # A reboot took the instances of a claim that was prepared before it: who has its slices now the API knows.
        there = self.whole
        sure = {
            part if other in there else part._replace(slices=()) for other in others for part in parts(CLAIMS[other])
        }
        answer = self._run(self.instances[which].prepare("default", name, f"uid-{name}"), kill)
        if isinstance(answer, Killed):
            if name not in self.told:
                self.unsure.add(name)
            self.restart(which, again)
        elif isinstance(answer, NotYetError):
            assert self._in_trouble(name) or overlap(taken, CLAIMS[name])
        else:
            assert not overlap(sure, CLAIMS[name])
            assert [one.uuid for one in answer.devices] == [uuid(part.gpu) for part in parts(CLAIMS[name])]
            assert _lasting({name: self.told.get(name, answer)}) == _lasting({name: answer})
            self.told[name] = answer
            self.unsure.discard(name)
            assert name in self.whole

    def unprepare(self, which: int, name: str, kill: Kill | None, again: Kill | None) -> None:
        answer = self._run(self.instances[which].unprepare(f"uid-{name}"), kill)
        if isinstance(answer, Killed):
            if self.told.pop(name, None) is not None:
                self.unsure.add(name)
            self.restart(which, again)
        else:
            self.told.pop(name, None)
            self.unsure.discard(name)
            assert name not in self.there

    def reload(self, which: int, again: Kill | None) -> None:
        """Load the driver anew, which brings lost GPUs back; what claims in use had is made anew."""
        whole = self.told.keys() & self.whole.keys()
        self.gpus.heal()
        self.gpus.reload()
        administer(self.gpus)
        self.look(which, again)
        assert whole <= self.whole.keys()

    def trouble(self, gpu: int, what: str) -> None:
        """Let a GPU fall off the bus, or refuse everything, or somebody keep its MIG mode from ending."""
        if what == "lost":
            self.lost.add(uuid(gpu))
            self.gpus.lose(uuid(gpu))
        elif what == "pending":
            self.gpus.pending.add(uuid(gpu))
        elif uuid(gpu) not in self.gpus.failing:
            self.gpus.failing[uuid(gpu)] = ("", UNKNOWN, "Unknown Error")

    def relent(self, which: int, again: Kill | None) -> None:
        """Let GPUs do as they are told again but for the lost ones."""
        lost = {gpu: how for gpu, how in self.gpus.failing.items() if how[1] != UNKNOWN}
        self.gpus.heal()
        self.gpus.failing = lost
        self.look(which, again)

    def look(self, which: int, again: Kill | None) -> None:
        """Have the instance make a pass as its reconciler does."""
        if isinstance(self._run(self._pass(self.instances[which]), again), Killed):
            self.restart(which, again)

    def reboot(self, which: int, again: Kill | None) -> None:
        shutil.rmtree(self.folder / "cdi", ignore_errors=True)
        self.gpus.heal()
        self.gpus.reboot()
        administer(self.gpus)
        self.boots += 1
        self.instances = [self._instance(), self._instance()]
        self.restart(which, again)

    def restart(self, which: int, kill: Kill | None = None) -> None:
        """Start the instance again and again until it comes up."""
        while True:
            self.instances[which] = self._instance()
            if not isinstance(self._run(self._pass(self.instances[which]), kill), Killed):
                return
            kill = kill._replace(after=kill.after + 31) if kill is not None and kill.after < 400 else None

    @property
    def there(self) -> dict[str, PreparedClaim]:
        """The claims in the ledger, by name."""
        found = self.runner.run(self.instances[0].prepared())
        return {entry.value.name: entry.value for entry in found.values()}

    @property
    def made(self) -> dict[str, Made]:
        """The entries of the other ledger."""
        found = HardwareJournal(self.folder / "state" / "made").read()
        return {key: entry.value for key, entry in found.items()}

    @property
    def whole(self) -> dict[str, PreparedClaim]:
        """The claims of which nothing is missing that has to be made, by name."""
        done = {key for key, made in self.made.items() if made.done is not None and self._in_load(made)}
        return {name: one for name, one in self.there.items() if {d.made for d in one.devices} <= done | {""}}

    def check(self) -> None:
        """Hold everything on the node against what must be there."""
        there, made = self.there, self.made
        # Nothing lost: what the kubelet was told holds.
        assert _lasting(self.told).items() <= _lasting(there).items()  # one prepared anew may have been cut off
        assert there.keys() <= self.told.keys() | self.unsure
        # Nothing double.
        owned = [(d.uuid, d.part, d.device, d.share_id) for one in there.values() for d in one.devices]
        assert len(owned) == len(set(owned))
        for identity, part, name, _ in owned:
            assert name.startswith(identity.lower())
            assert part or sum(other[0] == identity for other in owned) == 1
        # Nothing left: specs, files and instances are those of the claims that are there, and no other.
        specs = [msgspec.json.decode(path.read_bytes()) for path in sorted((self.folder / "cdi").glob("*"))]
        whole = [one for _, one in sorted(self.whole.items())]
        assert all(spec in map(cdi.spec, whole) for spec in specs)
        # Those of claims whose GPU was lost are gone, until somebody looks at it again.
        sure = [one for one in whole if self.lost.isdisjoint(device.uuid for device in one.devices)]
        assert all(cdi.spec(one) in specs for one in sure)
        assert {path.suffix for path in (self.folder / "state").rglob("*") if path.is_file()} <= {".json", ".lock"}
        mounted = {str(path) for path in (self.folder / "state" / "files").glob("*/*")}
        mounts = [mount for one in there.values() for d in one.devices for mount in d.edits.mounts]
        assert mounted == {mount.host_path for mount in mounts if not mount.writable}
        assert {path.name for path in (self.folder / "state" / "files").glob("*")} == {
            one.uid for one in there.values()
        }
        left = made.keys() - {d.made for one in there.values() for d in one.devices}
        assert {made[key].uuid for key in left} <= self.gpus.failing.keys()
        with self.gpus.healthy():
            instances = {(uuid(gpu), *placed) for gpu in MIG for placed in self.gpus.gpu_instances(uuid(gpu)).values()}
            in_mig_mode = {uuid(gpu) for gpu in MIG if self.gpus.mig_mode(uuid(gpu))}
        noted = {
            key: (one.uuid, *one.wanted.placed)
            for key, one in made.items()
            if one.kind == "mig" and one.uuid != uuid(STATIC) and self._in_load(one)
        }
        lost = {gpu for gpu, how in self.gpus.failing.items() if how[1] != UNKNOWN}
        done = {noted[key] for key in noted if made[key].done is not None and made[key].uuid not in lost}
        assert done <= instances <= set(noted.values())
        assert in_mig_mode <= {one.uuid for one in made.values()} | self.gpus.pending | self.gpus.failing.keys()
        assert administered(self.gpus)
        served = [one for one in made.values() if one.kind == "mps"]
        with self.gpus.state(uuid(MPS)) as state:
            if uuid(MPS) not in self.gpus.failing:
                assert served or (state.server, state.mode) == (None, DEFAULT)
            if any(one.done is not None and self._in_load(one) for one in served):
                assert (state.server, state.mode) == (Server(), EXCLUSIVE_PROCESS)

    def end(self) -> None:
        """Give everything back and see that nothing is left."""
        for name in CLAIMS:
            self.unprepare(0, name, None, None)
        self.check()
        self.relent(0, None)
        self.check()
        assert not any((self.folder / "cdi").glob("*"))
        assert not any((self.folder / "state").glob("*/*"))

    def _instance(self) -> Preparer:
        async def get_claim(_: str, name: str) -> ResourceClaim:
            return typed(allocated(name))

        return Preparer(
            node=NODE,
            state_dir=self.folder / "state",
            cdi_root=self.folder / "cdi",
            get_claim=get_claim,
            machine=self._machine,
            device_manager=device_manager(
                self.gpus, MpsFolder(self.folder / "mps", boot=f"boot-{self.boots}"), Inline("inline")
            ),
            boot=f"boot-{self.boots}",
            budget_s=0.0,
        )

    def _machine(self) -> Machine:
        """The machine as it is, without the GPUs that are lost."""
        whole = sliceable(machine())
        there = [gpu for gpu in whole.gpus if self.gpus.failing.get(gpu.uuid, ("", UNKNOWN))[1] == UNKNOWN]
        # The minor number is what the simulated hardware says of GPUs of which it was told nothing.
        hopper = (msgspec.structs.replace(gpu, compute_capability="9.0", minor=0) for gpu in there)
        return msgspec.structs.replace(whole, gpus=tuple(map(self.gpus.seen, hopper)))

    def _in_load(self, made: Made) -> bool:
        return made.in_load(self.gpus.driver())

    def _in_trouble(self, name: str) -> bool:
        return bool({uuid(part.gpu) for part in parts(CLAIMS[name])} & (self.gpus.failing.keys() | self.gpus.pending))

    async def _pass(self, instance: Preparer) -> None:
        """What the reconciler does, but for claims that nobody uses."""
        await instance.recover()
        await instance.clean()
        await instance.rest()
        for entry in (await instance.prepared()).values():
            if entry.value.name in self.told:
                with contextlib.suppress(NotYetError):
                    await instance.again(entry.value)

    def _run(self, work: Any, kill: Kill | None) -> Any:
        """Run one call of an instance that may be killed in it."""

        async def guarded() -> Any:
            try:
                return await work
            except (Killed, NotYetError) as error:
                return error
            finally:
                if mortal.dead:  # and with the process all that it still had to do
                    others = asyncio.all_tasks() - {asyncio.current_task()}
                    for task in others:
                        task.cancel()
                    await asyncio.gather(*others, return_exceptions=True)

        mortal = _Mortal(kill)
        with mortal.living():
            answer = self.runner.run(guarded())
        if not mortal.dead:
            return answer
        self.kills += 1
        for number in os.listdir("/proc/self/fd"):  # what the kernel closes
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}").startswith(f"{self.folder}/"):
                    os.close(int(number))
        return Killed()


def _lasting(claims: dict[str, PreparedClaim]) -> dict[str, PreparedClaim]:
    """The claims without what another boot makes otherwise."""
    return {
        name: msgspec.structs.replace(
            one,
            boot="",
            devices=tuple(
                msgspec.structs.replace(d, edits=Edits(), driver="", done=None) if d.made else d for d in one.devices
            ),
        )
        for name, one in claims.items()
    }
