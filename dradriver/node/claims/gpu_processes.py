"""Processes on GPUs that change hands: one that hangs in the driver outlives its pod, and keeps memory and engines.

The kubelet unprepares a claim when its containers are gone, which they are not while a process of theirs hangs; but one
that left its container's control group, or whose container the runtime forgot, is nobody's, and so is one that never
was of a claim: somebody's at a terminal, or of a pod that a device plugin gave the GPU.

A GPU that is shared has others' processes rightly once somebody has a share of it, as has one in MIG mode, whose
instances are made and given back on their own, and are left to what makes them. Nor does a process count that has a GPU
open without computing on it, as monitoring and persistence daemons have (nvml.h, nvmlDeviceGetComputeRunningProcesses:
with a compute context).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

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
    """Return the function that asks for processes on GPUs, in a thread of its own."""
    thread = Thread("processes")

    async def processes(gpus: Sequence[str]) -> Mapping[str, Sequence[int]]:
        if not discovery.slow:
            return discovery.processes(gpus)
        async with asyncio.timeout(ANSWER_S):
            return await thread.run(lambda: discovery.processes(gpus), question=True)

    return processes


async def nobody(gpus: Sequence[str]) -> Mapping[str, Sequence[int]]:  # noqa: ARG001  # the signature
    """Return no processes for any GPU, on nodes whose GPUs are rightly used outside Kubernetes."""
    return {}


async def raise_if_occupied(processes: Processes, planned: Plan, ledgers: Ledgers, lock: Path, *, until: float) -> None:
    """Raise if processes are on GPUs that a planned claim needs without processes.

    These are the GPUs that the claim gets whole, and those that it gets the first share of. If the driver refuses to
    list processes nothing is raised, because it may never list them. If it does not answer the claim waits: a container
    would hang in the driver, too.

    Args:
        processes: Gives the processes that are on GPUs.
        planned: The claim that will be prepared.
        ledgers: The claims that are prepared.
        lock: The lock of the ledgers.
        until: When the driver must have answered, by the event loop's clock; it has a second at least.

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
    """Return the uuids of the GPUs on which nobody may be yet, each once."""
    own: dict[str, None] = {}
    for device, gpu in zip(planned.claim.devices, planned.gpus, strict=True):
        first = device.told.get("type") == "share" and gpu.uuid not in held
        if not device.admin and gpu.mig is None and (first or not (device.made or device.part)):
            own[gpu.uuid] = None
    return list(own)


async def _processes_in_words(processes: Processes, own: Sequence[str], *, until: float) -> str | None:
    """Return which processes are on these GPUs; None where there are none."""
    if not own:
        return None
    try:
        async with asyncio.timeout_at(until):
            pids = await processes(own)
    except TimeoutError as error:
        raise NotYetError("the driver does not answer, so whether processes are on the GPUs is not known") from error
    except DriverError as error:
        logger.warning("whether processes are on GPUs that are given out cannot be known: %s", error)
        return None
    said = [f"GPU {uuid}: {text(pids[uuid])}" for uuid in own if pids.get(uuid)]
    return "; ".join(said) or None


def text(pids: Sequence[int]) -> str:
    """Return which processes still run on a GPU that should be free, in words, and what to do."""
    more = len(pids) - _MOST_PIDS
    named = ", ".join(map(str, pids[:_MOST_PIDS])) + (f" and {more} more" if more > 0 else "")
    return f"processes still on it: {named}; end them, or restart the node if they cannot end"
