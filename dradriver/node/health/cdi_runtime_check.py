"""Checks whether the container runtime gives CDI devices to containers.

If it does not, containers start without a GPU, and no program reports an error. containerd 1.7 supports CDI only if it
is configured (``enable_cdi`` of its CRI plugin). Later releases support it by default. CRI-O always supports it. Other
runtimes are not checked.

A host may have more than one containerd, and the kubelet uses one of them. If one of them gives CDI devices, the check
passes, because the kubelet may use that one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import msgspec

from dradriver.node.faults import of_all
from dradriver.node.health.faults_in_force import Record
from dradriver.node.protos.runtime import runtime_pb2, runtime_pb2_grpc
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
ANSWER_S: Final = 5.0
_SOON_S: Final = 1.0
_CONTAINERD: Final = "containerd://"
SOCKETS: Final = (  # below the host's root: containerd's own, K3s and RKE2, k0s, MicroK8s
    "run/containerd/containerd.sock",
    "run/k3s/containerd/containerd.sock",
    "run/k0s/containerd.sock",
    "var/snap/microk8s/common/run/containerd.sock",
)
OFF: Final = "containerd gives containers no CDI devices (enable_cdi is false), so they would start without their GPUs"


class _Config(msgspec.Struct):
    enable_cdi: bool | None = msgspec.field(name="enableCDI", default=None)


class RuntimeWatch:
    """Checks at an interval whether the node's containerd gives CDI devices.

    If not, this is reported as a fault of all GPUs to ``Record``, which decides when a fault counts.
    """

    def __init__(
        self,
        record: Record,
        host_root: Path,
        machine: Callable[[], Machine | None],
        kubelets: Callable[[], str],
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Store the arguments; check nothing yet.

        Args:
            record: Receives the faults.
            host_root: Folder that contains the host's files.
            machine: Returns the node's machine; None while it is unknown.
            kubelets: Returns the name of the runtime that the kubelet uses, from the Node's status; empty while it is
                unknown.
            interval_s: Seconds between two checks.
        """
        self._record = record
        self._host_root = host_root
        self._machine = machine
        self._kubelets = kubelets
        self._interval_s = interval_s

    async def run(self) -> None:
        """Check until cancelled whether the container runtime has CDI on."""
        while True:
            machine, kubelets = self._machine(), self._kubelets()
            known = machine is not None and kubelets
            said = await trouble(self._host_root) if known and kubelets.startswith(_CONTAINERD) else None
            self._record.tell("runtime", of_all(machine, said, kind="runtime"))
            await asyncio.sleep(self._interval_s if known else min(_SOON_S, self._interval_s))


async def trouble(host_root: Path) -> str | None:
    """Return why the container runtime would give containers no GPU; None if it gives GPUs, or if unknown.

    It is unknown if the runtime does not answer or does not report the setting. An unknown setting does not keep pods
    off the GPUs.
    """
    said = {await _cdi(path) for path in _sockets(host_root)}
    return OFF if False in said and True not in said else None


def _sockets(host_root: Path) -> list[Path]:
    try:
        return [path for place in SOCKETS if (path := host_root / place).is_socket()]
    except OSError:
        return []


async def _cdi(path: Path) -> bool | None:
    """Return whether a containerd gives CDI devices, by its configuration; None if this is unknown."""
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            stub = runtime_pb2_grpc.RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.Status(runtime_pb2.StatusRequest(verbose=True), timeout=ANSWER_S)
        return msgspec.json.decode(answer.info["config"], type=_Config).enable_cdi
    except (grpc.RpcError, ValueError) as error:
        logger.info("the runtime at %s does not say whether it knows CDI: %s", path, error)
        return None
