"""Draw the diagrams of the documents as SVG files in docs/images, each for a light and for a dark page.

Usage: python -m docs.diagrams
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).resolve().parent / "images"
THEMES: Final = {
    "light": {
        "text": "#1f2328",
        "dim": "#59636e",
        "line": "#818b98",
        "fill": "#f6f8fa",
        "own": "#ddf4ff",
        "page": "#ffffff",
    },
    "dark": {
        "text": "#f0f6fc",
        "dim": "#9198a1",
        "line": "#6e7681",
        "fill": "#151b23",
        "own": "#10305a",
        "page": "#0d1117",
    },
}
_FONT: Final = "font-family=\"-apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', Helvetica, Arial, sans-serif\""
_LINE: Final = 17  # pixels between two lines of text


class Box(NamedTuple):
    """A rectangle with a title and lines of text below it, in pixels.

    Attributes:
        x: Left edge.
        y: Upper edge.
        wide: Width.
        high: Height.
        title: What stands in bold at the top.
        lines: What stands below.
        own: Whether it is a part of this project.
    """

    x: int
    y: int
    wide: int
    high: int
    title: str
    lines: tuple[str, ...] = ()
    own: bool = True

    @property
    def middle(self) -> tuple[int, int]:
        """The point in the middle."""
        return self.x + self.wide // 2, self.y + self.high // 2

    @property
    def right(self) -> int:
        """The right edge."""
        return self.x + self.wide

    @property
    def bottom(self) -> int:
        """The lower edge."""
        return self.y + self.high


class Arrow(NamedTuple):
    """A line through points with a head at its end."""

    points: tuple[tuple[int, int], ...]


class Label(NamedTuple):
    """Text without a box; `x` is its middle, `y` its base line."""

    x: int
    y: int
    text: str
    bold: bool = False


class Diagram(NamedTuple):
    """A picture, with the sentence that readers get who do not see it."""

    wide: int
    high: int
    title: str
    shapes: tuple[Box | Arrow | Label, ...]


def _overview() -> Diagram:
    """Return what happens to a pod, from the author's annotation to its GPUs."""
    step, wide, top, high = 254, 152, 52, 92
    parts = (
        ("Webhook", ("checks the request,", "adds a gate and", "the name of a claim"), True),
        ("Controller", ("chooses the best free", "GPUs in the cluster,", "removes the gate"), True),
        ("kube-scheduler", ("allocates the claim,", "binds the pod", "(not modified)"), False),
        ("Node agent", ("prepares the GPUs:", "CDI, MIG, shares,", "NCCL topology"), True),
    )
    boxes = tuple(Box(12 + i * step, top, wide, high, title, lines, own) for i, (title, lines, own) in enumerate(parts))
    middle, edge, turn = boxes[0].middle[1], boxes[0].bottom, boxes[0].bottom + 52
    first, second, third, last = (box.middle[0] for box in boxes)
    passed = ("gated Pod", "ResourceClaim", "allocation")
    return Diagram(
        4 * step - step + wide + 24,
        turn + 34,
        "The webhook reads a pod's annotation. The controller chooses GPUs and creates a ResourceClaim. kube-scheduler "
        "allocates it. The node agent prepares the GPUs, and publishes them with their topology as ResourceSlices.",
        (
            *boxes,
            *(Arrow(((a.right + 4, middle), (b.x - 4, middle))) for a, b in itertools.pairwise(boxes)),
            *(
                Label((a.right + b.x) // 2, middle - 10, text)
                for (a, b), text in zip(itertools.pairwise(boxes), passed, strict=True)
            ),
            Arrow(((first, 26), (first, top - 4))),
            Label(first + 46, 18, "Pod with gpu.topology/policy: nvlink"),
            Arrow(((last, top - 4), (last, 26))),
            Label(last, 18, "container with its GPUs"),
            Arrow(((last, edge + 4), (last, turn), (second, turn), (second, edge + 4))),
            Label((last + second) // 2, turn + 20, "ResourceSlices: GPUs with NVLink, NUMA, PCIe and NIC topology"),
            Arrow(((third, turn), (third, edge + 4))),
        ),
    )


def _map() -> Diagram:
    """Return the folders of the code, a lower layer below those that import it."""
    left, gap, wide = 150, 10, 700
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
        ("command line", (("dradriver/cli", "gputopo, kubectl gputopo"),)),
        ("pictures, pages", (("dradriver/view", "tables, SVG, HTML"),)),
        (
            "processes",
            (
                ("webhook", "answers admission reviews"),
                ("dradriver/controller", "next step, decide, write"),
                ("dradriver/node", "publish, prepare, health"),
            ),
        ),
        ("waiting pods", (("dradriver/queue", "order, shares, caps"),)),
        ("cluster cache", (("dradriver/cluster", "nodes, GPUs, claims, pods"),)),
        ("every process", (("dradriver/process", "options, health, metrics, policies file"),)),
        ("API server", (("dradriver/kube", "client, reflector, leader election"),)),
        ("objects, no I/O", (("dradriver/api", "annotations, claims, slices, policies"),)),
        ("choice, numpy", (("dradriver/allocator", "sets, choice, parts, fleet"),)),
        ("a machine", (("dradriver/topology", "GPUs, links, NUMA, PCIe, NICs, NCCL's files"),)),
        ("base", (("dradriver/yamltext", "YAML with places"), ("dradriver/errors", "DriverError"))),
    )
    shapes: list[Box | Arrow | Label] = [Label(left // 2, 24, "layer", bold=True)]
    y = 36
    for label, boxes in rows:
        each = (wide - gap * (len(boxes) - 1)) // len(boxes)
        shapes.append(Label(left // 2, y + 27, label))
        shapes += [Box(left + i * (each + gap), y, each, 44, name, (text,)) for i, (name, text) in enumerate(boxes)]
        y += 44 + gap
    shapes.append(Label(left + wide // 2, 24, "An upper layer imports lower ones, never the other way.", bold=True))
    return Diagram(left + wide + 12, y, "The folders of the code in layers", tuple(shapes))


def _parts() -> Diagram:
    """Return the processes, where they run, and what each writes or asks."""
    wide, high, gap, left, top = 196, 74, 30, 12, 40
    server, node = Box(left, 176, 874, 34, "API server", own=False), 310

    def row(y: int, *boxes: tuple[str, tuple[str, ...], bool]) -> list[Box]:
        """Return boxes side by side: title, lines, and whether it is part of the driver."""
        return [Box(left + i * (wide + gap), y, wide, high, *box) for i, box in enumerate(boxes)]

    cli, webhook, controller, scheduler = above = row(
        top,
        ("gputopo", ("command line and page:", "shows, explains, plans"), True),
        ("Webhook", ("Deployment of two:", "checks and changes pods"), True),
        ("Controller", ("Deployment of two, one", "leads: chooses GPUs"), True),
        ("kube-scheduler", ("allocates GPUs, binds", "pods (not modified)"), False),
    )
    kubelet, agent, mps, gpus = below = row(
        node,
        ("kubelet", ("starts containers", "(not modified)"), False),
        ("Node agent", ("DaemonSet: publishes", "and prepares GPUs"), True),
        ("MPS", ("DaemonSet, off by default:", "daemons of shared GPUs"), True),
        ("GPUs", ("NVML, /sys", "and the kernel log"), False),
    )
    upper, lower = (top + high + server.y) // 2 + 5, server.bottom + 40
    turn = node + high + 26
    return Diagram(
        898,
        turn + 58,
        "gputopo, the webhook, the controller and kube-scheduler talk to the API server only. On each node the kubelet "
        "calls the node agent, which reads the GPUs and tells the MPS process by files which daemons to run.",
        (
            Label(left + 70, 22, "In the cluster, once", bold=True),
            Label(left + 90, node - 14, "On each node with GPUs", bold=True),
            *above,
            server,
            *below,
            Arrow(((cli.middle[0], server.y - 4), (cli.middle[0], cli.bottom + 4))),
            Label(cli.middle[0] + 56, upper, "all objects"),
            Arrow(((webhook.middle[0], server.y - 4), (webhook.middle[0], webhook.bottom + 4))),
            Label(webhook.middle[0] + 52, upper, "new pods"),
            Arrow(((controller.middle[0], controller.bottom + 4), (controller.middle[0], server.y - 4))),
            Label(controller.middle[0] + 62, upper, "claims, reasons"),
            Arrow(((scheduler.middle[0], scheduler.bottom + 4), (scheduler.middle[0], server.y - 4))),
            Label(scheduler.middle[0] + 48, upper, "allocations"),
            Arrow(((kubelet.right - 10, server.bottom + 4), (kubelet.right - 10, kubelet.y - 4))),
            Label(kubelet.right - 56, lower, "bound pods"),
            Arrow(((agent.right - 10, agent.y - 4), (agent.right - 10, server.bottom + 4))),
            Label(agent.right + 96, lower, "ResourceSlices, claim status"),
            Arrow(((kubelet.right + 4, kubelet.middle[1]), (agent.x - 4, kubelet.middle[1]))),
            Arrow(((agent.right + 4, agent.middle[1]), (mps.x - 4, agent.middle[1]))),
            Arrow(
                (
                    (agent.middle[0], agent.bottom + 4),
                    (agent.middle[0], turn),
                    (gpus.middle[0], turn),
                    (gpus.middle[0], gpus.bottom + 4),
                )
            ),
            Label(
                (agent.middle[0] + gpus.middle[0]) // 2,
                turn + 18,
                "reads them every ten seconds, changes MIG and compute mode",
            ),
            Label(449, turn + 44, "Blue: this driver. Grey: Kubernetes and the machine."),
        ),
    )


def _pod() -> Diagram:
    """Return the states of a pod, with what records each in the API and who leads on."""
    step, wide, top, high = 198, 164, 40, 78
    states = (
        ("gated", ("not yet scheduled:", "it has a gate")),
        ("tentative placement", ("a claim names its GPUs,", "the gate is removed")),
        ("bound", ("the claim is allocated,", "the pod has a node")),
        ("running", ("the containers", "have these GPUs")),
        ("ended", ("the GPUs are free,", "the claim is deleted")),
    )
    boxes = [Box(12 + i * step, top, wide, high, title, lines) for i, (title, lines) in enumerate(states)]
    gated, tentative, *_ = boxes
    revoked = Box(tentative.x, 218, wide, high, "revoked", ("the claim is deleted,", "the pod says why"))
    down, up = tentative.x + 40, tentative.right - 40
    actors = ("controller", "kube-scheduler", "node agent", "kubelet")
    between = (tentative.bottom + revoked.y) // 2 - 12
    return Diagram(
        5 * step - step + wide + 24,
        revoked.bottom + 12,
        "A pod is gated, gets a tentative placement, is bound, runs and ends. If kube-scheduler does not bind it in "
        "time, the controller revokes the tentative placement and makes another one.",
        (
            *boxes,
            revoked,
            *(Arrow(((a.right + 4, a.middle[1]), (b.x - 4, a.middle[1]))) for a, b in itertools.pairwise(boxes)),
            *(
                Label((a.right + b.x) // 2, top - 12, actor, bold=True)
                for (a, b), actor in zip(itertools.pairwise(boxes), actors, strict=True)
            ),
            Label(gated.middle[0] + 14, gated.bottom + 20, "while no GPUs fit, the"),
            Label(gated.middle[0] + 14, gated.bottom + 37, "pod waits and says why"),
            Arrow(((down, tentative.bottom + 4), (down, revoked.y - 4))),
            Arrow(((up, revoked.y - 4), (up, tentative.bottom + 4))),
            Label(tentative.x - 88, revoked.y + 10, "not bound for 30 s,"),
            Label(tentative.x - 88, revoked.y + 27, "no room for 5 s, or a"),
            Label(tentative.x - 88, revoked.y + 44, "GPU went to another pod"),
            Label(tentative.right + 96, between, "the controller chooses"),
            Label(tentative.right + 96, between + 17, "other GPUs on nodes that"),
            Label(tentative.right + 96, between + 34, "it named before"),
        ),
    )


def _gang() -> Diagram:
    """Return the states of a gang, and what leads from one to the next."""
    step, wide, top, high = 190, 146, 40, 62
    states = (
        ("gathering", ("some pods exist,", "all are gated")),
        ("waiting", ("all pods exist,", "GPUs are missing")),
        ("planned", ("a claim for each", "pod names its GPUs")),
        ("ungated", ("the pods' gates", "are removed")),
        ("allocated", ("all pods have GPUs,", "no pod is bound")),
    )
    boxes = [Box(12 + i * step, top, wide, high, title, lines) for i, (title, lines) in enumerate(states)]
    _, waiting, planned, lifted, seated = boxes
    back = Box(planned.x, 190, wide, high, "released", ("claims are deleted,", "GPUs are free again"))
    started = Box(seated.x, 190, wide, high, "started", ("all pods are bound,", "then they run"))
    edge, late = waiting.bottom + 3, back.middle[1]
    passed = ("last pod created", "GPUs for all free", "all claims created", "all GPUs allocated")
    return Diagram(
        5 * step - 20,
        back.bottom + 12,
        "A gang gathers, waits for a place, is planned, ungated, allocated and started. At the deadline the controller "
        "releases everything, and the gang waits again.",
        (
            *boxes,
            back,
            started,
            *(Arrow(((a.right + 3, a.middle[1]), (b.x - 3, a.middle[1]))) for a, b in itertools.pairwise(boxes)),
            *(
                Label((a.right + b.x) // 2, top - 12, text)
                for (a, b), text in zip(itertools.pairwise(boxes), passed, strict=True)
            ),
            Arrow(((seated.middle[0], edge), (started.middle[0], started.y - 3))),
            Label(seated.middle[0] + 30, 142, "barrier"),
            Label(seated.middle[0] + 30, 159, "opens"),
            Arrow(((planned.middle[0], edge), (back.middle[0], back.y - 3))),
            Label(planned.middle[0] - 62, 142, "a GPU went to"),
            Label(planned.middle[0] - 62, 159, "another claim"),
            Arrow(((lifted.middle[0], edge), (lifted.middle[0], late), (back.right + 3, late))),
            Label(lifted.middle[0] - 64, 142, "not all ready"),
            Label(lifted.middle[0] - 64, 159, "at the deadline"),
            Arrow(((seated.x + 18, edge), (seated.x + 18, 176), (lifted.middle[0] + 2, 176))),
            Arrow(((back.x - 3, back.middle[1]), (waiting.middle[0], back.middle[1]), (waiting.middle[0], edge))),
            Label(waiting.middle[0] - 52, 190, "waits, then"),
            Label(waiting.middle[0] - 52, 207, "tries again"),
        ),
    )


DIAGRAMS: Final = {"overview": _overview, "parts": _parts, "pod": _pod, "layers": _map, "gang": _gang}


def _svg(diagram: Diagram, colours: Mapping[str, str]) -> str:
    """Return a diagram as SVG with its own background."""
    head = f'<path d="M0 0L9 4.5L0 9z" fill="{colours["line"]}"/>'
    size = 'viewBox="0 0 9 9" refX="8" refY="4.5" markerWidth="6" markerHeight="6"'
    marker = f'<marker id="head" {size} orient="auto">{head}</marker>'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {diagram.wide} {diagram.high}" '
            f'width="{diagram.wide}" height="{diagram.high}" role="img" font-size="13" {_FONT}>',
            f"<title>{escape(diagram.title)}</title>",
            f"<defs>{marker}</defs>",
            f'<rect width="{diagram.wide}" height="{diagram.high}" fill="{colours["page"]}"/>',
            *(line for shape in diagram.shapes for line in _lines(shape, colours)),
            "</svg>\n",
        )
    )


def _lines(shape: Box | Arrow | Label, colours: Mapping[str, str]) -> Iterator[str]:
    if isinstance(shape, Label):
        yield _text(shape.x, shape.y, shape.text, colours["text"], bold=shape.bold)
        return
    if isinstance(shape, Arrow):
        points = " ".join(f"{x},{y}" for x, y in shape.points)
        stroke = f'stroke="{colours["line"]}" stroke-width="1.5"'
        yield f'<polyline points="{points}" fill="none" {stroke} marker-end="url(#head)"/>'
        return
    fill = colours["own" if shape.own else "fill"]
    yield (
        f'<rect x="{shape.x}" y="{shape.y}" width="{shape.wide}" height="{shape.high}" rx="6" fill="{fill}" '
        f'stroke="{colours["line"]}"/>'
    )
    middle = shape.x + shape.wide // 2
    first = shape.y + (shape.high - _LINE * (len(shape.lines) + 1)) // 2 + 13
    yield _text(middle, first, shape.title, colours["text"], bold=True)
    for number, line in enumerate(shape.lines, start=1):
        yield _text(middle, first + number * _LINE, line, colours["dim"])


def _text(x: int, y: int, text: str, colour: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="middle" fill="{colour}"{weight}>{escape(text)}</text>'


def pictures() -> dict[Path, str]:
    """Return the text of every picture by its file."""
    return {
        FOLDER / f"{name}-{theme}.svg": _svg(draw(), colours)
        for name, draw in DIAGRAMS.items()
        for theme, colours in THEMES.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in pictures().items():
        path.write_text(text, encoding="utf-8")
