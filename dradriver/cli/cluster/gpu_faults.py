"""The faults of a cluster's GPUs with their repairs, for ``gputopo health`` and ``verify``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.cluster.records.slice_records import MODE_CHANGES
from dradriver.cluster.views.holder_names import Holder
from dradriver.cluster.views.node_views import GpuView, LostView, NodeView
from dradriver.node.faults import KINDS, Fault
from dradriver.node.repairs import Repair, located
from dradriver.topology.machine import Gpu

LOST: Final = Repair(KINDS["lost"].words, KINDS["lost"].advice)
_MISSING: Final = (
    "Read the log of the node agent. This command names its pod: kubectl get pods -A -l "
    "app.kubernetes.io/component=node --field-selector spec.nodeName=<node>. If the GPU stays missing, delete this pod."
)


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
    faults += [_fault(node.name, gpu, "lost", LOST, keeps_pods_off=True, holders=gpu.holders) for gpu in node.lost]
    return sorted(faults, key=lambda fault: (fault.index is None, fault.index or 0))


def repair(key: str, value: str) -> Repair:
    """Return the meaning of a GPU's taint with this key and value, and the repair."""
    kind = key.removeprefix(names.PREFIX)
    if key.startswith(names.PREFIX) and kind in KINDS:
        fault = Fault(kind, value, "")
        return Repair(fault.words, fault.advice)
    return Repair(
        "a taint that is no fault known to this driver",
        "Find out which program wrote the taint. kubectl get devicetaintrules lists the taints of administrators.",
    )


def _of_gpu(node: str, view: GpuView) -> list[GpuFault]:
    taints = [taint for taint in view.taints if taint.key != MODE_CHANGES]
    faults = [
        _fault(
            node, view.gpu, taint.named.removeprefix(names.PREFIX), repair(taint.key, taint.value),
            keeps_pods_off=taint.blocks, holders=view.taken_by,
        )
        for taint in taints
    ]  # fmt: skip
    if view.is_unhealthy and not any(fault.keeps_pods_off for fault in faults):
        faults.append(
            _fault(
                node, view.gpu, "missing", Repair(view.blocked, _MISSING), keeps_pods_off=True, holders=view.taken_by
            )
        )
    return faults


def _fault(
    node: str, gpu: Gpu | LostView, fault: str, what: Repair, *, keeps_pods_off: bool, holders: Iterable[Holder]
) -> GpuFault:
    users = tuple(holders)
    return GpuFault(
        node=node, index=gpu.index, pci=gpu.pci, uuid=gpu.uuid, fault=fault, words=what.words,
        repair=located(what.repair, node=node, uuid=gpu.uuid),
        keeps_pods_off=keeps_pods_off,
        namespaces=tuple(dict.fromkeys(user.namespace for user in users)),
        holders=tuple(dict.fromkeys(user.who for user in users)),
    )  # fmt: skip
