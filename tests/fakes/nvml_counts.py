"""How often NVML is called: for a reading of a machine, and for the steps of a prepare that ask the driver."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pynvml

from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.devices.device_kinds import MadeKind
from dradriver.node.devices.hardware_journal import Made
from dradriver.node.devices.part_records import MpsShare
from dradriver.node.mps.mps_files import MpsFolder
from dradriver.node.mps.mps_files import Server as MpsServer
from dradriver.node.vendors.nvidia.devices.capabilities import SimulatedCapabilities
from dradriver.node.vendors.nvidia.devices.mig_devices_made import Mig
from dradriver.node.vendors.nvidia.devices.mig_packing import MigRequest
from dradriver.node.vendors.nvidia.devices.mps_and_time_slicing import Mps, Sharing
from dradriver.node.vendors.nvidia.devices.nvml_control import NvmlControl
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from dradriver.topology.machine import MigProfile
from tests.fakes import nvml
from tests.fakes.hardware import Server

MACHINE = "dgx-h100"
MIG_UUID = "MIG-00000001-aaaa-5555-8888-000000000002"

Calls = Counter[str]


@contextlib.contextmanager
def counted() -> Iterator[Calls]:
    """Count the library's functions that ``pynvml`` calls in the block, by name."""
    calls: Calls = Counter()
    look_up = pynvml._nvmlGetFunctionPointer

    def counting(name: str) -> Callable[..., Any]:
        function = look_up(name)

        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return function(*arguments)

        return call

    with patch.object(pynvml, "_nvmlGetFunctionPointer", counting):
        yield calls


def readings(server: Server, count: int) -> list[Calls]:
    """The calls of each of so many readings of a server by an agent that has just begun."""
    found = []
    with running(server) as hardware:
        for _ in range(count):
            with counted() as calls:
                hardware.read()
            found.append(calls)
    return found


def prepares(folder: Path) -> dict[str, Calls]:
    """The calls of a prepare of each kind on GPU 0 of a server whose machine was read.

    They are those in the thread that changes hardware, and for a whole GPU, as for the first share of one, the question
    who is on it; the reading that a change of MIG mode leads to is not among them.
    """
    kinds = {"whole": _whole, "MPS share": _share, "MIG, made": _made, "MIG, there already": _there}
    found = {}
    for name, prepare in kinds.items():
        own = folder / name
        own.mkdir()
        server = Server(MACHINE, own)
        server.table |= {f"nvmlDeviceGetComputeRunningProcesses_v3 {gpu.index}": "" for gpu in server.machine.gpus}
        found[name] = prepare(server, own)
    return found


@contextlib.contextmanager
def running(server: Server) -> Iterator[Hardware]:
    """An agent's view of a server."""
    with patch.dict(os.environ, server.environment()):
        hardware = Hardware(driver_root=nvml.compiled(), host_root=server.sys.root)
        try:
            yield hardware
        finally:
            hardware.close()


def _whole(server: Server, folder: Path) -> Calls:
    with running(server) as hardware:
        hardware.read()
        with counted() as calls:
            hardware.processes([server.machine.gpus[0].uuid])
    return calls


def _share(server: Server, folder: Path) -> Calls:
    server.table["nvmlDeviceGetComputeMode 0"] = "0"
    mps = MpsFolder(folder / "mps", boot="b")
    uuid, limits = server.machine.gpus[0].uuid, MpsServer()
    mps.want(uuid, limits)
    wanted = mps.wanted(uuid)
    assert wanted is not None
    mps.answer(wanted)
    kind = Mps(lambda _: Edits(), lambda _: Sharing(), lambda _: folder)
    with running(server) as hardware:
        hardware.read()
        with counted() as calls:
            hardware.processes([uuid])
            _prepared(kind, server, mps, MpsShare(memory_mib=1024, thread_percentage=10))
    return calls


def _made(server: Server, folder: Path) -> Calls:
    profile = _instance(server, listed=" then 5")
    server.table |= {
        "nvmlDeviceGetMigMode 0": "1 1",
        f"nvmlDeviceCreateGpuInstanceWithPlacement 0 {profile.id} 4:2": "5",
        "nvmlGpuInstanceCreateComputeInstance 0/gi5 1": "0",
    }
    return _mig(server, folder, MigRequest(profile=profile.id, start=4))


def _there(server: Server, folder: Path) -> Calls:
    profile = _instance(server, listed="5")
    server.table |= {"nvmlDeviceGetMigMode 0": "1 1", "nvmlDeviceGetComputeRunningProcesses_v3 0/0": ""}
    return _mig(server, folder, MigRequest(profile=profile.id, start=4))


def _instance(server: Server, *, listed: str) -> MigProfile:
    """Have GPU 0 answer about GPU instance 5; whether it is there yet is for ``listed`` to say."""
    profile = next(one for one in server.machine.gpus[0].profiles if one.name == "2g.20gb")
    server.table |= nvml.instance_table("0/gi5", profile, 4, {0: 1, 1: 2, 7: 1})
    server.table |= nvml.compute_table("0/gi5/ci0", 1, "0/0", MIG_UUID)
    server.table[f"nvmlDeviceGetGpuInstances 0 {profile.id}"] = listed
    return profile


def _mig(server: Server, folder: Path, wanted: MigRequest) -> Calls:
    kind = Mig(SimulatedCapabilities(), parent=lambda _: DeviceNode("", ""), common=Edits)
    with running(server) as hardware:
        hardware.read()
        with counted() as calls:
            _prepared(kind, server, MpsFolder(folder / "mps", boot="b"), wanted)
    return calls


def _prepared(kind: MadeKind[Any, Any, Any], server: Server, mps: MpsFolder, wanted: Any) -> None:
    """Settle and make a device as the device manager does."""
    control = NvmlControl(driver_root=nvml.compiled(), mps=mps, mps_s=0.0)
    uuid = server.machine.gpus[0].uuid
    intent = Made(owner="u", number=0, boot="b", kind=kind.name, device="d", uuid=uuid, wanted=wanted)
    (settled,) = kind.settle(control, [intent], [])
    for _ in kind.make(control, msgspec.structs.replace(intent, wanted=settled)):
        pass
