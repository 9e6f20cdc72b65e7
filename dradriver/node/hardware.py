"""The hardware of a node, by its agent's options: what reads it, and what changes it; its own, or simulated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dradriver.node import boot
from dradriver.node.devices import assemble
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.discovery import Discovery
from dradriver.node.discovery.hardware import Hardware
from dradriver.node.discovery.kept_nics import KeptNics
from dradriver.node.discovery.nvidia.own_toolkit import OwnToolkit
from dradriver.node.discovery.nvidia.toolkit import BaseSpecification
from dradriver.node.discovery.watch import MachineWatch
from dradriver.node.mps.files import MpsFolder
from dradriver.node.options import Options
from dradriver.node.publishing.mode_transition import ModeTransitions


def discovery(options: Options, released: Callable[[], str | None], *, prepares: bool = True) -> Discovery:
    """Return what reads this node's machine.

    Args:
        options: The agent's.
        released: Says why the driver must be let go, if it must.
        prepares: Whether this agent gives GPUs to containers, so that one which it cannot give is left out.
    """
    if options.discovery == "nvml":
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
        nics = KeptNics(options.state_dir / "nics.json", boot=boot_of(options)) if prepares else None
        return Hardware(driver_root=driver_root, host_root=host_root, base=base, released=released, nics=nics)
    from dradriver.node.discovery.simulated import Simulated, source_for  # here, for no real node needs it

    source = source_for(options.node, machines=options.simulated_machines, default=options.simulated_default)
    folder = _simulated_dir(options)
    return Simulated(source, node=options.node, folder=folder, seen=assemble.seen(folder, boot=boot_of(options)))


def device_manager(
    options: Options,
    found: Discovery,
    machines: MachineWatch,
    modes: ModeTransitions,
    *,
    released: Callable[[], str | None],
    switched: Callable[[], None],
) -> DeviceManager:
    """Return what makes devices for claims.

    Args:
        options: The agent's.
        found: What reads the machine.
        machines: The machine as it is.
        modes: As what each GPU is handed out.
        released: Says why the driver must be let go, if it must.
        switched: Called after a change of a GPU's MIG mode, in the thread that changes hardware.
    """
    mps = MpsFolder(options.state_dir / "mps", boot=boot_of(options))
    if options.discovery == "simulated":
        return assemble.simulated(
            found.edits,
            _simulated_dir(options),
            lambda: machines.machine,
            mps=mps,
            sharing=modes.sharing,
            made=modes.makes_instances,
            switched=switched,
        )
    return assemble.real(
        found.edits,
        cdi_root=options.cdi_root,
        host_root=options.host_root,
        driver_root=options.driver_root,
        released=released,
        mps=mps,
        sharing=modes.sharing,
        made=modes.makes_instances,
        switched=switched,
    )


def boot_of(options: Options) -> str:
    """Return the id of this boot; a simulated node may have a file of its own, so that it can be booted.

    Raises:
        OSError: Nobody says.
    """
    own = _simulated_dir(options) / "boot_id"
    return boot.boot_id(own if options.discovery == "simulated" and own.exists() else boot.BOOT_ID)


def _simulated_dir(options: Options) -> Path:
    return options.simulated_dir or options.state_dir / "simulated"
