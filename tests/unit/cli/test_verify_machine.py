"""``gputopo verify --this-machine``: the hardware and its container runtime, with what is wrong and its cure."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from dradriver.cli.main import main
from dradriver.node import boot
from dradriver.node.container_edits import GPU_FILE
from dradriver.node.discovery.kept_nics import KeptNics
from dradriver.node.discovery.nic_discovery import read_nics
from dradriver.node.discovery.pci import PciTree
from dradriver.node.vendors.nvidia.discovery import base_specification
from dradriver.topology import profiles
from tests.fakes import nvml
from tests.fakes.hardware import Server, cdi_specification
from tests.fakes.server import complete


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
    found["devices"].append(
        {"name": base_specification.DRIVER, "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}
    )
    (cdi(server) / GPU_FILE).write_text(json.dumps(found))


def said(server: Server, *more: str, status: int, driver: Path | None = None) -> dict[str, list[tuple[str, str]]]:
    words = ["verify", "--this-machine", *more, "--host-root", str(server.sys.root), "--cdi-root", str(cdi(server))]
    words += ["--driver-root", str(driver or nvml.compiled()), "-o", "json"]
    result = CliRunner().invoke(main, words, env=server.environment())
    assert result.exit_code == status, result.output
    found: dict[str, list[tuple[str, str]]] = {}
    for one in json.loads(result.stdout)["findings"]:
        assert bool(one["cure"]) == (one["status"] != "PASS")
        found.setdefault(one["check"], []).append((one["status"], one["message"]))
    return found


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
        (cdi(dgx1) / GPU_FILE).write_text(text)
        assert said(dgx1, status=1)["base-specification"][0][0] == "FAIL"
    (cdi(dgx1) / GPU_FILE).unlink()
    assert "cannot be read" in said(dgx1, status=1)["base-specification"][0][1]


def test_a_lost_gpu_and_a_lost_link(tmp_path: Path) -> None:
    server = Server("hgx-h100", tmp_path)
    base(server, cdi_specification(server.machine))
    assert said(server, status=0)["links"][0][0] == "PASS"
    gpus = [msgspec.structs.replace(server.machine.gpus[0], switch_links=17), *server.machine.gpus[1:]]
    faulty = Server(
        msgspec.structs.replace(server.machine, gpus=tuple(gpus), links=server.machine.links), tmp_path / "b"
    )
    base(faulty, cdi_specification(faulty.machine))
    faulty.table["lost 3"] = "0"
    found = said(faulty, status=1)
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


def test_next_to_nvidias_driver_no_base_specification_is_wanted(dgx1: Server) -> None:
    (cdi(dgx1) / GPU_FILE).unlink()
    assert "base-specification" not in said(dgx1, "--allocating-driver", "gpu.nvidia.com", status=0)


# Network cards.


@pytest.fixture
def h100(tmp_path: Path) -> Server:
    server = Server("hgx-h100", tmp_path)
    base(server, cdi_specification(server.machine))
    return server


def port(server: Server, nic: str) -> str:
    return f"sys/class/infiniband/{nic}/ports/1"


def test_each_card_and_each_gpu_is_said_with_what_is_near(h100: Server) -> None:
    h100.sys.file("sys/module/nvidia_peermem/version", "580.95.05")
    found = said(h100, status=0)
    nics = h100.machine.nics
    assert found["nics"][0] == ("PASS", f"{len(nics)} network cards, {len(nics)} with RDMA")
    cards = found["nics"][1:]
    assert {status for status, _ in cards} == {"PASS"}
    assert [text.partition(":")[0] for _, text in cards] == [nic.name for nic in nics]
    assert cards[0][1].startswith(f"{nics[0].name}: port 1 InfiniBand ACTIVE 400 Gb/s (4X NDR), 7 siblings")
    assert cards[0][1].endswith("; nearest GPUs 0 (PIX)")
    assert [text for _, text in found["gpu-nics"]][:2] == [
        f"GPU 0: nearest {nics[0].name} (PIX)",
        f"GPU 1: nearest {nics[1].name} (PIX)",
    ]
    assert len(found["gpu-nics"]) == 8
    assert found["gpudirect"] == [("PASS", "yes: /sys/module/nvidia_peermem/version is there")]
    assert found["nic-errors"] == [("PASS", "no error counter grew while this looked")]


def test_a_port_that_is_down_and_one_that_is_slow_fail_and_the_rest_is_said(h100: Server) -> None:
    first, second, third = (nic.name for nic in h100.machine.nics[:3])
    h100.sys.file(f"{port(h100, first)}/state", "1: DOWN")
    h100.sys.file(f"{port(h100, first)}/phys_state", "2: Polling")
    h100.sys.file(f"{port(h100, first)}/rate", "10 Gb/sec (4X SDR)")
    h100.sys.file(f"{port(h100, second)}/rate", "200 Gb/sec (4X HDR)")
    h100.sys.file(f"sys/class/infiniband/{third}/board_id", "MT_1")
    found = {text.partition(":")[0]: (status, text) for status, text in said(h100, status=1)["nics"]}
    assert found[first][0] == found[second][0] == "FAIL"
    assert "DOWN (Polling)" in found[first][1]
    assert "10 Gb" not in found[first][1], "it is not slow, it is down"
    assert "its siblings at 400 Gb/s (4X NDR)" in found[second][1]
    assert {status for name, (status, _) in found.items() if name not in (first, second)} == {"PASS"}


@contextmanager
def while_the_machine_is_read(server: Server, change: Callable[[], object]) -> Iterator[None]:
    """Change something while the machine is read.

    The agent's file of cards is a pipe. Reading the machine opens it, once, and waits for what this writes.
    """
    pipe = server.sys.root / "var/lib/kubelet/plugins/gpu.topology/nics.json"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("w") as end:  # returns once the pipe is opened for reading
            change()
            end.write("{}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))  # the writer ends also if the pipe was not read
        writer.join()


def test_warnings_of_cards(h100: Server) -> None:
    first, second = (nic.name for nic in h100.machine.nics[:2])
    for nic in h100.machine.nics:
        h100.sys.file(f"sys/class/infiniband/{nic.name}/board_id", "MT_1")
        h100.sys.file(f"sys/class/infiniband/{nic.name}/fw_ver", "28.1" if nic.name == first else "28.2")
    counter = h100.sys.file(f"{port(h100, second)}/counters/symbol_error", "5")
    with while_the_machine_is_read(h100, lambda: counter.write_text("6\n")):
        found = said(h100, status=0)
    by_card = {text.partition(":")[0]: (status, text) for status, text in found["nics"]}
    assert by_card[first][0] == "WARN"
    assert "firmware 28.1, 7 others of board MT_1 have 28.2" in by_card[first][1]
    assert by_card[second][0] == "PASS"
    assert found["nic-errors"] == [("WARN", f"grew while this looked: symbol_error of port 1 of {second} by 1")]
    assert found["gpudirect"][0][0] == "WARN"
    assert found["gpudirect"][0][1].startswith("no: nvidia_peermem is not loaded")


def test_a_port_that_lost_its_link_far_more_often_than_its_siblings_is_warned_of(h100: Server) -> None:
    first, second, third = (nic.name for nic in h100.machine.nics[:3])
    for nic in h100.machine.nics:
        h100.sys.file(f"{port(h100, nic.name)}/counters/link_downed", "1")
    for name, total in ((first, 240), (second, 10), (third, 9)):
        h100.sys.file(f"{port(h100, name)}/counters/link_downed", str(total))
    since = "since its driver was loaded, half of its siblings 1 times or fewer"
    assert said(h100, status=0)["nic-errors"] == [
        ("PASS", "no error counter grew while this looked"),
        ("WARN", f"port 1 of {first} lost its link 240 times {since}"),
        ("WARN", f"port 1 of {second} lost its link 10 times {since}"),
    ]
    h100.sys.file(f"{port(h100, second)}/state", "1: DOWN")
    h100.sys.file(f"{port(h100, second)}/phys_state", "3: Disabled")
    assert len(said(h100, status=0)["nic-errors"]) == 2, "one that is switched off lost its link by that"
    h100.sys.file(f"{port(h100, second)}/state", "4: ACTIVE")
    for nic in h100.machine.nics[3:]:
        h100.sys.file(f"{port(h100, nic.name)}/counters/link_downed", "24")
    assert len(said(h100, status=0)["nic-errors"]) == 2, "of all together only what stands out"


def test_ports_that_are_all_down_are_warned_of(h100: Server) -> None:
    for nic in h100.machine.nics:
        h100.sys.file(f"{port(h100, nic.name)}/state", "1: DOWN")
    found = said(h100, status=0)["nics"][1:]
    assert {status for status, _ in found} == {"WARN"}


def test_without_a_driver_cards_are_looked_at_all_the_same(h100: Server, tmp_path: Path) -> None:
    found = said(h100, status=1, driver=tmp_path)
    assert len(found["nics"]) == len(h100.machine.nics)
    assert not {"gpu-nics", "gpudirect"} & found.keys()


def test_cards_without_rdma_are_said_with_their_state(tmp_path: Path) -> None:
    machine = complete(profiles.load("hgx-h100"))
    nics = tuple(msgspec.structs.replace(nic, kind="ethernet") for nic in machine.nics)
    server = Server(msgspec.structs.replace(machine, nics=nics), tmp_path)
    base(server, cdi_specification(server.machine))
    server.sys.file(f"sys/class/net/{nics[0].name}/operstate", "up")
    (one,) = said(server, status=0)["nics"]
    assert one[0] == "WARN"
    assert one[1].startswith(f"{len(nics)} network cards, none with RDMA: {nics[0].name} up, {nics[1].name} ?, ")


def test_cards_that_pods_have_are_counted_and_nothing_is_wrong_with_them(h100: Server) -> None:
    root, nics = h100.sys.root, h100.machine.nics
    file = root / "var/lib/kubelet/plugins/gpu.topology/nics.json"
    read_nics(root, PciTree(root), [], KeptNics(file, boot=boot.boot_id()))
    known = file.read_bytes()
    for nic in nics:
        (root / "sys/class/infiniband" / nic.name).unlink()
    found = said(h100, status=0)
    assert found["nics"] == [
        ("PASS", f"{len(nics)} network cards, {len(nics)} with RDMA, of which pods have {len(nics)}")
    ]
    assert found["gpu-nics"][0] == ("PASS", f"GPU 0: nearest {nics[0].name} (PIX)")
    assert file.read_bytes() == known, "it is the agent's"
    KeptNics(file, boot="the boot before").keep(read_nics(root, PciTree(root), [], KeptNics(file, boot=boot.boot_id())))
    status, text = said(h100, status=0)["nics"][0]
    assert (status, text) == ("WARN", "0 network cards, none with RDMA")
