"""The document of ``gputopo explain``: first the facts on the pod object (``head``), then the verdict (``rest``)."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dradriver.allocator.choice.phrases import SEVERAL_RINGS, level_in_words, nodes_within
from dradriver.api.vocabulary import values
from dradriver.cli.cluster import workload_names
from dradriver.cli.explainer.model import (
    Free,
    Gang,
    Happening,
    Help,
    Place,
    Static,
    Subject,
    Turn,
    UnhealthyPod,
    Verdict,
)
from dradriver.counted import counted, first_of
from dradriver.view.document import Block, Cell, Column, Document, Notes, Section, Table, Tone, report, words

_STATES: Final = {
    "foreign": "not placed by this driver",
    "static": "static: the scheduler alone places it",
    "waits": "waits for a place",
    "tentative": "has a tentative placement, waits for the scheduler",
    "placed": "placed",
    "deleting": "is being deleted",
    "finished": "has finished",
}
MOVES: Final = "Positions are those of now. They change when pods are created or end, and as tenants use GPU time."
FAIR_SHARE: Final = (
    "fair-share use: the tenant's fraction of all GPU time divided by its fraction of all weights; 1x is exactly its "
    "share. A namespace without a tenant counts as a tenant of weight 1. GPU time of deleted namespaces still counts."
)
_BETTER: Final = (
    "a better one is free now. The driver does not move running pods: create the pod again if it should get the set"
)
END_THE_OWNER: Final = (
    "End the owner or gang that is named before a pod, for example the Job. "
    "If only the pod ends, a new pod can take the same GPUs."
)
_HEALTH: Final = "gputopo health says what is wrong, and the repair"
_CORDONED: Final = "cordoned"  # ``selector_classes.CORDONED``, which loads numpy
_BEFORE_A_PLAN: Final = ("unknown", "gathering", "waiting")
_NAMED: Final = 16  # pods and nodes of a gang
_TONES: Final = {
    "waits": Tone.WARNING, "static": Tone.WARNING, "tentative": Tone.PROMISED, "placed": Tone.FREE,
    "deleting": Tone.WARNING,
}  # fmt: skip


def head(subject: Subject) -> Document:
    """Return the first part of the output of ``gputopo explain``: the pod's state and request.

    It is made from the pod object alone (``subject``), before the cluster is read.
    """
    title = f"Pod {subject.namespace}/{subject.pod}"
    state = _STATES[subject.state] + (f" on {subject.node}" if subject.node else "")
    rows: list[tuple[Cell, ...]] = [(Cell("state"), Cell(state, _TONES.get(subject.state, Tone.PLAIN)))]
    if subject.wish:
        rows.append(words("requests", subject.wish))
    if subject.created:
        spent = age(subject.created)
        rows.append(words("created", subject.created + (f", {spent} ago" if spent else "")))
    if subject.said:
        rows.append(words("reason", subject.said))
    rows += [words("missing" if number == 0 else "", text) for number, text in enumerate(subject.lacks)]
    return Document(title=title, sections=(Section(title=title, blocks=(_plain_table(rows),)),))


def rest(verdict: Verdict) -> Document:
    """Return the second part of the output of ``gputopo explain``: a section for each known field of the verdict."""
    # Parts of the verdict that are empty or None were not found out, or do not apply to the pod.
    sections = []

    def add(title: str, *blocks: Block) -> None:
        sections.append(Section(title=title, blocks=blocks))

    if verdict.same_name:
        add("", Notes(lines=(Cell(f"A gang has the same name: gputopo explain {verdict.same_name}"),)))
    if verdict.unhealthy_pods:
        add("Other pods with unhealthy GPUs", *_unhealthy(verdict.unhealthy_pods))
    if verdict.reason:
        lines = [Cell(verdict.reason), *([Cell(verdict.nearest)] if verdict.nearest else [])]
        add("Now", Notes(lines=tuple(lines)))
    if verdict.gang is not None:
        add("Gang", *_gang(verdict.gang))
        if verdict.gang.room:
            add("Room for pods of this gang", _room(verdict.gang))
    if verdict.static is not None:
        add("Claim", _static(verdict.static))
    if verdict.place is not None:
        place = _place(verdict.place, verdict.better_free)
        add("Placement" if verdict.turn is None else "Possible placement", place)
    if verdict.better:
        add("Better sets of GPUs", *_helps(verdict.better, free="free now: a pod that is created again would get it"))
    if verdict.free is not None:
        add("Free GPUs", *_free(verdict.free))
    if verdict.quota_help or verdict.helps:
        quota = (Notes(lines=(Cell(verdict.quota_help),)),) if verdict.quota_help else ()
        sets = _helps(verdict.helps, free="free") if verdict.helps else ()
        add("What would help", *quota, *sets)
    if verdict.gang is not None and verdict.gang.helps:
        add("What would help the gang", *_ways(verdict.gang, cap_helps=bool(verdict.quota_help)))
    if verdict.turn is not None:
        add("Queue", Notes(lines=(Cell(_turn(verdict.turn)), Cell(MOVES))))
    if verdict.happened:
        add("Events", _happened(verdict.happened))
    return Document(title="", sections=tuple(sections))


def waiting(subjects: Sequence[Subject]) -> Document:
    """Return the output of ``gputopo explain`` without a pod: all pods that wait, the oldest first."""
    heads = ("pod", "age", "requests", "reason")
    rows = tuple(
        words(workload_names.of_pod(subject.namespace, subject.pod), age(subject.created), subject.wish, _why(subject))
        for subject in subjects
    )
    none = Notes(lines=(Cell("no pod waits for GPUs"),))
    return report(Table(columns=tuple(map(Column, heads)), rows=rows) if rows else none)


def _why(subject: Subject) -> str:
    if subject.state == "static":
        return f"static: {subject.refused or 'left to the scheduler'}"
    return subject.said or ("it has a tentative placement" if subject.state == "tentative" else "no reason yet")


def data(subject: Subject, verdict: Verdict) -> dict[str, Any]:
    """Return the output of ``gputopo explain`` as JSON and YAML data: the facts on the pod, and the verdict."""
    fields: dict[str, Any] = msgspec.to_builtins(subject) | msgspec.to_builtins(verdict)
    return fields


def _plain_table(rows: Sequence[tuple[Cell, ...]]) -> Table:
    return Table(columns=(Column(), Column()), rows=tuple(rows))


def fair_share(use: float) -> str:
    """Return the fair-share use of a tenant as tables show it: ``1.2x``.

    ``use`` is the tenant's GPU time relative to its weight; 1 is exactly its share.
    """
    return f"{use:g}x"


def numbers(gpus: Sequence[int]) -> str:
    """Return the text for some GPUs of a node: ``GPU0 GPU3``."""
    return " ".join(f"GPU{number}" for number in gpus)


def _place(place: Place, better_free: bool | None) -> Table:
    rows = [words("node", place.node), words("GPUs", numbers(place.gpus))]
    if place.unhealthy:
        listed = f"{numbers(place.unhealthy)}: {_HEALTH}"
        rows.append((Cell("unhealthy"), Cell(listed, Tone.ERROR)))
    if place.parts:
        rows.append(words("fractions", ", ".join(place.parts)))
    if place.level and len(place.gpus) > 1:
        rows.append(words("slowest link", level_in_words(place.level)))
    if place.busbw_gbps:
        rows.append(words("all-reduce", f"{place.busbw_gbps:g} GB/s predicted bus bandwidth (busbw)"))
        if place.bandwidth_gbps:
            rows.append(words("link", f"{place.bandwidth_gbps:g} GB/s in one direction, slowest step of one ring"))
            if place.bandwidth_gbps < place.busbw_gbps:
                rows.append(words("", SEVERAL_RINGS))
    if place.score is not None:
        rows.append(words("score", f"{place.score} of 100"))
    if better_free is not None:
        rows.append(words("better set", _BETTER if better_free else "no better one is free now"))
    if place.fallback:
        rows.append(words("preferred, not met", ", ".join(place.fallback)))
    return _plain_table(rows)


def _unhealthy(pods: Sequence[UnhealthyPod]) -> tuple[Block, ...]:
    rows = tuple((Cell(pod.pod), Cell(pod.node), Cell(numbers(pod.gpus), Tone.ERROR)) for pod in pods)
    columns = (Column("pod"), Column("node"), Column("unhealthy"))
    return Table(columns=columns, rows=rows), Notes(lines=(Cell(f"{_HEALTH}."),))


def _gang(gang: Gang) -> tuple[Block, ...]:
    """Return a table of the facts about a gang, and a table of its pods."""
    origin = "named by its author" if gang.made_by == "gang" else f"made by a {gang.made_by}"
    # ``here``: the pods that exist. ``least`` and ``most``: how many can start, and how many there will be.
    size = f"{counted(gang.here, 'pod exists', 'pods exist')}, the size of the gang is not known"
    if gang.least is not None and gang.most is not None:
        enough = f", {gang.least} are enough to start" if gang.least < gang.most else ""
        # A PodGroup says how few pods can start, and not how many there will be: ``most`` is then the largest number.
        of_most = f" of {gang.most}" if gang.most < values.MOST_PODS else ""
        size = f"{gang.here}{of_most} exist{enough}"
    placed = f"{gang.seated} of {gang.here} are allocated, {gang.bound} are bound"
    rows = [
        words("gang", f"{gang.name}, {origin}"),
        words("state", gang.state if gang.state in _BEFORE_A_PLAN else f"{gang.state}: {placed}"),
        words("pods", size),
    ]
    if gang.reach:
        slowest = f", all-reduce {gang.busbw_gbps:g} GB/s" if gang.busbw_gbps else ""
        rows.append(words("plan", nodes_within(gang.reach, len(gang.nodes)) + slowest))
    if gang.nodes:
        rows.append(words("nodes", first_of(gang.nodes, _NAMED)))
    if gang.rank_hint is not None:
        rows.append(words("rank hint", str(gang.rank_hint)))
    pods = tuple(
        words(pod.pod, pod.state, pod.node, "" if pod.rank_hint is None else str(pod.rank_hint))
        for pod in gang.pods[:_NAMED]
    )
    columns = (Column("pod"), Column("state"), Column("node"), Column("rank hint", number=True))
    return _plain_table(rows), Table(columns=columns, rows=pods)


def _room(gang: Gang) -> Table:
    rows = tuple(words(one.level, str(one.pods), one.domain) for one in gang.room)
    return Table(columns=(Column("level"), Column("pods", number=True), Column("domain")), rows=rows)


def _ways(gang: Gang, *, cap_helps: bool) -> tuple[Block, ...]:
    count = len(gang.helps)
    rows = tuple(
        words(f"{number} of {count}", one.node, f"{numbers(owner.gpus)} {owner.words}")
        for number, way in enumerate(gang.helps, 1)
        for one in way
        for owner in one.owners
    )
    table = Table(columns=(Column("way"), Column("node"), Column("what would have to end")), rows=rows)
    alternative = "This helps without a higher cap. " if cap_helps else ""
    one_way = "One of these ways is enough. " if count > 1 else ""
    text = Cell(f"{alternative}{one_way}All rows of a way have to end.")
    return Notes(lines=(text, *_owners_note([each for way in gang.helps for each in way]))), table


def _static(made_by: Static) -> Table:
    there = {True: "", False: ", which does not exist", None: ", which you may not read"}[made_by.there]
    filled = f"{made_by.claim}, {'allocated' if made_by.allocated else 'not allocated'}"
    return _plain_table(
        [words("template", made_by.template + there), words("claim", filled if made_by.claim else "none yet")]
    )


def _free(free: Free) -> tuple[Block, ...]:
    fit = "fits" if free.eligible == 1 else "fit"
    nodes = f"{free.eligible} of {counted(free.nodes, 'node')} with GPUs"
    texts = [f"{nodes} {fit} the pod's node selector, affinity, tolerations and resources."]
    if free.eligible:
        texts.append(f"{free.could_have} of them could have {free.requested_set} if all GPUs were free.")
        texts.append(f"On nodes that fit, {counted(free.gpus, 'suitable GPU is', 'suitable GPUs are')} free.")
    rows = tuple(
        words(room.node, f"{room.gpus} x {room.product}", numbers(room.free), str(room.largest)) for room in free.best
    )
    columns = (Column("node"), Column("GPUs"), Column("free"), Column("largest matching set", number=True))
    return Notes(lines=tuple(map(Cell, texts))), Table(columns=columns, rows=rows)


def _helps(helps: Sequence[Help], *, free: str) -> tuple[Block, ...]:
    rows: list[tuple[Cell, ...]] = []
    for option in helps:
        gbps = f"{option.busbw_gbps:g} GB/s" if option.busbw_gbps else ""
        said = [f"{numbers(owner.gpus)} {owner.words}" for owner in option.owners]
        if option.causes:
            causes = ", ".join(_with_command(cause, option.node) for cause in option.causes)
            said.append(f"its GPUs are free, but this pod cannot use them: {causes}")
        for number, text in enumerate(said or [free]):
            lead = ("", "", "") if number else (option.node, numbers(option.gpus), gbps)
            rows.append(words(*lead, text))
    columns = (Column("node"), Column("set"), Column("all-reduce"), Column("blocked by"))
    table = Table(columns=columns, rows=tuple(rows))
    return (Notes(lines=notes), table) if (notes := _owners_note(helps)) else (table,)


def _owners_note(helps: Sequence[Help]) -> tuple[Cell, ...]:
    """Return a line on what must end if a user of some sets is replaced when it ends."""
    return (Cell(END_THE_OWNER),) if any(owner.workloads for option in helps for owner in option.owners) else ()


def _with_command(cause: str, node: str) -> str:
    """Return why a node is left out, with the command that ends it if there is one."""
    return f"{cause} (kubectl uncordon {node})" if cause == _CORDONED else cause


def _turn(turn: Turn) -> str:
    by = "by priority, then by age" if turn.priority else "by age"
    if turn.share is not None:
        use = f"fair-share use (tenant {turn.tenant}: {fair_share(turn.share)})"
        by = f"by priority ({turn.priority}), then by {use}, then by age"
    waiting = counted(turn.waiting, "waiting pod or gang", "waiting pods and gangs")
    alone = f"position {turn.position} of {waiting} now, {by}"
    reserved = f"; {turn.reserved}" if turn.reserved else ""
    if turn.position == 1:
        return alone + reserved
    alike = f"; {counted(turn.alike, 'before it requests', 'before it request')} the same" if turn.alike else ""
    return f"{alone}{alike}; directly before it: {', '.join(turn.before)}{reserved}"


def _happened(happened: Sequence[Happening]) -> Table:
    rows = tuple(
        words(_time(happening.time), happening.about, _counted(happening), happening.message) for happening in happened
    )
    return Table(columns=(Column("time"), Column("about"), Column("reason"), Column("message")), rows=rows)


def _time(time: str) -> str:
    """Return a time without fractions of a second, which some sources write."""
    return time if len(time) <= 20 else f"{time[:19]}Z"


def _counted(happening: Happening) -> str:
    return f"{happening.reason} x{happening.count}" if happening.count > 1 else happening.reason


def age(time: str, now: datetime.datetime | None = None) -> str:
    """Return the age of an object as ``gputopo explain`` shows it: ``3 h``.

    The result is empty if ``time`` cannot be read.

    Args:
        time: As Kubernetes writes it, ``2026-01-31T12:00:00Z``.
        now: The time now; None for this machine's clock. If ``time`` is later, because a server's clock runs ahead, the
            age is ``0 s``.
    """
    try:
        then = datetime.datetime.fromisoformat(time)
        seconds = int(((now or datetime.datetime.now(datetime.UTC)) - then).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return ""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{max(0, seconds)} s"
