from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from dradriver.node.protos.dra.v1 import dra_pb2
from dradriver.node.protos.health.v1 import health_pb2 as health_v1
from dradriver.node.protos.health.v1alpha1 import health_pb2 as health_v1alpha1
from dradriver.node.protos.pluginregistration import pluginregistration_pb2 as registration_pb2
from tests.paths import REPO


@pytest.fixture
def generate() -> ModuleType:
    pytest.importorskip("grpc_tools", reason="the stubs are generated with grpcio-tools, which is not installed")
    spec = importlib.util.spec_from_file_location("protos_generate", REPO / "protos" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stubs_are_what_the_definitions_say(generate: ModuleType) -> None:
    assert generate.main(["--check"]) == 0


def test_drift_is_named(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    stray = tmp_path / generate.PACKAGE / "old_pb2.py"
    stray.parent.mkdir(parents=True)
    stray.write_text("")
    assert generate.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert "old_pb2.py" in said
    assert "dra_pb2_grpc.py" in said
    assert generate.main([]) == 0
    assert not stray.exists()
    assert generate.main(["--check"]) == 0


def fields(message: type) -> list[tuple[str, int]]:
    return [(f.name, f.number) for f in message.DESCRIPTOR.fields]  # type: ignore[attr-defined]


def test_the_field_numbers_are_the_kubelets() -> None:
    assert registration_pb2.DESCRIPTOR.package == "pluginregistration"
    assert fields(registration_pb2.PluginInfo) == [("type", 1), ("name", 2), ("endpoint", 3), ("supported_versions", 4)]
    assert fields(registration_pb2.RegistrationStatus) == [("plugin_registered", 1), ("error", 2)]
    assert fields(dra_pb2.Claim) == [("namespace", 1), ("uid", 2), ("name", 3)]
    assert fields(dra_pb2.Device) == [
        ("request_names", 1),
        ("pool_name", 2),
        ("device_name", 3),
        ("cdi_device_ids", 4),
        ("share_id", 5),
    ]
    assert fields(dra_pb2.NodePrepareResourceResponse) == [("devices", 1), ("error", 2)]
    assert fields(dra_pb2.NodeUnprepareResourceResponse) == [("error", 1)]


def test_file_names_cannot_clash_in_protobufs_global_pool() -> None:
    assert dra_pb2.DESCRIPTOR.name == "dradriver/node/protos/dra/v1/dra.proto"


@pytest.mark.parametrize(("health", "version"), [(health_v1, "v1"), (health_v1alpha1, "v1alpha1")])
def test_health_is_the_kubelets(health: ModuleType, version: str) -> None:
    assert health.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name == f"{version}.DRAResourceHealth"
    assert fields(health.DeviceIdentifier) == [("pool_name", 1), ("device_name", 2)]
    assert fields(health.DeviceHealth) == [
        ("device", 1),
        ("health", 2),
        ("last_updated_time", 3),
        ("health_check_timeout_seconds", 4),
        ("message", 5),
    ]
    assert (health.UNKNOWN, health.HEALTHY, health.UNHEALTHY) == (0, 1, 2)
