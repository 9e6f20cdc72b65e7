"""Refuses to give a GPU to a claim while other processes are on the GPU; ``prepare`` calls it.

A process that hangs in the GPU driver keeps memory and engines of the GPU. In most cases the claim then keeps the GPU:
the kubelet unprepares a claim only after the claim's containers have ended, and a container with a hanging process has
not ended. But the kubelet does not see the following processes, and unprepares the claim although they still run:

* a process that left its container's control group, or whose container the runtime forgot
* a process of a user at a terminal
* a process of a pod that got the GPU from a device plugin

Two kinds of GPUs may have processes of other claims: a GPU of which another claim has a share, and a GPU in MIG mode.
In MIG mode, each MIG instance is made and undone separately.

A process that has the GPU open without computing on it does not count, for example a monitoring or persistence daemon
(nvml.h, nvmlDeviceGetComputeRunningProcesses: with a compute context).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from dradriver.counted import first_of
from dradriver.errors import DriverError
from dradriver.node.claims.ledgers import Ledgers
from dradriver.node.claims.prepare_plan import Plan
from dradriver.node.discovery import Discovery
from dradriver.node.errors import NotYetError, OccupiedError
from dradriver.node.lock import locked
from dradriver.node.threads import Thread

logger = logging.getLogger(__name__)

# Gives the pids that compute on each of some GPUs, given by uuid; one that it does not name is not there.
Processes = Callable[[Sequence[str]], Awaitable[Mapping[str, Sequence[int]]]]

ANSWER_S: Final = 10.0  # a driver that hangs does not say which processes are on its GPUs
_LEAST_ASK_S: Final = 1.0
_MOST_PIDS: Final = 8


def asked_of(discovery: Discovery) -> Processes:
    """Return a function that lists the processes on GPUs.

    ``discovery`` is the code that reads this node's GPUs. If its queries can hang in the GPU driver
    (``discovery.slow``), the function makes them in a thread with a time limit.
    """
    thread = Thread("processes")

    async def processes(gpus: Sequence[str]) -> Mapping[str, Sequence[int]]:
        if not discovery.slow:
            return discovery.processes(gpus)
        async with asyncio.timeout(ANSWER_S):
            return await thread.run(lambda: discovery.processes(gpus), question=True)

    return processes


async def nobody(gpus: Sequence[str]) -> Mapping[str, Sequence[int]]:  # noqa: ARG001  # the signature
    """Return an empty result, as if no process were on any GPU.

    This function replaces the check on nodes where a device plugin may also hand out the GPUs.
    """
    return {}


async def raise_if_occupied(processes: Processes, planned: Plan, ledgers: Ledgers, lock: Path, *, until: float) -> None:
    """Raise an error if processes are on GPUs that must be free for a planned claim.

    A GPU must be free if the claim gets it whole, or gets the first share that is used on it. If the driver refuses to
    list processes, no error is raised, because the driver may never list them. If the driver does not answer, the claim
    waits, because a container would hang in the driver, too.

    Args:
        processes: Returns the processes that are on GPUs.
        planned: The claim that will be prepared.
        ledgers: The claims that are prepared.
        lock: The file lock that protects the files of ``ledgers``.
        until: When the driver must have answered, in seconds of the event loop's clock; the driver always gets at
            least one second.

    Raises:
        DeviceBusyError: Processes are on a GPU that another claim still has.
        OccupiedError: Processes are on a GPU that no claim has.
        NotYetError: The driver does not answer.
        OSError: A file cannot be read.
    """
    async with locked(lock):
        claimed = ledgers.claimed_gpus([gpu.uuid for gpu in planned.gpus])

    # Only GPUs on which no process may be yet: whole GPUs, and GPUs of which this claim gets the first share.
    earliest_end = asyncio.get_running_loop().time() + _LEAST_ASK_S
    occupation = await _processes_in_words(
        processes, _gpus_without_user(planned, claimed), until=max(until, earliest_end)
    )
    if occupation is None:
        return
    async with locked(lock):
        # If another claim has the GPU the processes are that claim's, and its name is the better message.
        ledgers.raise_if_taken(planned.claim)
        # If this claim's entry cannot be read, the processes may be its own.
        has_unread_entry = planned.claim.uid in ledgers.claims.unreadable_keys()
    if not has_unread_entry:
        raise OccupiedError(occupation)


def _gpus_without_user(planned: Plan, held: Collection[str]) -> list[str]:
    """Return the uuids of the GPUs that must have no process before a planned claim is prepared.

    Each uuid occurs once. A GPU must have no process if the claim gets it whole, or gets the first share that is used
    on it.

    Args:
        planned: The claim that will be prepared.
        held: Uuids of GPUs that claims already use.
    """
    own: dict[str, None] = {}
    for device, gpu in zip(planned.claim.devices, planned.gpus, strict=True):
        first = device.told.get("type") == "share" and gpu.uuid not in held
        if not device.admin and gpu.mig is None and (first or not (device.made or device.part)):
            own[gpu.uuid] = None
    return list(own)


async def _processes_in_words(processes: Processes, own: Sequence[str], *, until: float) -> str | None:
    """Return a text that lists the processes on GPUs; None if there are none.

    The result is also None if the driver refuses to list processes.

    Args:
        processes: Returns the processes that are on GPUs.
        own: The uuids of the GPUs.
        until: When the driver must have answered, in seconds of the event loop's clock.

    Raises:
        NotYetError: The driver does not answer in time.
    """
    if not own:
        return None
    try:
        async with asyncio.timeout_at(until):
            pids = await processes(own)
    except TimeoutError as error:
        raise NotYetError("the GPU driver does not answer whether processes use the GPUs") from error
    except DriverError as error:
        logger.warning("The node agent cannot check whether processes use the GPUs of a claim: %s", error)
        return None
    said = [f"GPU {uuid}: {text(pids[uuid])}" for uuid in own if pids.get(uuid)]
    return "; ".join(said) or None


def text(pids: Sequence[int]) -> str:
    """Return the end of a message: which processes still use a GPU, and the cure."""
    named = first_of(list(map(str, pids)), _MOST_PIDS)
    return f"processes still use it: {named}. End them, or restart the node if they cannot end"
