"""The machine that a command is about: the one that its options name, or the machine on which the command runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from dradriver.errors import DriverError
from dradriver.reason import sentences
from dradriver.topology import peer_access
from dradriver.topology.errors import TopologyError
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine
from dradriver.topology.topo_m.implied_products import assumed
from dradriver.topology.vendors import AMD
from dradriver.view.output import warn

F = TypeVar("F", bound=Callable[..., Any])

SOURCES: Final = (
    "The name of a profile (gputopo topo --list), or a file: the text of nvidia-smi topo -m, amd-smi topology (or "
    "JSON), rocm-smi --showtopo, npu-smi info -t topo or npu-smi info; XML of NCCL or RCCL; JSON of gputopo topo; a "
    "profile."
)
"""What ``read_machine`` takes, as the help of options says it."""


def machine_options(command: F) -> F:
    """Add the options for the source of a machine to a command.

    They are ``source``, ``driver_root``, ``product`` and ``cpu``.
    """
    command = click.option(
        "--cpu",
        default="",
        metavar="NAME",
        help="The CPU model, if the source does not name it: rome, skylake, GenuineIntel 6 85, ….",
    )(command)
    command = click.option(
        "--product",
        default="",
        metavar="NAME",
        help='The GPU product, if the source does not name it: a40, "NVIDIA H100 PCIe", mi300x, 910A, ….',
    )(command)
    command = click.option(
        "--driver-root", metavar="DIR", type=click.Path(path_type=Path),
        help="Without --machine: the root of the file system with the NVIDIA driver, for example /run/nvidia/driver.",
    )(command)  # fmt: skip
    return click.option(
        "-m", "--machine", "source", metavar="FILE|PROFILE", help=f"{SOURCES} Default: this machine.",
    )(command)  # fmt: skip


def nccl_version_option(command: F) -> F:
    """Add the option ``nccl_version`` to a command; it overrides the NCCL version in the machine's source."""
    return click.option(
        "--nccl-version",
        default="",
        metavar="VERSION",
        help="The NCCL version to predict bandwidth for: 2.23. Default: the newest known version.",
    )(command)


def read(
    source: str | None, *, driver_root: Path | None = None, product: str = "", cpu: str = "", nccl_version: str = ""
) -> Machine:
    """Return the machine from the source that a command's options name, else this machine.

    ``product``, ``cpu`` and ``nccl_version`` replace the facts of the source (see ``topology.complete``).

    Raises:
        DriverError: The machine cannot be read. The message says which option to give instead.
    """
    if source is None and (product or cpu):
        raise click.UsageError("--product and --cpu need --machine. For this machine, the values are read from it.")
    machine = _own(driver_root) if source is None else read_machine(source)
    if product or cpu or nccl_version:
        from dradriver.topology.complete import complete  # here, for few need it

        machine = complete(machine, product=product, cpu=cpu, nccl_version=nccl_version)
    warn_of(machine)
    return machine


def warn_of(machine: Machine) -> None:
    """Print warnings about a machine: the product that was assumed for its GPUs, and GPUs that no pod gets."""
    if guess := assumed(machine):
        warn(guess)
    for i, others in peer_access.kept_off(machine).items():
        named = ", ".join(f"GPU {machine.gpus[j].index}" for j in others)
        warn(
            f"GPU {machine.gpus[i].index}: its links are up, but it has no peer access to {named}: a node taints it, "
            "and gputopo plan leaves it out"
        )


def _own(driver_root: Path | None) -> Machine:
    from dradriver.node.vendors import vendor_of_node
    from dradriver.node.vendors.amd import amd_reading
    from dradriver.node.vendors.nvidia.discovery import nvidia_reading

    reading: amd_reading.Reading | nvidia_reading.Reading
    try:
        if vendor_of_node.look(root := Path("/")).vendor is AMD:
            reading = amd_reading.read(root)
        else:
            reading = nvidia_reading.read(driver_root=driver_root)
    except DriverError as error:
        cure = "For another machine, add --machine FILE|PROFILE (gputopo topo --list prints the profiles)."
        raise TopologyError(sentences(f"The GPUs of this machine cannot be read: {error}", cure)) from error
    for problem in reading.problems:
        warn(str(problem))
    return reading.machine
