"""The options that commands about a cluster share, and one option for commands without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dradriver.api.base.allocating_driver import LEDGERS, OURS, bound

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("table", "json", "yaml")


def server_options(command: F) -> F:
    """Add the options ``kubeconfig`` and ``context``, which ``access.server`` takes, to a command."""
    command = click.option(
        "--context", metavar="NAME", help="The context of the kubeconfig. Default: its current context."
    )(command)
    kubeconfig = "The kubeconfig. Default: $KUBECONFIG, then ~/.kube/config."
    return click.option("--kubeconfig", metavar="FILE", help=kubeconfig)(command)


def namespace_options(said: str) -> Callable[[F], F]:
    """Return a decorator that gives a command the options ``namespace`` and ``all_namespaces``; see ``only_namespace``.

    Args:
        said: The help text of ``namespace``: what it selects, and what the command selects without it.
    """

    def decorate(command: F) -> F:
        command = click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")(command)
        return click.option("-n", "--namespace", metavar="NAME", help=said)(command)

    return decorate


def only_namespace(namespace: str | None, *, all_namespaces: bool, usual: str | None = None) -> str | None:
    """Return the namespace that the options of a command select, or None for all namespaces.

    Args:
        namespace: The namespace that the user names.
        all_namespaces: Whether the user wants all namespaces.
        usual: The default namespace, if the user gives neither option.

    Raises:
        click.UsageError: The user gives both options.
    """
    if namespace is not None and all_namespaces:
        raise click.UsageError("-n and -A exclude each other. Write only one of them.")
    return None if all_namespaces else namespace or usual


def policies_option(command: F) -> F:
    """Add the option ``policies_file``, which ``inputs.given_policies`` reads, to a command."""
    said = (
        "The policies file to use. Default: the policies of the driver in the cluster. If they cannot be read, the "
        "command warns and uses the built-in defaults."
    )
    return click.option("--policies", "policies_file", metavar="FILE", help=said)(command)


def driver_namespace_option(command: F) -> F:
    """Add the option ``driver_namespace`` to a command; ``policies_in_force`` takes its value."""
    said = "The namespace of the driver. Default: the namespace of its webhook, or gpu-topology."
    return click.option("--driver-namespace", metavar="NAME", help=said)(command)


def allocating_driver_option(command: F) -> F:
    """Add ``--allocating-driver`` to a command without a cluster; the chart's value has the same name.

    While the command runs, the driver that the option names counts as the one that allocates GPUs.
    """

    def bind_it(context: click.Context, _: click.Parameter, driver: str) -> None:
        context.with_resource(bound(LEDGERS[driver]))

    return click.option(
        "--allocating-driver",
        type=click.Choice(tuple(LEDGERS)),
        default=OURS.driver,
        show_default=True,
        help="The driver that allocates the GPUs, as the chart's value allocatingDriver.",
        expose_value=False,
        callback=bind_it,
    )(command)


def output_options(command: F) -> F:
    """Add the options ``output``, one of ``FORMATS``, and ``no_color`` to a command."""
    return output_formats()(command)


def output_formats(*more: str, usual: str = "table", said: str | None = None) -> Callable[[F], F]:
    """Return a decorator that gives a command the options ``output`` and ``no_color``.

    Args:
        more: Formats that the command can write in addition to ``FORMATS``.
        usual: The default format.
        said: The help text of ``output``.
    """

    def decorate(command: F) -> F:
        colour = "Print no colours. The environment variable NO_COLOR does the same."
        command = click.option("--no-color", is_flag=True, help=colour)(command)
        formats = click.Choice((*FORMATS, *more))
        return click.option("-o", "--output", type=formats, default=usual, show_default=True, help=said)(command)

    return decorate
