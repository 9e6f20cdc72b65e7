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

from dradriver.api.objects import ResourceClaim
from dradriver.node import files
from dradriver.node.claims import cdi
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.prepare import Preparer
from dradriver.node.devices.made import Made, MadeLedger
from dradriver.node.devices.simulated import SimulatedGpu
from dradriver.node.devices.whole import Whole
from dradriver.node.devices.workshop import Workshop
from dradriver.node.errors import DeviceBusyError
from dradriver.node.threads import Thread
from tests.fakes.node import NODE, claim, device, edits, machine, result, typed, uuid
from tests.fakes.parts import Halves, half
from tests.paths import REPO

T = TypeVar("T")

# Whole GPUs by number, halves of GPUs 4 and 5 by number and start.
CLAIMS: dict[str, tuple[int | tuple[int, int], ...]] = {
    "a": (0,),
    "b": (1,),
    "c": (0, 1),
    "d": (1, 2),
    "e": (2,),
    "f": (3, 0),
    "g": ((4, 0),),
    "h": ((4, 4), (5, 0)),
    "i": ((5, 0), (5, 4), 3),
    "j": (5,),
}
_CHANGING = {"open", "write", "fsync", "close", "replace", "unlink", "utime"}
_CODE = tuple(str(REPO / "dradriver/node" / part) for part in ("claims/", "devices/", "records.py", "files.py"))
_HELD = str(REPO / "dradriver/node/claims/lock.py")  # a lock goes with its process, which nothing here can play


class Kill(NamedTuple):
    """When a process dies: before so many lines of code, or in the operation after so many."""

    at: Literal["line", "operation"]
    after: int


class Killed(BaseException):
    """The process is gone: nothing that it would still have done is done."""


class Inline(Thread):
    """A thread that is none, so that one trace function sees all."""

    def __init__(self) -> None:
        super().__init__("inline")

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
        with mock.patch.object(files, "os", self):
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
        self.gpus = SimulatedGpu(self.folder / "hardware.json")
        for gpu in (4, 5):
            with self.gpus.state(uuid(gpu)) as state:
                state.mig = True
        self.instances = [self._instance(), self._instance()]
        self.restart(0)
        self.restart(1)

    def close(self) -> None:
        self.runner.close()
        shutil.rmtree(self.folder)

    def prepare(self, which: int, name: str, kill: Kill | None, again: Kill | None) -> None:
        taken = {part for other in self.there if other != name for part in _wholes(CLAIMS[other])}
        answer = self._run(self.instances[which].prepare("default", name, f"uid-{name}"), kill)
        if isinstance(answer, Killed):
            if name not in self.told:
                self.unsure.add(name)
            self.restart(which, again)
        elif isinstance(answer, DeviceBusyError):
            assert _overlap(taken, CLAIMS[name])
        else:
            assert not _overlap(taken, CLAIMS[name])
            assert [one.uuid for one in answer.devices] == [uuid(gpu) for gpu, _ in _wholes(CLAIMS[name])]
            assert _bootless({name: self.told.get(name, answer)}) == _bootless({name: answer})
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

    def reboot(self, which: int, again: Kill | None) -> None:
        shutil.rmtree(self.folder / "cdi", ignore_errors=True)
        self.gpus.reboot()
        self.boots += 1
        self.instances = [self._instance(), self._instance()]
        self.restart(which, again)

    def restart(self, which: int, kill: Kill | None = None) -> None:
        """Start the instance again and again until it comes up."""
        while True:
            self.instances[which] = self._instance()
            if not isinstance(self._run(self._start(self.instances[which]), kill), Killed):
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
        found = MadeLedger(self.folder / "state" / "made").read()
        return {key: entry.value for key, entry in found.items()}

    @property
    def whole(self) -> dict[str, PreparedClaim]:
        """The claims of which nothing is missing that has to be made, by name."""
        done = {key for key, made in self.made.items() if made.done is not None}
        return {name: one for name, one in self.there.items() if {d.made for d in one.devices} <= done | {""}}

    def check(self) -> None:
        """Hold everything on the node against what must be there."""
        there, made = self.there, self.made
        # Nothing lost: what the kubelet was told holds.
        assert _bootless(self.told).items() <= _bootless(there).items()  # one prepared anew may have been cut off
        assert there.keys() <= self.told.keys() | self.unsure
        # Nothing double.
        owned = [(d.uuid, d.device) for one in there.values() for d in one.devices]
        assert len(owned) == len(set(owned))
        for gpu, name in owned:
            assert name.startswith(gpu.lower())
            assert name != gpu.lower() or sum(other == gpu for other, _ in owned) == 1
        # Nothing left: specs, files and instances are those of the claims that are there, and no other.
        specs = [msgspec.json.decode(path.read_bytes()) for path in sorted((self.folder / "cdi").glob("*"))]
        assert specs == [cdi.spec(one) for _, one in sorted(self.whole.items())]
        assert {path.suffix for path in (self.folder / "state").rglob("*") if path.is_file()} <= {".json", ".lock"}
        mounted = {str(path) for path in (self.folder / "state" / "files").glob("*/*")}
        assert mounted == {mount.host_path for one in there.values() for d in one.devices for mount in d.edits.mounts}
        assert {path.name for path in (self.folder / "state" / "files").glob("*")} == {
            one.uid for one in there.values()
        }
        assert made.keys() <= {d.made for one in there.values() for d in one.devices}
        instances = {(gpu, start) for gpu in (4, 5) for _, start in self.gpus.gpu_instances(uuid(gpu)).values()}
        noted = {key: (4 if one.uuid == uuid(4) else 5, int(one.device[-1])) for key, one in made.items()}
        assert {noted[key] for key, one in made.items() if one.done is not None} <= instances <= set(noted.values())

    def end(self) -> None:
        """Give everything back and see that nothing is left."""
        for name in CLAIMS:
            self.unprepare(0, name, None, None)
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
            machine=machine,
            workshop=Workshop([Whole(edits), Halves()], self.gpus, thread=Inline()),
            boot=f"boot-{self.boots}",
            budget_s=0.0,
        )

    @staticmethod
    async def _start(instance: Preparer) -> None:
        await instance.recover()
        await instance.clean()  # the reconciler's first pass

    def _run(self, work: Any, kill: Kill | None) -> Any:
        """Run one call of an instance that may be killed in it."""

        async def guarded() -> Any:
            try:
                return await work
            except (Killed, DeviceBusyError) as error:
                return error

        mortal = _Mortal(kill)
        with mortal.living():
            answer = self.runner.run(guarded())
        self.kills += mortal.dead
        return Killed() if mortal.dead else answer


def allocated(name: str) -> dict[str, Any]:
    """The claim of this name as the scheduler left it."""
    names = (device(part) if isinstance(part, int) else half(uuid(part[0]), part[1]) for part in CLAIMS[name])
    return claim(name, results=[result("gpu", one) for one in names])


def _bootless(claims: dict[str, PreparedClaim]) -> dict[str, PreparedClaim]:
    return {name: msgspec.structs.replace(one, boot="") for name, one in claims.items()}


def _wholes(parts: tuple[int | tuple[int, int], ...]) -> list[tuple[int, int | None]]:
    return [(part, None) if isinstance(part, int) else part for part in parts]


def _overlap(taken: set[tuple[int, int | None]], wanted: tuple[int | tuple[int, int], ...]) -> bool:
    return any(
        gpu == other and (None in (start, place) or start == place)
        for gpu, start in _wholes(wanted)
        for other, place in taken
    )
