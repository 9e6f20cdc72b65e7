"""What a container is told of its devices: device metadata, NCCL's files, and what the claim's status says."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Choice, Level
from dradriver.api.base import names
from dradriver.api.base.objects import Node
from dradriver.api.slices import resource_slices
from dradriver.errors import DriverError
from dradriver.kube.errors import ApiError, Unreachable
from dradriver.node import metrics
from dradriver.node.claims import status
from dradriver.node.claims.host_server import INSTANCE_TYPE, HostServer
from dradriver.node.claims.prepare_plan import Plan, plan
from dradriver.node.claims.status import Statuses
from dradriver.node.errors import ClaimError, NotYetError
from dradriver.topology import nccl, profiles
from dradriver.topology.machine import Machine, PathType
from dradriver.topology.nccl.nccl_file_writer import VIRTUAL_PATH
from dradriver.topology.nccl.tuning import CONF_PATH
from tests.fakes.node import (
    BOOT,
    NODE,
    Object,
    claim,
    container_env,
    device,
    device_manager,
    machine,
    parameters,
    result,
    typed,
    uuid,
)
from tests.fakes.preparing import World

METADATA = "/var/run/kubernetes.io/dra-device-attributes"
VM = "h100-x8-flat-vm"


def planned(obj: Object, on: Machine | None = None, *, below: str | None = None, **settings: Any) -> Plan:
    server = profiles.load(below) if below is not None else None
    return plan(
        typed(obj), on or machine(), device_manager(), container_env(**settings), node=NODE, boot=BOOT, below=server
    )  # fmt: skip


def mounted(done: Plan) -> dict[str, str]:
    """The content of what is mounted, by the container's path."""
    found = [mount for one in done.claim.devices for mount in one.edits.mounts]
    assert all(mount.host_path.startswith(f"/state/files/{done.claim.uid}/") for mount in found)
    return {mount.path: done.files(done.claim)[mount.host_path.rpartition("/")[2]].decode() for mount in found}


def vm_claim(gpus: list[int], **config: Any) -> tuple[Object, Machine]:
    on = profiles.load(VM, seed=NODE)
    results = [result("gpu", resource_slices.device_name(on.gpus[i].uuid)) for i in gpus]
    return claim("c", results=results, config=[parameters(**config)]), on


def placed(gpus: dict[str, Sequence[int]], choice: Choice) -> Object:
    """A claim as the controller makes it."""
    obj = claim("c", gpus, config=[parameters({name: [uuid(i) for i in part] for name, part in gpus.items()})])
    obj["metadata"] |= {
        "labels": {names.LABEL: names.LABEL_PLACED},
        "annotations": {names.CHOICE: msgspec.json.encode(choice).decode()},
    }
    return obj


CHOICE = Choice(
    gpus=(0, 1, 2, 3),
    containers=((3, 0), (1, 2)),
    ring=(0, 1, 2, 3),
    busbw_gbps=47.6,
    bandwidth_gbps=20.5,
    level=Level.NVLINK,
    score=97,
)


# Device metadata.


def test_a_container_can_read_which_devices_it_has() -> None:
    ((path, text),) = mounted(planned(claim("c", [3, 0]))).items()
    assert path == f"{METADATA}/resourceclaims/c/gpu/gpu.topology-metadata.json"
    file = msgspec.json.decode(text)
    assert (file["apiVersion"], file["kind"]) == ("metadata.resource.k8s.io/v1alpha1", "DeviceMetadata")
    assert file["metadata"] == {"name": "c", "namespace": "default", "uid": "uid-c", "generation": 1}
    (request,) = file["requests"]
    assert [(d["driver"], d["pool"], d["name"]) for d in request["devices"]] == [
        ("gpu.topology", NODE, device(3)),
        ("gpu.topology", NODE, device(0)),
    ]
    published = {
        d["name"]: d["attributes"]
        for d in resource_slices.build(machine(), node=NODE, node_uid="u")[0]["spec"]["devices"]
    }
    assert [d["attributes"] for d in request["devices"]] == [published[device(3)], published[device(0)]]


def test_each_request_has_a_file_of_its_own_at_its_first_device() -> None:
    done = planned(claim("c", {"a": [0, 1], "b": [2]}))
    assert [len(d.edits.mounts) for d in done.claim.devices] == [1, 0, 1]
    files = {path: msgspec.json.decode(text) for path, text in mounted(done).items()}
    assert {path.split("/")[-2]: len(f["requests"][0]["devices"]) for path, f in files.items()} == {"a": 2, "b": 1}


