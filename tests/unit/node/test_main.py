from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dradriver.node import agent_options as module
from dradriver.node.agent_options import parse
from dradriver.node.main import main
from tests.paths import REPO


def test_the_defaults_are_a_kubelets() -> None:
    args = parse(["--node-name=n"])
    assert (args.kubelet_root, args.cdi_root) == (Path("/var/lib/kubelet"), Path("/var/run/cdi"))
    assert (args.health_port, args.rediscover_s, args.discovery) == (8081, 10.0, "auto")
    assert (args.driver_root, args.host_root) == (None, Path("/"))


def test_nodes_have_machines_of_their_own() -> None:
    words = ["--node-name=n", "--discovery=simulated", "--simulated-machine=a=dgx1-v100"]
    args = parse([*words, "--simulated-machine", "b=/x/y=z.txt"])
    assert args.simulated_machines == {"a": "dgx1-v100", "b": "/x/y=z.txt"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--node-name"),
        (["--node-name=n", "--discovery=nvlm"], "choose from"),
        (["--node-name=n", "--simulated-default=dgx1-v100"], "Add --discovery=simulated"),
        (["--node-name=n", "--simulated-machine=dgx1-v100"], "Write NODE=PROFILE"),
        (["--node-name=n", "--rediscover=0"], "Write a number of seconds above 0"),
        (["--node-name=n", "--rediscover=soon"], "Write a number of seconds above 0"),
        (["--node-name=n", "--log-format=xml"], "--log-format"),
    ],
)
def test_a_bad_command_line_says_what_to_write(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_node_without_a_machine_is_said_in_one_line_and_ends_with_1(tmp_path: Path) -> None:
    context = {"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
    cluster = {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "u"}]}
    (tmp_path / "kubeconfig").write_text(json.dumps(context | cluster))
    words = [sys.executable, "-m", "dradriver", "node", "--node-name=n", f"--kubeconfig={tmp_path / 'kubeconfig'}"]
    words += ["--kubelet-root=/none", "--discovery=simulated"]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "node n has no simulated machine" in done.stderr
    assert len(done.stderr.splitlines()) == 1


LOADED = """
import json, sys
from dradriver.node import main
before = set(sys.modules)
import dradriver.node.agent
print(json.dumps([sorted(before), sorted(sys.modules)]))
"""


@pytest.mark.slow
def test_help_imports_nothing_heavy_and_the_agent_nothing_it_must_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=REPO, capture_output=True, text=True, check=True, timeout=60
    )
    light, whole = (set(names) for names in json.loads(done.stdout))
    assert not light & {"grpc", "aiohttp", "msgspec", "yaml", "asyncio", "prometheus_client"}
    assert not whole & {"numpy", "kubernetes", "cryptography", "pynvml", "rich", "click"}
    assert {"grpc", "aiohttp"} <= whole


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert all(word in said for action in module.parser()._actions for word in action.option_strings)
