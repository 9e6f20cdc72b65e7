"""The checks of this machine's network cards: the state of their ports, which GPUs are near, and GPUDirect.

A *finding* is the result of one check: PASS, WARN or FAIL, with the repair.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from dradriver.cli.verifier.finding import Finding, failed, passed, warned
from dradriver.counted import first_of
from dradriver.node.discovery import sysfs
from dradriver.node.nics import gpudirect, ports, troubles
from dradriver.node.nics.ports import NicState, Port
from dradriver.node.nics.troubles import SEVERE, At, Trouble
from dradriver.topology.machine import Machine

_RDMA: Final = ("infiniband", "roce", "efa")
_MAX_NAMED: Final = 8  # that are named
_LOSSES: Final = 10  # of a link, and times as many as the siblings'
_COUNTER_END: Final = 255  # where the counter ends

read = ports.read


def findings(
    before: Sequence[NicState], after: Sequence[NicState], machine: Machine | None, *, host_root: Path
) -> Iterator[Finding]:
    """Yield the findings of the NIC checks of ``gputopo verify``: ports, distance to GPUs, GPUDirect.

    Args:
        before: The cards when the check began.
        after: The cards a moment later. An error counter that grew in between shows a fault that still exists.
        machine: The machine; None if it cannot be read.
        host_root: The folder with the host's files.
    """
    if machine is not None:
        yield _count_finding(machine, {nic.name for nic in after}, host_root)

    # Cards one by one, with their troubles, and for each port how many similar ports it is compared with. ``at`` is the
    # card and the number of a port. A port that was active before and is down now is a trouble.
    troubles_of_card: dict[str, list[Trouble]] = {}
    for trouble in troubles.troubles(after, known_up=_active_ports(before)):
        troubles_of_card.setdefault(trouble.at.nic, []).append(trouble)
    sibling_counts = {port.at: len(group) - 1 for group in troubles.siblings(after) for port in group}
    cards = [nic for nic in after if not nic.function]  # not virtual
    for nic in cards:
        yield _card_finding(nic, troubles_of_card.get(nic.name, []), sibling_counts, machine)

    # Virtual functions together: a card can have hundreds of them.
    functions = [nic for nic in after if nic.function]
    if functions:
        active = sum(any(port.up for port in nic.ports) for nic in functions)
        # Only some virtual functions are read. ``count`` has them all.
        more = ports.count(host_root) - len(after)
        left_out = f", and {more} more that are not looked at" if more > 0 else ""
        yield passed("nics", f"{len(functions)} virtual and scalable functions, {active} with an active port{left_out}")

    if cards:
        yield _error_finding(before, after)
        yield from _link_loss_findings(after)
    if machine is not None:
        yield from _nearest_nic_findings(machine)
        # Only cards with RDMA (``verbs``) can write into a GPU's memory.
        if any(port.verbs for nic in cards for port in nic.ports):
            yield from _gpudirect_findings(machine, host_root)


def _count_finding(machine: Machine, there: Collection[str], root: Path) -> Finding:
    able = [nic for nic in machine.nics if nic.kind in _RDMA]
    if able:
        gone = sum(nic.name not in there for nic in able)
        pods = f", of which pods have {gone}" if gone else ""
        return passed("nics", f"{len(machine.nics)} network cards, {len(able)} with RDMA{pods}")
    net = root / "sys/class/net"
    told = [f"{nic.name} {sysfs.text(net / nic.name / 'operstate')[:16] or '?'}" for nic in machine.nics[:_MAX_NAMED]]
    return warned(
        "nics", f"{len(machine.nics)} network cards, none with RDMA" + (f": {', '.join(told)}" if told else ""),
        "pods of several nodes communicate over TCP. If the cards have an RDMA driver, load it "
        "(rdma link)",
    )  # fmt: skip


def _card_finding(
    nic: NicState, card_troubles: Sequence[Trouble], sibling_counts: dict[At, int], machine: Machine | None
) -> Finding:
    facts = [_port(At(nic.name, port.number), port, sibling_counts) for port in nic.ports] or ["no ports"]
    facts += [f"firmware {nic.firmware}"] if nic.firmware else []
    if machine is not None and (near := _near(nic.name, machine)):
        facts.append(near)
    text = f"{nic.name}: {'; '.join([*facts, *(trouble.said for trouble in card_troubles)])}"
    cures = list(dict.fromkeys(trouble.cure for trouble in card_troubles))
    if any(trouble.kind in SEVERE for trouble in card_troubles):
        return failed("nics", text, "; ".join(cures))
    alone = [port for port in nic.ports if troubles.state_of(port) == troubles.DOWN]
    if alone:
        cures.append("no sibling's port is active to compare with: look at cables and switch if it is meant to be used")
    return warned("nics", text, "; ".join(cures)) if cures else passed("nics", text)


def _port(at: At, port: Port, alike: dict[At, int]) -> str:
    said = f"port {at.port} {port.layer or 'of no known link layer'} {port.state or 'of no known state'}"
    if port.up:
        said += f" {port.gbit:g} Gb/s" + (f" ({port.lanes})" if port.lanes else "")
        said += f", {alike[at]} siblings" if alike[at] else ", no siblings"
        if port.ipv4 is not None:
            said += f", RoCE v2 GID with an IPv4 address: {'yes' if port.ipv4 else 'no'}"
        elif port.away:
            said += ", no interface here"
        return said
    why = "switched off" if port.off else "it has no interface here" if port.away else port.phys
    return f"{said} ({why})" if why else said


def _near(name: str, machine: Machine) -> str:
    row = next((machine.nic_paths[n] for n, nic in enumerate(machine.nics) if nic.name == name), None)
    if not row:
        return ""
    best = min(row)
    gpus = [str(gpu.index) for gpu, path in zip(machine.gpus, row, strict=True) if path == best]
    return f"nearest GPUs {', '.join(gpus)} ({best.name})"


def _nearest_nic_findings(machine: Machine) -> Iterator[Finding]:
    for position, gpu in enumerate(machine.gpus if machine.nics else ()):
        best = min(row[position] for row in machine.nic_paths)
        near = [nic.name for nic, row in zip(machine.nics, machine.nic_paths, strict=True) if row[position] == best]
        yield passed("gpu-nics", f"GPU {gpu.index}: nearest {first_of(near, _MAX_NAMED)} ({best.name})")


def _gpudirect_findings(machine: Machine, root: Path) -> Iterator[Finding]:
    proc_root = root if (root / sysfs.CPUINFO).exists() else Path("/")
    answer = gpudirect.answer(root, machine.vendor, proc_root=proc_root) if machine.gpus else None
    if answer is None:
        return
    said = f"{answer.word}: {answer.said}"
    no = answer.word == gpudirect.NO  # which costs pods of several nodes bandwidth, and no other
    yield warned("gpudirect", said, answer.cure) if no else passed("gpudirect", said)


def _error_finding(before: Sequence[NicState], after: Sequence[NicState]) -> Finding:
    earlier = {At(nic.name, port.number): port.errors for nic in before for port in nic.ports}
    grown = [
        f"{counter} of port {port.number} of {nic.name} by {total - first}"
        for nic in after
        for port in nic.ports
        for counter, total in port.errors.items()
        if total > (first := earlier.get(At(nic.name, port.number), {}).get(counter, total))
    ]
    if not grown:
        return passed("nic-errors", "no error counter grew while this looked")
    return warned(
        "nic-errors", f"grew while this looked: {first_of(grown, _MAX_NAMED)}",
        "reseat the cable and transceiver, or replace them. port_xmit_discards alone means "
        "congestion",
    )  # fmt: skip


def _link_loss_findings(nics: Sequence[NicState]) -> Iterator[Finding]:
    for group in troubles.siblings(nics):
        here = [one for one in group if not (one.port.off or one.port.away)]  # pods make a card lose its link, too
        totals = {one.at: one.port.errors["link_downed"] for one in here if "link_downed" in one.port.errors}
        usual = statistics.median_low(totals.values()) if totals else 0
        for at, total in totals.items():
            if total >= min(_LOSSES * max(1, usual), _COUNTER_END) and total > usual:
                yield warned(
                    "nic-errors",
                    f"port {at.port} of {at.nic} lost its link {total} times since its driver was loaded, "
                    f"half of its siblings {usual} times or fewer",
                    "if it was not repaired since: reseat the cable and transceiver, or replace them",
                )


def _active_ports(nics: Sequence[NicState]) -> set[At]:
    return {At(nic.name, port.number) for nic in nics for port in nic.ports if port.up}
