"""``gputopo verify --this-machine``: the hardware and its container runtime, with what is wrong and its cure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from dradriver.cli.main import main
from dradriver.node.vendors.nvidia.discovery import toolkit
from tests.fakes import nvml
from tests.fakes.hardware import Server, cdi_specification


@pytest.fixture
def dgx1(tmp_path: Path) -> Server:
    server = Server("dgx1-v100", tmp_path)
    base(server, cdi_specification(server.machine))
    return server


def cdi(server: Server) -> Path:
    folder = server.sys.root / "var/run/cdi"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def base(server: Server, text: str) -> None:
    found = json.loads(text)
    found["devices"].append({"name": toolkit.DRIVER, "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}})
    (cdi(server) / toolkit.FILE).write_text(json.dumps(found))


def said(server: Server, *more: str, status: int, driver: Path | None = None) -> dict[str, list[tuple[str, str]]]:
    words = ["verify", "--this-machine", *more, "--host-root", str(server.sys.root), "--cdi-root", str(cdi(server))]
    words += ["--driver-root", str(driver or nvml.compiled()), "-o", "json"]
    result = CliRunner().invoke(main, words, env=server.environment())
    assert result.exit_code == status, result.output
    found: dict[str, list[tuple[str, str]]] = {}
    for one in json.loads(result.stdout)["findings"]:
        assert bool(one["cure"]) == (one["status"] != "PASS")
        found.setdefault(one["check"], []).append((one["status"], one["said"]))
    return found


@pytest.fixture(autouse=True)
def _own_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device nodes are made in this machine's /dev."""
    monkeypatch.setattr("dradriver.node.vendors.nvidia.discovery.device_nodes.add_nodes", lambda sources: None)


def test_a_machine_where_all_is_well(dgx1: Server) -> None:
    found = said(dgx1, status=0)
    assert found["gpus"] == [("PASS", "8 x Tesla V100-SXM2-32GB")]
    assert found["links"] == [("PASS", "no GPU has fewer NVLinks than its siblings: 6")]
    assert found["profile"][0][0] == "PASS"
    assert "dgx1-v100" in found["profile"][0][1]
    assert found["base-specification"][0][0] == "PASS"
    assert found["cdi"][0][0] == "WARN", "there is no containerd here to ask"
    assert "fail" not in json.dumps(found).lower()


def test_without_a_driver_the_rest_is_looked_at_all_the_same(dgx1: Server, tmp_path: Path) -> None:
    found = said(dgx1, status=1, driver=tmp_path)
    assert found["driver"][0][0] == "FAIL"
    assert "libnvidia-ml.so.1" in found["driver"][0][1]
    assert {"toolkit", "cdi"} <= found.keys()
    assert "gpus" not in found


def test_a_specification_that_lacks_a_gpu_or_is_not_there(dgx1: Server) -> None:
    found: dict[str, Any] = json.loads(cdi_specification(dgx1.machine))
    found["devices"] = found["devices"][1:]
    base(dgx1, json.dumps(found))
    (one,) = said(dgx1, status=1)["base-specification"]
    assert one[0] == "FAIL"
    assert dgx1.machine.gpus[0].uuid in one[1]
    for text in ("{", "[]", ""):
        (cdi(dgx1) / toolkit.FILE).write_text(text)
        assert said(dgx1, status=1)["base-specification"][0][0] == "FAIL"
    (cdi(dgx1) / toolkit.FILE).unlink()
    assert "cannot be read" in said(dgx1, status=1)["base-specification"][0][1]


def test_a_lost_gpu_and_a_lost_link(tmp_path: Path) -> None:
    server = Server("hgx-h100", tmp_path)
    base(server, cdi_specification(server.machine))
    assert said(server, status=0)["links"][0][0] == "PASS"
    gpus = [msgspec.structs.replace(server.machine.gpus[0], switch_links=17), *server.machine.gpus[1:]]
    ill = Server(msgspec.structs.replace(server.machine, gpus=tuple(gpus), links=server.machine.links), tmp_path / "b")
    base(ill, cdi_specification(ill.machine))
    ill.table["lost 3"] = "0"
    found = said(ill, status=1)
    assert any(status != "PASS" for status, _ in found["gpus"])


@pytest.mark.parametrize("config", ["missing", "unreachable"])
def test_without_an_api_server_the_hardware_is_looked_at(dgx1: Server, tmp_path: Path, config: str) -> None:
    path = tmp_path / "config"
    if config == "unreachable":
        path.write_text(
            "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
            "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\nusers: [{name: u, user: {token: x}}]\n"
        )
    found = said(dgx1, "n1", "--kubeconfig", str(path), status=0)
    assert found["gpus"][0][0] == found["base-specification"][0][0] == "PASS"
    (one,) = found["slices"]
    assert one[0] == "WARN"
    assert "cannot be read" in one[1]


def test_beside_nvidias_driver_no_base_specification_is_wanted(dgx1: Server) -> None:
    (cdi(dgx1) / toolkit.FILE).unlink()
    assert "base-specification" not in said(dgx1, "--ledger", "gpu.nvidia.com", status=0)
