"""Each cure that ``gputopo verify`` names exists: commands and their options, checks, chart values, labels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

import click
import pytest
import yaml

from dradriver.cli.main import main
from dradriver.cli.verifier import rights_checks
from dradriver.cli.verify import verify
from tests.paths import REPO

_PLACE: Final = "NAME"  # stands for what a message fills in
_PACKAGE: Final = REPO / "dradriver" / "cli"
_SOURCES: Final = (_PACKAGE / "verify.py", *sorted((_PACKAGE / "verifier").glob("*.py")))
_CHART: Final = REPO / "helm" / "gpu-topology-dra"
_OF_KUBECTL: Final = {"--field-selector"}
_VERBS: Final = {"apply", "config", "create", "delete", "describe", "get", "label", "logs", "rollout", "version"}


def texts() -> Iterator[tuple[str, str]]:
    """Yield each text in the code of verify with where it stands; what is filled in is a word in capitals."""
    for path in _SOURCES:
        tree = ast.parse(path.read_text())
        parts = {id(part) for joined in ast.walk(tree) if isinstance(joined, ast.JoinedStr) for part in joined.values}
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                pieces = [part.value if isinstance(part, ast.Constant) else _PLACE for part in node.values]
                yield f"{path.name}:{node.lineno}", "".join(map(str, pieces))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts | docstrings:
                yield f"{path.name}:{node.lineno}", node.value


TEXTS: Final = dict(texts())


def found(pattern: str) -> list[Any]:
    """Return where a pattern stands in the texts, as parameters of a test."""
    places = [
        pytest.param(match, id=f"{place} {match[0]}")
        for place, text in TEXTS.items()
        for match in re.finditer(pattern, text)
    ]
    assert places, "a pattern that is found nowhere tests nothing"
    return places


def options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize(
    "match", found(r"gputopo (?!(?:of|needs|reads)\b)((?:[a-z]+ ?)+)((?:--?[a-z][a-z-]* ?|[A-Z]+ ?)*)")
)
def test_each_command_is_there_with_its_options(match: re.Match[str]) -> None:
    command: click.Command = main
    for word in match[1].split():
        if not isinstance(command, click.Group):
            break
        found_command = command.get_command(click.Context(command), word)
        if found_command is None and command is not main:
            break
        assert found_command is not None, f"there is no gputopo {word}"
        command = found_command
    assert {word for word in match[2].split() if word.startswith("-")} <= options(command)


@pytest.mark.parametrize("match", found(r"(?<![\w-])--[a-z][a-z-]+(?= NAME)"))
def test_each_option_that_is_named_alone_is_one_of_verify(match: re.Match[str]) -> None:
    assert match[0] in options(verify) | _OF_KUBECTL


@pytest.mark.parametrize("match", found(r"the check ([a-z-]+)"))
def test_each_check_is_one_of_the_page(match: re.Match[str]) -> None:
    assert f"`{match[1]}`" in (REPO / "docs" / "tasks" / "verify.md").read_text()


@pytest.mark.parametrize("match", found(r"(?:value|chart's) (\w+)\.([a-z][A-Za-z]+)\b"))
def test_each_value_of_the_chart_is_there(match: re.Match[str]) -> None:
    values = yaml.safe_load((_CHART / "values.yaml").read_text())
    assert match[2] in values[match[1]]


@pytest.mark.parametrize("match", found(r"kubectl (?:-n NAME )?([a-z]+)"))
def test_each_verb_of_kubectl_is_one(match: re.Match[str]) -> None:
    assert match[1] in _VERBS


@pytest.mark.parametrize("match", found(r"app\.kubernetes\.io/[a-z-]+"))
def test_each_label_is_one_of_the_charts(match: re.Match[str]) -> None:
    assert match[0] in (_CHART / "templates" / "_helpers.tpl").read_text()


@pytest.mark.parametrize("commands", sorted({commands for _, _, commands in rights_checks.WANTED}))
def test_each_command_that_needs_a_right_is_there(commands: str) -> None:
    for command in commands.split(", "):
        name, *given = command.split()
        found_command = main.get_command(click.Context(main), name)
        assert found_command is not None
        assert set(given) <= options(found_command)