def test_a_templates_claim_is_found_by_its_name_in_the_pod_and_a_ladders_rung_is_said() -> None:
    obj = claim("pod-gpu-x7x", results=[result("gpu/nvlink", device(0))])
    obj["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "my-gpu"}
    ((path, text),) = mounted(planned(obj)).items()
    assert path == f"{METADATA}/resourceclaimtemplates/my-gpu/gpu/gpu.topology-metadata.json"
    assert (msgspec.json.decode(text)["podClaimName"], msgspec.json.decode(text)["requests"][0]["name"]) == (
        "my-gpu",
        "gpu/nvlink",
    )


@pytest.mark.parametrize("text", ["../../etc", "a/b", "", "A", "x\n", "ü"])
def test_text_that_could_be_a_path_is_no_name(text: str) -> None:
    obj = claim("c", [0])
    obj["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": text}
    assert list(mounted(planned(obj))) == [f"{METADATA}/resourceclaims/c/gpu/gpu.topology-metadata.json"]


def test_what_the_controller_chose_is_said_with_the_place_in_the_ring() -> None:
    done = planned(placed({"a": [3, 0], "b": [1, 2]}, CHOICE))
    devices = [d for text in mounted(done).values() for d in msgspec.json.decode(text)["requests"][0]["devices"]]
    assert {d["name"]: d["attributes"]["ringPosition"]["int"] for d in devices} == {device(i): i for i in range(4)}
    for one in devices:
        assert (
            one["attributes"].items()
            >= {
                "level": {"string": "nvlink"},
                "bandwidthGBps": {"int": 20},
                "busbwGBps": {"int": 47},
                "score": {"int": 97},
            }.items()
        )


def test_what_is_not_predicted_is_not_said() -> None:
    done = planned(placed({"a": [3, 0], "b": [1, 2]}, msgspec.structs.replace(CHOICE, busbw_gbps=0.0)))
    for text in mounted(done).values():
        assert "busbwGBps" not in text
        assert "bandwidthGBps" in text
    obj = placed({"a": [3, 0], "b": [1, 2]}, msgspec.structs.replace(CHOICE, busbw_gbps=0.0))
    for entry in status.body(typed(obj), done.claim, now=NOW)["status"]["devices"]:
        assert "busbwGBps" not in entry["data"]
        assert entry["data"]["bandwidthGBps"] == 20.5


def test_a_bandwidth_that_is_not_known_is_not_said() -> None:
    choice = msgspec.structs.replace(CHOICE, busbw_gbps=0.0, bandwidth_gbps=0.0)
    obj = placed({"a": [3, 0], "b": [1, 2]}, choice)
    done = planned(obj)
    for text in mounted(done).values():
        assert "bandwidthGBps" not in text
        assert "busbwGBps" not in text
    for entry in status.body(typed(obj), done.claim, now=NOW)["status"]["devices"]:
        assert not [key for key in entry["data"] if "GBps" in key]


def test_a_ring_of_other_gpus_than_the_claims_is_not_said() -> None:
    obj = placed({"a": [3, 0], "b": [1, 2]}, msgspec.structs.replace(CHOICE, ring=(0, 1, 2, 7)))
    (first, *_) = mounted(planned(obj)).values()
    assert "ringPosition" not in first
    damaged = placed({"a": [3, 0], "b": [1, 2]}, CHOICE)
    damaged["metadata"]["annotations"][names.CHOICE] = "{"
    assert "busbwGBps" not in next(iter(mounted(planned(damaged)).values()))


# NCCL.


def test_a_container_that_sees_the_truth_gets_no_file() -> None:
    assert VIRTUAL_PATH not in mounted(planned(claim("c", [0, 1]), below="dgx1-v100"))


def test_in_a_flat_virtual_machine_nccl_gets_the_paths_of_the_server_below_for_its_own_gpus() -> None:
    obj, on = vm_claim([0, 1, 4, 5])
    text = mounted(planned(obj, on, below="hgx-h100"))[VIRTUAL_PATH]
    assert [one for one in nccl.check(text) if one.error] == []
    assert {i for i, gpu in enumerate(on.gpus) if gpu.pci in text} == {0, 1, 4, 5}
    whole, part = nccl.read(nccl.write(on, like=profiles.load("hgx-h100"))), nccl.read(text)
    assert paths(part) == {pair: path for pair, path in paths(whole).items() if set(pair) <= set(by_pci(part))}
    assert {nic.pci for nic in part.nics} < {nic.pci for nic in whole.nics}


def by_pci(of: Machine) -> list[str]:
    return [gpu.pci for gpu in of.gpus]


def paths(of: Machine) -> dict[tuple[str, str], PathType]:
    found = by_pci(of)
    return {(a, b): of.paths[i][j] for i, a in enumerate(found) for j, b in enumerate(found)}


def test_without_the_server_below_none_is_written_and_the_log_says_once_what_to_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    obj, on = vm_claim([0, 1])
    teller_of = container_env()
    for _ in range(3):
        done = plan(typed(obj), on, device_manager(), teller_of, node=NODE, boot=BOOT)
        assert VIRTUAL_PATH not in mounted(done)
    assert caplog.text.count("Write nccl.servers in the policies file") == 1


def test_a_server_that_cannot_be_the_one_below_is_said_and_no_file_is_written(caplog: pytest.LogCaptureFixture) -> None:
    obj, on = vm_claim([0, 1])
    assert VIRTUAL_PATH not in mounted(planned(obj, on, below="gb200-nvl72-tray"))
    assert "this machine has 8" in caplog.text


def test_off_tells_nothing_and_file_and_env_write_in_any_case() -> None:
    obj, on = vm_claim([0, 1], nccl="off")
    assert VIRTUAL_PATH not in mounted(planned(obj, on, below="hgx-h100"))
    for mode, named in (("file", False), ("env", True)):
        done = planned(claim("c", [0, 1], config=[parameters(nccl=mode)]))
        assert VIRTUAL_PATH in mounted(done)
        assert (f"NCCL_TOPO_FILE={VIRTUAL_PATH}" in done.claim.devices[0].edits.env) is named


def test_a_file_that_the_author_names_stays_the_one() -> None:
    done = planned(claim("c", [0, 1], config=[parameters(keep_env=["NCCL_TOPO_FILE"], nccl="env")]))
    assert not any("NCCL_TOPO_FILE" in word for word in done.claim.devices[0].edits.env)


def test_a_file_that_was_asked_for_and_cannot_be_written_is_an_error_of_the_claim() -> None:
    bare = msgspec.structs.replace(machine(), cpu=None)
    with pytest.raises(ClaimError, match=r"no NCCL topology file can be written here: cpu: .*gpu.topology/nccl: off"):
        planned(claim("c", [0, 1], config=[parameters(nccl="file")]), bare)


@pytest.mark.parametrize(("profile", "line"), [("auto", "NCCL_P2P_LEVEL=NVL"), ("multinode", "NCCL_CROSS_NIC=0")])
def test_a_tuning_profile_is_a_file_below_all_that_a_pod_says(profile: str, line: str) -> None:
    assert line in mounted(planned(claim("c", [0, 1]), profile=profile))[CONF_PATH].splitlines()
    assert CONF_PATH not in mounted(planned(claim("c", [0]), profile=profile))
    assert CONF_PATH not in mounted(planned(claim("c", [0, 1], config=[parameters(nccl="off")]), profile=profile))
    assert CONF_PATH not in mounted(planned(claim("c", [0, 1])))


async def test_files_come_with_the_claim_and_go_with_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    preparer = world.preparer()
    done = await preparer.prepare(*world.put(claim("c", [0, 1], config=[parameters(nccl="file")])))
    paths = [Path(mount.host_path) for one in done.devices for mount in one.edits.mounts]
    assert len(paths) == 2
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in paths)
    (tmp_path / "state/files/gone").mkdir()
    (tmp_path / "state/files/gone/x.json").write_text("{}")
    await world.preparer().recover()
    assert [path.name for path in (tmp_path / "state/files").iterdir()] == ["uid-c"]
    assert all(path.exists() for path in paths)
    await preparer.unprepare("uid-c")
    assert list((tmp_path / "state/files").iterdir()) == []


