"""``gputopo plan``, one question and many."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from dradriver.cli.main import main
from dradriver.topology import machine_codec, profiles, topo_m
from tests.fakes import machines
from tests.fakes.instances import in_mig_mode


def run(*arguments: str, lines: list[object] | None = None, text: str | bytes = "") -> Result:
    stdin = text if lines is None else "".join(json.dumps(line) + "\n" for line in lines)
    return CliRunner().invoke(main, ["plan", *arguments], input=stdin)


def answers(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_contract_of_one_line() -> None:
    line = {"machine": "dgx1-v100", "free": [0, 1, 4], "gpus": 2, "policy": "nvlink"}
    assert answers(run("--batch", lines=[line])) == [
        {
            "gpus": [0, 4],
            "busbw_gbps": 40.0,
            "bandwidth_gbps": 50.0,
            "ring": [0, 4],
            "level": "nvlink",
            "score": 100,
            "containers": [[0, 4]],
            "fallback": [],
        }
    ]


def test_every_line_is_answered_in_order_and_a_bad_one_stops_nothing() -> None:
    good = {"machine": "dgx1-v100", "gpus": 4}
    bad: list[object] = [
        {"machine": "no-such", "gpus": 1},
        {"machine": "dgx1-v100", "gpus": 0},
        {"machine": "dgx1-v100", "gpus": 9},
        {"machine": "dgx1-v100", "gpus": 2, "free": [9]},
        {"machine": "dgx1-v100", "gpus": 2, "free": [0, 5], "policy": "nvlink"},
        {"machine": "dgx1-v100", "gpus": 2, "policy": "nvlnk"},
        {"machine": "dgx1-v100", "gpus": 2, "required": ["same-nuna"]},
        {"machine": "dgx1-v100", "gpus": 3, "containers": [2, 2]},
        {"machine": "dgx1-v100", "gpus": True},
        {"machine": "dgx1-v100", "gpu": 2},
        {"machine": "dgx1-v100"},
        [],
        "text",
    ]
    text = "".join(f"{json.dumps(line)}\n" for entry in bad for line in (good, entry)) + "\n{\n" + json.dumps(good)
    found = answers(run("--batch", text=text))
    assert len(found) == 2 * len(bad) + 2
    errors = [list(answer) == ["error"] for answer in found]
    assert errors == [False, True] * len(bad) + [True, False]
    said = [answer.get("error") for answer in found[1::2]]
    assert "did you mean nvlink?" in str(said[5])
    assert "largest free set with nvlink has 1 GPU" in str(said[4])


def test_bytes_that_are_no_text_are_an_error_too() -> None:
    (answer,) = answers(run("--batch", text=b'{"machine": "\xff\xfe", "gpus": 1}\n'))
    assert list(answer) == ["error"]


def test_all_keys_of_a_line() -> None:
    line = {
        "machine": "dgx1-v100",
        "free": [0, 1, 2, 3, 4, 5],
        "containers": [2, 2],
        "required": ["nvlink", "same-numa"],
        "preferred": "same-pcie-switch, same-pcie-root",
    }
    (answer,) = answers(run("--batch", lines=[line]))
    assert answer["gpus"] == [0, 1, 2, 3]
    assert answer["fallback"] == ["same-pcie-switch"]
    assert sorted(map(sorted, answer["containers"])) == [[0, 3], [1, 2]]  # type: ignore[call-overload]


def test_a_machine_file_is_read_once() -> None:
    """A pipe, such as a shell's ``<(nvidia-smi topo -m)``, is empty when it is read a second time."""
    pipe, end = os.pipe()
    try:
        os.write(end, topo_m.write(machines.dgx1()).encode())
        os.close(end)
        found = answers(run("--batch", lines=[{"machine": f"/dev/fd/{pipe}", "gpus": 2}] * 3))
    finally:
        os.close(pipe)
    assert [answer.get("gpus") for answer in found] == [[2, 3]] * 3, found


