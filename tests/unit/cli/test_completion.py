"""Completion of ``gputopo`` and ``kubectl gputopo`` in shells."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from dradriver.cli.completion import lines
from dradriver.cli.main import main
from tests.fakes.commands import command_line
from tests.fakes.gpucluster import GpuCluster
from tests.paths import REPO


def test_commands_are_completed_without_loading_them() -> None:
    said = "import sys; from dradriver.cli.completion import lines; from dradriver.cli.main import main; "
    said += "print(*lines(main, ['']), sep='\\n'); print('numpy' in sys.modules, 'aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    *found, directive, loaded = done.stdout.splitlines()
    assert {line.partition("\t")[0] for line in found} == set(main.list_commands(click.Context(main)))
    assert (directive, loaded) == (":4", "False False")


def test_options_values_and_files() -> None:
    assert lines(main, ["ex"])[0].startswith("explain\t")
    assert lines(main, ["explain", "--out"])[0].startswith("--output")
    assert lines(main, ["free", "-o", "s"]) == ["svg", ":4"]
    assert lines(main, ["nothing", ""])[-1] == ":4"
    assert lines(main, []) == lines(main, [""])


async def test_pods_that_wait_are_completed_from_the_cluster(tmp_path: Path) -> None:
    cluster = GpuCluster()
    for name in ("trainer", "tester", "other"):
        cluster.pod(name, 1)
    cluster.pod("trap", 1, namespace="team-b")
    async with command_line(cluster.store, tmp_path) as shell:
        line = ["explain", "--kubeconfig", str(shell.kubeconfig), "t"]
        assert await asyncio.to_thread(lines, main, line) == ["tester", "trainer", ":4"]
        line[1:1] = ["-n", "team-b"]
        assert await asyncio.to_thread(lines, main, line) == ["trap", ":4"]
        assert await asyncio.to_thread(lines, main, [*line[:1], *line[3:-1], "team-b/t"]) == ["team-b/trap", ":4"]
        shell.api.fail(status=403, reason="Forbidden", message="no")
        assert await asyncio.to_thread(lines, main, line) == [":4"]
    assert await asyncio.to_thread(lines, main, line) == [":4"]


def test_every_program_is_there() -> None:
    scripts = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == {"gputopo", "kubectl-gputopo", "kubectl_complete-gputopo"}
    for target in scripts.values():
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.slow
def test_help_says_what_users_type() -> None:
    said = "from dradriver.cli.main import plugin; plugin()"
    done = subprocess.run([sys.executable, "-c", said, "explain", "-h"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: kubectl gputopo explain ")


def test_clicks_own_script_is_there() -> None:
    said = "from dradriver.cli.main import main; main(prog_name='gputopo')"
    environ = os.environ | {"_GPUTOPO_COMPLETE": "zsh_source"}
    done = subprocess.run([sys.executable, "-c", said], env=environ, capture_output=True, text=True, check=True)
    assert "_GPUTOPO_COMPLETE=zsh_complete" in done.stdout