# The server below.


def node(kind: str) -> Node:
    return msgspec.convert({"metadata": {"name": NODE, "labels": {INSTANCE_TYPE: kind}}}, Node)


async def test_the_server_below_is_found_by_the_nodes_label_and_asked_for_once() -> None:
    answers: list[Node | DriverError] = [Unreachable("no route"), node("p5.48xlarge")]

    async def get_node() -> Node:
        answer = answers.pop(0)
        if isinstance(answer, DriverError):
            raise answer
        return answer

    servers = {"p5.48xlarge": "hgx-h100", "other": "dgx1-v100"}
    below = HostServer(lambda: servers, get_node)
    with pytest.raises(NotYetError, match="instance type cannot be read: no route"):
        await below.find()
    for _ in range(3):
        assert await below.find() == profiles.load("hgx-h100")
    assert answers == []
    servers["p5.48xlarge"] = "hgx-h200"
    assert await below.find() == profiles.load("hgx-h200"), "another file is in force"
    servers.clear()
    assert await below.find() is None


async def test_an_unnamed_type_is_said_and_none_named_is_not_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def get_node() -> Node:
        return node("g2")

    below = HostServer(lambda: {"p5": "hgx-h100"}, get_node)
    for _ in range(3):
        assert await below.find() is None
    assert caplog.text.count("has no entry for the instance type 'g2'. It has p5") == 1
    assert await HostServer(dict, pytest.fail).find() is None


