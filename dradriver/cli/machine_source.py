"""The machine that a command is about: one that is named, or the one it runs on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from dradriver.cli.render.output import warn
from dradriver.errors import DriverError
from dradriver.topology.errors import TopologyError
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine

F = TypeVar("F", bound=Callable[..., Any])


def machine_options(command: F) -> F:
    """Give a command the options ``source`` and ``driver_root`` of ``read``."""
    command = click.option(
        "--driver-root", metavar="DIR", type=click.Path(path_type=Path),
        help="Without --machine: root of the file system that holds the NVIDIA driver, such as /run/nvidia/driver.",
    )(command)  # fmt: skip
    return click.option(
        "-m", "--machine", "source", metavar="FILE|PROFILE",
        help="A profile's name, or a file: nvidia-smi topo -m text, machine JSON, NCCL XML, profile YAML. "
        "Default: this machine.",
    )(command)  # fmt: skip


def read(source: str | None, *, driver_root: Path | None = None) -> Machine:
    """Return the named machine, or without a name this one; what could not be read of it goes to standard error.

    Raises:
        DriverError: It cannot be read; the message says what to give instead.
    """
    if source is not None:
        return read_machine(source)
    from dradriver.node.discovery import reading as discovery

    try:
        reading = discovery.read(driver_root=driver_root)
    except DriverError as error:
        raise TopologyError(
            f"this machine's GPUs cannot be read: {error}; for another machine give --machine FILE|PROFILE "
            "(gputopo topo --list)"
        ) from error
    for problem in reading.problems:
        warn(str(problem))
    return reading.machine
