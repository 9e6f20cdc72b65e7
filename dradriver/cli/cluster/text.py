"""The view as text and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dradriver.allocator import MAX_GPUS
from dradriver.cli import text as machines
from dradriver.cli.cluster.model import GpuView, Holder, NodeView

SUMMARY = ("node", "product", "GPUs", "free", "largest free NVLink set")


def table(nodes: Sequence[NodeView], *, colour: bool) -> str:
    """Return the whole text: a summary, then of each node who holds its GPUs, and what ``gputopo topo`` shows."""
    heads = [cell.upper() for cell in SUMMARY]
    parts = ["\n".join(_columns([heads, *(summary(node) for node in nodes)]))]
    for node in nodes:
        head = f"Node: {node.name}"
        parts.append(click.style(head, bold=True) if colour else head)
        parts.append("\n".join(["Held by:", *_holders(node, colour=colour)]))
        parts.append(machines.table(node.machine, node.groups, colour=colour))
    return "\n\n".join(parts)


def summary(node: NodeView) -> tuple[str, ...]:
    """Return a node's cells under ``SUMMARY``."""
    return node.name, node.machine.product, str(len(node.gpus)), str(len(node.free)), _nvlink_set(node)


def _nvlink_set(node: NodeView) -> str:
    found = node.nvlink_set
    if found is not None:
        gpus = " ".join(f"GPU{index}" for index in found.gpus)
        return f"{len(found.gpus)}: {gpus} ({found.busbw_gbps:g} GB/s all-reduce)"
    return "none" if len(node.gpus) <= MAX_GPUS else f"not known above {MAX_GPUS} GPUs"


def lines(view: GpuView) -> list[tuple[str, str]]:
    """Return what there is to say of a GPU: that it is free or blocked, and of each holder words and claim."""
    alone = view.blocked or ("" if view.taken_by else "free")
    return [(alone, "")] * bool(alone) + [(holder.words, f"claim {holder.claim}") for holder in view.holders]


def _holders(node: NodeView, *, colour: bool) -> list[str]:
    rows = [
        ("" if n else f"GPU{view.gpu.index}", words, claim)
        for view in node.gpus
        for n, (words, claim) in enumerate(lines(view))
    ]
    shown = [f"  {line}" for line in _columns(rows)]
    if colour:
        return [
            click.style(line, fg="green") if row[1] == "free" else line for line, row in zip(shown, rows, strict=True)
        ]
    return shown


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def document(nodes: Sequence[NodeView]) -> list[dict[str, Any]]:
    """Return the view as it stands in JSON and YAML; docs/cluster.md describes it, and it only ever grows."""
    return [
        {
            "node": node.name,
            "free": node.free,
            "largest_nvlink_set": _set(node),
            "gpus": [_gpu(view) for view in node.gpus],
            "machine": machines.document(node.machine, node.groups),
        }
        for node in nodes
    ]


def _set(node: NodeView) -> dict[str, Any] | None:
    found = node.nvlink_set
    if found is None:
        return None
    return {"gpus": list(found.gpus), "busbw_gbps": found.busbw_gbps, "bandwidth_gbps": found.bandwidth_gbps}


def _gpu(view: GpuView) -> dict[str, Any]:
    return {
        "index": view.gpu.index,
        "uuid": view.gpu.uuid,
        "state": view.state,
        "blocked": view.blocked,
        "holders": [_holder(holder) for holder in view.holders],
    }


def _holder(holder: Holder) -> dict[str, Any]:
    return {
        "hold": holder.hold.value,
        "namespace": holder.namespace,
        "claim": holder.claim,
        "pods": list(holder.pods),
        "share": holder.share,
    }
