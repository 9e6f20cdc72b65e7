"""docs/commands.md is what the commands say of themselves."""

from __future__ import annotations

import subprocess
import sys

import click

from docs import commands
from dradriver.cli.main import main
from tests.paths import REPO


def test_the_page_is_up_to_date() -> None:
    # In a Python of its own: a command that was called here before keeps the options that it was called with.
    command = [sys.executable, "-m", "docs.commands", "--print"]
    page = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    assert commands.TARGET.read_text() == page, "run make reference"


def test_every_command_is_told() -> None:
    told = {context.command_path.split()[1] for _, context in commands.commands()}
    assert told == set(main.list_commands(click.Context(main)))
