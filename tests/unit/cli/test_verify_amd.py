"""``gputopo verify --this-machine`` on a node with GPUs of AMD: nothing of NVIDIA's is missed."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from dradriver.cli.main import main
from dradriver.node import boot
from dradriver.node.container_edits import GPU_FILE
from dradriver.node.discovery.kept_nics import KeptNics
from dradriver.node.discovery.nic_discovery import read_nics
from dradriver.node.discovery.pci import PciTree
from dradriver.topology import profiles
from tests.fakes.kfd import AmdServer, amd
from tests.fakes.server import complete


def said(root: Path, *, status: int) -> dict[str, tuple[str, str]]:
    words = ["--host-root", str(root), "--cdi-root", str(root / "cdi"), "-o", "json"]
    result = CliRunner().invoke(main, ["verify", "--this-machine", *words])
    assert result.exit_code == status, result.output
    return {one["check"]: (one["status"], one["message"]) for one in json.loads(result.stdout)["findings"]}


def server(root: Path, profile: str = "mi210-x8") -> AmdServer:
    found = AmdServer(root, amd(complete(profiles.load(profile))))
    devices = [{"name": gpu.uuid, "containerEdits": {}} for gpu in found.machine.gpus]
    (root / "cdi").mkdir()
    (root / "cdi" / GPU_FILE).write_text(json.dumps({"devices": devices}))
    return found


def test_a_machine_where_all_is_well(tmp_path: Path) -> None:
    server(tmp_path)
    found = said(tmp_path, status=0)
    assert found["driver"] == ("PASS", "amdgpu of the kernel")
    assert found["gpus"] == ("PASS", "8 x AMD Instinct MI210")
    assert found["profile"] == ("PASS", "the links are those of mi210-x8")
    assert found["base-specification"] == ("PASS", f"{tmp_path}/cdi/{GPU_FILE} has the device nodes of all 8 GPUs")
    assert found["fractions"][0] == "PASS"
    assert not {"mig", "mps", "toolkit", "links"} & found.keys()


def test_a_gpu_that_no_container_can_be_given_is_told(tmp_path: Path) -> None:
    server(tmp_path)
    (tmp_path / "cdi" / GPU_FILE).write_text('{"devices": [{"name": "GPU-00ab000000000001"}]}')
    status, text = said(tmp_path, status=1)["base-specification"]
    assert status == "FAIL"
    assert "GPU-00ab000000000008" in text


def test_errors_that_a_gpu_counts_are_told(tmp_path: Path) -> None:
    faulty = server(tmp_path)
    folder = faulty.device(2) / "ras"
    folder.mkdir()
    (folder / "umc_err_count").write_text("ue: 12\nce: 4\n")
    status, text = said(tmp_path, status=0)["gpus"]
    assert (status, text) == (
        "WARN", f"{faulty.machine.gpus[2].uuid}: ecc 12 uncorrected errors since the driver was loaded",
    )  # fmt: skip


def test_a_partitioned_machine_is_told(tmp_path: Path) -> None:
    (server(tmp_path).device(0) / "current_compute_partition").write_text("QPX\n")
    status, text = said(tmp_path, status=1)["driver"]
    assert (status, "QPX mode" in text) == ("FAIL", True)


def test_cards_that_pods_have_are_counted(tmp_path: Path) -> None:
    nics = server(tmp_path, "mi300x-x8").machine.nics
    file = tmp_path / "var/lib/kubelet/plugins/gpu.topology/nics.json"
    read_nics(tmp_path, PciTree(tmp_path), [], KeptNics(file, boot=boot.boot_id()))
    for nic in nics:
        (tmp_path / "sys/class/infiniband" / nic.name).unlink()
    assert nics
    told = f"{len(nics)} network cards, {len(nics)} with RDMA, of which pods have {len(nics)}"
    assert said(tmp_path, status=0)["nics"] == ("PASS", told)
