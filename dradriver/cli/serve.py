"""``gputopo serve``: a web page of the cluster that is updated continuously."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import access
from dradriver.cli.cluster.cluster_options import driver_namespace_option, policies_option, server_options
from dradriver.cli.inputs import given_policies
from dradriver.cli.page import login_session
from dradriver.cli.page.guard import Guard
from dradriver.cli.page.page_server import Page
from dradriver.kube.config import ServerConfig
from dradriver.process.health_server import serve_health

PORT: Final = 8321


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="The port. 0 takes a free one."
)
@click.option(
    "--address", default="127.0.0.1", show_default=True, metavar="IP",
    help="The address to listen on. Everyone who reaches the page can read what you can read. Put a proxy in front of "
         "any other address.",
)  # fmt: skip
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME",
    help="A host name under which users reach the page through a proxy. It can be repeated. Requests for other "
    "names are refused. * "
         "allows all.",
)  # fmt: skip
@click.option(
    "--no-key",
    is_flag=True,
    help="Let everyone read who reaches the page. Otherwise the printed address contains a key.",
)
@click.option(
    "--health-port", type=click.IntRange(1, 65535), help="Serve probes and metrics on this port, too, on all addresses."
)
@server_options
@policies_option
@driver_namespace_option
def serve(
    port: int,
    address: str,
    hosts: tuple[str, ...],
    no_key: bool,
    health_port: int | None,
    kubeconfig: str | None,
    context: str | None,
    policies_file: str | None,
    driver_namespace: str | None,
) -> None:
    """Serve a web page of the cluster: nodes, GPUs and their pods, waiting pods, free GPUs, usage and health.

    The command reads with your own rights and changes nothing. The page names the objects that you may not list. Ctrl-C
    ends the command.
    """
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")  # the page shows warnings itself
    policies = given_policies(policies_file)

    def read_kubeconfig() -> ServerConfig:
        return access.server(None if kubeconfig is None else Path(kubeconfig), context)

    # Each login reads the kubeconfig again, because credentials can hold for minutes only.
    # The first login is made here, so that an error in the kubeconfig ends the command and does not wait on the page.
    unused_logins = [read_kubeconfig()]

    def login() -> ServerConfig:
        return unused_logins.pop() if unused_logins else read_kubeconfig()

    try:
        asyncio.run(_serve(login, policies, driver_namespace, port, address, hosts, health_port, with_key=not no_key))
    except OSError as error:
        raise click.ClickException(f"cannot listen on {address} port {port}: {error.strerror or error}") from error


async def _serve(
    login: Callable[[], ServerConfig],
    policies: Policies | None,
    driver_namespace: str | None,
    port: int,
    address: str,
    hosts: tuple[str, ...],
    health_port: int | None,
    *,
    with_key: bool,
) -> None:
    """Serve the page, and the probes on ``health_port`` if it is given, until a signal ends the process.

    Args:
        login: Returns the API server with fresh credentials.
        policies: The policies of the user's file; None to follow the policies in the driver's namespace.
        driver_namespace: The driver's namespace, if the user names it.
        port: The page's port; 0 takes a free port.
        address: The page's address.
        hosts: Other host names under which users reach the page, through a proxy.
        health_port: The port of probes and metrics.
        with_key: Whether the page's address must have a key.
    """
    # The guard checks the key and the host name of each request.
    page = Page(Guard((*hosts, address), with_key=with_key))
    async with contextlib.AsyncExitStack() as stack:
        bound_port = await stack.enter_async_context(page.serve(host=address, port=port))
        if health_port is not None:
            try:
                await stack.enter_async_context(serve_health(health_port, ready=lambda: page.feed.version > 0))
            except OSError as error:
                message = f"cannot listen on --health-port {health_port}: {error.strerror or error}"
                raise click.ClickException(message) from error
        click.echo(
            f"http://{_host_for_browser(address)}:{bound_port}/" + (f"?key={page.guard.key}" if with_key else "")
        )
        # Keeps the page up to date. A signal cancels it, and so ends the command.
        updates = asyncio.create_task(login_session.keep(page, login, policies, driver_namespace))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, updates.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await updates


def _host_for_browser(address: str) -> str:
    """Return the host with which a browser on this machine reaches a listening address.

    A socket that listens on an IPv6 address does not answer IPv4, so ``::`` becomes ``[::1]``.
    """
    name = {"0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104
    return f"[{name}]" if ":" in name else name
