from __future__ import annotations

import random
import re

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dradriver.topology import nccl
from dradriver.topology.machine import Cpu, Machine, PathType
from tests.strategies import machines

CPU = Cpu(arch="x86_64", vendor="AuthenticAMD", family=25, model=1)


def writable(machine: Machine, *, tree: bool) -> Machine:
    return msgspec.structs.replace(machine, cpu=machine.cpu or CPU, pci=machine.pci if tree else ())


def known(path: PathType, a: int | None, b: int | None) -> PathType:
    """What a file can say of a path: it does not know root complexes."""
    if path <= PathType.PXB:
        return path
    return PathType.NODE if a is not None and a == b else PathType.SYS


@given(machines(), st.booleans())
def test_everything_written_has_no_fault(machine: Machine, tree: bool) -> None:
    machine = writable(machine, tree=tree)
    text = nccl.write(machine)
    found = nccl.check(text, machine=machine)
    allowed = {"speed-empty"} if machine.pci else set()  # what /sys does not know is passed on
    assert {finding.rule for finding in found} <= allowed
    assert not [finding for finding in nccl.check(text) if finding.error]


@given(machines())
def test_invented_switches_give_the_paths_back(machine: Machine) -> None:
    machine = writable(machine, tree=False)
    again = nccl.read(nccl.write(machine))
    place = {gpu.pci: i for i, gpu in enumerate(again.gpus)}
    order = [place[gpu.pci] for gpu in machine.gpus]
    for i, gpu in enumerate(machine.gpus):
        for j, other in enumerate(machine.gpus):
            assert again.paths[order[i]][order[j]] == known(machine.paths[i][j], gpu.numa, other.numa)
        for n, nic in enumerate(machine.nics):
            row = next(r for r, found in enumerate(again.nics) if found.pci == nic.pci)
            assert again.nic_paths[row][order[i]] == known(machine.nic_paths[n][i], nic.numa, gpu.numa)


@given(machines())
def test_a_tree_is_kept_but_for_what_is_not_wanted(machine: Machine) -> None:
    machine = writable(machine, tree=True)
    again = nccl.read(nccl.write(machine))
    if not machine.pci:
        return
    true = {device.busid: device for device in machine.pci}

    def above(tree: Machine, busid: str) -> list[str]:
        by_id = {device.busid: device for device in tree.pci}
        parent = by_id[busid].parent
        return [] if parent is None else [tree.pci[parent].busid, *above(tree, tree.pci[parent].busid)]

    for device in again.pci:
        assert (device.ids, device.kind, device.link_width) == (
            true[device.busid].ids, true[device.busid].kind, true[device.busid].link_width,
        )  # fmt: skip
        assert above(again, device.busid) == above(machine, device.busid)
    listed = {device.busid for device in again.pci}
    assert {gpu.pci for gpu in machine.gpus} <= listed
    assert ({nic.pci for nic in machine.nics} <= listed) or machine.virtual is False


SOURCE = """\
<system version="1">
<cpu numaid="0" affinity="000000ff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
{0}</cpu>
<cpu numaid="1" affinity="0000ff00" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
{1}</cpu>
</system>
"""


@st.composite
def linked_files(draw: st.DrawFn) -> str:
    """Return a file of up to six GPUs with symmetric links."""
    count = draw(st.integers(1, 6))
    links = {(i, j): draw(st.integers(0, 3)) for i in range(count) for j in range(i)}
    sides = ["", ""]
    for i in range(count):
        pairs = [(j, links[max(i, j), min(i, j)]) for j in range(count) if j != i]
        inner = "".join(f'<nvlink target="0000:0{j}:00.0" count="{n}" tclass="0x030200"/>' for j, n in pairs if n)
        sides[draw(st.integers(0, 1))] += f'<pci busid="0000:0{i}:00.0" class="0x030200"><gpu>{inner}</gpu></pci>\n'
    return SOURCE.format(*sides)


@given(linked_files(), st.randoms(use_true_random=False))
def test_the_order_of_a_files_elements_changes_nothing(text: str, rng: random.Random) -> None:
    def shuffled(match: re.Match[str]) -> str:
        lines = match[0].splitlines(keepends=True)
        return "".join(rng.sample(lines, len(lines)))

    mixed = re.sub(r"(?:<pci .*\n)+", shuffled, text)
    before, after = nccl.read(text), nccl.read(mixed)
    assert sorted(d.busid for d in after.pci) == sorted(d.busid for d in before.pci)
    without = [msgspec.structs.replace(machine, pci=()) for machine in (before, after)]
    assert without[0] == without[1]
    cpus = re.findall(r"<cpu .*?</cpu>\n", text, re.DOTALL)
    turned = text.replace("".join(cpus), "".join(reversed(cpus)))
    assert msgspec.structs.replace(nccl.read(turned), pci=()) == without[0]


@given(st.text(st.sampled_from("<>/=\"' \t\nacpu!-?&;1")))
def test_the_checker_has_a_word_for_any_text(text: str) -> None:
    assert nccl.check(text)