# The claim's status.

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def test_the_status_says_of_each_device_that_it_is_ready_and_how_good_the_set_is() -> None:
    obj = placed({"a": [3, 0], "b": [1, 2]}, CHOICE)
    body = status.body(typed(obj), planned(obj).claim, now=NOW)
    assert body["metadata"] == {"name": "c", "namespace": "default", "uid": "uid-c"}
    devices = body["status"]["devices"]
    assert [(d["driver"], d["pool"], d["device"]) for d in devices] == [
        ("gpu.topology", NODE, device(i)) for i in (3, 0, 1, 2)
    ]
    assert devices[0]["conditions"] == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Prepared",
            "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        }
    ]
    assert devices[0]["data"] == {
        "uuid": uuid(3),
        "request": "a",
        "level": "nvlink",
        "bandwidthGBps": 20.5,
        "busbwGBps": 47.6,
        "score": 97,
        "ring": [uuid(i) for i in range(4)],
    }


def test_a_share_is_named_with_its_id_and_a_plain_claim_has_its_uuids() -> None:
    obj = claim("c", results=[result("gpu", device(0), shareID="s-1")])
    (entry,) = status.body(typed(obj), planned(obj).claim, now=NOW)["status"]["devices"]
    assert (entry["shareID"], entry["data"]) == ("s-1", {"uuid": uuid(0), "request": "gpu", "uuids": [uuid(0)]})


def test_the_data_of_the_largest_claim_fits() -> None:
    obj = placed({"a": list(range(8))}, CHOICE)
    for entry in status.body(typed(obj), planned(obj).claim, now=NOW)["status"]["devices"]:
        assert len(msgspec.json.encode(entry["data"])) * 4 < 10_240  # 32 devices at most


class Server:
    """Takes statuses, after some errors."""

    def __init__(self, *errors: DriverError) -> None:
        self.errors = list(errors)
        self.asked = 0
        self.taken: list[str] = []

    async def apply(self, namespace: str, name: str, body: Object) -> None:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        self.taken.append(f"{namespace}/{name}")


async def written(server: Server, *claims: str) -> None:
    statuses = Statuses(server.apply)
    for name in claims:
        obj = claim(name, [0])
        statuses.put(typed(obj), planned(obj).claim)
    task = asyncio.create_task(statuses.run())
    await asyncio.sleep(120)
    task.cancel()


@pytest.mark.looptime
async def test_what_passes_is_tried_again_and_what_does_not_is_left(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(Unreachable("x"), ApiError(503), ApiError(429))
    await written(server, "a", "b")
    assert sorted(server.taken) == ["default/a", "default/b"]
    gone = Server(ApiError(404), ApiError(409, "Conflict"))
    await written(gone, "a", "b", "c")
    assert (gone.asked, gone.taken) == (3, ["default/c"])
    lost = metrics.STATUS_LOST._value.get()
    refused = Server(*[ApiError(403, "Forbidden", "no rights")] * 2)
    await written(refused, "a", "b", "c")
    assert (refused.asked, refused.taken) == (3, ["default/c"])
    assert caplog.text.count("cannot be written: 403 Forbidden: no rights") == 1
    assert metrics.STATUS_LOST._value.get() == lost + 2


@pytest.mark.looptime
async def test_a_server_that_is_away_keeps_no_more_than_some_claims() -> None:
    server = Server()
    statuses = Statuses(server.apply)
    lost = metrics.STATUS_LOST._value.get()
    for number in [*range(300), 0]:
        obj = claim(f"c{number}", [0])
        statuses.put(typed(obj), planned(obj).claim)
    assert metrics.STATUS_LOST._value.get() == lost + 44
