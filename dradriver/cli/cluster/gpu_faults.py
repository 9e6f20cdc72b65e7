"""The faults of a cluster's GPUs with their repairs, for ``gputopo health`` and ``verify``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.cluster.records.slice_records import MODE_CHANGES
from dradriver.cluster.views.holder_names import Holder
from dradriver.cluster.views.node_views import GpuView, NodeView
from dradriver.node.faults import KINDS, Fault
from dradriver.node.repairs import Repair

LOST: Final = Repair(KINDS["lost"].words, KINDS["lost"].advice)


class GpuFault(msgspec.Struct, frozen=True, kw_only=True, rename={"words": "description", "holders": "used_by"}):
    """One fault of one GPU.

    Attributes:
        node: Its node.
        index: Its number on the node; None for a lost GPU whose number is not known.
        pci: Its address on the PCI bus; empty if that is not known.
        uuid: Its UUID.
        fault: A fault of docs/internals/gpu-faults.md; for a taint of another program, the key and value of the taint.
        words: The fault in words.
        repair: The repair, in words.
        keeps_pods_off: Whether no new pod gets the GPU.
        namespaces: The namespaces of the claims that have the GPU.
        holders: The pods that use the GPU.
    """

    node: str
    index: int | None
    pci: str
    uuid: str
    fault: str
    words: str
    repair: str
    keeps_pods_off: bool
    namespaces: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


def of_node(node: NodeView) -> list[GpuFault]:
    """Return the faults of a node's GPUs, by GPU number; GPUs without a number last."""
    faults = [fault for view in node.gpus for fault in _of_gpu(node.name, view)]
    faults += [
        GpuFault(
            node=node.name, index=gpu.index, pci=gpu.pci, uuid=gpu.uuid, fault="lost", words=LOST.words,
            repair=LOST.repair, keeps_pods_off=True, namespaces=_namespaces(gpu.holders), holders=_users(gpu.holders),
        )
        for gpu in node.lost
    ]  # fmt: skip
    return sorted(faults, key=lambda fault: (fault.index is None, fault.index or 0))


def repair(key: str, value: str) -> Repair:
    """Return the meaning of a GPU's taint with this key and value, and the repair."""
    kind = key.removeprefix(names.PREFIX)
    if key.startswith(names.PREFIX) and kind in KINDS:
        fault = Fault(kind, value, "")
        return Repair(fault.words, fault.advice)
    return Repair(
        "a taint that is no fault known to this driver",
        "Find out which program wrote the taint. docs/internals/gpu-faults.md lists the taints of the node agent.",
    )


def _of_gpu(node: str, view: GpuView) -> list[GpuFault]:
    taints = [taint for taint in view.taints if taint.key != MODE_CHANGES]
    faults = [
        _fault(node, view, taint.named.removeprefix(names.PREFIX),
               repair(taint.key, taint.value), keeps_pods_off=taint.blocks)
        for taint in taints
    ]  # fmt: skip
    if view.is_unhealthy and not any(fault.keeps_pods_off for fault in faults):
        missing = Repair(
            view.blocked, "Read the log of the node agent. If the GPU stays missing, restart the agent's pod."
        )
        faults.append(_fault(node, view, "missing", missing, keeps_pods_off=True))
    return faults


def _fault(node: str, view: GpuView, fault: str, what: Repair, *, keeps_pods_off: bool) -> GpuFault:
    gpu = view.gpu
    return GpuFault(
        node=node, index=gpu.index, pci=gpu.pci, uuid=gpu.uuid, fault=fault, words=what.words, repair=what.repair,
        keeps_pods_off=keeps_pods_off,
        namespaces=_namespaces(view.taken_by), holders=_users(view.taken_by),
    )  # fmt: skip


def _namespaces(holders: Iterable[Holder]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(holder.namespace for holder in holders))


def _users(holders: Iterable[Holder]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(holder.who for holder in holders))
