"""CREATE of a pod with words of ours: its GPU limits become one claim, and a gate holds it until it has a place.

Every step leads to the same result when it is done again, because the API server calls a second time when another
webhook or plugin changed the pod (``reinvocationPolicy: IfNeeded``), under a new request uid. Only the claim's name is
a fresh one each time. That is harmless: nothing has been created under it yet; and needed: a copy of a pod is not to
be told from the pod itself, and must never share its claim.
"""

from __future__ import annotations

import copy
import functools
import operator
import re
import secrets
import string
from collections.abc import Callable
from typing import Final

import msgspec

from dradriver.api import affinity, names
from dradriver.api import annotations as words
from dradriver.api.errors import WordError
from dradriver.api.objects import Affinity, Metadata, Pod, PodSpec
from webhook import advice, containers, pods

SCHEDULERS: Final = ("gpu-topology-scheduler", "gpu-scheduler")  # names that articles of the field invent

_CLAIM_NAME: Final = re.compile(re.escape(names.CLAIM_PREFIX) + "[a-z0-9]{10}")


def claim_name() -> str:
    """Return a fresh random name for a pod's claim."""
    return names.CLAIM_PREFIX + "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(10))


def marked(pod: pods.Object) -> bool:
    """Return whether a pod is for us: it has an annotation under one of our prefixes, or our label."""
    return words.has_wish(pods.annotations_of(pod)) or names.LABEL in pods.labels_of(pod)


def create(pod: pods.Object, *, new_name: Callable[[], str] = claim_name) -> tuple[pods.Object, list[str]]:
    """Return the pod as it should be created, and warnings for its author; the pod itself where it is not for us.

    Args:
        pod: A pod that ``pods.check`` has passed; it is not changed.
        new_name: Gives the claim its name.

    Raises:
        WordError: An unknown word, a bad value, a contradiction, or something that cannot be placed.
    """
    if not marked(pod):
        return pod, []
    pod = copy.deepcopy(pod)
    warnings = advice.warnings(pod)
    copied = _is_copy(pod)
    if copied:
        counts = _noted(pod)
        warnings += _ignored_limits(pod, counts)
        undo_affinity(pod)
        pod["spec"].pop("nodeName", None)
    else:
        _refuse_foreign(pod)
        counts = containers.counts(pod)
    words.parse(pods.annotations_of(pod), counts)
    _use_claim(pod, counts, copied=copied)
    _mark(pod, counts)
    spec = pod["spec"]
    entry = {"name": names.POD_CLAIM, "resourceClaimName": new_name()}
    others = [claim for claim in pods.items(spec, "resourceClaims") if claim.get("name") != names.POD_CLAIM]
    spec["resourceClaims"] = [*others, entry]
    gates = pods.items(spec, "schedulingGates")
    if all(gate.get("name") != names.GATE for gate in gates):
        spec["schedulingGates"] = [*gates, {"name": names.GATE}]
    if spec.get("schedulerName") in SCHEDULERS:
        spec["schedulerName"] = "default-scheduler"
    return pod, warnings


def undo_affinity(pod: pods.Object) -> None:
    """Give a copy of a narrowed pod, in place, its author's node affinity back; nothing without the note of it.

    Raises:
        WordError: The note or the affinity is damaged.
    """
    try:
        found = msgspec.convert(pod["spec"].get("affinity"), Affinity | None)
    except msgspec.ValidationError as error:
        raise WordError(f"spec.affinity: {error}") from None
    view = Pod(metadata=Metadata(annotations=pods.annotations_of(pod)), spec=PodSpec(affinity=found))
    for operation in affinity.undo(view):
        *parents, last = operation["path"].split("/")[1:]
        pods.put(functools.reduce(operator.getitem, parents, pod), last, operation.get("value"))
        # An affinity that was only there to be narrowed goes away as a whole.
        pods.put(pod["spec"]["affinity"], "nodeAffinity", pod["spec"]["affinity"]["nodeAffinity"])
        pods.put(pod["spec"], "affinity", pod["spec"]["affinity"])


def _is_copy(pod: pods.Object) -> bool:
    entry = pods.own_claim(pod)
    return (
        names.CONTAINERS in pods.annotations_of(pod)
        and entry is not None
        and _CLAIM_NAME.fullmatch(entry.get("resourceClaimName") or "") is not None
    )


def _noted(pod: pods.Object) -> dict[str, int]:
    noted = words.read_counts(pods.annotations_of(pod))
    present = [container.get("name", "") for container in pods.containers(pod)]
    for name in noted:
        if name not in present:
            raise WordError(
                f"{names.CONTAINERS} names a container {name[:63]!r} that the pod does not have; remove this "
                f"annotation and give each container its limit {names.GPU_RESOURCE}"
            )
    return {name: noted[name] for name in present if name in noted}


def _ignored_limits(pod: pods.Object, counts: dict[str, int]) -> list[str]:
    if any(gate.get("name") == names.GATE for gate in pods.items(pod["spec"], "schedulingGates")):
        return []  # a second pass: a LimitRange has put its default where the first took a limit away
    return [
        f"container {container['name']!r}: limit {names.GPU_RESOURCE}: {count} is ignored, because annotation "
        f"{names.CONTAINERS}, of the pod that this one was copied from, says {counts.get(container['name'], 0)}"
        for container in pods.containers(pod)
        if (count := containers.asked(container)) and count != counts.get(container["name"], 0)
    ]


def _refuse_foreign(pod: pods.Object) -> None:
    spec = pod["spec"]
    if spec.get("nodeName"):
        raise WordError(
            f"spec.nodeName: {str(spec['nodeName'])[:253]!r} leaves no choice of GPUs; remove it and write a "
            f"nodeSelector kubernetes.io/hostname, or remove the {names.PREFIX} annotations"
        )
    entry = pods.own_claim(pod)
    users = [c for c in (*pods.containers(pod), *pods.init_containers(pod)) if containers.uses_claim(c) is not None]
    if entry is not None and not _CLAIM_NAME.fullmatch(entry.get("resourceClaimName") or ""):
        raise WordError(f"spec.resourceClaims: {names.POD_CLAIM!r} is the driver's own name; give this claim another")
    if entry is None and users:
        raise WordError(
            f"container {users[0].get('name')!r}: resources.claims: {names.POD_CLAIM!r} is the driver's own name and "
            f"is written by it; write a limit {names.GPU_RESOURCE} instead"
        )


def _use_claim(pod: pods.Object, counts: dict[str, int], *, copied: bool) -> None:
    for container in pods.containers(pod):
        if container.get("name") in counts:
            containers.use_claim(container, container["name"])
        containers.strip(container)
    for container in pods.init_containers(pod):
        # A copy's init containers hold their share already; a limit here is a LimitRange's default.
        if not copied and containers.asked(container):
            containers.use_claim(container, containers.init_request(container, counts))
        containers.strip(container)


def _mark(pod: pods.Object, counts: dict[str, int]) -> None:
    metadata = pod["metadata"]
    dropped = (names.AFFINITY, *names.RESULTS)
    kept = {key: value for key, value in pods.annotations_of(pod).items() if key not in dropped}
    metadata["annotations"] = kept | {names.CONTAINERS: words.write_counts(counts)}
    metadata["labels"] = pods.labels_of(pod) | {names.LABEL: names.LABEL_PLACED}
