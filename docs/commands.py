"""Write docs/commands.md: every command of gputopo, as its own help tells it.

Usage: python -m docs.commands
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from dradriver.cli.main import main as gputopo

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "commands.md"
_WIDTH: Final = 110
_HEAD: Final = """\
# Commands

What `gputopo COMMAND --help` says. Written by `make reference` from the code. `pip install ".[cli]"` brings it, as
`kubectl gputopo`, too; the image has it for `kubectl exec` (all but a kubeconfig's exec plugins).
"""


def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command below a group with its whole name, in alphabetical order."""
    context = click.Context(group, info_name=name)
    for word in group.list_commands(context):
        found = group.get_command(context, word)
        if found is None or found.hidden:
            continue
        whole = f"{name} {word}"
        if isinstance(found, click.Group):
            yield from commands(found, whole)
        else:
            yield whole, found


def page() -> str:
    """Return the whole of docs/commands.md."""
    parts = [_HEAD]
    for name, command in commands(gputopo, "gputopo"):
        context = click.Context(command, info_name=name, terminal_width=_WIDTH, max_content_width=_WIDTH)
        parts.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(page())
