"""``gputopo nccl``: NCCL topology files, and whether a machine needs one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from dradriver.cli.machine_source import machine_options, read
from dradriver.counted import first_of
from dradriver.topology import nccl as files
from dradriver.topology.complete import complete, with_bus_ids
from dradriver.topology.errors import TopologyError
from dradriver.topology.identifiers import short_bus_id
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine, PathType
from dradriver.topology.nccl import file_needed as advice
from dradriver.topology.nccl.findings import Finding
from dradriver.topology.nccl.host_paths import lost
from dradriver.topology.nccl.nccl_file_writer import VIRTUAL_PATH, without_rate, write_file
from dradriver.view.document import Cell, Notes, Tone, report, words
from dradriver.view.output import show, warn

_MOST_BYTES = 1 << 20
_MOST_NAMED = 4  # devices in one warning


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def nccl() -> None:
    """Write and check NCCL topology files (NCCL_TOPO_FILE), or print whether one is needed."""


@nccl.command()
@machine_options
@click.option(
    "--like", metavar="FILE|PROFILE", help="The server below a virtual machine: its PCIe paths go into the file."
)
@click.option(
    "--bus-ids",
    default="",
    metavar="LIST",
    help="The bus ids of the GPUs by index, then of the NICs, if the source has none.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help=f"The file to write. NCCL reads {VIRTUAL_PATH} by itself. Default: standard output.",
)
def write(
    source: str | None,
    driver_root: Path | None,
    product: str,
    cpu: str,
    like: str | None,
    bus_ids: str,
    output: str | None,
) -> None:
    """Write a topology file that every NCCL from 2.18 to 2.30 reads.

    The file has the NUMA nodes and the PCI tree. NCCL finds links and NICs by itself. Most machines need no file: see
    "gputopo nccl explain". A text of "nvidia-smi topo -m" has no CPUs, PCIe tree and bus ids. For such a text, give
    --cpu, --product, and --bus-ids: first the output of "nvidia-smi --query-gpu=pci.bus_id", then the bus ids of the
    NICs.
    """
    machine = read(source, driver_root=driver_root, product=product, cpu=cpu)
    # For a virtual machine: the PCIe paths are those of the server that it runs on.
    host_server = None if like is None else read_machine(like)
    if bus_ids:
        machine = complete(machine, bus_ids=[short_bus_id(busid.strip()) for busid in bus_ids.split(",")])
    # NCCL finds devices in the file by their bus ids, so a file needs some. ``pci`` is a GPU's address on the PCI bus.
    lacks_bus_ids = not all(gpu.pci for gpu in machine.gpus)
    text = files.write(with_bus_ids(machine) if lacks_bus_ids else machine, like=host_server)
    for guess in _warnings_about_guesses(machine, made_up=lacks_bus_ids, like=host_server):
        warn(guess)
    if host_server is not None:
        for loss in lost(machine, like=host_server):
            warn(loss)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_file(text, Path(output))


def _warnings_about_guesses(machine: Machine, *, made_up: bool, like: Machine | None) -> Iterator[str]:
    """Yield warnings about facts that the source lacks and that the written file must guess or omit.

    Args:
        machine: The machine, as its source describes it.
        made_up: Whether bus ids had to be made up.
        like: The server under a virtual machine, if the user names it.
    """
    if made_up:
        yield "the source has no bus ids, those in the file are made up: give the GPUs' own with --bus-ids"
    if machine.pci:  # the source has the PCI tree: only rates can be missing
        devices_without_rate = without_rate(machine) if like is None else []
        if devices_without_rate:
            yield (
                f"{first_of(devices_without_rate, _MOST_NAMED)}: "
                "the source does not say the PCIe rate, so NCCL takes it "
                'for Gen 3: write it into the source as link_speed="32.0 GT/s PCIe"'
            )
        return
    if not all(gpu.product for gpu in machine.gpus):
        gbps = machine.gpus[0].pcie_gbps
        yield f"the source does not say the GPUs' PCIe rate, the file has {gbps:g} GB/s: give theirs with --product"
    omitted_nics = [
        nic.name
        for nic, paths_to_gpus in zip(machine.nics, machine.nic_paths, strict=True)
        # PXB: only PCIe switches are between NIC and GPU. Farther NICs are as far without the file.
        if not nic.pci and (like is not None or min(paths_to_gpus) <= PathType.PXB)
    ]
    if omitted_nics:
        yield (
            f"{', '.join(omitted_nics)}: "
            "no bus ids, so the file leaves them out, and NCCL sees them far from the GPUs, "
            "which are below switches of the file's own: give them with --bus-ids behind the GPUs'"
        )


@nccl.command()
@click.argument("file")
@click.option("-m", "--machine", "source", metavar="FILE|PROFILE", help="Compare the file with this machine.")
def check(file: str, source: str | None) -> None:
    """Print what NCCL refuses or misreads in FILE, by line, and what to write instead.

    Exit status: 0 every NCCL from 2.18 to 2.30 reads the file (there may be warnings), 1 some of them do not.
    """
    findings = files.check(_read(Path(file)), machine=None if source is None else read_machine(source))
    errors = sum(finding.error for finding in findings)
    lines = [_finding(file, finding) for finding in findings]
    if not errors:
        lines.append(Cell(f"{file}: NCCL takes it" + _with(len(findings))))
    show(report(Notes(lines=tuple(lines))))
    if errors:
        raise click.exceptions.Exit(1)


def _with(warnings: int) -> str:
    return f", with {warnings} warning{'s' if warnings > 1 else ''}" if warnings else ""


def _finding(file: str, finding: Finding) -> Cell:
    tone = Tone.ERROR if finding.error else Tone.WARNING
    where = f"{file}:{finding.line}:{finding.column}"
    return Cell(f"{where}: {tone.value}: {finding.problem}; {finding.cure}  [{finding.rule}]", tone)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)  # a device or pipe does not say how much it has
    except (OSError, ValueError) as error:
        raise TopologyError(f"{path}: cannot be read: {error}") from error
    if len(data) > _MOST_BYTES:
        raise TopologyError(
            f"{path}: the file is larger than {_MOST_BYTES} bytes, and NCCL reads at most 255 elements."
        )
    return data.decode("utf-8", "replace")


@nccl.command()
@machine_options
def explain(source: str | None, driver_root: Path | None, product: str, cpu: str) -> None:
    """Print whether NCCL needs a topology file on a machine, and why."""
    reasons = advice.explain(read(source, driver_root=driver_root, product=product, cpu=cpu)).reasons
    show(report(Notes(lines=words(*reasons))))