def test_a_table_for_people() -> None:
    result = run("--machine", "dgx1-v100", "--free", "0-2, 6", "--gpus", "2", "--preferred", "same-pcie-switch,nvlink")
    assert result.exit_code == 0
    assert "\nGPUs       0, 1\n" in result.output
    assert "\nbandwidth  25 GB/s, weakest step of the ring, line rate in one direction\n" in result.output
    assert "\nbusbw      20 GB/s" in result.output
    assert "not had" not in result.output
    over_pcie = run("--machine", "dgx1-v100", "--free", "0,5", "--gpus", "2").output
    assert "\nbandwidth  6 GB/s, weakest step of the ring, as NCCL counts it in one direction\n" in over_pcie


def test_containers_and_what_was_not_had_are_shown() -> None:
    result = run("-m", "dgx1-v100", "--containers", "2,1", "--preferred", "same-pcie-switch")
    assert "container 1 " in result.output
    assert "container 2 " in result.output
    assert "preferred, not met  same-pcie-switch" in result.output


def test_json_is_the_line_of_a_batch() -> None:
    single = run("-m", "dgx-h100", "--gpus", "4", "--policy", "nvlink", "-o", "json")
    batch = run("--batch", lines=[{"machine": "dgx-h100", "gpus": 4, "policy": "nvlink"}])
    assert json.loads(single.output) == json.loads(batch.output)


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (("--gpus", "2"), "give --machine", 2),
        (("-m", "dgx1-v100"), "how many GPUs?", 1),
        (("-m", "dgx1-v100", "--gpus", "2", "--min-cuda", "13.5"), "which supports CUDA 13.0", 1),
        (("-m", "dgx1-v100", "--gpus", "2", "--min-driver", "R600"), "'R600' is not a driver version", 1),
        (("-m", "dgx1-v100", "--gpus", "2", "--free", "a"), "'a' is no number. Write 0,1,4 or 0-3,6.", 1),
        (("-m", "dgx1-v100", "--gpus", "2", "--free", ""), "0 of 8 GPUs are free", 1),
        (
            ("-m", "dgx1-v100", "--gpus", "2", "--free", "0,5", "--policy", "nvlink"),
            "No place for 2 GPUs with nvlink: the machine has no such free set.",
            1,
        ),
        (("-m", "dgx1-v100", "--gpus", "2", "--required", "nvlik"), "did you mean nvlink", 1),
        (("-m", "dgx1-v100", "--gpus", "2", "--vendor", "adm"), "did you mean amd", 1),
        (("-m", "mi210-x8", "--gpus", "2", "--vendor", "nvidia"), "vendor nvidia: the machine has GPUs of amd", 1),
        (("-m", "mi210-x8", "--gpus", "2", "--vendor", "amd", "--min-busbw", "9"), "RCCL reaches over xGMI", 1),
        (("-m", "mi210-x8", "--share", "0.5"), "GPUs of amd cannot be divided. Request whole GPUs.", 1),
    ],
)
def test_refusals_are_one_line(arguments: tuple[str, ...], message: str, status: int) -> None:
    result = run(*arguments)
    assert result.exit_code == status
    assert message in result.output
    assert "Traceback" not in result.output


def test_an_all_reduce_is_estimated_where_a_size_is_given() -> None:
    sizes = (1 << 20, "8Gi", "x")
    lines: list[object] = [{"machine": "dgx-h100", "gpus": 8, "message_size": size} for size in sizes]
    small, large, bad = answers(run("--batch", lines=lines))
    assert small["allreduce_busbw_gbps"] == pytest.approx(45, rel=0.3)
    assert large["allreduce_busbw_gbps"] == pytest.approx(476, rel=0.02)
    assert large["allreduce_seconds"] == pytest.approx((8 << 30) * 1.75 / 476e9, rel=0.02)
    assert "not a quantity" in str(bad["error"])


def test_demands_of_the_annotations_are_options_too() -> None:
    found = answers(
        run("--batch", lines=[
            {"machine": "dgx1-v100", "gpus": 2, "min_busbw": 40, "include": [1]},
            {"machine": "dgx1-v100", "gpus": 2, "min_bandwidth": "51GB/s"},
            {"machine": "dgx1-v100", "gpus": 2, "product": "*H100*"},
            {"machine": "dgx1-v100", "gpus": 2, "strategy": "first-fit", "exclude": [2, 3]},
        ])
    )  # fmt: skip
    assert found[0]["gpus"] == [1, 2]
    assert "The highest bandwidth between neighbours" in str(found[1]["error"])
    assert "The machine has Tesla V100" in str(found[2]["error"])
    assert found[3]["gpus"] == [0, 4]


