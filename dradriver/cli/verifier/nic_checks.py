"""This machine's network cards: their ports beside their siblings', which GPUs are near, and GPUDirect."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from dradriver.cli.verifier.finding import Finding, failed, passed, warned
from dradriver.node.discovery import sysfs
from dradriver.node.nics import gpudirect, ports, troubles
from dradriver.node.nics.ports import NicState, Port
from dradriver.node.nics.troubles import SEVERE, At, Trouble
from dradriver.topology.machine import Machine

_RDMA: Final = ("infiniband", "roce", "efa")
_MOST: Final = 8  # that are named
_LOSSES: Final = 10  # of a link, and times as many as the siblings'
_FULL: Final = 255  # where the counter ends

read = ports.read


def findings(
    before: Sequence[NicState], after: Sequence[NicState], machine: Machine | None, *, host_root: Path
) -> Iterator[Finding]:
    """Yield the findings of the NIC checks of ``gputopo verify``: ports, distance to GPUs, GPUDirect.

    Args:
        before: The cards when the check began.
        after: The cards a moment later: an error counter that grew in between is a fault that lasts.
        machine: The machine; None if it cannot be read.
        host_root: Where the host's files are.
    """
    if machine is not None:
        yield _count(machine, {nic.name for nic in after}, host_root)

    # Cards one by one, with their troubles, and for each port how many similar ports it is compared with.
    troubles_of_card: dict[str, list[Trouble]] = {}
    for trouble in troubles.troubles(after, known_up=_up(before)):
        troubles_of_card.setdefault(trouble.at.nic, []).append(trouble)
    sibling_counts = {port.at: len(group) - 1 for group in troubles.siblings(after) for port in group}
    cards = [nic for nic in after if not nic.function]
    for nic in cards:
        yield _card(nic, troubles_of_card.get(nic.name, []), sibling_counts, machine)

    # Virtual functions together: a card can have hundreds of them.
    functions = [nic for nic in after if nic.function]
    if functions:
        active = sum(any(port.up for port in nic.ports) for nic in functions)
        more = ports.count(host_root) - len(after)
        left_out = f", and {more} more that are not looked at" if more > 0 else ""
        yield passed("nics", f"{len(functions)} virtual and scalable functions, {active} with an active port{left_out}")

    if cards:
        yield _errors(before, after)
        yield from _losses(after)
    if machine is not None:
        yield from _of_gpus(machine)
        if any(port.verbs for nic in cards for port in nic.ports):
            yield from _gpudirect(machine, host_root)


def _count(machine: Machine, there: Collection[str], root: Path) -> Finding:
    able = [nic for nic in machine.nics if nic.kind in _RDMA]
    if able:
        gone = sum(nic.name not in there for nic in able)
        pods = f", of which pods have {gone}" if gone else ""
        return passed("nics", f"{len(machine.nics)} network cards, {len(able)} with RDMA{pods}")
    net = root / "sys/class/net"
    told = [f"{nic.name} {sysfs.text(net / nic.name / 'operstate')[:16] or '?'}" for nic in machine.nics[:_MOST]]
    return warned(
        "nics", f"{len(machine.nics)} network cards, none with RDMA" + (f": {', '.join(told)}" if told else ""),
        "pods of several nodes talk over TCP; load the cards' RDMA driver if they have one (rdma link)",
    )  # fmt: skip


def _card(nic: NicState, ill: Sequence[Trouble], alike: dict[At, int], machine: Machine | None) -> Finding:
    told = [_port(At(nic.name, port.number), port, alike) for port in nic.ports] or ["no ports"]
    told += [f"firmware {nic.firmware}"] if nic.firmware else []
    if machine is not None and (near := _near(nic.name, machine)):
        told.append(near)
    seen = f"{nic.name}: {'; '.join([*told, *(one.said for one in ill)])}"
    cures = list(dict.fromkeys(one.cure for one in ill))
    if any(one.kind in SEVERE for one in ill):
        return failed("nics", seen, "; ".join(cures))
    alone = [port for port in nic.ports if troubles.state_of(port) == troubles.DOWN]
    if alone:
        cures.append("no sibling's port is active to compare with: look at cables and switch if it is meant to be used")
    return warned("nics", seen, "; ".join(cures)) if cures else passed("nics", seen)


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


def _of_gpus(machine: Machine) -> Iterator[Finding]:
    for position, gpu in enumerate(machine.gpus if machine.nics else ()):
        best = min(row[position] for row in machine.nic_paths)
        near = [nic.name for nic, row in zip(machine.nics, machine.nic_paths, strict=True) if row[position] == best]
        more = f" and {len(near) - _MOST} more" if len(near) > _MOST else ""
        yield passed("gpu-nics", f"GPU {gpu.index}: nearest {', '.join(near[:_MOST])}{more} ({best.name})")


def _gpudirect(machine: Machine, root: Path) -> Iterator[Finding]:
    proc_root = root if (root / sysfs.CPUINFO).exists() else Path("/")
    answer = gpudirect.answer(root, machine.vendor, proc_root=proc_root) if machine.gpus else None
    if answer is None:
        return
    said = f"{answer.word}: {answer.said}"
    no = answer.word == gpudirect.NO  # which costs pods of several nodes bandwidth, and no other
    yield warned("gpudirect", said, answer.cure) if no else passed("gpudirect", said)


def _errors(before: Sequence[NicState], after: Sequence[NicState]) -> Finding:
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
    more = f" and {len(grown) - _MOST} more" if len(grown) > _MOST else ""
    return warned(
        "nic-errors", f"grew while this looked: {', '.join(grown[:_MOST])}{more}",
        "seat the cable and transceiver anew, or replace them; port_xmit_discards alone is congestion",
    )  # fmt: skip


def _losses(nics: Sequence[NicState]) -> Iterator[Finding]:
    for group in troubles.siblings(nics):
        here = [one for one in group if not (one.port.off or one.port.away)]  # pods make a card lose its link, too
        totals = {one.at: one.port.errors["link_downed"] for one in here if "link_downed" in one.port.errors}
        usual = statistics.median_low(totals.values()) if totals else 0
        for at, total in totals.items():
            if total >= min(_LOSSES * max(1, usual), _FULL) and total > usual:
                yield warned(
                    "nic-errors",
                    f"port {at.port} of {at.nic} lost its link {total} times since its driver was loaded, "
                    f"half of its siblings {usual} times or fewer",
                    "if it was not mended since: seat the cable and transceiver anew, or replace them",
                )


def _up(nics: Sequence[NicState]) -> set[At]:
    return {At(nic.name, port.number) for nic in nics for port in nic.ports if port.up}
