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


def namespace_options(said: str) -> Callable[[F], F]:
    """Return a decorator that gives a command the options ``namespace`` and ``all_namespaces``; see ``only_namespace``.

    Args:
        said: The help of the first: what the namespace selects, and what is selected without it.
    """

    def decorate(command: F) -> F:
        command = click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")(command)
        return click.option("-n", "--namespace", metavar="NAME", help=said)(command)

    return decorate


def only_namespace(namespace: str | None, *, all_namespaces: bool, usual: str | None = None) -> str | None:
    """Return the namespace that the options of a command select; None for all of them.

    Args:
        namespace: The namespace that the user names.
        all_namespaces: Whether the user wants all namespaces.
        usual: The namespace if the user says neither.

    Raises:
        click.UsageError: The user says both.
    """
    if namespace is not None and all_namespaces:
        raise click.UsageError("-n or -A; not both")
    return None if all_namespaces else namespace or usual


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
    """Give a command the options ``output``, one of ``FORMATS``, and ``no_color``."""
    return output_formats()(command)


def output_formats(*more: str, usual: str = "table", said: str | None = None) -> Callable[[F], F]:
    """Return a decorator that gives a command the options ``output`` and ``no_color``.

    Args:
        more: What it writes in addition to ``FORMATS``.
        usual: What it writes if the user does not say.
        said: The help of ``output``.
    """

    def decorate(command: F) -> F:
        colour = "No colours; the variable NO_COLOR does the same."
        command = click.option("--no-color", is_flag=True, help=colour)(command)
        formats = click.Choice((*FORMATS, *more))
        return click.option("-o", "--output", type=formats, default=usual, show_default=True, help=said)(command)

    return decorate
