"""Gangs as their authors want them, their pods as the webhook admits them, and what claims say of their plans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dradriver.api.base import names
from tests.fakes.apistore import Key, Object
from tests.fakes.control_plane import fit
from tests.simulator import cast

BATCH: Final = "batch.kubernetes.io/"
GPUS: Final = "simulator.example.com/gpus"


class Gang(msgspec.Struct):
    """A gang as its author wants it.

    Attributes:
        key: Its namespace and name.
        size: How few pods it may start with, and how many it has.
        gpus: Of each member, by its index.
        spec: What goes into the pods' spec, beside ``cpu``.
        wishes: Words beside those that say the gang.
        job: Whether a Job makes its pods, and makes them anew.
        owner: The kind of the object that is there for it: Job or PodGroup; empty where none is.
        counted: Whether only that object says how many pods it has.
        pods: All pods that it ever had.
        picky: Whether the scheduler refuses some nodes to some of its pods, as only it knows.
    """

    key: Key
    size: tuple[int, int]
    gpus: list[int]
    spec: Object
    wishes: dict[str, str] = {}
    job: bool = False
    owner: str = ""
    counted: bool = False
    pods: list[Key] = []
    picky: bool = False

    @property
    def near(self) -> bool:
        """Whether one leaf switch has to hold all of it."""
        return self.wishes.get("near") == "leaf"

    @property
    def most_nodes(self) -> int:
        """On how many nodes it may be; 0 for any number."""
        return int(self.wishes.get("max-nodes", "0"))

    @property
    def restarts(self) -> bool:
        """Whether all of it starts anew when it loses a pod."""
        return self.wishes.get("on-member-loss") == "restart"

    def pod(self, index: int, name: str) -> Object:
        """Return a member as the webhook admits it."""
        least, most = self.size
        words = {"gang": "auto" if self.job else self.key[1]}
        if not self.counted:
            words["gang-size"] = f"{least}-{most}" if least < most else str(most)
        spec = self.spec
        if self.owner == "PodGroup":
            words, spec = {}, spec | {"schedulingGroup": {"podGroupName": self.key[1]}}
        pod = cast.pod(name, self.key[0], {"main": self.gpus[index]}, self.wishes | words, **spec)
        pod["metadata"]["annotations"][GPUS] = str(self.gpus[index])
        if self.job and not self.owner:
            uid = f"job-{self.key[1]}"
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.key[1], "uid": uid, "controller": True}
            labels = {"controller-uid": uid, "job-name": self.key[1], "job-completion-index": str(index)}
            pod["metadata"]["labels"] |= {BATCH + word: text for word, text in labels.items()}
            pod["metadata"] |= {"ownerReferences": [owner]}
        return pod


def going(pod: Object) -> bool:
    """Return whether a pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def living(pods: Iterable[Object | None]) -> list[Object]:
    """Return the pods that are there and neither finished nor being deleted."""
    return [pod for pod in pods if pod is not None and not fit.finished(pod) and not going(pod)]


def plan_of(claim: Object) -> tuple[str, int, int]:
    """Return the digest, the size and the index that a claim says of its gang's plan; empty and nothing for none."""
    text = fit.notes_of(claim).get(names.PLAN)
    if text is None:
        return "", 0, 0
    said = msgspec.json.decode(text)
    return said["plan"], said["size"], said["index"]
