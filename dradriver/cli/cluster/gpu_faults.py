"""What is wrong with which GPU of a cluster, and the repair, for ``gputopo health`` and ``verify``."""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.cluster.views.node_views import MODE_CHANGES, GpuView, NodeView
from dradriver.node.faults import KINDS, Fault
from dradriver.node.repairs import Repair

LOST: Final = Repair(KINDS["lost"].words, KINDS["lost"].advice)


class GpuFault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with one GPU.

    Attributes:
        node: Its node.
        index: Its number on the node.
        pci: Its address on the PCI bus; empty if that is not known.
        uuid: Its UUID.
        fault: What is wrong: a kind of docs/node.md, or the key of another's taint, with its value if it has one.
        words: The same in words.
        repair: What to do.
        keeps_pods_off: Whether no new pod gets the GPU.
        namespaces: The namespaces of the claims that hold it.
        holders: The pods that hold it.
    """

    node: str
    index: int
    pci: str
    uuid: str
    fault: str
    words: str
    repair: str
    keeps_pods_off: bool
    namespaces: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


def of_node(node: NodeView) -> list[GpuFault]:
    """Return what is wrong with the GPUs of a node, by their numbers."""
    faults = [fault for view in node.gpus for fault in _of_gpu(node.name, view)]
    faults += [
        GpuFault(
            node=node.name, index=gpu.index, pci=gpu.pci, uuid=gpu.uuid, fault="lost", words=LOST.words,
            repair=LOST.repair, keeps_pods_off=True,
        )
        for gpu in node.lost
    ]  # fmt: skip
    return sorted(faults, key=lambda fault: fault.index)


def repair(key: str, value: str) -> Repair:
    """Return what the taint of a GPU means, in words, and what to do about it."""
    kind = key.removeprefix(names.PREFIX)
    if key.startswith(names.PREFIX) and kind in KINDS:
        fault = Fault(kind, value, "")
        return Repair(fault.words, fault.advice)
    return Repair(
        "a taint that is no known fault", "Find out who wrote it: docs/node.md lists those of the node agent."
    )


def _of_gpu(node: str, view: GpuView) -> list[GpuFault]:
    taints = [taint for taint in view.taints if taint.key != MODE_CHANGES]
    faults = [
        _fault(node, view, f"{taint.key.removeprefix(names.PREFIX)}{'=' if taint.value else ''}{taint.value}",
               repair(taint.key, taint.value), keeps_pods_off=taint.blocks)
        for taint in taints
    ]  # fmt: skip
    if view.is_unhealthy and not any(fault.keeps_pods_off for fault in faults):
        missing = Repair(view.blocked, "Look at the log of the node's agent, and restart its pod if that stays so.")
        faults.append(_fault(node, view, "missing", missing, keeps_pods_off=True))
    return faults


def _fault(node: str, view: GpuView, fault: str, what: Repair, *, keeps_pods_off: bool) -> GpuFault:
    gpu = view.gpu
    return GpuFault(
        node=node, index=gpu.index, pci=gpu.pci, uuid=gpu.uuid, fault=fault, words=what.words, repair=what.repair,
        keeps_pods_off=keeps_pods_off,
        namespaces=tuple(dict.fromkeys(holder.namespace for holder in view.taken_by)),
        holders=tuple(dict.fromkeys(holder.who for holder in view.taken_by)),
    )  # fmt: skip
