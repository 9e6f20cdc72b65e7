"""The document of ``gputopo explain``: first what the pod says itself (``head``), then the verdict (``rest``)."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dradriver.api.vocabulary import values
from dradriver.cli.cluster import workload_names
from dradriver.cli.explainer.model import Free, Gang, Happening, Help, Place, Static, Subject, Turn, Verdict
from dradriver.counted import counted
from dradriver.view.document import Block, Cell, Column, Document, Notes, Section, Table, Tone, report, words

_STATES: Final = {
    "foreign": "not placed by this driver",
    "static": "static: the scheduler alone places it",
    "waits": "waits for a place",
    "promised": "has GPUs promised, waits for the scheduler",
    "placed": "has its place",
    "finished": "has finished",
}
_BEFORE_A_PLAN: Final = ("unknown", "gathering", "waiting")
_NAMED: Final = 16  # pods and nodes of a gang
_TONES: Final = {"waits": Tone.WARNING, "static": Tone.WARNING, "promised": Tone.PROMISED, "placed": Tone.FREE}


def head(subject: Subject) -> Document:
    """Return the head of the document of ``gputopo explain``: state and request, which need nothing but the pod."""
    title = f"Pod {subject.namespace}/{subject.pod}"
    state = _STATES[subject.state] + (f" on {subject.node}" if subject.node else "")
    rows: list[tuple[Cell, ...]] = [(Cell("state"), Cell(state, _TONES.get(subject.state, Tone.PLAIN)))]
    if subject.wish:
        rows.append(words("asks for", subject.wish))
    if subject.created:
        spent = age(subject.created)
        rows.append(words("created", subject.created + (f", {spent} ago" if spent else "")))
    if subject.said:
        rows.append(words("the controller says", subject.said))
    rows += [words("it lacks" if number == 0 else "", text) for number, text in enumerate(subject.lacks)]
    return Document(title=title, sections=(Section(title=title, blocks=(_plain_table(rows),)),))


def rest(verdict: Verdict) -> Document:
    """Return the rest of the document of ``gputopo explain``: a section for each known part of the verdict."""
    # Parts of the verdict that are empty or None were not found out, or do not apply to the pod.
    sections = []

    def add(title: str, *blocks: Block) -> None:
        sections.append(Section(title=title, blocks=blocks))

    if verdict.reason:
        lines = [Cell(verdict.reason), *([Cell(verdict.nearest)] if verdict.nearest else [])]
        add("Now", Notes(lines=tuple(lines)))
    if verdict.gang is not None:
        add("Its gang", *_gang(verdict.gang))
        if verdict.gang.room:
            add("Room for such pods", _room(verdict.gang))
        if verdict.gang.helps:
            add("What would help the gang", _ways(verdict.gang))
    if verdict.static is not None:
        add("Its claim", _static(verdict.static))
    if verdict.place is not None:
        add("Its place" if verdict.turn is None else "It would get", _place(verdict.place))
    if verdict.better:
        add("Better sets", _helps(verdict.better, free="free now: a pod that is created anew would get it"))
    if verdict.free is not None:
        add("Free", *_free(verdict.free))
    if verdict.helps:
        add("What would help", _helps(verdict.helps, free="free"))
    if verdict.turn is not None:
        add("Queue", Notes(lines=(Cell(_turn(verdict.turn)),)))
    if verdict.happened:
        add("What happened", _happened(verdict.happened))
    return Document(title="", sections=tuple(sections))


def waiting(subjects: Sequence[Subject]) -> Document:
    """Return the document of ``gputopo explain`` without a pod: all pods that wait, the oldest first."""
    heads = ("pod", "for", "asks for", "why")
    rows = tuple(
        words(workload_names.of_pod(subject.namespace, subject.pod), age(subject.created), subject.wish, _why(subject))
        for subject in subjects
    )
    none = Notes(lines=(Cell("no pod waits for GPUs"),))
    return report(Table(columns=tuple(map(Column, heads)), rows=rows) if rows else none)


def _why(subject: Subject) -> str:
    if subject.state == "static":
        return f"static: {subject.refused or 'left to the scheduler'}"
    return subject.said or ("its GPUs are promised to it" if subject.state == "promised" else "not said yet")


def data(subject: Subject, verdict: Verdict) -> dict[str, Any]:
    """Return the document of ``gputopo explain`` as data for JSON and YAML: what the pod says, and the verdict."""
    fields: dict[str, Any] = msgspec.to_builtins(subject) | msgspec.to_builtins(verdict)
    return fields


def _plain_table(rows: Sequence[tuple[Cell, ...]]) -> Table:
    return Table(columns=(Column(), Column()), rows=tuple(rows))


def numbers(gpus: Sequence[int]) -> str:
    """Return GPUs as documents of ``gputopo explain`` name them: ``GPU0 GPU3``."""
    return " ".join(f"GPU{number}" for number in gpus)


def _place(place: Place) -> Table:
    rows = [words("node", place.node), words("GPUs", numbers(place.gpus))]
    if place.parts:
        rows.append(words("parts", ", ".join(place.parts)))
    if place.level:
        rows.append(words("level", place.level))
    if place.busbw_gbps:
        ring = f", the ring's weakest step {place.bandwidth_gbps:g} GB/s" if place.bandwidth_gbps else ""
        rows.append(words("all-reduce", f"{place.busbw_gbps:g} GB/s{ring}"))
    if place.score is not None:
        rows.append(words("score", f"{place.score} of 100"))
    if place.fallback:
        rows.append(words("preferred, not had", ", ".join(place.fallback)))
    return _plain_table(rows)


def _gang(gang: Gang) -> tuple[Block, ...]:
    """Return a table of the facts about a gang, and a table of its pods."""
    origin = "named by its author" if gang.made_by == "gang" else f"made by a {gang.made_by}"
    # ``here``: the pods that exist. ``least`` and ``most``: how many can start, and how many there will be.
    size = f"{counted(gang.here, 'pod is', 'pods are')} there, of how many is not known"
    if gang.least is not None and gang.most is not None:
        enough = f", {gang.least} are enough to start" if gang.least < gang.most else ""
        # A PodGroup says how few pods can start, and not how many there will be: ``most`` is then the largest number.
        of_most = f" of {gang.most}" if gang.most < values.MOST_PODS else ""
        size = f"{gang.here}{of_most} are there{enough}"
    placed = f"{gang.seated} of {gang.here} have their places, {gang.bound} are bound"
    rows = [
        words("gang", f"{gang.name}, {origin}"),
        words("state", gang.state if gang.state in _BEFORE_A_PLAN else f"{gang.state}: {placed}"),
        words("pods", size),
    ]
    if gang.reach:
        slowest = f", all-reduce {gang.busbw_gbps:g} GB/s" if gang.busbw_gbps else ""
        rows.append(words("plan", f"{counted(len(gang.nodes), 'node')} of one {gang.reach}{slowest}"))
    if gang.nodes:
        more = f" and {len(gang.nodes) - _NAMED} more" if len(gang.nodes) > _NAMED else ""
        rows.append(words("nodes", ", ".join(gang.nodes[:_NAMED]) + more))
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
    return Table(columns=(Column("level"), Column("pods", number=True), Column("where")), rows=rows)


def _ways(gang: Gang) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for number, way in enumerate(gang.helps, 1):
        lead = str(number)
        for one in way:
            for owner in one.owners:
                rows.append(words(lead, one.node, f"{numbers(owner.gpus)} {owner.words}"))
                lead = ""
    return Table(columns=(Column("way"), Column("node"), Column("what would have to end")), rows=tuple(rows))


def _static(made_by: Static) -> Table:
    there = {True: "", False: ", which is not there", None: ", which you may not read"}[made_by.there]
    filled = f"{made_by.claim}, {'allocated' if made_by.allocated else 'not allocated'}"
    return _plain_table(
        [words("template", made_by.template + there), words("claim", filled if made_by.claim else "none yet")]
    )


def _free(free: Free) -> tuple[Block, ...]:
    of_nodes = f"{free.eligible} of {counted(free.nodes, 'node')} with GPUs would take the pod"
    many = f"{of_nodes}; {counted(free.gpus, 'of their GPUs is', 'of their GPUs are')} free"
    rows = tuple(
        words(room.node, f"{room.gpus} x {room.product}", numbers(room.free), str(room.largest)) for room in free.best
    )
    columns = (Column("node"), Column("GPUs"), Column("free"), Column("largest such set", number=True))
    return Notes(lines=(Cell(many),)), Table(columns=columns, rows=rows)


def _helps(helps: Sequence[Help], *, free: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for option in helps:
        gbps = f"{option.busbw_gbps:g} GB/s" if option.busbw_gbps else ""
        said = [f"{numbers(owner.gpus)} {owner.words}" for owner in option.owners]
        if option.causes:
            said.append(f"nobody holds its GPUs, but they are left out: {', '.join(option.causes)}")
        for number, text in enumerate(said or [free]):
            lead = ("", "", "") if number else (option.node, numbers(option.gpus), gbps)
            rows.append(words(*lead, text))
    columns = (Column("node"), Column("set"), Column("all-reduce"), Column("what is in the way"))
    return Table(columns=columns, rows=tuple(rows))


def _turn(turn: Turn) -> str:
    by = "of the highest priority the oldest first" if turn.priority else "the oldest first"
    if turn.share is not None:
        had = f"its tenant {turn.tenant} has had {turn.share:g} of its share"
        by = f"by priority ({turn.priority}), then by what tenants have had: {had}"
    waiting = counted(turn.waiting, "pod or gang that waits", "pods and gangs that wait")
    alone = f"position {turn.position} of {waiting}, {by}"
    reserved = f"; {turn.reserved}" if turn.reserved else ""
    if turn.position == 1:
        return alone + reserved
    alike = f"; {counted(turn.alike, 'before it asks', 'before it ask')} for the same" if turn.alike else ""
    return f"{alone}{alike}; just before it: {', '.join(turn.before)}{reserved}"


def _happened(happened: Sequence[Happening]) -> Table:
    rows = tuple(
        words(_time(happening.time), happening.about, _counted(happening), happening.message) for happening in happened
    )
    return Table(columns=(Column("time"), Column("about"), Column("reason"), Column("message")), rows=rows)


def _time(time: str) -> str:
    """Return a time to the second: some sources write fractions."""
    return time if len(time) <= 20 else f"{time[:19]}Z"


def _counted(happening: Happening) -> str:
    return f"{happening.reason} x{happening.count}" if happening.count > 1 else happening.reason


def age(time: str, now: datetime.datetime | None = None) -> str:
    """Return the age of an object as ``gputopo explain`` shows it: ``3 h``; empty if ``time`` cannot be read.

    Args:
        time: As Kubernetes writes it, ``2026-01-31T12:00:00Z``.
        now: The time now, by this machine's clock where none is given; a server's that runs ahead makes ``0 s``.
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
