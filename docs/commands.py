"""Write docs/reference/commands.md: every command of gputopo, as its own help tells it.

Usage: python -m docs.commands [--print]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from dradriver.cli.main import main as gputopo

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "reference" / "commands.md"
_WIDTH: Final = 110
_HEAD: Final = """\
# Commands

Every command of `gputopo`, as `gputopo COMMAND --help` says it.

Written by `make reference` from the code. `pip install ".[cli]"` installs `gputopo` and `kubectl gputopo`. The image
has `gputopo`, too, for `kubectl exec`, but there it cannot run the exec plugins of a kubeconfig.
"""


def commands() -> Iterator[tuple[click.Command, click.Context]]:
    """Yield every command with the context that it is called in, in alphabetical order."""
    settings = {**gputopo.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    yield from _below(gputopo, click.Context(gputopo, info_name="gputopo", **settings))


def _below(group: click.Group, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    for word in group.list_commands(context):
        found = group.get_command(context, word)
        if found is None or found.hidden:
            continue
        inside = click.Context(found, parent=context, info_name=word)
        if isinstance(found, click.Group):
            yield from _below(found, inside)
        else:
            yield found, inside


def page() -> str:
    """Return the whole of docs/reference/commands.md."""
    parts = [_HEAD]
    for command, context in commands():
        parts.append(f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        TARGET.write_text(page())
