"""The options that every command about a cluster has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dradriver.api.base.allocating_driver import LEDGERS, OURS, bound

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("table", "json", "yaml")


def server_options(command: F) -> F:
    """Give a command about a cluster the options ``kubeconfig`` and ``context`` of ``access.server``."""
    command = click.option("--context", metavar="NAME", help="The kubeconfig's context; else its current one.")(command)
    kubeconfig = "The kubeconfig; else KUBECONFIG, ~/.kube/config."
    return click.option("--kubeconfig", metavar="FILE", help=kubeconfig)(command)


def namespace_option(command: F) -> F:
    """Give a command about a cluster the option ``namespace``; None for the context's own."""
    return click.option("-n", "--namespace", metavar="NAME", help="The namespace; else the context's.")(command)


def all_namespaces_option(command: F) -> F:
    """Give a command about a cluster the option ``all_namespaces``."""
    return click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")(command)


def policies_option(command: F) -> F:
    """Give a command about a cluster the option ``policies_file`` of ``inputs.given_policies``."""
    said = "The policies file to decide by; else the one that the driver in the cluster follows."
    return click.option("--policies", "policies_file", metavar="FILE", help=said)(command)


def driver_namespace_option(command: F) -> F:
    """Give a command about a cluster the option ``driver_namespace`` of ``policies_in_force.driver_namespace``."""
    said = "Where the driver is installed; else where its webhook is, or gpu-topology."
    return click.option("--driver-namespace", metavar="NAME", help=said)(command)


def allocating_driver_option(command: F) -> F:
    """Give a command without a cluster the option ``--allocating-driver``, as the chart's value; it is bound there."""

    def bind_it(context: click.Context, _: click.Parameter, driver: str) -> None:
        context.with_resource(bound(LEDGERS[driver]))

    return click.option(
        "--allocating-driver",
        type=click.Choice(tuple(LEDGERS)),
        default=OURS.driver,
        show_default=True,
        help="The chart's value of this name: whose devices are handed out.",
        expose_value=False,
        callback=bind_it,
    )(command)


def output_options(command: F) -> F:
    """Give a command about a cluster the options ``output``, one of ``FORMATS``, and ``no_color``."""
    command = click.option("--no-color", is_flag=True, help="No colours; the variable NO_COLOR does the same.")(command)
    return click.option("-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True)(command)
