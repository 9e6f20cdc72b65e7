"""Write docs/reference/messages.md: every message of the driver, with its cause and what to do.

Usage: python -m docs.messages [--print]

Meanings and cures are in docs/message_cures.py and docs/log_lines.py. Refusals, warnings and log lines are read from
the source by docs/message_source.py. tests/unit/test_troubleshooting.py and tests/unit/documented/test_message_page.py
check that nothing is missing and nothing is invented.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from docs import message_source
from docs.log_lines import LOG_LINES
from docs.message_cures import CAUSES, EVENTS, GANG_REASONS, ON_NODE, REASONS, Cure
from docs.message_source import LogLine

TARGET: Final = message_source.ROOT / "docs" / "reference" / "messages.md"
_HEAD: Final = """\
# Messages

Every message of the driver that you can meet, with its cause and what to do.

Search this page for a part of the text that you see. An upper-case word, as NAME, stands for a name or a figure. `…`
stands for any text. *The driver* is this DRA driver, *the GPU driver* is the GPU vendor's. Written by `make reference`
from the code.

| you see | read |
|---|---|
| `gpu.topology/reason`, or the Event `WaitsForGPUs` | [Reasons of waiting pods](#reasons-of-waiting-pods) |
| `nodes left out` in a reason | [Nodes that are left out](#nodes-that-are-left-out) |
| a pod stays in `ContainerCreating`: `FailedPrepareDynamicResources` | [On the node](#on-the-node) |
| another Event | [Events](#events) |
| `kubectl apply` is refused, or prints a warning | [Refusals](#refusals), [Warnings](#warnings) |
| the Event `PoliciesInvalid` | [Errors of the policies file](#errors-of-the-policies-file) |
| a log line of the driver | [Log lines](#log-lines) |
"""
_ON_NODE: Final = (
    "dradriver/node/claims",
    "dradriver/node/devices",
    "dradriver/node/vendors/nvidia/devices",
    "dradriver/node/publishing/mode_transition.py",
)
_READ_BY_WEBHOOK: Final = (
    "webhook",
    "dradriver/api/vocabulary",
    "dradriver/api/pod",
    "dradriver/api/claims",
    "dradriver/api/base",
    "dradriver/api/gangs",
    "dradriver/api/policies/workload_words.py",
)
_AREAS: Final = {
    "dradriver/api/vocabulary/container_": "Limits of containers",
    "webhook/gpu_limits": "Limits of containers",
    "dradriver/api/claims": "Claims and their templates",
    "webhook/template_reference": "Claims and their templates",
    "webhook/validate": "Claims and their templates",
    "dradriver/api/gangs": "Gangs",
    "webhook/gang": "Gangs",
    "webhook/update": "Changes of a pod",
    "dradriver/api/pod/claim_alternatives": "Pods that the scheduler places",
    "webhook/scheduler_placed": "Pods that the scheduler places",
    "webhook/addon": "Next to another DRA driver",
    "webhook/kueue": "Queues of Kueue",
    "dradriver/api": "Annotations",
}
"""The heading of the refusals of a module, by the beginning of its path."""
_POLICIES_FILE: Final = ("dradriver/api/policies/policies_reader.py", "dradriver/yamltext/read.py")
_PARTS: Final = {
    "dradriver/node/mps": "MPS",
    "dradriver/node": "Node agent",
    "webhook": "Webhook",
    "dradriver/kube": "All parts",
    "dradriver/process": "All parts",
    "dradriver": "Controller",
}
"""The process that writes the log lines of a module, by the beginning of its path."""
_LEVELS: Final = ("warning", "error", "critical")
"""The levels of log lines, the least severe first."""


def page() -> str:
    """Return the whole of docs/reference/messages.md."""
    return "\n".join([_HEAD, *_reasons(), *_on_node(), *_events(), *_refusals(), *_log_lines()])


def about(line: LogLine) -> str | None:
    """Return the key of ``LOG_LINES`` that a log line has, the longest if it has several; None without one."""
    return max((key for key in LOG_LINES if key in line.text), key=len, default=None)


def _reasons() -> Iterator[str]:
    yield "## Reasons of waiting pods\n"
    yield (
        "The annotation `gpu.topology/reason` and the Event `WaitsForGPUs` contain these texts. The text around them "
        "differs from pod to pod.\nIf the API server or another webhook refuses the claim, the reason is its message.\n"
        "\nThe rows use these terms ([all terms](glossary.md)):\n\n"
        "- set: GPUs of one machine that a pod can get together\n"
        "- share, MIG slice: the two forms of a fraction of a GPU\n"
        "- place: the node and the GPUs that the controller chooses for a pod\n"
        "- tentative placement: a place that the controller keeps for a pod until the scheduler has bound the pod\n"
        "- tenant: a team, whose namespaces have common limits in the policies file\n"
        "- shared claim: one ResourceClaim whose GPUs several pods use (`gpu.topology/shared-claim`)\n"
    )
    yield from _cures(REASONS)
    yield "### Reasons of gangs\n"
    yield "`gputopo explain` says how far the whole [gang](../tasks/gangs.md) is, and what would make a place for it.\n"
    yield from _cures(GANG_REASONS)
    yield "## Nodes that are left out\n"
    yield (
        "These texts say why a pod cannot use a node with GPUs. If a node has several causes, the reason names the "
        "first. `too little` stands\nbefore any resource that the pod requests.\n"
    )
    yield from _table(
        ("it says", "what it means, and what to do"), ([_code(key), text] for key, text in CAUSES.items())
    )


def _on_node() -> Iterator[str]:
    yield "## On the node\n"
    yield (
        "Before a pod starts, the kubelet lets the node agent prepare the pod's claim. If this fails, the kubelet "
        "writes one of these texts\ninto the Event `FailedPrepareDynamicResources` of the pod, and tries again by "
        "itself.\n"
    )
    yield from _table(("it says", "what it means"), ([_code(key), text] for key, text in ON_NODE.items()))
    yield "All texts that the node agent writes into this Event:\n"
    yield from _list(text for texts in message_source.errors(*_ON_NODE).values() for text in texts)


def _events() -> Iterator[str]:
    yield "## Events\n"
    yield (
        "The controller (`gpu-topology`) and the node agent (`gpu-topology-node`) write these Events. The meaning of "
        "an Event's reason never changes.\n"
    )
    rows = ([_code(reason), event.object, event.type, event.meaning, event.cure] for reason, event in EVENTS.items())
    yield from _table(("reason", "object", "type", "what it means", "what to do"), rows)


def _refusals() -> Iterator[str]:
    yield "## Refusals\n"
    yield (
        "`admission webhook … denied the request` is followed by one of these texts. Each says what to write instead. "
        "`gputopo lint FILE` finds\nthem before you apply a file. A text such as `its duration is not valid` is a part "
        "of another text, in the place of ERROR, TOLD or WHY.\n"
    )
    areas: dict[str, list[str]] = {}
    for path, texts in message_source.errors(*_READ_BY_WEBHOOK).items():
        areas.setdefault(_of(_AREAS, path, "Other refusals"), []).extend(texts)
    for title in sorted(areas, key=[*dict.fromkeys(_AREAS.values()), "Other refusals"].index):
        yield f"### {title}\n"
        yield from _list(areas[title])
    yield "### Admission policies\n"
    yield (
        "`ValidatingAdmissionPolicy … denied request` is followed by one of these texts. Most of these policies limit "
        "what the driver's own\nservice accounts may write. If the driver's log has such a text, the driver's version "
        "and the chart's version differ.\n"
    )
    yield from _list(text for texts in message_source.policy_messages().values() for text in texts)
    yield "## Warnings\n"
    yield (
        "The webhook returns these texts, and `kubectl` prints them. The object is accepted. A text that begins with "
        "`on` or `because`\nstands after `KEY has no effect`.\n"
    )
    yield from _list(text for texts in message_source.warnings("webhook").values() for text in texts)
    yield "## Errors of the policies file\n"
    yield (
        "FILE:LINE stands before each text. `gputopo policies check FILE` finds these errors before you apply the "
        "file.\n"
    )
    yield from _list(text for texts in message_source.errors(*_POLICIES_FILE).values() for text in texts)


def _log_lines() -> Iterator[str]:
    yield "## Log lines\n"
    yield (
        "All log lines of level warning, error and critical. ERROR stands for the cause that the line itself names. "
        "*Prepare* and *unprepare*\nare the kubelet's calls to the node agent before a pod starts and after it has "
        "ended.\n"
    )
    parts: dict[str, dict[str, list[LogLine]]] = {}
    for line in message_source.log_lines():
        key = about(line)
        if key is not None:
            parts.setdefault(_of(_PARTS, str(line.path), ""), {}).setdefault(key, []).append(line)
    for part in ("Controller", "Webhook", "Node agent", "MPS", "All parts"):
        yield f"### {part}\n"
        rows = []
        for key, lines in parts[part].items():
            texts = "<br>".join(dict.fromkeys(_code(line.text) for line in lines))
            level = max((line.level for line in lines), key=_LEVELS.index)
            rows.append([texts, level, *LOG_LINES[key]])
        yield from _table(("text", "level", "cause", "what to do"), rows)


def _cures(cures: Mapping[str, Cure]) -> Iterator[str]:
    yield from _table(("it says", "what it means", "what to do"), ([_code(key), *cure] for key, cure in cures.items()))


def _table(head: tuple[str, ...], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |\n{'|---' * len(head)}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _list(texts: Iterable[str]) -> Iterator[str]:
    yield "\n".join(f"* {_code(text)}" for text in dict.fromkeys(texts))
    yield ""


def _code(text: str) -> str:
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _of(titles: Mapping[str, str], path: str, default: str) -> str:
    return next((title for start, title in titles.items() if path.startswith(start)), default)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        TARGET.write_text(page(), encoding="utf-8")
