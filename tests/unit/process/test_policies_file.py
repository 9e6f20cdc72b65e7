"""The policies in force while their file changes as the kubelet changes it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from dradriver.api.policies.policy_sections import DEFAULTS, UNKNOWN, Policies
from dradriver.process.policies_file import PoliciesFile

ONE, TWO, BAD = "weights: {nvlink: 1}", "weights: {nvlink: 2}", "weights: {nvlnk: 3}"


class Volume:
    """A ConfigMap's folder as the kubelet keeps it: files are links through ``..data``, swapped by a rename."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "policies.yaml"
        self._folder = folder
        self._number = 0

    def put(self, text: str | None) -> None:
        self._number += 1
        version = self._folder / f"..v{self._number}"
        version.mkdir()
        if text is not None:
            (version / self.file.name).write_text(text)
        (self._folder / "..data_tmp").symlink_to(version.name)
        os.replace(self._folder / "..data_tmp", self._folder / "..data")
        if not self.file.is_symlink():
            self.file.symlink_to(f"..data/{self.file.name}")


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path)


def metric(name: str) -> float | None:
    return REGISTRY.get_sample_value(f"gpu_topology_policies_{name}")


def test_a_change_comes_into_force_without_a_restart(volume: Volume) -> None:
    volume.put(ONE)
    seen: list[float] = []
    file = PoliciesFile(volume.file, on_change=lambda policies: seen.append(policies.weights.nvlink))
    assert file.in_force.weights.nvlink == 1
    first = metric("digest")
    file.step()
    assert seen == []
    volume.put(TWO)
    file.step()
    assert (file.in_force.weights.nvlink, file.trouble, seen) == (2, None, [2])
    assert metric("valid") == 1
    assert metric("digest") == file.in_force.digest != first


@pytest.mark.parametrize("bad", [BAD, "\0", None, "x: " + "y" * 70_000, r'"\UFFFFFFFF"', r'"\uD800"'])
def test_the_last_good_one_stays_while_a_bad_one_is_there(volume: Volume, bad: str | None) -> None:
    volume.put(ONE)
    file = PoliciesFile(volume.file)
    volume.put(bad)
    file.step()
    assert file.in_force.weights.nvlink == 1
    assert file.trouble is not None
    assert "policies.yaml" in file.trouble
    assert (metric("valid"), metric("digest")) == (0, file.in_force.digest)
    volume.put(ONE)
    file.step()
    assert (file.in_force.weights.nvlink, metric("valid")) == (1, 1)


def test_no_file_means_the_defaults_and_so_does_none_named(volume: Volume) -> None:
    assert PoliciesFile().in_force is DEFAULTS
    file = PoliciesFile(volume.file)
    assert file.in_force is DEFAULTS
    assert (metric("valid"), metric("digest")) == (1, 0)
    volume.put(BAD)
    file.step()
    assert file.in_force is DEFAULTS, "the last good state"
    assert metric("valid") == 0
    volume.put(None)
    file.step()
    assert file.in_force is DEFAULTS
    assert metric("valid") == 1
    volume.put(ONE)
    file.step()
    assert file.in_force.weights.nvlink == 1


@pytest.mark.parametrize("then", [BAD, None])
def test_a_bad_file_at_the_start_does_not_mean_the_defaults(volume: Volume, then: str | None) -> None:
    volume.put(BAD)
    file = PoliciesFile(volume.file)
    assert file.in_force is UNKNOWN
    assert file.trouble is not None
    assert metric("valid") == 0
    volume.put(then)
    file.step()
    assert file.in_force is UNKNOWN
    volume.put(ONE)
    file.step()
    assert (file.in_force.known, file.in_force.weights.nvlink) == (True, 1)


def test_a_file_that_cannot_be_read_is_as_a_bad_one(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").mkdir()
    file = PoliciesFile(tmp_path / "policies.yaml")
    assert file.in_force is UNKNOWN
    assert file.trouble is not None
    assert "cannot be read: " in file.trouble


@pytest.mark.parametrize("gone", [True, False])
def test_what_lasts_is_logged_once_and_the_same_file_is_good_again(
    gone: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path := tmp_path / "policies.yaml").write_text(ONE)
    file = PoliciesFile(path)
    path.unlink()
    if not gone:
        path.mkdir()
    for _ in range(3):
        file.step()
    assert file.trouble is not None
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1
    if not gone:
        path.rmdir()
    path.write_text(ONE)
    file.step()
    assert file.in_force.weights.nvlink == metric("valid") == 1


@pytest.mark.looptime
async def test_trouble_is_told_and_logged_once(volume: Volume, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    async def tell(trouble: str) -> None:
        told.append(trouble)

    volume.put(BAD)
    file = PoliciesFile(volume.file, on_trouble=tell)
    for text, times in ((BAD, 1), ("gpu: []", 2), (ONE, 2), (BAD, 3)):
        volume.put(text)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                await file.run()
        assert len(told) == times
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 3
    assert "did you mean nvlink?" in told[0]


@pytest.mark.looptime
async def test_each_return_to_a_valid_file_is_told_once(volume: Volume) -> None:
    told: list[float] = []

    async def tell(policies: Policies) -> None:
        told.append(policies.weights.nvlink)

    volume.put(ONE)
    file = PoliciesFile(volume.file, on_recovery=tell)
    for text, expected in ((ONE, []), (BAD, []), ("gpu: []", []), (TWO, [2]), (ONE, [2]), (BAD, [2]), (ONE, [2, 1])):
        volume.put(text)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                await file.run()
        assert told == expected


@pytest.mark.looptime
async def test_a_file_that_goes_does_not_end_the_process(volume: Volume) -> None:
    volume.put(ONE)
    file = PoliciesFile(volume.file)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            run = asyncio.create_task(file.run())
            await asyncio.sleep(6)
            volume.file.unlink()
            await asyncio.sleep(6)
            assert not run.done()
            await run
    assert isinstance(file.in_force, Policies)
