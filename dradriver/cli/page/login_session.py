"""One login at the API server after another: what it lets its user read is followed, and told as it changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final, NoReturn

from dradriver import __version__
from dradriver.api.policies.model import Policies
from dradriver.cli.cluster import policies_in_force
from dradriver.cli.page import page_pieces
from dradriver.cli.page.followed_objects import Mirror, sources
from dradriver.cli.page.live_cluster import Live
from dradriver.cli.page.page_details import Asked
from dradriver.cli.page.page_server import Page
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import Resource
from dradriver.kube.store import Key
from dradriver.view.terminal_text import plain

logger = logging.getLogger(__name__)

QUIET_S: Final = 0.25  # changes that come together are told together
REST: Final = 4  # times as long as an update took, nothing is done: at most a fifth of a core
LONGEST_REST_S: Final = 2.0  # after everything was read anew
MINUTE_S: Final = 60.0  # how long GPUs have been idle is told anew
ANEW_S: Final = 300.0  # what is not watched (taint rules, Kueue's topologies, namespaces' labels) is read anew
LOGIN_S: Final = 15.0  # before the next login


async def keep(
    page: Page, login: Callable[[], ServerConfig], policies: Policies | None, driver_namespace: str | None
) -> NoReturn:
    """Keep the page up to date until cancelled, by one login at the API server after another.

    Args:
        page: The page.
        login: Gives the API server, and credentials that may hold for minutes only.
        policies: The policies of the user's file. None follows those in the driver's namespace.
        driver_namespace: That namespace, if the user names it.
    """
    while True:
        try:
            server = await asyncio.to_thread(login)
            await _session(page, server, policies, driver_namespace)
            said = f"{server.url}: the credentials are refused; a new login is tried"
        except DriverError as error:
            said = str(error)
        except Exception as error:
            logger.exception("the cluster cannot be followed")
            said = f"an error in this program: {type(error).__name__}: {error}"
        logger.warning("%s", said)
        _tell(page, said)
        await asyncio.sleep(LOGIN_S)


async def _session(page: Page, server: ServerConfig, policies: Policies | None, named: str | None) -> None:
    """Follow one login until the server does not know it any more."""
    agent = f"gputopo/{__version__}"
    async with Client(server, user_agent=agent) as client:
        driver_namespace = await policies_in_force.driver_namespace(client, named)
    wake = asyncio.Event()
    live: Live | None = None

    def changed(resource: Resource, key: Key | None) -> None:
        if live is not None:
            live.changed(resource, key)
        wake.set()

    mirror = Mirror(server, sources(driver_namespace), changed, wake.set, user_agent=agent)
    async with mirror, asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = [tasks.create_task(mirror.run())]
        reading = tasks.create_task(_until_settled(page, mirror, wake))
        refused = tasks.create_task(mirror.unauthorized.wait())
        try:
            await asyncio.wait((reading, refused), return_when=asyncio.FIRST_COMPLETED)
            if not refused.done():
                live = Live(mirror, server, policies, driver_namespace)
                details = Asked(live, mirror, server, driver_namespace)
                running.append(tasks.create_task(_follow(page, live, mirror, details, server, wake)))
                await refused
        finally:
            page.details = None
            for task in (*running, reading, refused):
                task.cancel()


async def _until_settled(page: Page, mirror: Mirror, wake: asyncio.Event) -> None:
    """Say what keeps the cluster from being read until it is."""

    async def say() -> NoReturn:
        while True:
            await wake.wait()
            wake.clear()
            _tell(page, *mirror.said())

    saying = asyncio.create_task(say())
    try:
        await mirror.settled()
    finally:
        saying.cancel()


async def _follow(
    page: Page, live: Live, mirror: Mirror, details: Asked, server: ServerConfig, wake: asyncio.Event
) -> NoReturn:
    anew = time.monotonic() + ANEW_S
    while True:
        wake.clear()
        began = time.monotonic()
        if began > anew:
            anew = began + ANEW_S
            mirror.widen()
            live.read_anew()
        try:
            dirty = await live.update()
            # First the nodes: one that cannot be shown is left out of what the rest is made from.
            nodes = page_pieces.node_pieces(live, dirty)
            page.feed.publish(nodes, page_pieces.common(live, server=server.url))
            page.details = details
        except Exception as error:  # a bug that one object meets must not end the page: it says so and goes on
            logger.exception("the page could not be brought up to date")
            live.read_anew()
            _tell(page, f"an error in this program: {type(error).__name__}: {error}; what is shown is older")
        spent = time.monotonic() - began
        await asyncio.sleep(min(max(QUIET_S, REST * spent), LONGEST_REST_S))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MINUTE_S):
                await wake.wait()


def _tell(page: Page, *said: str) -> None:
    """Tell trouble alone; what was known before stays."""
    page.feed.say("unread", page_pieces.encoder.encode(list(map(plain, said))))
