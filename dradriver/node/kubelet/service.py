"""The DRA v1 service that the kubelet calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterable, Iterator
from typing import Any, Final, TypeVar

from dradriver.errors import DriverError
from dradriver.node import metrics
from dradriver.node.claims import cdi
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.prepare import Preparer
from dradriver.node.protos.dra.v1 import dra_pb2

logger = logging.getLogger(__name__)

T = TypeVar("T")

_UNKNOWN: Final = "the node agent failed. Read its log."


class DraService:
    """Serves NodePrepareResources and NodeUnprepareResources.

    Each claim of a call gets its own answer. The error of one claim is only in its own answer, because an error of the
    whole call would fail all claims. The claims of one call are processed at the same time. Otherwise one claim could
    wait for the device of another claim.
    """

    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no call of the kubelet to the DRA service is running."""
        await self._idle.wait()

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def NodePrepareResources(  # noqa: N802  # the name is the protocol's
        self, request: dra_pb2.NodePrepareResourcesRequest, _: Any
    ) -> dra_pb2.NodePrepareResourcesResponse:
        """Prepare every claim of a call to the DRA service, and return the claims' devices with their CDI ids."""

        async def prepare(claim: dra_pb2.Claim) -> dra_pb2.NodePrepareResourceResponse:
            done, error = await _measured(
                "prepare", claim, self._preparer.prepare(claim.namespace, claim.name, claim.uid)
            )
            if done is None:
                return dra_pb2.NodePrepareResourceResponse(error=error)
            return dra_pb2.NodePrepareResourceResponse(devices=_devices(done))

        with self._under_way():
            return dra_pb2.NodePrepareResourcesResponse(claims=await _each(request.claims, prepare))

    async def NodeUnprepareResources(  # noqa: N802  # the name is the protocol's
        self, request: dra_pb2.NodeUnprepareResourcesRequest, _: Any
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        """Unprepare every claim of a call to the DRA service.

        The claim's uid is enough for this.
        """

        async def unprepare(claim: dra_pb2.Claim) -> dra_pb2.NodeUnprepareResourceResponse:
            _, error = await _measured("unprepare", claim, self._preparer.unprepare(claim.uid))
            return dra_pb2.NodeUnprepareResourceResponse(error=error)

        with self._under_way():
            return dra_pb2.NodeUnprepareResourcesResponse(claims=await _each(request.claims, unprepare))


def _devices(claim: PreparedClaim) -> list[dra_pb2.Device]:
    return [
        dra_pb2.Device(
            request_names=[device.request],
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=cdi.device_ids(claim, device),
            share_id=device.share_id,
        )
        for device in claim.devices
    ]


async def _each(claims: Iterable[dra_pb2.Claim], work: Any) -> dict[str, Any]:
    async with asyncio.TaskGroup() as group:
        tasks = {claim.uid: group.create_task(work(claim)) for claim in claims}
    return {uid: task.result() for uid, task in tasks.items()}


async def _measured(call: str, claim: dra_pb2.Claim, work: Awaitable[T]) -> tuple[T | None, str]:
    """Run the work of a call for one claim; return its result, or the error's text for the kubelet.

    The result comes with an empty text, the error's text with None. The duration and the result are counted in the
    metrics.

    Args:
        call: Name of the kubelet's call, for log and metrics.
        claim: The claim, for the log.
        work: The work to run.
    """
    loop = asyncio.get_running_loop()
    started, result, text, done = loop.time(), metrics.OK, "", None
    try:
        done = await work
    except asyncio.CancelledError:
        logger.warning("%s of claim %s/%s: the kubelet cancelled the call.", call, claim.namespace, claim.name)
        result = metrics.CANCELLED
        raise
    except DriverError as error:
        result, text = error.reason, str(error)
        logger.warning("%s of claim %s/%s failed: %s", call, claim.namespace, claim.name, text)
    except Exception:  # a call's root: one claim's surprise must not fail the others
        result, text = metrics.UNKNOWN, _UNKNOWN
        logger.exception("%s of claim %s/%s failed with an internal error.", call, claim.namespace, claim.name)
    finally:
        metrics.CALLS.labels(call, result).observe(loop.time() - started)
    if result == metrics.OK:
        logger.info("%s of claim %s/%s (%s) done", call, claim.namespace, claim.name, claim.uid)
    return done, text
