"""The pods that need the driver: why each needs it, and what to do before and after an uninstallation.

``gputopo uninstall`` lists them, ``health`` counts them, and ``explain`` says what an uninstallation means for one pod.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from dradriver.api.base import names, pods
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.base.objects import Metadata, Part
from dradriver.view.terminal_text import plain

_ENDED: Final = ("Succeeded", "Failed")
_RUN_WITHOUT: Final = (
    "To run it without the driver, delete it: its owner creates it again, without a gate. A pod without an owner must "
    "be created again from its manifest."
)


class State(enum.Enum):
    """The reason why a pod needs the driver: it has GPUs, or waits for them."""

    HAS_GPUS = "has GPUs"
    DELETING = "is being deleted"
    AT_GATE = "waits at its gate"
    WAITS = "waits for GPUs"


class Cure(NamedTuple):
    """What to do with a pod that needs the driver, in sentences.

    Attributes:
        before: Before the uninstallation.
        after: After it: what happens to the pod, and what helps. ``{pod}`` stands for the pod in a command.
    """

    before: str
    after: str


_DELETE_OR_LEAVE: Final = (
    "Delete its owner, or the pod if it has no owner. Or uninstall without the check for pods (--no-hooks). Then the "
    "pod waits for the next installation."
)
CURES: Final = {
    State.HAS_GPUS: Cure(
        "Delete its owner, or the pod if it has no owner. Or wait until it has ended.",
        "The pod runs on. If you delete it, it stays in Terminating, because no node agent releases its GPUs. Install "
        "the driver again before you delete it.",
    ),
    State.DELETING: Cure(
        "Wait until it has ended.",
        "The pod stays in Terminating until a node agent releases its GPUs. Install the driver again. Or, once its "
        "processes have ended, run kubectl delete pod {pod} --force.",
    ),
    State.AT_GATE: Cure(
        _DELETE_OR_LEAVE,
        f"The pod keeps its scheduling gate {names.GATE}, and no program removes the gate. After the next installation "
        f"the driver places the pod. {_RUN_WITHOUT}",
    ),
    State.WAITS: Cure(
        _DELETE_OR_LEAVE,
        f"The pod keeps waiting. After the next installation the driver places the pod. {_RUN_WITHOUT}",
    ),
}


class _Spec(Part, frozen=True):
    node_name: str = ""
    scheduling_gates: list[pods.Gate] = msgspec.field(default_factory=list)


class _Status(Part, frozen=True):
    phase: str = ""


class Pod(Part, frozen=True):
    """The fields of a pod that say whether it needs the driver."""

    metadata: Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class Dependent(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that needs the driver. All text in it is safe to print.

    Attributes:
        namespace: Its namespace.
        pod: Its name.
        state: Why it needs the driver.
        node: Its node; empty if it has none.
        owner: Kind and name of the object that creates it again, as Deployment/web; empty if there is none.
    """

    namespace: str
    pod: str
    state: State
    node: str
    owner: str


def dependents(all_pods: Iterable[Pod], claims: Iterable[ResourceClaim]) -> list[Dependent]:
    """Return the pods that need the driver, those with GPUs first.

    ``claims`` are the claims of these pods' namespaces.
    """
    users = users_of_devices(claims)
    dependent_pods = []
    for pod in all_pods:
        state = state_of(pod, has_devices=pod.metadata.uid in users)
        if state is not None:
            dependent_pods.append(
                Dependent(
                    namespace=plain(pod.metadata.namespace),
                    pod=plain(pod.metadata.name),
                    state=state,
                    node=plain(pod.spec.node_name),
                    owner=plain(pod.metadata.replacing_owner),
                )
            )
    order = list(State)
    return sorted(
        dependent_pods, key=lambda dependent: (order.index(dependent.state), dependent.namespace, dependent.pod)
    )


def users_of_devices(claims: Iterable[ResourceClaim]) -> set[str]:
    """Return the uids of the pods that use devices of this driver.

    If another driver allocates the GPUs, a pod with devices does not need this driver: the other one cleans up its
    claim.
    """
    return {
        user.uid
        for claim in claims
        if claim.status.allocation is not None
        and any(result.driver == names.DRIVER for result in claim.status.allocation.devices.results)
        for user in claim.status.reserved_for
    }


def state_of(pod: Pod | pods.Pod, *, has_devices: bool) -> State | None:
    """Return why a pod needs the driver; None if the pod does not need it.

    ``has_devices`` says whether the pod uses devices of this driver.
    """
    if pod.status.phase in _ENDED:
        return None
    if pod.metadata.deletion_timestamp is not None:
        return State.DELETING if has_devices else None
    if has_devices:
        return State.HAS_GPUS
    if any(gate.name == names.GATE for gate in pod.spec.scheduling_gates):
        return State.AT_GATE
    return State.WAITS if names.LABEL in pod.metadata.labels and not pod.spec.node_name else None
