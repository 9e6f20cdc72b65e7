"""``gputopo usage``: hours, idle hours and costs from what the controller keeps; names are never formulas."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import click
import openpyxl
import pytest
from click.testing import CliRunner

from dradriver.api.claims import usage_config_maps
from dradriver.api.claims.usage_config_maps import Bucket, Detail
from dradriver.cli.main import main
from dradriver.cli.period import Period, period
from dradriver.kube.resources import CONFIG_MAPS, NAMESPACES
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster
from tests.unit.cli.test_queue import keep

H100 = "NVIDIA H100 80GB HBM3"
HOUR = 400_000  # 2015-08-19T16:00:00Z
FROM = ("--from", "2015-08-19T16:00:00Z", "--to", "2015-08-19T18:00:00Z")
TEXT = """\
tenants:
  vision: {namespaces: [vision]}
  labelled: {namespaceLabels: {team: x}}
prices: {currency: EUR, gpus: [{products: ["NVIDIA H100*"], perHour: 3}]}
"""
TRAIN = Bucket("vision", "Job/train", H100, "whole")
SHARE = Bucket("vision", "", H100, "share")
ALONE = Bucket("dev", "", "Tesla T4", "slice")
EVIL = '=HYPERLINK("http://x")'


def kept(cluster: GpuCluster, hours: usage_config_maps.Hours, details: usage_config_maps.Details | None = None) -> None:
    made = usage_config_maps.config_map(
        HOUR // 24, hours, until=(HOUR + 2) * 3600.0, namespace="gpu-topology", details=details
    )
    cluster.put(CONFIG_MAPS, made)


@pytest.fixture
def filled(cluster: GpuCluster) -> GpuCluster:
    keep(cluster, TEXT)
    for name, labels in (("vision", {}), ("dev", {"team": "x"})):
        cluster.put(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
    hours = {
        HOUR - 1: {TRAIN: 99.0},
        HOUR: {TRAIN: 8 * 3600.0, SHARE: 1800.0},
        HOUR + 1: {TRAIN: 4 * 3600.0, ALONE: 900.0},
    }
    details = {
        HOUR: Detail({TRAIN: 7200.0}, {(TRAIN, "train-0"): (6 * 3600.0, 7200.0)}),
        HOUR + 1: Detail({}, {(TRAIN, EVIL): (4 * 3600.0, 0.0)}),
    }
    kept(cluster, hours, details)
    return cluster


def row(found: dict[str, Any], *key: str) -> dict[str, Any]:
    (one,) = (each for each in found["rows"] if each["key"] == list(key))
    return {name: value for name, value in one.items() if name != "key"}


async def test_hours_and_costs_of_namespaces(filled: GpuCluster, shell: CommandLine) -> None:
    found = await shell.data("usage", *FROM)
    assert (found["begin"], found["end"]) == ("2015-08-19T16:00:00Z", "2015-08-19T18:00:00Z")
    assert row(found, "vision") == {
        "gpu_hours": 12.5, "whole_hours": 12.0, "share_hours": 0.5, "slice_hours": 0.0, "idle_hours": 2.0,
        "cost": 37.5, "idle_cost": 6.0, "unpriced_hours": 0.0,
    }  # fmt: skip
    assert row(found, "dev")["unpriced_hours"] == row(found, "dev")["slice_hours"] == 0.25
    assert found["total"]["cost"] == 37.5
    assert found["total"]["gpu_hours"] == 12.75
    assert found["currency"] == "EUR"


async def test_every_way_to_tell_apart_comes_to_the_same(filled: GpuCluster, shell: CommandLine) -> None:
    keys: dict[str, set[tuple[str, ...]]] = {}
    for by in ("namespace", "tenant", "workload", "pod", "product"):
        found = await shell.data("usage", *FROM, "--by", by)
        keys[by] = {tuple(one["key"]) for one in found["rows"]}
        assert sum(one["gpu_hours"] for one in found["rows"]) == pytest.approx(12.75)
        assert sum(one["idle_hours"] for one in found["rows"]) == pytest.approx(2.0)
        assert sum(one["cost"] for one in found["rows"]) == pytest.approx(37.5)
    assert keys["tenant"] == {("vision",), ("labelled",)}
    assert keys["workload"] == {("vision", "Job/train"), ("vision", "(pods alone)"), ("dev", "(pods alone)")}
    assert keys["pod"] == {("vision", "train-0"), ("vision", EVIL), ("vision", "(others)"), ("dev", "(others)")}
    assert keys["product"] == {(H100,), ("Tesla T4",)}


async def test_a_pods_name_is_no_formula_in_a_spreadsheet(filled: GpuCluster, shell: CommandLine) -> None:
    result = await shell.run("usage", *FROM, "--by", "pod", "-o", "xlsx")
    assert result.exit_code == 0
    book = openpyxl.load_workbook(io.BytesIO(result.stdout_bytes))
    rows = list(book["usage"].iter_rows(values_only=True))
    assert rows[0][:3] == ("namespace", "pod", "GPU hours")
    assert "cost (EUR)" in rows[0]
    assert ("vision", "train-0", 6) in [line[:3] for line in rows]
    (cell,) = (each for line in book["usage"].iter_rows() for each in line if each.value == EVIL)
    assert cell.data_type == "s", "text, not f for a formula"
    assert rows[-1][0] == "total"
    assert book["about"]["B1"].value == "2015-08-19T16:00:00Z"


async def test_a_pods_name_is_no_formula_in_csv(filled: GpuCluster, shell: CommandLine) -> None:
    result = await shell.run("usage", *FROM, "--by", "pod", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert {one["pod"] for one in rows} >= {f"'{EVIL}", "train-0"}
    assert all(one["from"] == "2015-08-19T16:00:00Z" for one in rows)
    assert not any(value.startswith(("=", "+", "-", "@")) for one in rows for value in one.values())


async def test_the_table_says_when_and_the_sum(filled: GpuCluster, shell: CommandLine) -> None:
    result = await shell.run("usage", *FROM)
    assert "from 2015-08-19T16:00:00Z to 2015-08-19T18:00:00Z" in result.stdout
    assert "counted until 20" in result.stdout
    assert result.stdout.splitlines()[-1].split()[:2] == ["total", "12.75"]
    assert (await shell.run("usage", "--from", "2015-08-18", "--to", "2015-08-18")).stdout.endswith(
        "no GPU time in this period\n"
    )


async def test_what_an_older_release_wrote_is_read(cluster: GpuCluster, shell: CommandLine) -> None:
    text = f'{{"version":1,"until":{(HOUR + 1) * 3600.0},"hours":{{"{HOUR}":[["dev","Job/a","","whole",3600.0]]}}}}'
    metadata = {"name": usage_config_maps.name_of(HOUR // 24), "namespace": "gpu-topology"}
    cluster.put(CONFIG_MAPS, {"metadata": metadata, "data": {"usage.json": text}})
    found = await shell.data("usage", *FROM, "--by", "pod")
    assert row(found, "dev", "(others)")["gpu_hours"] == 1.0
    assert found["total"]["cost"] is None


async def test_without_a_driver_it_says_where_it_looked(cluster: GpuCluster, shell: CommandLine) -> None:
    result = await shell.run("usage", "--driver-namespace", "elsewhere")
    assert result.exit_code == 1
    assert "namespace elsewhere has no GPU time" in result.stderr


NOW = HOUR * 3600.0 + 600


@pytest.mark.parametrize(
    ("begin", "end", "first", "last"),
    [
        ("2h", "", HOUR - 2, HOUR + 1),
        ("1d", "1h", HOUR - 24, HOUR),
        ("2015-08-19", "2015-08-19", HOUR - 16, HOUR + 8),
        ("2015-08-19T16:30:00Z", "2015-08-19T16:31:00Z", HOUR, HOUR + 1),
        ("2015-08-19T18:00:00+02:00", "", HOUR, HOUR + 1),
    ],
)
def test_times(begin: str, end: str, first: int, last: int) -> None:
    assert period(begin, end, now=NOW) == Period(first, last)


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        ("yesterday", "", "'yesterday' is no time. Write a date"),
        ("2015-08-19T16:00:00", "", "has no time zone. Write 2015-08-19T16:00:00Z"),
        ("2015-13-01", "", "is no time"),
        ("1d", "2d", "Write an earlier --from"),
        ("9999999999d", "", "is no time"),
        ("1d", "0000-00-00", "--to: '0000-00-00' is no time"),
    ],
)
def test_times_that_are_none(begin: str, end: str, said: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(said)):
        period(begin, end, now=NOW)


def test_a_bad_time_is_said_before_a_cluster_is_looked_for(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["usage", "--from", "soon", "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "'soon' is no time" in result.stderr
