"""docs/reference/commands.md is what the commands say of themselves."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from docs import commands
from docs.questions import QUESTIONS
from dradriver.cli.main import main
from tests.paths import REPO


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    # In a Python of its own: a command that was called here before keeps the options that it was called with.
    command = [sys.executable, "-m", "docs.commands", "--print"]
    page = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    assert commands.TARGET.read_text() == page, "run make reference"


def test_every_command_is_told() -> None:
    told = {context.command_path.split()[1] for _, context in commands.commands()}
    assert told == set(main.list_commands(click.Context(main)))


@pytest.mark.parametrize(
    "line", [line for question in QUESTIONS for line in question.commands if line.startswith("gputopo ")]
)
def test_a_command_that_answers_a_question_is_whole(line: str) -> None:
    """A group without its command, or an option that does not exist, ends with status 2."""
    command: click.Command = main
    words = line.split()
    while isinstance(command, click.Group) and len(words) > 1:
        words = words[1:]
        subcommand = command.get_command(click.Context(command), words[0])
        assert subcommand is not None, line
        command = subcommand
    assert not isinstance(command, click.Group), line
    command.make_context(words[0], words[1:])
