"""Breaking GPUs of simulated nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dradriver.cli.main import main
from dradriver.node.discovery import simulated_failures
from dradriver.node.discovery.simulated_machine import Simulated
from dradriver.node.errors import SetupError
from dradriver.topology.machine import Machine
from tests.fakes.node import NODE, a_node, device, eventually, machine, uuid


def fault(folder: Path, *words: str) -> Result:
    """Run ``gputopo fault`` on a node that has an agent."""
    simulated(folder).read()
    return run(folder, *words)


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["fault", words[0], "--dir", str(folder), *words[1:]])


def simulated(folder: Path, profile: str = "dgx1-v100") -> Simulated:
    return Simulated(profile, node=NODE, folder=folder)


def kinds(found: Simulated) -> dict[int, list[str]]:
    whole = found.read()
    index = {gpu.uuid: gpu.index for gpu in whole.gpus}
    return {index[uuid]: [one.said for one in some] for uuid, some in found.faults.items() if some}


@pytest.mark.parametrize("gpu", ["gpu-3", "3", "gpu3", uuid(3)])
def test_a_link_that_is_down_is_missing_at_both_ends(gpu: str, tmp_path: Path) -> None:
    assert fault(tmp_path, "fail", "--node", NODE, gpu, "--nvlink", "0").exit_code == 0
    found = simulated(tmp_path)
    # GPU 3's first two links are those to GPU 0
    assert found.read().links[3][0] == found.read().links[0][3] == machine().links[3][0] - 1
    assert kinds(found) == {0: ["5 of 6 NVLinks are up"], 3: ["5 of 6 NVLinks are up"]}
    assert fault(tmp_path, "heal", "--node", NODE, gpu).exit_code == 0
    assert (found.read(), kinds(found)) == (machine(), {})


def test_a_link_to_a_switch_is_missed_by_its_gpu_alone(tmp_path: Path) -> None:
    found = simulated(tmp_path, "hgx-h100")
    found.read()
    run(tmp_path, "fail", "--node", NODE, "gpu-3", "--nvlink", "0", "--nvlink", "17")
    assert kinds(found) == {3: ["16 of 18 NVLinks are up"]}
    assert {found.read().links[3][j] for j in range(8) if j != 3} == {16}
    assert found.read().links[0][1] == 18


def test_what_is_broken_adds_up_and_is_repaired_one_by_one_or_all(tmp_path: Path) -> None:
    said = fault(tmp_path, "fail", "--node", NODE, "gpu-1", "--xid", "79").stdout
    assert said == f"Broken GPUs of node {NODE}: gpu-1. The node agent reads this within ten seconds.\n"
    said = fault(tmp_path, "fail", "--node", NODE, "gpu-1", "--fault", "thermal").stdout
    assert said.endswith("reads this within ten seconds.\nIt reports the fault thermal 60 s after that.\n")
    said = fault(tmp_path, "fail", "--node", NODE, "gpu-2", "--lost").stdout
    assert said == f"Broken GPUs of node {NODE}: gpu-1, gpu-2. The node agent reads this within ten seconds.\n"
    found = simulated(tmp_path)
    assert kinds(found) == {1: ["simulated fault: thermal", "XID 79 in the simulated kernel's log"]}
    assert [gpu.uuid for gpu in found.read().gpus] == [uuid(i) for i in (0, 1, 3, 4, 5, 6, 7)]
    healed = fault(tmp_path, "heal", "--node", NODE, "gpu-2").stdout
    assert "thermal" not in healed, "the agent has reported it already"
    assert healed.endswith("The faults of gpu-2 and their taints end with this reading.\n"), (
        "a lost GPU is back at the next reading"
    )
    assert len(found.read().gpus) == 8
    healed = fault(tmp_path, "heal", "--node", NODE).stdout
    assert (
        "The faults of gpu-1 and their taints end 300 s after that.\nA fault that came again within 60 minutes stays "
        "four times as long as the last time, at most 30 minutes.\n"
    ) in healed
    assert "end" not in fault(tmp_path, "heal", "--node", NODE).stdout
    assert (kinds(found), list(tmp_path.glob("*.json"))) == ({}, [])


def test_nodes_that_share_a_folder_are_broken_apart(tmp_path: Path) -> None:
    Simulated("dgx1-v100", node="node-b", folder=tmp_path).read()
    assert fault(tmp_path, "fail", "--node", "node-b", "gpu-1", "--xid", "79").exit_code == 0
    assert kinds(simulated(tmp_path)) == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpu-3"], "say what is broken: --nvlink, --xid, --lost or --fault"),
        (["gpu-x", "--lost"], "'gpu-x' is no GPU: write gpu-3, or its uuid"),
        (["gpu-3", "--xid", "0"], "XID 0: write a number from 1 to 999"),
        (["gpu-3", "--nvlink", "999"], "NVLink 999: write numbers from 0 to 127"),
        (["gpu-3", "--fault", "rust"], "'rust' is not one of"),
        (["gpu-8", "--lost"], f"node {NODE} has no GPU gpu-8. Its GPUs are gpu-0 to gpu-7"),
        ([f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}", "--lost"], "has no GPU GPU-00000000-"),
    ],
)
def test_bad_words_are_refused(words: list[str], said: str, tmp_path: Path) -> None:
    done = fault(tmp_path, "fail", "--node", NODE, *words)
    assert done.exit_code != 0
    assert said in done.output
    assert list(tmp_path.glob("*.json")) == []


def test_a_gpu_that_a_node_has_not_cannot_be_repaired(tmp_path: Path) -> None:
    assert "has no GPU gpu-9" in fault(tmp_path, "heal", "--node", NODE, "gpu-9").output


@pytest.mark.parametrize("words", [("fail", "--node", "node-x", "gpu-0", "--lost"), ("heal", "--node", "node-x")])
def test_only_nodes_of_a_demo_can_be_broken(words: tuple[str, ...], tmp_path: Path) -> None:
    """An agent of a real machine writes no file of a simulated one."""
    nothing = run(tmp_path, *words)
    assert nothing.exit_code == 1
    assert f"node node-x has no simulated machine in {tmp_path}, which has none at all" in nothing.output
    another = fault(tmp_path, *words)
    assert another.exit_code == 1
    assert f"which has {NODE}. Only demo nodes can have simulated faults" in another.output
    assert list(tmp_path.glob("*.json")) == []


def test_a_lost_gpu_can_be_repaired(tmp_path: Path) -> None:
    fault(tmp_path, "fail", "--node", NODE, "gpu-0", "--lost")
    assert fault(tmp_path, "heal", "--node", NODE, "gpu-0").exit_code == 0


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"gpu-1": 1}', '{"gpu-1": {"xid": -1}}', '{"gpu-1": {"rust": 1}}', '{"gpu-1": {"faults": ["x"]}}'],
)
def test_a_file_that_says_nonsense_leaves_the_last_state(text: str, tmp_path: Path) -> None:
    simulated_failures.path(tmp_path, NODE).write_text(text)
    with pytest.raises(SetupError, match=r"node-a\.json|no kind of fault|XID"):
        simulated(tmp_path).read()


def test_a_link_that_no_gpu_has_breaks_nothing(tmp_path: Path) -> None:
    fault(tmp_path, "fail", "--node", NODE, "gpu-3", "--nvlink", "100")
    whole: Machine = simulated(tmp_path).read()
    assert whole == machine()


async def test_the_agent_taints_what_is_broken() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        fault(node.state / "simulated", "fail", "--node", NODE, "gpu-3", "--nvlink", "0")

        def tainted() -> set[str]:
            return {d["name"] for d in node.slices[0]["spec"]["devices"] if "taints" in d}

        await eventually(lambda: tainted() == {device(0), device(3)})