def test_no_bandwidth_is_predicted_for_other_vendors() -> None:
    lines: list[object] = [
        {"machine": "mi300x-x8", "gpus": 4},
        {"machine": "mi300x-x8", "gpus": 4, "min_busbw": 1},
        {"machine": "mi300x-x8", "gpus": 4, "message_size": "1Gi"},
        {"machine": "ascend-910a-x8", "gpus": 4, "min_bandwidth": 1},
        {"machine": "ascend-910a-x8", "gpus": 3},
    ]
    placed, *refused = answers(run("--batch", lines=lines))
    assert placed["gpus"] == [0, 1, 2, 3]
    assert "busbw_gbps" not in placed
    assert [re.sub("^No place for [^:]*: ", "", str(each["error"])) for each in refused] == [
        "the bus bandwidth of xGMI cannot be predicted. Write min-bandwidth instead of min-busbw.",
        "message_size: what an all-reduce takes over xGMI cannot be predicted",
        "the rate of a link of HCCS is not published. Write required: linked instead of min-bandwidth.",
        "a pod gets 1, 2, 4 or 8 GPUs of Ascend 910A.",
    ]
    shown = run("-m", "mi300x-x8", "--gpus", "4").output
    assert "\nbusbw      not predicted over xGMI\n" in shown


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_no_bandwidth_is_told_of_links_of_unknown_rate(gpus: int) -> None:
    """Eight of a 910A are of both its rings, and what NCCL counts for the way between says nothing of HCCL."""
    (placed,) = answers(run("--batch", lines=[{"machine": "ascend-910a-x8", "gpus": gpus}]))
    assert [key for key in placed if "gbps" in key] == []
    shown = run("-m", "ascend-910a-x8", "--gpus", str(gpus)).output
    assert "\nbandwidth  not known of HCCS\n" in shown
    assert "GB/s" not in shown


POLICIES = """
policies:
  fast: {required: nvlink, strategy: pack}
  small: {share: 0.25}
workloads: {inference-small: small, data-parallel: fast}
nccl: {version: 2.23}
"""


