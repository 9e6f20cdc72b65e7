from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import webhook.__main__
from dradriver import __version__
from dradriver.controller import main as controller
from dradriver.node import agent_options as node
from dradriver.process.options import Common

PROCESSES: dict[str, tuple[Callable[[list[str]], Common], list[str], int]] = {
    "node": (node.parse, ["--node-name=n"], 8081),
    "controller": (controller.parse, ["--namespace=n", "--identity=me"], 8082),
    "webhook": (webhook.__main__.parse, ["--namespace=n", "--service=s", "--controller-user=u"], 8083),
}
each_process = pytest.mark.parametrize(("parse", "needed", "port"), PROCESSES.values(), ids=PROCESSES)


@each_process
def test_every_process_has_the_common_options_with_one_default_but_the_port(
    parse: Callable[[list[str]], Common], needed: list[str], port: int
) -> None:
    args = parse(needed)
    assert (args.kubeconfig, args.health_port, args.log_format, args.verbose) == (None, port, "text", False)
    assert args.policies is None


@each_process
def test_every_process_takes_the_common_options(
    parse: Callable[[list[str]], Common], needed: list[str], port: int
) -> None:
    args = parse([*needed, "--kubeconfig=/k", "--policies=/p", "--health-port=9", "--log-format=json", "-v"])
    assert args.policies == Path("/p")
    assert (args.kubeconfig, args.health_port, args.log_format, args.verbose) == (Path("/k"), 9, "json", True)


@each_process
def test_every_process_tells_its_version(
    parse: Callable[[list[str]], Common], needed: list[str], port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.strip() == __version__
