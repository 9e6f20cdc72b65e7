"""Login sessions at the API server, one after another: each follows the objects that its user may read.

``serve`` calls ``keep``, which updates the page when these objects change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final, NoReturn

from dradriver import __version__
from dradriver.api.policies.policy_sections import Policies
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
    """Keep the page up to date until cancelled, with a new login when credentials end.

    Args:
        page: The page.
        login: Returns the API server with credentials, which may be valid for a few minutes only.
        policies: The policies of the user's file; None to follow the policies in the driver's namespace.
        driver_namespace: The driver's namespace, if the user names it.
    """
    while True:
        try:
            server = await asyncio.to_thread(login)  # an exec plugin may take seconds
            await _run_login(page, server, policies, driver_namespace)
            message = f"{server.url}: the API server refuses the credentials. The program tries a new login."
        except DriverError as error:
            message = str(error)
        except Exception as error:
            logger.exception("the cluster cannot be followed")
            message = f"an error in this program: {type(error).__name__}: {error}"
        logger.warning("%s", message)
        _tell(page, message)
        await asyncio.sleep(LOGIN_S)


async def _run_login(page: Page, server: ServerConfig, policies: Policies | None, named_namespace: str | None) -> None:
    """Keep the page up to date with one login, until the server refuses the login's credentials.

    Args:
        page: The page.
        server: The API server, with the credentials.
        policies: The policies of the user's file; None to follow the policies in the driver's namespace.
        named_namespace: The driver's namespace, if the user names it.
    """
    agent = f"gputopo/{__version__}"
    async with Client(server, user_agent=agent) as client:
        driver_namespace = await policies_in_force.driver_namespace(client, named_namespace)
    wake = asyncio.Event()  # set after each change
    live: Live | None = None  # the cluster as the page shows it; None until all objects are read

    def changed(resource: Resource, key: Key | None) -> None:
        if live is not None:
            live.changed(resource, key)
        wake.set()

    mirror = Mirror(server, sources(driver_namespace), changed, wake.set, user_agent=agent)
    # The mirror follows the objects by watches. While the first reading lasts, the page says what it waits for.
    async with mirror, asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = [tasks.create_task(mirror.run())]
        first_reading = tasks.create_task(_until_settled(page, mirror, wake))
        unauthorized = tasks.create_task(mirror.unauthorized.wait())
        try:
            await asyncio.wait((first_reading, unauthorized), return_when=asyncio.FIRST_COMPLETED)
            if not unauthorized.done():
                live = Live(mirror, server, policies, driver_namespace)
                details = Asked(live, mirror, server, named_namespace)
                running.append(tasks.create_task(_update_page(page, live, mirror, details, server, wake)))
                await unauthorized
        finally:
            page.details = None  # they would ask with the refused credentials
            for task in (*running, first_reading, unauthorized):
                task.cancel()


async def _until_settled(page: Page, mirror: Mirror, wake: asyncio.Event) -> None:
    """Show on the page why the cluster cannot be read, until it can.

    ``wake`` is set when the reasons may have changed.
    """

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


async def _update_page(
    page: Page, live: Live, mirror: Mirror, details: Asked, server: ServerConfig, wake: asyncio.Event
) -> NoReturn:
    """Update the page after each change, and at least once a minute.

    Read everything again every ``ANEW_S`` seconds.

    Args:
        page: The page.
        live: The cluster as the page shows it.
        mirror: The objects that are followed.
        details: Answers the page's questions about one object.
        server: The API server, whose address the page shows.
        wake: Set after each change.
    """
    next_full_reading = time.monotonic() + ANEW_S
    while True:
        wake.clear()  # before the update: a change during the update wakes it again
        began = time.monotonic()
        if began > next_full_reading:
            next_full_reading = began + ANEW_S
            mirror.widen()  # the user may be allowed more now
            live.read_anew()
        try:
            changed_nodes = await live.update()
            # The nodes come first: a node that cannot be shown is left out of all that follows.
            nodes = page_pieces.node_pieces(live, changed_nodes)
            page.feed.publish(nodes, page_pieces.common(live, page.history, server=server.url))
            page.details = details
        except Exception as error:  # a bug that one object meets must not end the page: it says so and goes on
            logger.exception("the page could not be brought up to date")
            live.read_anew()
            _tell(page, f"an error in this program: {type(error).__name__}: {error}. The page shows an older state.")
        # Rest in proportion to the work, so that a large cluster that changes all the time does not keep a core busy.
        spent_s = time.monotonic() - began
        await asyncio.sleep(min(max(QUIET_S, REST * spent_s), LONGEST_REST_S))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MINUTE_S):
                await wake.wait()


def _tell(page: Page, *said: str) -> None:
    """Put only the error messages ``said`` into the page's feed. The other pieces stay unchanged."""
    page.feed.say("unread", page_pieces.encoder.encode(list(map(plain, said))))