def test_a_policies_file_says_what_names_and_workloads_mean(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(POLICIES)
    line = {"machine": "dgx1-v100", "free": [0, 5, 6], "gpus": 2}
    asked: list[object] = [
        line | {"policy": "fast"},
        line | {"workload": "data-parallel"},
        line | {"workload": "data-parallel", "policy": "best-effort"},
        line | {"workload": "inference-small", "gpus": 1},
        line | {"workload": "inference-smal"},
    ]
    found = answers(run("--batch", "--policies", str(file), lines=asked))
    assert found[0] == found[1]
    assert found[0]["gpus"] == [5, 6]
    assert found[0]["level"] == "nvlink"
    assert found[3]["containers"] == [[{"gpu": 0, "cores": 25, "memory_mib": 8192}]]
    assert "did you mean inference-small?" in str(found[4]["error"])
    without = answers(run("--batch", lines=[asked[0], line | {"workload": "data-parallel"}]))
    assert "policy: 'fast' is not a known policy. Write one of: best-effort" in str(without[0]["error"])
    assert without[1]["gpus"] == found[2]["gpus"]
    one = run("-m", "dgx1-v100", "--free", "0,5,6", "--gpus", "2", "--policies", str(file), "--policy", "fast")
    assert "\nGPUs       5, 6\n" in one.stdout
    assert run("--batch", "--policies", "-").exit_code == 2
    file.write_text("polices: {}")
    refused = run("-m", "dgx1-v100", "--gpus", "2", "--policies", str(file))
    assert refused.exit_code == 1
    assert "Known fields: gpus" in refused.stderr


def test_a_text_is_completed_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "l40s.txt"
    file.write_text(topo_m.write(profiles.load("l40s-x8")))
    ask = ["plan", "-m", str(file), "--gpus", "2", "-o", "json", "--free", "0,4"]
    plain = json.loads(CliRunner().invoke(main, ask).output)
    told = json.loads(CliRunner().invoke(main, [*ask, "--product", "l40s", "--cpu", "sapphire rapids"]).output)
    known = json.loads(CliRunner().invoke(main, ["plan", "-m", "l40s-x8", *ask[3:]]).output)
    assert told["busbw_gbps"] == known["busbw_gbps"] != plain["busbw_gbps"]
    line = json.dumps({"machine": str(file), "free": [0, 4], "gpus": 2, "product": "L40S", "cpu": "sapphirerapids"})
    batch = json.loads(CliRunner().invoke(main, ["plan", "--batch"], input=line + "\n").output)
    assert batch["busbw_gbps"] == told["busbw_gbps"]
    wrong = CliRunner().invoke(main, [*ask, "--cpu", "z80"])
    assert wrong.exit_code == 1
    assert "Write one of: broadwell" in wrong.output


def test_an_older_nccl_may_be_named_for_all_and_for_one_line() -> None:
    ask = ["plan", "-m", "l40s-x8", "--free", "0-4", "--gpus", "3", "-o", "json"]
    newest, older = (
        json.loads(CliRunner().invoke(main, ask + more).output) for more in ([], ["--nccl-version", "2.23"])
    )
    assert 4 in newest["gpus"]
    assert older["gpus"] == [0, 1, 2]
    line = {"machine": "l40s-x8", "free": [0, 4], "gpus": 2}
    found = answers(run("--batch", lines=[line, line | {"nccl_version": "2.23.4"}, line]))
    assert [answer["busbw_gbps"] for answer in found] == [20.0, 10.0, 20.0]


@pytest.mark.parametrize("version", ["2.18", "newest"])
def test_an_unknown_nccl_is_refused_with_what_to_write(version: str) -> None:
    message = f"nccl-version: {version!r} is not allowed. Write 2.19 or a later version, for example 2.23 or 2.23.4."
    asked = run("-m", "dgx1-v100", "--gpus", "2", "--nccl-version", version)
    assert (asked.exit_code, asked.stderr) == (1, f"Error: {message}\n")
    (refused,) = answers(run("--batch", lines=[{"machine": "dgx1-v100", "gpus": 2, "nccl_version": version}]))
    assert refused == {"error": message}


def test_a_number_is_no_version() -> None:
    (refused,) = answers(run("--batch", lines=[{"machine": "dgx1-v100", "gpus": 2, "nccl_version": 2.3}]))
    assert refused == {"error": "Expected `str`, got `float` - at `$.nccl_version`"}


def test_a_share_goes_to_the_fullest_gpu_that_has_room() -> None:
    line = {"machine": "hgx-h100", "share": 0.5, "fractions": "2:0.25,5:0.5,6:0.75"}
    assert answers(run("--batch", lines=[line])) == [
        {"gpus": [5], "containers": [[{"gpu": 5, "cores": 50, "memory_mib": 40779}]]}
    ]


def test_slices_stand_where_they_spoil_least() -> None:
    line = {"machine": "dgx-h100", "mig_profile": "1g.10gb", "fractions": "3:3g.40gb@4", "containers": [1, 1]}
    (found,) = answers(run("--batch", lines=[line]))
    slices = [{"gpu": 3, "profile": "1g.10gb", "start": start, "size": 1} for start in (2, 3)]
    assert found == {"gpus": [3], "containers": [[one] for one in slices]}


def test_parts_are_shown_for_people() -> None:
    found = run("-m", "hgx-h100", "--mig-profile", "2g.20gb", "--free", "3")
    assert "fraction  GPU 3: 2g.20gb at 4 (memory slices 4 to 5)" in found.output
    two = run("-m", "hgx-h100", "--memory", "10Gi", "--containers", "1,1", "--free", "2").output
    assert "shares of GPUs: 2 times 10240 MiB" in two
    assert "container 2  GPU 2: 12 % and 10240 MiB" in two


def test_a_machine_in_mig_mode_takes_slices_and_no_shares(tmp_path: Path) -> None:
    machine = profiles.load("dgx-a100")
    gpus = tuple(msgspec.structs.replace(gpu, mig=()) for gpu in machine.gpus)
    file = tmp_path / "machine.json"
    file.write_text(machine_codec.encode(msgspec.structs.replace(machine, gpus=gpus)))
    words: list[dict[str, object]] = [{"mig_profile": "1g.5gb"}, {"share": 0.5}, {"gpus": 1}]
    asked: list[object] = [{"machine": str(file)} | word for word in words]
    slices, share, whole = answers(run("--batch", lines=asked))
    assert slices["gpus"] == [0]
    assert "no node offers GPUs as shares" in str(share["error"])
    assert "0 of 8 GPUs are free" in str(whole["error"])


def test_the_instances_that_a_machine_has_are_all_that_their_gpu_gives(tmp_path: Path) -> None:
    machine = in_mig_mode(profiles.load("hgx-h100"), {2: [("3g.40gb", 0), ("1g.10gb", 6)]})
    file = tmp_path / "machine.json"
    file.write_text(machine_codec.encode(machine))
    words: list[dict[str, object]] = [
        {"mig_profile": "1g.10gb"},
        {"mig_profile": "1g.10gb", "fractions": "2:1g.10gb@6"},
        {"mig_profile": "1g.10gb", "fractions": "2:1g.10gb@5"},
        {"gpus": 8},
    ]
    asked: list[object] = [{"machine": str(file)} | word for word in words]
    one, next_one, none, whole = answers(run("--batch", lines=asked))
    assert one["containers"] == [[{"gpu": 2, "profile": "1g.10gb", "start": 6, "size": 1}]]
    assert next_one["gpus"] != [2]
    assert "this GPU has no such MIG placement. Its placements: 1g.10gb@6, 3g.40gb@0" in str(none["error"])
    assert "7 of 8 GPUs are free" in str(whole["error"])


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"share": 0.5, "policy": "nvlink"}, "is about sets of whole GPUs and contradicts gpu.topology/share"),
        ({"share": 0.5, "gpus": 4}, "contradicts container '0', which requests 4 GPUs"),
        ({"share": 1.5}, "'1.5' is not a share of a GPU"),
        ({"mig_profile": "1g.7gb"}, "the MIG profiles 1g.10gb, 1g.10gb+me"),
        ({"share": 0.5, "include": [1]}, "include, exclude and message_size are for whole GPUs"),
        (
            {"share": 0.5, "fractions": "0"},
            "fractions: '0' is no fraction of a GPU of this machine. Write the number of a GPU and a share, 0:0.5",
        ),
        ({"share": 0.5, "fractions": "9:0.5"}, "fractions: '9:0.5' is no fraction"),
        ({"share": 0.5, "fractions": "0:1.5"}, "write a share in hundredths"),
        ({"share": 0.5, "fractions": "0:1g.10gb@9"}, "this GPU has no such MIG placement. Its placements: 1g.10gb@0"),
        ({"share": 0.9, "fractions": ",".join(f"{n}:0.2" for n in range(8))}, "80 % and 65248 MiB, on hgx-h100"),
    ],
)
def test_parts_that_cannot_be(question: dict[str, object], told: str) -> None:
    (answer,) = answers(run("--batch", lines=[{"machine": "hgx-h100"} | question]))
    assert told in str(answer["error"])


def test_gpus_without_peer_access_are_in_no_set_together(tmp_path: Path) -> None:
    machine = profiles.load("hgx-h100")
    links = [list(row) for row in machine.links]
    links[0][1] = links[1][0] = 0
    file = tmp_path / "refused.json"
    file.write_text(machine_codec.encode(msgspec.structs.replace(machine, links=tuple(map(tuple, links)))))

    def plan(*words: str) -> Result:
        return CliRunner().invoke(main, ["plan", "-m", str(file), *words])

    for gpus in (1, 2, 7):
        done = plan("--gpus", str(gpus), "-o", "json")
        assert 1 not in json.loads(done.stdout)["gpus"]
        assert done.stderr.startswith("warning: GPU 1: its links are up, but it has no peer access to GPU 0: a node")
    topo = CliRunner().invoke(main, ["topo", "-m", str(file)])
    assert topo.stderr.startswith("warning: GPU 1: its links are up, but it has no peer access to GPU 0")
    assert "8            none" in topo.stdout
    for words in (("--gpus", "8"), ("--gpus", "2", "--include", "0,1"), ("--gpus", "2", "--free", "0,1")):
        done = plan(*words)
        assert (done.exit_code, done.stdout) == (1, "")
