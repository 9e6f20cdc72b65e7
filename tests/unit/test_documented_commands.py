"""docs/commands.md is what the commands say of themselves."""

from __future__ import annotations

import click

from docs import commands
from dradriver.cli.main import main


def test_the_page_is_up_to_date() -> None:
    assert commands.TARGET.read_text() == commands.page(), "run make reference"


def test_every_command_is_told() -> None:
    told = {context.command_path.split()[1] for _, context in commands.commands()}
    assert told == set(main.list_commands(click.Context(main)))
