"""What the page shows of health, and of use where the policies file names no tenants."""

from __future__ import annotations

from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.page.live_cluster import Live
from dradriver.topology.natural import natural
from dradriver.view.document import Block, Cell, Column, Document, Notes, Table, Tone, report, words
from dradriver.view.terminal_text import plain


def health(live: Live) -> Document:
    """Return the page's document on health: GPUs that nobody gets, nodes that take no pods, what is odd."""
    gpus: list[tuple[Cell, ...]] = []
    nodes: list[tuple[Cell, ...]] = []
    mig: list[tuple[Cell, ...]] = []
    for name in sorted(live.views, key=natural):
        view = live.views[name]
        for gpu in view.gpus:
            if gpu.blocked:
                row = words(name, gpu.gpu.label, gpu.blocked, "; ".join(one.words for one in gpu.holders))
                (mig if gpu.blocked.startswith("in MIG mode") else gpus).append(row)
        gpus += [words(name, f"GPU{lost.index}", f"lost: {lost.described}", "") for lost in view.lost]
        if why := live.closed(name):
            nodes.append(words(name, why, str(len(view.gpus)), str(len(view.free))))
    gone = sorted(live.gone.values(), key=lambda node: natural(node.name))
    nodes += [words(node.name, node.why, str(len(node.gpus)), "0") for node in gone]
    doubts = tuple(Cell(one, Tone.WARNING) for name in sorted(live.doubts, key=natural) for one in live.doubts[name])
    bad = {0: "no GPU is out of service", 1: "1 GPU is out of service"}.get(
        len(gpus), f"{len(gpus)} GPUs are out of service"
    )
    shut = {0: "all nodes with GPUs take new pods", 1: "1 node takes no new pods"}.get(
        len(nodes), f"{len(nodes)} nodes take no new pods"
    )
    heads = tuple(map(Column, ("node", "GPU", "why", "held by")))
    columns = (Column("node"), Column("why"), Column("GPUs", number=True), Column("free", number=True))
    blocks: list[Block] = [
        Notes(lines=(Cell(f"{bad}; {shut}"),)),
        Table(title="GPUs out of service", columns=heads, rows=tuple(gpus)),
        Table(title="Nodes that take no new pods", columns=columns, rows=tuple(nodes)),
        Table(title="GPUs in MIG mode", columns=heads, rows=tuple(mig)),
    ]
    if doubts:
        blocks.append(Table(title="What looks wrong", columns=(Column(),), rows=tuple((cell,) for cell in doubts)))
    return report(*blocks)


def namespaces(scene: Scene) -> Document:
    """Return the page's document on what each namespace has, the one with most GPUs first."""
    has = {space: held for space, (_, held) in scene.picture.gpu_time.now().items() if held > 0}
    if not has:
        return report(Notes(lines=(Cell("no namespace has GPUs"),)))
    rows = tuple(
        words(plain(space), f"{round(has[space], 2):g}")
        for space in sorted(has, key=lambda space: (-has[space], natural(space)))
    )
    said = "the policies file names no tenants: this is what each namespace holds, or is promised"
    columns = (Column("namespace"), Column("GPUs", number=True))
    return report(Notes(lines=(Cell(said),)), Table(columns=columns, rows=rows))
