"""The pods that such an object has made, and what they say of their gang."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from dradriver.api.base import names
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace, controller_log, eventually, no_gpu_is_owned_twice, owners

Object = dict[str, Any]

RESTART: Final = gangs.AUTO | {names.PREFIX + "on-member-loss": "restart"}
# Ends with a failure where a story wants it to: nothing else ends a container's first process from within.
UNTIL_FAILED: Final = ["sh", "-c", "while ! [ -e /tmp/fail ]; do sleep 0.2; done; exit 1"]


def template(gpus: int, *, container: str = "main", restarts: str = "Never") -> Object:
    """Return the pods of something that makes them, each with so many GPUs, in a container of that name."""
    spec = gangs.template(gpus)["spec"]
    spec["restartPolicy"] = restarts
    spec["containers"][0] |= {"name": container, "command": UNTIL_FAILED}
    return {"spec": spec}


def fail(namespace: Namespace, name: str, container: str = "main") -> None:
    """End a pod with a failure."""
    namespace.kubectl("exec", name, "-c", container, "--", "touch", "/tmp/fail")


def made(
    namespace: Namespace, count: int, labels: Mapping[str, str], *, instead_of: Collection[str] = ()
) -> list[Object]:
    """Return the pods with these labels that neither ended nor are going, by name, once there are so many.

    Args:
        namespace: Where they are.
        count: How many.
        labels: Their labels.
        instead_of: The uids of pods that are to be gone.
    """
    seen: list[Object] = []

    def found() -> list[Object] | None:
        seen[:] = [
            one
            for one in namespace.list("pods")
            if "deletionTimestamp" not in one["metadata"]
            and one["status"]["phase"] in ("Pending", "Running")
            and labels.items() <= one["metadata"].get("labels", {}).items()
        ]
        return seen if len(seen) == count and not any(uid(one) in instead_of for one in seen) else None

    try:
        eventually(f"{count} pods with {dict(labels)}", found, timeout_s=90)
    except AssertionError as error:
        shown = namespace.kubectl("get", "pods,events", "-o", "wide").stdout
        raise AssertionError(f"{error}\n{shown}\n{controller_log(namespace.cluster)}") from error
    return sorted(seen, key=lambda one: str(one["metadata"]["name"]))


def whole(namespace: Namespace, pods: Sequence[Object], *, gpus: int, container: str = "main") -> list[Object]:
    """See that these pods start as one gang of one plan, none bound before all had their GPUs. Returns them by rank."""
    of = [named(one) for one in pods]
    claims = gangs.run_whole(namespace, of, container=container)
    plans = [gangs.planned(claim) for claim in claims.values()]
    assert {(plan["plan"], plan["size"]) for plan in plans} == {(plans[0]["plan"], len(pods))}
    assert all(len(namespace.devices(name, container)) == gpus for name in of)
    assert no_gpu_is_owned_twice(namespace.cluster)
    now = [namespace.get("pod", name) for name in of]
    assert not any(names.REASON in one["metadata"]["annotations"] for one in now)
    by_rank = {int(one["metadata"]["annotations"][names.RANK_HINT]): one for one in now}
    assert sorted(by_rank) == list(range(len(pods)))
    return [by_rank[rank] for rank in range(len(pods))]


def holds(namespace: Namespace, gpus: int) -> None:
    """See that so many GPUs are allocated in the whole cluster, each once."""
    eventually(f"{gpus} GPUs are allocated", lambda: len(owners(namespace.cluster)) == gpus)
    assert no_gpu_is_owned_twice(namespace.cluster)


def numbers(pods: Sequence[Object], *labels: str) -> list[tuple[int, ...]]:
    """Return what labels of pods say, as numbers."""
    return [tuple(int(one["metadata"]["labels"][label]) for label in labels) for one in pods]


def all_say(namespace: Namespace, pods: Sequence[Object], text: str) -> None:
    """Wait until each of these pods says of why it waits what has this text."""

    def say() -> bool:
        return all(text in (namespace.annotation(named(one), names.REASON) or "") for one in pods)

    eventually(f"all say: {text}", say)


def uids(pods: Sequence[Object]) -> set[str]:
    return {uid(one) for one in pods}


def uid(one: Object) -> str:
    return str(one["metadata"]["uid"])


def named(one: Object) -> str:
    return str(one["metadata"]["name"])
