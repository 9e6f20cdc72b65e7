"""The base specification that the real ``nvidia-ctk`` makes, run by the agent in the pod that the chart makes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from dradriver.topology.machine import Machine, MigDevice, MigProfile
from tests.cluster.settings import NVIDIA_TOOLKITS
from tests.fakes import nvml
from tests.fakes.node import machine
from tests.fakes.server import complete
from tests.programs.host import CONTROL, COS, OPERATOR, TALOS, Host, Layout, nodes

WHOLE = complete(machine())
pytestmark = [
    pytest.mark.helm,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount"),
]
versions = pytest.mark.parametrize("version", [*NVIDIA_TOOLKITS, None], ids=lambda version: version or "image's")


@versions
def test_every_gpu_is_in_it(version: str | None, tmp_path: Path) -> None:
    host = Host(tmp_path, WHOLE, version=version)
    seen = host.look()
    assert seen.gpus == [gpu.uuid for gpu in WHOLE.gpus], seen.log
    devices = {one["name"]: nodes(one["containerEdits"]) for one in host.made["devices"]}
    assert devices.pop("driver") == ["/dev/nvidiactl"]
    assert devices == {gpu.uuid: host.nodes(gpu) for gpu in WHOLE.gpus}
    for gpu in WHOLE.gpus:
        link = f"../card{gpu.minor + 1}::/dev/dri/by-path/pci-{gpu.pci}-card"
        assert link in json.dumps(host.made)
    assert_common(host)


@versions
def test_the_operators_driver_and_toolkit(version: str | None, tmp_path: Path) -> None:
    host = Host(tmp_path, WHOLE, version=version, layout=OPERATOR)
    seen = host.look()
    if version == "1.15.0":  # it does not look for the driver's library below the driver's root: the image's does
        assert "nvidia-ctk cdi generate failed (1): " in seen.log
        assert "ERROR_LIBRARY_NOT_FOUND" in seen.log
    assert seen.gpus == [gpu.uuid for gpu in WHOLE.gpus], seen.log
    devices = {one["name"]: nodes(one["containerEdits"]) for one in host.made["devices"]}
    assert devices[WHOLE.gpus[3].uuid] == host.nodes(WHOLE.gpus[3])
    assert f"/run/nvidia/driver/dev/nvidia{WHOLE.gpus[3].minor}" in host.nodes(WHOLE.gpus[3])
    assert_common(host, hook=host.copied_hook if version == "1.15.0" else host.hook)


@versions
@pytest.mark.parametrize("layout", [COS, TALOS], ids=["cos", "talos"])
def test_drivers_without_device_nodes_of_their_own_and_libraries_in_odd_places(
    version: str | None, layout: Layout, tmp_path: Path
) -> None:
    host = Host(tmp_path, WHOLE, version=version, layout=layout)
    seen = host.look()
    if version == "1.15.0":  # it does not look for NVML below these folders: the image's does
        assert "ERROR_LIBRARY_NOT_FOUND" in seen.log
    assert seen.gpus == [gpu.uuid for gpu in WHOLE.gpus], seen.log
    devices = {one["name"]: nodes(one["containerEdits"]) for one in host.made["devices"]}
    assert devices[WHOLE.gpus[3].uuid] == host.nodes(WHOLE.gpus[3])
    assert_common(host, hook=host.copied_hook if version == "1.15.0" else host.hook)
    for mount in host.made["containerEdits"]["mounts"]:
        assert mount["hostPath"] == f"/{layout.driver}{mount['containerPath']}".replace("//", "/")
        assert mount["containerPath"].startswith(f"/{layout.libraries}/")


def assert_common(host: Host, *, hook: str = "") -> None:
    """Every container gets the driver's control nodes, libraries and hooks that are there; nothing is left behind."""
    edits = host.made["containerEdits"]
    assert nodes(edits) == [f"/{host.dev}/{name}" for name in sorted(CONTROL)]
    mounted = {Path(one["hostPath"]).name for one in edits["mounts"]}
    assert {f"{name}.so.{WHOLE.driver_version}" for name in ("libcuda", "libnvidia-ml")} <= mounted
    assert '/host"' not in json.dumps(host.made), "of the agent's own view of the host"
    assert "/host/" not in json.dumps(host.made)
    assert {one["path"] for one in edits["hooks"]} == {hook or host.hook}
    assert not any(p.is_file() for folder in ("dev/shm", "tmp") for p in (host.root / folder).iterdir())


def in_mig_mode(*indices: int) -> Machine:
    gpus = (msgspec.structs.replace(gpu, mig=()) if gpu.index in indices else gpu for gpu in WHOLE.gpus)
    return msgspec.structs.replace(WHOLE, gpus=tuple(gpus))


@versions
def test_parts_of_gpus_have_libraries_where_no_gpu_is_whole_and_no_instance_is_there(
    version: str | None, tmp_path: Path
) -> None:
    """From 1.18 on nvidia-ctk fails there, as after each reboot of a node whose instances are made on demand."""
    host = Host(tmp_path, in_mig_mode(*range(8)), version=version)
    seen = host.look()
    assert seen.gpus == [gpu.uuid for gpu in WHOLE.gpus], seen.log
    assert [one["name"] for one in host.made["devices"]] == ["driver"], seen.log
    assert_common(host)
    host.say(in_mig_mode(0))
    assert host.look().gpus == [gpu.uuid for gpu in WHOLE.gpus]
    assert {one["name"] for one in host.made["devices"]} == {"driver", *(gpu.uuid for gpu in WHOLE.gpus[1:])}
    assert_common(host)


@versions
def test_gpus_are_whole_next_to_one_with_an_instance(version: str | None, tmp_path: Path) -> None:
    profile = MigProfile(id=19, name="1g.10gb", compute=1, memory_mib=9856, most=7, starts=tuple(range(7)), size=1)
    device = MigDevice(0, "MIG-00000000-0000-0000-0000-000000000001", 7, 0, profile.name, profile.memory_mib, 19, 0)
    first = msgspec.structs.replace(WHOLE.gpus[0], mig=(device,), profiles=(profile,))
    mixed = msgspec.structs.replace(WHOLE, gpus=(first, *WHOLE.gpus[1:]))
    host = Host(tmp_path, mixed, version=version)
    more = nvml.instance_table("0/gi7", profile, 0, {0: 1})
    host.say(mixed, more | nvml.compute_table("0/gi7/ci0", 0, "0/0", device.uuid))
    host.capabilities(0, 7)
    assert host.look().gpus == [gpu.uuid for gpu in WHOLE.gpus]
    assert {one["name"] for one in host.made["devices"]} == {"driver", *(gpu.uuid for gpu in WHOLE.gpus[1:])}
    assert_common(host)
