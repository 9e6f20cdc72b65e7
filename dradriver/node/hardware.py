"""Chooses, by the agent's options, the code that reads a node's hardware and the code that changes it.

The driver is the GPUs' kernel driver with its library. Slots are the numbered places of GPUs in the server; a table on
disk keeps each GPU's number.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from dradriver.api.policies.fields import XidWord
from dradriver.node import boot
from dradriver.node.agent_options import Options
from dradriver.node.container_edits import Edits
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.devices.whole_gpus import Whole
from dradriver.node.discovery import Discovery
from dradriver.node.discovery.empty_machine import Nothing
from dradriver.node.discovery.kept_nics import KeptNics
from dradriver.node.discovery.machine_watch import MachineWatch
from dradriver.node.health.kernel_log import KernelLog, Reports
from dradriver.node.mps.mps_files import MpsFolder
from dradriver.node.publishing.mode_transition import ModeTransitions
from dradriver.node.vendors import vendor_of_node
from dradriver.node.vendors.amd import simulated_amd
from dradriver.node.vendors.amd.amd_gpus import AmdGpus
from dradriver.node.vendors.amd.amd_reports import AmdReports
from dradriver.node.vendors.amd.amd_specification import AmdSpecification
from dradriver.node.vendors.ascend import simulated_ascend
from dradriver.node.vendors.nvidia import simulated_nvidia
from dradriver.node.vendors.nvidia.devices import nvidia_hardware
from dradriver.node.vendors.nvidia.discovery.base_specification import BaseSpecification
from dradriver.node.vendors.nvidia.discovery.driver_root import below
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from dradriver.node.vendors.nvidia.discovery.own_toolkit import OwnToolkit
from dradriver.node.vendors.nvidia.xid_reports import XidReports
from dradriver.topology.machine import Gpu
from dradriver.topology.vendors import AMD, ASCEND, NVIDIA, Vendor

logger = logging.getLogger(__name__)

_VENDOR_OF_OPTION: Final = {"nvml": NVIDIA, "amd": AMD}


class Backend(NamedTuple):
    """The code that reads a node's machine.

    Attributes:
        vendor: The vendor of the machine's GPUs.
        discovery: Reads the machine.
        refused: Returns the reason why none of the machine's GPUs may be published, for example because no container
            could use them; None if they may be published.
        log: The kernel log, with the reports of the vendor's driver; None for simulated GPUs.
        is_stale: Returns whether the driver was loaded again since the last reading.
        withdraw: Removes the CDI specification of whole GPUs, because the driver was loaded again. It must not be
            called while a reading runs.
        is_foreign: Returns whether a published GPU (uuid) belongs to another machine than this one, for example because
            a simulated node has another profile now.
        state_dir: Folder of the table that numbers the GPUs by their places (slots); None for the agent's own folder.
    """

    vendor: Vendor
    discovery: Discovery
    refused: Callable[[], str | None] = lambda: None
    log: KernelLog | None = None
    is_stale: Callable[[], bool] = lambda: False
    withdraw: Callable[[], None] = lambda: None
    is_foreign: Callable[[str], bool] = lambda _: False
    state_dir: Path | None = None


def backend(
    options: Options,
    released: Callable[[], str | None],
    *,
    prepares: bool = True,
    xids: Callable[[], Mapping[str, XidWord]] = dict,
) -> Backend:
    """Return the code that reads the hardware of this node.

    This is the code for the vendor of the node's GPUs, or for a simulated machine.

    Args:
        options: The options of the agent.
        released: Returns the reason why the driver's library must be closed now, such as a driver update; None if it
            may stay open.
        prepares: Whether this agent gives GPUs to containers. If so, a GPU that it cannot give is not published.
        xids: Returns the administrator's settings for XIDs (error numbers of NVIDIA's driver), by number: taint, warn
            or ignore.
    """
    if options.discovery == "simulated":
        return _simulated(options)

    # An option can name the vendor; else the PCI devices of the node tell.
    root = options.device_root or options.host_root
    forced_vendor = _VENDOR_OF_OPTION.get(options.discovery)
    present = vendor_of_node.look(root) if forced_vendor is None else vendor_of_node.Present(forced_vendor)
    if present.refused is not None:
        return Backend(present.vendor, Nothing(root), lambda: present.refused)
    if present.left_out is not None:
        logger.warning("GPUs of another vendor are ignored: %s", present.left_out)

    # NICs that were seen before: a NIC that a pod has is not in the host's network namespace.
    nics = KeptNics(options.state_dir / "nics.json", boot=boot_of(options)) if prepares else None
    if present.vendor is AMD:
        return _amd(options, root, nics, prepares=prepares)
    # A real node has GPUs of AMD, of NVIDIA, or none.
    return _nvidia(options, released, xids, nics, prepares=prepares)


def _amd(options: Options, root: Path, nics: KeptNics | None, *, prepares: bool) -> Backend:
    """Return the code that reads AMD's GPUs.

    ``root`` is the folder that contains the /sys and /dev of the GPUs. A table numbers the GPUs by their places in the
    server (slots). AMD's table has its own folder, because the agent's folder has NVIDIA's table. ``nics`` are the
    network cards that were found earlier; None if the caller keeps none. ``prepares`` says whether this agent gives
    GPUs to containers.
    """
    base = None
    if prepares:
        base = AmdSpecification(cdi_root=options.cdi_root, root=root, on_host=below(options.host_root, root) or "/")
    gpus = AmdGpus(root=root, base=base, nics=nics)
    return Backend(
        AMD,
        gpus,
        refused=lambda: gpus.refused,
        log=_log(options, AmdReports()),
        is_stale=gpus.is_stale,
        withdraw=gpus.withdraw,
        state_dir=options.state_dir / AMD.word,
    )


def _nvidia(
    options: Options,
    released: Callable[[], str | None],
    xids: Callable[[], Mapping[str, XidWord]],
    nics: KeptNics | None,
    *,
    prepares: bool,
) -> Backend:
    """Return the code that reads NVIDIA's GPUs.

    Args:
        options: The options of the agent.
        released: Returns the reason why the driver's library must be closed now; None if it may stay open.
        xids: Returns the administrator's settings for XIDs, by number: taint, warn or ignore.
        nics: The network cards of earlier readings; None if they are not recorded.
        prepares: Whether this agent gives GPUs to containers.
    """
    driver_root, host_root = options.driver_root, options.host_root
    base = None
    if prepares:
        own_toolkit = None
        if options.toolkit is not None:
            folders = (options.hooks_dir, options.state_dir / "toolkit")
            copies = [folder for folder in folders if folder is not None]
            own_toolkit = OwnToolkit(options.toolkit, copies=copies, host_root=host_root)
        base = BaseSpecification(
            cdi_root=options.cdi_root, host_root=host_root, driver_root=driver_root, own_toolkit=own_toolkit
        )
    gpus = Hardware(driver_root=driver_root, host_root=host_root, base=base, released=released, nics=nics)
    return Backend(
        NVIDIA,
        gpus,
        log=_log(options, XidReports(words=xids)),
        is_stale=gpus.is_stale,
        withdraw=gpus.withdraw,
    )


def _log(options: Options, reports: Reports) -> KernelLog:
    return KernelLog(options.host_root / "dev/kmsg", reports)


def _simulated(options: Options) -> Backend:
    from dradriver.node.discovery.simulated_machine import Simulated, source_for  # here, for no real node needs it

    source = source_for(options.node, machines=options.simulated_machines, default=options.simulated_default)
    folder = _simulated_dir(options)
    seen = nvidia_hardware.seen(folder, boot=boot_of(options))
    given: dict[str, Callable[[Gpu], Edits]] = {
        NVIDIA.word: simulated_nvidia.edits,
        AMD.word: simulated_amd.edits,
        ASCEND.word: functools.partial(simulated_ascend.edits, host_root=options.host_root),
    }
    loaded = functools.partial(_load_of, folder, boot_of(options))
    found = Simulated(source, node=options.node, folder=folder, seen=seen, loaded=loaded, edits_of=given)
    return Backend(found.vendor, found, is_foreign=lambda uuid: uuid not in found.uuids, state_dir=folder)


def device_manager(
    options: Options,
    hardware: Backend,
    machines: MachineWatch,
    modes: ModeTransitions,
    *,
    released: Callable[[], str | None],
    switched: Callable[[], None],
) -> DeviceManager:
    """Return the device manager for this node's hardware.

    If the vendor's GPUs cannot be divided, the manager handles only whole GPUs.

    Args:
        options: The options of the agent.
        hardware: The code that reads the machine.
        machines: Provides the machine as it was last read.
        modes: Says whether each GPU is whole, divided into shares, or divided into MIG slices.
        released: Returns the reason why the driver's library must be closed now; None if it may stay open.
        switched: Called after a change of a GPU's MIG mode, in the thread that changes hardware.
    """
    # Gives what a container needs for a GPU: device nodes and libraries.
    edits = hardware.discovery.edits
    can_be_divided = hardware.vendor.parts
    if not can_be_divided:
        return DeviceManager([Whole(edits)])

    # Only NVIDIA's GPUs can be divided.
    mps = MpsFolder(options.state_dir / "mps", boot=boot_of(options))
    if options.discovery == "simulated":
        host = nvidia_hardware.simulated(_simulated_dir(options), lambda: machines.machine, mps=mps)
    else:
        host = nvidia_hardware.real(
            cdi_root=options.cdi_root,
            host_root=options.host_root,
            driver_root=options.driver_root,
            released=released,
            mps=mps,
        )
    return nvidia_hardware.of(
        edits, host, mps=mps, sharing=modes.sharing, made=modes.makes_instances, switched=switched
    )


def boot_of(options: Options) -> str:
    """Return the boot id of this node; a simulated node can have its own boot id in a file.

    Raises:
        OSError: The boot id cannot be read.
    """
    own = _simulated_dir(options) / "boot_id"
    return boot.boot_id(own if options.discovery == "simulated" and own.exists() else boot.BOOT_ID)


def _load_of(folder: Path, boot: str) -> str:
    """Return an id that is new when a simulated node boots or loads its driver.

    Args:
        folder: The folder with the file that has the id of the last loading of the driver.
        boot: Id of the boot.
    """
    return f"{boot} {nvidia_hardware.load(folder)}"


def _simulated_dir(options: Options) -> Path:
    return options.simulated_dir or options.state_dir / "simulated"
