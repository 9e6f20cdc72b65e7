"""The hardware of a node, by its agent's options: what reads it, and what changes it; its own, or simulated."""

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
from dradriver.node.devices.whole import Whole
from dradriver.node.discovery import Discovery
from dradriver.node.discovery.empty_machine import Nothing
from dradriver.node.discovery.kept_nics import KeptNics
from dradriver.node.discovery.machine_watch import MachineWatch
from dradriver.node.health.kernel_log import KernelLog, Reports
from dradriver.node.mps.mps_files import MpsFolder
from dradriver.node.publishing.mode_transition import ModeTransitions
from dradriver.node.vendors import vendor_of_node
from dradriver.node.vendors.amd import simulated_amd as amd
from dradriver.node.vendors.amd.amd_gpus import AmdGpus
from dradriver.node.vendors.amd.amd_specification import AmdSpecification
from dradriver.node.vendors.amd.reports import AmdReports
from dradriver.node.vendors.ascend import simulated_ascend as ascend
from dradriver.node.vendors.nvidia import simulated_nvidia as nvidia
from dradriver.node.vendors.nvidia.devices import assemble
from dradriver.node.vendors.nvidia.discovery.base_specification import BaseSpecification
from dradriver.node.vendors.nvidia.discovery.library import below
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from dradriver.node.vendors.nvidia.discovery.own_toolkit import OwnToolkit
from dradriver.node.vendors.nvidia.xid_reports import XidReports
from dradriver.topology.machine import Gpu
from dradriver.topology.vendors import AMD, ASCEND, NVIDIA, Vendor

logger = logging.getLogger(__name__)

_WORDS: Final = {"nvml": NVIDIA, "amd": AMD}


class Backend(NamedTuple):
    """What reads a node's machine.

    Attributes:
        vendor: Whose GPUs it has.
        discovery: Reads it.
        refused: Says why nothing of it is published although it has GPUs; None while that is not so.
        log: The kernel's, with what the vendor's driver reports there; None for simulated GPUs.
        is_stale: Says whether the driver was loaded anew since the last reading.
        is_foreign: Says whether a GPU is none of the machine, as those of another profile of a simulated node.
        state_dir: Holds the table of slots: each kind of machine has its own. None for the agent's folder.
    """

    vendor: Vendor
    discovery: Discovery
    refused: Callable[[], str | None] = lambda: None
    log: KernelLog | None = None
    is_stale: Callable[[], bool] = lambda: False
    is_foreign: Callable[[str], bool] = lambda _: False
    state_dir: Path | None = None


def backend(
    options: Options,
    released: Callable[[], str | None],
    *,
    prepares: bool = True,
    xids: Callable[[], Mapping[str, XidWord]] = dict,
) -> Backend:
    """Return the backend that reads this node's hardware: a vendor's, or a simulated one.

    Args:
        options: The agent's.
        released: Says why the driver must be let go, if it must.
        prepares: Whether this agent gives GPUs to containers, so that one which it cannot give is left out.
        xids: Gives what an administrator says of XIDs, by number.
    """
    if options.discovery == "simulated":
        return _simulated(options)
    root = options.sys_root or options.host_root
    word = _WORDS.get(options.discovery)
    found = vendor_of_node.look(root) if word is None else vendor_of_node.Present(word)
    if found.refused is not None:
        return Backend(found.vendor, Nothing(root), lambda: found.refused)
    if found.left_out is not None:
        logger.warning("GPUs of another vendor: %s", found.left_out)
    cards = KeptNics(options.state_dir / "nics.json", boot=boot_of(options)) if prepares else None
    reports: Reports
    if found.vendor is AMD:
        base = None
        if prepares:
            base = AmdSpecification(cdi_root=options.cdi_root, root=root, on_host=below(options.host_root, root) or "/")
        gpus, reports = AmdGpus(root=root, base=base, nics=cards), AmdReports()
        return Backend(
            AMD,
            gpus,
            lambda: gpus.refused,
            _log(options, reports),
            gpus.is_stale,
            state_dir=options.state_dir / AMD.word,
        )
    gpus_of_nvidia = _nvidia(options, released, cards, prepares=prepares)
    log = _log(options, XidReports(words=xids))
    return Backend(NVIDIA, gpus_of_nvidia, log=log, is_stale=gpus_of_nvidia.is_stale)


