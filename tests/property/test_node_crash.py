"""Claims are prepared and given back by two instances that are killed between any two file operations."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dradriver.api.objects import ResourceClaim
from dradriver.node import files
from dradriver.node.claims import cdi
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.prepare import Preparer
from dradriver.node.errors import DeviceBusyError
from tests.fakes.node import BOOT, NODE, claim, machine, typed, uuid, workshop

CLAIMS: dict[str, tuple[int, ...]] = {"a": (0,), "b": (1,), "c": (0, 1), "d": (1, 2), "e": (2,), "f": (3, 0)}
CHANGING = {"open", "write", "fsync", "close", "replace", "unlink", "utime"}
CRASH = st.one_of(st.none(), st.integers(0, 25))


class Killed(BaseException):
    """The process is gone: nothing that it would still have done is done."""


class MortalOs:
    """The os module up to the given number of operations; a write that is cut short leaves a part."""

    def __init__(self, lives: int | None) -> None:
        self.lives = lives

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CHANGING:
            return real

        def call(*args: Any, **more: Any) -> Any:
            if self.lives is not None:
                if self.lives <= 0:
                    if name == "write" and self.lives == 0:
                        real(args[0], bytes(args[1])[: len(args[1]) // 2])
                    self.lives = -1
                    raise Killed
                self.lives -= 1
            return None if name == "fsync" else real(*args, **more)

        return call


class Crashes(RuleBasedStateMachine):
    """The model: which claims the kubelet was told are prepared, and which it has not heard of again since."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="gt-"))
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.prepared: dict[str, PreparedClaim] = {}  # what must be there, as the kubelet was answered
        self.unsure: set[str] = set()  # may be there or not: a call was cut off
        self.instances = [self.instance(), self.instance()]

    def teardown(self) -> None:
        self.runner.close()
        shutil.rmtree(self.folder)

    def instance(self) -> Preparer:
        async def get_claim(_: str, name: str) -> ResourceClaim:
            return typed(claim(name, CLAIMS[name]))

        return Preparer(
            node=NODE,
            state_dir=self.folder / "state",
            cdi_root=self.folder / "cdi",
            get_claim=get_claim,
            machine=machine,
            workshop=workshop(),
            boot=BOOT,
            budget_s=0.0,
        )

    def run(self, work: Any, lives: int | None) -> Any:
        """Run one call of an instance that may be killed in it."""
        mortal = MortalOs(lives)
        with mock.patch.object(files, "os", mortal):
            return self.runner.run(self.guarded(work))

    @staticmethod
    async def guarded(work: Any) -> Any:
        # A BaseException that leaves a task ends the loop; it is carried out as a value.
        try:
            return await work
        except (Killed, DeviceBusyError) as error:
            return error

    def restart(self, which: int, lives: int | None = None) -> None:
        """Start the instance again and again until it comes up."""
        while True:
            self.instances[which] = self.instance()
            if not isinstance(self.run(self.instances[which].recover(), lives), Killed):
                return
            lives = None if lives is None or lives > 20 else lives + 7

    @property
    def there(self) -> dict[str, PreparedClaim]:
        """The claims in the checkpoint by name."""
        found = self.runner.run(self.instances[0].prepared())
        return {entry.value.name: entry.value for entry in found.values()}

    @initialize()
    def start(self) -> None:
        self.restart(0)
        self.restart(1)

    @rule(which=st.integers(0, 1), name=st.sampled_from(sorted(CLAIMS)), lives=CRASH, again=CRASH)
    def prepare(self, which: int, name: str, lives: int | None, again: int | None) -> None:
        taken = {gpu for other in self.there if other != name for gpu in CLAIMS[other]}
        answer = self.run(self.instances[which].prepare("default", name, f"uid-{name}"), lives)
        if isinstance(answer, Killed):
            if name not in self.prepared:
                self.unsure.add(name)
            self.restart(which, again)
        elif isinstance(answer, DeviceBusyError):
            assert taken & set(CLAIMS[name])
        else:
            assert not taken & set(CLAIMS[name])
            assert [device.uuid for device in answer.devices] == [uuid(gpu) for gpu in CLAIMS[name]]
            assert self.prepared.setdefault(name, answer) == answer
            self.unsure.discard(name)

    @rule(which=st.integers(0, 1), name=st.sampled_from(sorted(CLAIMS)), lives=CRASH, again=CRASH)
    def unprepare(self, which: int, name: str, lives: int | None, again: int | None) -> None:
        answer = self.run(self.instances[which].unprepare(f"uid-{name}"), lives)
        if isinstance(answer, Killed):
            if self.prepared.pop(name, None) is not None:
                self.unsure.add(name)
            self.restart(which, again)
        else:
            self.prepared.pop(name, None)
            self.unsure.discard(name)
            assert name not in self.there

    @precondition(lambda self: self.prepared)
    @rule(which=st.integers(0, 1), again=CRASH)
    def reboot(self, which: int, again: int | None) -> None:
        shutil.rmtree(self.folder / "cdi")
        self.restart(which, again)

    @invariant()
    def what_the_kubelet_was_told_holds(self) -> None:
        there = self.there
        assert self.prepared.items() <= there.items()
        assert there.keys() <= self.prepared.keys() | self.unsure

    @invariant()
    def no_gpu_has_two_owners(self) -> None:
        owned = [device.uuid for one in self.there.values() for device in one.devices]
        assert len(owned) == len(set(owned))

    @invariant()
    def every_claim_has_its_spec_and_nothing_else_is_there(self) -> None:
        specs = [msgspec.json.decode(path.read_bytes()) for path in sorted((self.folder / "cdi").glob("*"))]
        assert specs == [cdi.spec(one) for _, one in sorted(self.there.items())]
        assert {path.suffix for path in (self.folder / "state" / "claims").glob("*")} <= {".json"}


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
