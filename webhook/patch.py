"""Compares a sent pod with its desired fields, and writes the differences as a JSON Patch.

``admission`` calls it. The patch has only the differences, so values of other programs are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from dradriver.api.base import affinity, names
from dradriver.api.base.jsonpatch import Patch
from webhook import desired, pod_view

_Path = tuple[str | int, ...]


def write(pod: pod_view.Pod, want: desired.Desired) -> Patch:
    """Return the patch that gives a pod its desired fields; empty if the pod has them already.

    Raises:
        WordError: A part of the pod that must change cannot be read.
    """
    patch = Patch()
    spec = pod.spec
    _write_metadata(patch, pod, want)
    _write_containers(patch, "containers", pod.containers, want.containers)
    _write_containers(patch, "initContainers", pod.init_containers, want.init_containers)
    _write_list(patch, ("spec", "resourceClaims"), len(spec.resource_claims or ()), want.claims)
    _write_list(patch, ("spec", "schedulingGates"), len(spec.scheduling_gates or ()), want.gates)
    _write_text(patch, "nodeName", spec.node_name, want.node_name)
    _write_text(patch, "schedulerName", spec.scheduler_name, want.scheduler_name)
    if want.deadline_s not in (None, spec.active_deadline_seconds):
        patch.add("spec", "activeDeadlineSeconds", value=want.deadline_s)
    if want.leaves_group:
        patch.remove("spec", "schedulingGroup")
    # The affinity is not decoded before: its other fields are sent back as they came.
    if want.required is not desired.AS_SENT:
        members = pod_view.members(spec.affinity)
        node = pod_view.members((members or {}).get("nodeAffinity", pod_view.ABSENT))
        affinity.put_required(patch, members, node, want.required)
    return patch


def _write_metadata(patch: Patch, pod: pod_view.Pod, want: desired.Desired) -> None:
    if not pod.annotated:
        if want.written:
            patch.add("metadata", "annotations", value=want.written)
    else:
        for key in pod.written:
            if key not in want.written:
                patch.remove("metadata", "annotations", key)
        for key, value in want.written.items():
            if pod.written.get(key) != value:
                patch.add("metadata", "annotations", key, value=value)
    if not pod.labelled:
        patch.add("metadata", "labels", value={names.LABEL: want.label})
    elif pod.label != want.label:
        patch.add("metadata", "labels", names.LABEL, value=want.label)


def _write_containers(
    patch: Patch, key: str, sent: Sequence[pod_view.Container], want: Sequence[desired.Container | None]
) -> None:
    for i, (container, wish) in enumerate(zip(sent, want, strict=True)):
        if wish is None:
            continue
        path = ("spec", key, i, "resources")
        for gone in wish.stripped:
            patch.remove(*path, *gone)
        if container.resources is None and wish.claims:
            patch.add(*path, value={"claims": list(wish.claims)})
        else:
            _write_list(patch, (*path, "claims"), len(container.claims), wish.claims)


def _write_list(patch: Patch, path: _Path, length: int, want: desired.Entries) -> None:
    """Add to a patch the operations that change a list of the pod into the desired list.

    Sent entries are removed or moved, but never written again.

    Args:
        patch: The patch.
        path: The path of the list.
        length: The length of the list as sent.
        want: The desired list: a number stands for the sent entry with this index, JSON for a new entry.
    """
    if want == tuple(range(length)):
        return
    if not want or not length:
        patch.add(*path, value=list(want)) if want else patch.remove(*path)
        return
    # ``want``: indices of the sent list, and whole entries that are new. ``now``: the list while operations are
    # applied, by indices of the sent list; None for a new entry.
    # 1. Remove from the end, so that the indices before stay valid.
    now: list[int | None] = list(range(length))
    for i in reversed(range(length)):
        if i not in want:
            patch.remove(*path, i)
            del now[i]
    # 2. From the front: add new entries, and move the others to their positions.
    for i, entry in enumerate(want):
        if not isinstance(entry, int):
            patch.add(*path, i, value=entry)
            now.insert(i, None)
        elif now[i] != entry:
            at = now.index(entry, i)
            patch.move(*path, at, to=i)
            now.insert(i, now.pop(at))


def _write_text(patch: Patch, key: str, sent: str | None, want: str | None) -> None:
    if want and want != sent:
        patch.add("spec", key, value=want)
    elif sent and not want:
        patch.remove("spec", key)