def _log(options: Options, reports: Reports) -> KernelLog:
    return KernelLog(options.host_root / "dev/kmsg", reports)


def _nvidia(
    options: Options, released: Callable[[], str | None], cards: KeptNics | None, *, prepares: bool
) -> Hardware:
    driver_root, host_root = options.driver_root, options.host_root
    base = None
    if prepares:
        own = None
        if options.toolkit is not None:
            folders = (options.hooks_dir, options.state_dir / "toolkit")
            copies = [folder for folder in folders if folder is not None]
            own = OwnToolkit(options.toolkit, copies=copies, host_root=host_root)
        base = BaseSpecification(
            cdi_root=options.cdi_root, host_root=host_root, driver_root=driver_root, own_toolkit=own
        )
    return Hardware(driver_root=driver_root, host_root=host_root, base=base, released=released, nics=cards)


def _simulated(options: Options) -> Backend:
    from dradriver.node.discovery.simulated_machine import Simulated, source_for  # here, for no real node needs it

    source = source_for(options.node, machines=options.simulated_machines, default=options.simulated_default)
    folder = _simulated_dir(options)
    seen = assemble.seen(folder, boot=boot_of(options))
    given: dict[str, Callable[[Gpu], Edits]] = {
        NVIDIA.word: nvidia.edits,
        AMD.word: amd.edits,
        ASCEND.word: functools.partial(ascend.edits, host_root=options.host_root),
    }
    loaded = functools.partial(_load_of, folder, boot_of(options))
    found = Simulated(source, node=options.node, folder=folder, seen=seen, loaded=loaded, given=given)
    return Backend(found.vendor, found, is_foreign=lambda uuid: uuid not in found.uuids, state_dir=folder)


def device_manager(
    options: Options,
    found: Backend,
    machines: MachineWatch,
    modes: ModeTransitions,
    *,
    released: Callable[[], str | None],
    switched: Callable[[], None],
) -> DeviceManager:
    """Return the device manager for this node's hardware: of vendors without parts for whole GPUs only.

    Args:
        options: The agent's.
        found: What reads the machine.
        machines: The machine as it is.
        modes: As what each GPU is handed out.
        released: Says why the driver must be let go, if it must.
        switched: Called after a change of a GPU's MIG mode, in the thread that changes hardware.
    """
    edits = found.discovery.edits
    if not found.vendor.parts:
        return DeviceManager([Whole(edits)])
    mps = MpsFolder(options.state_dir / "mps", boot=boot_of(options))
    if options.discovery == "simulated":
        host = assemble.simulated(_simulated_dir(options), lambda: machines.machine, mps=mps)
    else:
        host = assemble.real(
            cdi_root=options.cdi_root,
            host_root=options.host_root,
            driver_root=options.driver_root,
            released=released,
            mps=mps,
        )
    return assemble.of(edits, host, mps=mps, sharing=modes.sharing, made=modes.makes_instances, switched=switched)


def boot_of(options: Options) -> str:
    """Return the id of this boot; a simulated node may have a file of its own, so that it can be booted.

    Raises:
        OSError: Nobody says.
    """
    own = _simulated_dir(options) / "boot_id"
    return boot.boot_id(own if options.discovery == "simulated" and own.exists() else boot.BOOT_ID)


def _load_of(folder: Path, boot: str) -> str:
    """Return which boot, and which load of the driver, a simulated node is in."""
    return f"{boot} {assemble.load(folder)}"


def _simulated_dir(options: Options) -> Path:
    return options.simulated_dir or options.state_dir / "simulated"
