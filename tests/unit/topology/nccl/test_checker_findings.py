"""What is said of files that work, and how findings are told: few, short, in order."""

from __future__ import annotations

import re

import pytest

from dradriver.topology import nccl
from tests.fakes.nccl_files import GOOD, LINKED, swap
from tests.paths import SHARED_DATA

FOLDER = SHARED_DATA / "nccl_xml"


def test_what_repeats_is_said_once_with_the_number_of_places() -> None:
    text = LINKED.replace("<gpu>", '<gpu dev="0">')
    found = [f for f in nccl.check(text) if f.rule == "override"]
    assert len(found) == 1
    assert found[0].problem == "dev overrides NVML's number, which starts at 0 in a container (2 places)"


@pytest.mark.slow
@pytest.mark.parametrize("tag", ['<cpu numaid="0"/>', "<cpu a=b/>", '<cpu a="1" a="1"/>', "<{n}/>"])
def test_a_file_full_of_faults_is_told_in_a_few_lines(tag: str) -> None:
    text = '<system version="1">' + "".join(tag.replace("{n}", f"x{n}") for n in range(20_000)) + "</system>"
    found = nccl.check(text)
    assert len(found) < 300
    assert any(re.search(r"\((19|20)[0-9]{3} places\)", finding.problem) for finding in found)


def test_what_stands_in_a_file_is_not_told_whole() -> None:
    for text in (swap(GOOD, '"0000000f"', '"' + "x" * 900_000 + '"'), swap(GOOD, '"0000000f"', "x" * 900_000)):
        assert max(len(finding.problem) + len(finding.cure) for finding in nccl.check(text)) < 600


def test_findings_come_by_line_and_column_and_tell_errors_from_warnings() -> None:
    found = nccl.check(swap(LINKED, 'count="4"', 'count="600"').replace("  <cpu", "\t<cpu"))
    assert [(f.line, f.column) for f in found] == sorted((f.line, f.column) for f in found)
    assert {f.rule: f.error for f in found} == {
        "tab": True, "count-most": True, "believed": False, "links-most": True, "one-way": True,
    }  # fmt: skip


VENDORS_FILES: dict[str, set[str]] = {
    "aws-p4d-24xl-topo": set(),
    "azure-ndv4-topo": set(),
    "nebius-h100-vm": {"net"},
    "azure-ncv4-topo": {"speed-empty", "override", "own-note", "believed", "to-itself", "net"},
    "azure-ncv4-graph": {"graph"},
    "simllm-hgx-h200-8x-vastai": {"override", "own-note", "believed", "net", "net-twice"},
    "simllm-perlmutter-a100-4x": {"override", "own-note", "believed", "net"},
}


@pytest.mark.shared_data
@pytest.mark.parametrize("name", VENDORS_FILES)
def test_files_that_work_have_no_errors(name: str) -> None:
    found = nccl.check((FOLDER / f"{name}.xml").read_text())
    assert {finding.rule for finding in found} == VENDORS_FILES[name]
    assert {finding.rule for finding in found if finding.error} == VENDORS_FILES[name] & {"graph"}
