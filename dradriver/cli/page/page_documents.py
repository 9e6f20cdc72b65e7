"""The page's documents on health, and on use by namespaces if no tenants are known."""

from __future__ import annotations

from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.page.live_cluster import Live
from dradriver.cli.tenants import no_tenants
from dradriver.topology.natural import natural
from dradriver.view.document import Block, Cell, Column, Document, Notes, Table, Tone, report, words
from dradriver.view.terminal_text import plain


def health(live: Live) -> Document:
    """Return the page's document on health: GPUs out of service, nodes closed to new pods, and warnings."""
    # 1. The rows of the three tables. A view is a node as people see it, with its GPUs and the pods that use them.
    blocked_gpus: list[tuple[Cell, ...]] = []
    closed_nodes: list[tuple[Cell, ...]] = []
    mig_gpus: list[tuple[Cell, ...]] = []
    for name in sorted(live.views, key=natural):
        view = live.views[name]
        for gpu in view.gpus:
            # ``blocked``: why no pod can get the GPU; empty if a pod can get it or uses it. The table of nodes says
            # once that a machine is too large.
            if gpu.blocked and not gpu.is_never_placed:
                row = words(name, gpu.gpu.label, gpu.blocked, "; ".join(holder.words for holder in gpu.holders))
                (mig_gpus if gpu.is_in_mig_mode else blocked_gpus).append(row)
        blocked_gpus += [
            words(name, lost.label, f"lost: {lost.identity}", "; ".join(holder.words for holder in lost.holders))
            for lost in view.lost
        ]
        if why := live.closed(name):  # why the node takes no new pods; empty if it does
            closed_nodes.append(
                words(name, why, str(len(view.gpus)), str(sum(bool(gpu.taken_by) for gpu in view.gpus)))
            )
    gone = sorted(live.gone.values(), key=lambda node: natural(node.name))
    closed_nodes += [words(node.name, node.why, str(len(node.gpus)), str(len(node.gpus))) for node in gone]

    # 2. The sentence above them.
    blocked_text = {0: "no GPU is out of service", 1: "1 GPU is out of service"}.get(
        len(blocked_gpus), f"{len(blocked_gpus)} GPUs are out of service"
    )
    closed_text = {0: "all nodes with GPUs take new pods", 1: "1 node takes no new pods"}.get(
        len(closed_nodes), f"{len(closed_nodes)} nodes take no new pods"
    )

    gpu_columns = tuple(map(Column, ("node", "GPU", "reason", "used by")))
    node_columns = (Column("node"), Column("reason"), Column("GPUs", number=True), Column("allocated", number=True))
    blocks: list[Block] = [
        Notes(lines=(Cell(f"{blocked_text}; {closed_text}"),)),
        Table(title="GPUs out of service", columns=gpu_columns, rows=tuple(blocked_gpus)),
        Table(title="Nodes that take no new pods", columns=node_columns, rows=tuple(closed_nodes)),
        Table(title="GPUs in MIG mode", columns=gpu_columns, rows=tuple(mig_gpus)),
    ]
    doubts = tuple(Cell(text, Tone.WARNING) for name in sorted(live.doubts, key=natural) for text in live.doubts[name])
    if doubts:
        blocks.append(Table(title="What looks wrong", columns=(Column(),), rows=tuple((cell,) for cell in doubts)))
    return report(*blocks)


def namespaces(scene: Scene) -> Document:
    """Return the page's document on the GPUs of each namespace, the one with most GPUs first."""
    has = {space: held for space, (_, held) in scene.picture.gpu_time.now().items() if held > 0}
    if not has:
        return report(Notes(lines=(Cell("no namespace has GPUs"),)))
    rows = tuple(
        words(plain(space), f"{round(has[space], 2):g}")
        for space in sorted(has, key=lambda space: (-has[space], natural(space)))
    )
    said = f"{no_tenants(scene)}: these are the GPUs of each namespace, with tentative placements"
    columns = (Column("namespace"), Column("GPUs", number=True))
    return report(Notes(lines=(Cell(said),)), Table(columns=columns, rows=rows))
