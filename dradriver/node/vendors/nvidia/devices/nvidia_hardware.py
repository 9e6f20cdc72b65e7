"""The kinds of devices of a node with NVIDIA's GPUs, and the code that changes its hardware."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.devices.control_interface import Control
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.devices.whole_gpus import Whole
from dradriver.node.mps.mps_files import MpsFolder
from dradriver.node.threads import Thread
from dradriver.node.vendors.nvidia.devices.capabilities import Capabilities, DriverCapabilities, SimulatedCapabilities
from dradriver.node.vendors.nvidia.devices.mig_devices_made import Mig
from dradriver.node.vendors.nvidia.devices.mps_and_time_slicing import Mps, Sharing, TimeSliced
from dradriver.node.vendors.nvidia.devices.nvml_control import NvmlControl
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from dradriver.node.vendors.nvidia.discovery import base_specification
from dradriver.node.vendors.nvidia.discovery.driver_root import dev_root, on_host
from dradriver.topology.machine import Gpu, Machine

HARDWARE: Final = "hardware.json"  # what simulated GPUs are like now


class Host(NamedTuple):
    """The access to a node's hardware that the kinds of devices need.

    Attributes:
        control: Changes the hardware.
        capabilities: Finds the device nodes of MIG instances.
        parent: Returns the device node of a GPU, by its minor number.
        common: Returns what every container with a MIG instance gets: the driver's libraries.
    """

    control: Control
    capabilities: Capabilities
    parent: Callable[[int], DeviceNode]
    common: Callable[[], Edits]


def simulated(folder: Path, machine: Callable[[], Machine | None], *, mps: MpsFolder) -> Host:
    """Return the simulated hardware of a node with NVIDIA's GPUs.

    Its state is in a file.

    Args:
        folder: The folder of the file.
        machine: Returns the machine as it is now.
        mps: The folder in which GPUs' control daemons would have their files.
    """

    def known(uuid: str) -> Gpu | None:
        now = machine()
        return next((gpu for gpu in now.gpus if gpu.uuid == uuid), None) if now is not None else None

    return Host(
        SimulatedGpu(folder / HARDWARE, known, boot=mps.boot, mps=mps),
        SimulatedCapabilities(),
        parent=lambda minor: DeviceNode(f"/dev/nvidia{minor}", "/dev/null"),
        common=Edits,
    )


def seen(folder: Path, *, boot: str) -> Callable[[Gpu], Gpu]:
    """Return a function that adds to a simulated NVIDIA GPU the MIG devices that exist on it.

    The file of the simulated hardware in ``folder`` names these MIG devices. Those of another boot than ``boot`` do not
    count.
    """
    return SimulatedGpu(folder / HARDWARE, boot=boot).seen


def load(folder: Path) -> str:
    """Return an id that is new each time that the simulated NVIDIA driver is loaded.

    The id is in a file in the folder. It is empty if the file is missing.
    """
    return SimulatedGpu(folder / HARDWARE).driver()


def real(
    *, cdi_root: Path, host_root: Path, driver_root: Path | None, released: Callable[[], str | None], mps: MpsFolder
) -> Host:
    """Return the access to this node's own NVIDIA hardware.

    Args:
        cdi_root: The runtime's folder for CDI files, which has the agent's file for whole GPUs (the base
            specification).
        host_root: Folder that contains the host's file system.
        driver_root: Root of the file system with the driver; None for the host's own.
        released: Returns the reason why all processes must close the driver now; None if they may keep it open.
        mps: The folder in which GPUs' control daemons have their files.
    """

    def parent(minor: int) -> DeviceNode:
        node = dev_root(host_root, driver_root) / f"dev/nvidia{minor}"
        return DeviceNode(f"/dev/nvidia{minor}", on_host(host_root, node))

    return Host(
        NvmlControl(driver_root=driver_root, mps=mps, released=released),
        DriverCapabilities(host_root=host_root, driver_root=driver_root),
        parent=parent,
        common=lambda: Edits(cdi=(base_specification.driver_id(cdi_root),)),
    )


def of(
    edits: Callable[[Gpu], Edits],
    host: Host,
    *,
    mps: MpsFolder,
    sharing: Callable[[Gpu], Sharing],
    made: Callable[[str], bool] = lambda _: True,
    switched: Callable[[], None] = lambda: None,
    thread: Thread | None = None,
) -> DeviceManager:
    """Return a device manager with every kind of NVIDIA's devices, for this hardware.

    Args:
        edits: Returns the container edits of a whole GPU.
        host: The access to the hardware.
        mps: The folder in which GPUs' control daemons have their files.
        sharing: Returns how a GPU is shared.
        made: Returns whether the agent makes MIG instances for claims on a GPU, by its uuid.
        switched: Called after a change of a GPU's MIG mode, in the thread that changes hardware.
        thread: The thread in which hardware is changed; None for a new thread.
    """
    kinds = (
        Mig(host.capabilities, parent=host.parent, common=host.common, made=made, switched=switched),
        Mps(edits, sharing, mps.of),
        TimeSliced(edits, sharing),
        Whole(edits),
    )
    return DeviceManager(kinds, host.control, thread=thread)
