from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from dradriver.node.claims import cdi
from dradriver.node.claims.cdi import CdiFolder
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.container_edits import DeviceNode, Edits, Mount

UID = "0b0b0b0b-1111-2222-3333-444444444444"


def device(number: int, request: str = "main", share: str | None = None, env: tuple[str, ...] = ()) -> PreparedDevice:
    return PreparedDevice(
        request=request,
        pool="n",
        device=f"gpu-00000000-0000-0000-0000-00000000000{number}",
        uuid=f"GPU-{number}",
        edits=Edits(nodes=(DeviceNode(f"/dev/nvidia{number}", "/dev/null"),), env=env),
        share_id=share,
    )


def claim(*devices: PreparedDevice) -> PreparedClaim:
    return PreparedClaim(uid=UID, namespace="ns", name="c", devices=devices)


def test_a_spec_has_one_device_node_for_every_gpu() -> None:
    spec = cdi.spec(claim(device(3), device(5)))
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "gpu.topology/claim")
    assert [d["containerEdits"]["deviceNodes"] for d in spec["devices"]] == [
        [{"path": "/dev/nvidia3", "hostPath": "/dev/null", "type": "c", "permissions": "rw"}],
        [{"path": "/dev/nvidia5", "hostPath": "/dev/null", "type": "c", "permissions": "rw"}],
    ]


def test_variables_reach_only_the_containers_of_their_request() -> None:
    one = claim(device(0, "a", env=("X=1",)), device(1, "a"), device(2, "b", env=("X=2",)))
    spec = cdi.spec(one)
    env = {d["name"]: d["containerEdits"].get("env") for d in spec["devices"]}
    assert list(env.values()) == [["X=1"], None, ["X=2"]]
    assert "containerEdits" not in spec


def test_ids_name_the_specs_devices_are_valid_and_never_alike() -> None:
    one = claim(device(0), device(0, share="s1"), device(0, share="s2"), device(1), device(1, "other"))
    names = [d["name"] for d in cdi.spec(one)["devices"]]
    assert [cdi.device_ids(one, d) for d in one.devices] == [[f"gpu.topology/claim={name}"] for name in names]
    assert len(set(names)) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", name) and UID in name for name in names)


def test_on_real_hardware_nvidias_spec_brings_the_device_and_ours_the_variables(tmp_path: Path) -> None:
    real = [
        msgspec.structs.replace(device(n, request), edits=Edits(cdi=(f"nvidia.com/gpu=GPU-{n}",)))
        for n, request in enumerate(("a", "a", "b"))
    ]
    told = msgspec.structs.replace(real[0], edits=real[0].edits + Edits(env=("X=1",)))
    one = claim(told, *real[1:])
    (only,) = cdi.spec(one)["devices"]
    assert only["containerEdits"] == {"env": ["X=1"]}
    assert [cdi.device_ids(one, d) for d in one.devices] == [
        ["nvidia.com/gpu=GPU-0", f"gpu.topology/claim={only['name']}"],
        ["nvidia.com/gpu=GPU-1"],
        ["nvidia.com/gpu=GPU-2"],
    ]
    folder = CdiFolder(tmp_path)
    folder.write(one)
    assert len(list(tmp_path.iterdir())) == 1
    folder.write(claim(*real))
    assert list(tmp_path.iterdir()) == []


def test_a_spec_file_is_written_and_removed_by_uid(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path / "cdi")
    one = claim(device(0))
    folder.write(one)
    path = tmp_path / "cdi" / f"gpu.topology-claim_{UID}.json"
    assert json.loads(path.read_text()) == cdi.spec(one)
    folder.remove(UID)
    folder.remove(UID)
    assert list((tmp_path / "cdi").iterdir()) == []


def test_sweep_removes_our_other_specs_and_leaves_those_of_others(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    folder.write(claim(device(0)))
    folder.write(msgspec.structs.replace(claim(device(1)), uid="gone"))
    (tmp_path / "gpu.topology-claim_half.json.tmp").write_text("{")
    (tmp_path / "k8s.gpu.nvidia.com-claim_x.json").write_text("not ours")
    assert folder.sweep(keep={UID}) == ["gone"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"gpu.topology-claim_{UID}.json",
        "k8s.gpu.nvidia.com-claim_x.json",
    ]


def test_a_mount_is_one_that_the_container_cannot_write(tmp_path: Path) -> None:
    one = claim(msgspec.structs.replace(device(0), edits=Edits(mounts=(Mount("/host/a", "/in/a"),))))
    (only,) = cdi.spec(one)["devices"]
    assert only["containerEdits"] == {
        "mounts": [{"hostPath": "/host/a", "containerPath": "/in/a", "options": ["ro", "nosuid", "nodev", "bind"]}]
    }


def test_what_was_printed_can_be_read_and_what_others_printed_is_not_guessed(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    edits = Edits(nodes=(DeviceNode("/dev/a", "/dev/b"),), mounts=(Mount("/host/a", "/in/a"),), env=("X=1",))
    one = claim(msgspec.structs.replace(device(0), edits=edits), device(1))
    folder.write(one)
    assert folder.read(UID) == {cdi.device_name(one, d): d.edits for d in one.devices}
    assert folder.read("unknown") == {}
    path = tmp_path / f"gpu.topology-claim_{UID}.json"
    for damage in (b"{", path.read_bytes().replace(b'"env"', b'"hooks"')):
        path.write_bytes(damage)
        assert folder.read(UID) is None
