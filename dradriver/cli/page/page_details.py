"""The details of a node or a pod that a reader opens: the output of ``gputopo topo`` or ``gputopo explain``."""

from __future__ import annotations

import asyncio
from shlex import quote
from typing import Any, Final

from dradriver.api.base.pods import Pod
from dradriver.cli.cluster import cluster_reading, cluster_view, installation
from dradriver.cli.explainer import explain_document
from dradriver.cli.explainer.subject import subject
from dradriver.cli.explainer.verdict import verdict
from dradriver.cli.page import node_details, page_pieces
from dradriver.cli.page.followed_objects import Mirror
from dradriver.cli.page.live_cluster import Live
from dradriver.kube.client import ApiError, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import PODS
from dradriver.view.document import Cell, Document, Notes, Section, Tone
from dradriver.view.html import fragment

MOST_AT_ONCE: Final = 8  # pods that wait to be explained; each takes a second of a large cluster's picture
_LONGEST: Final = 253  # of a name

Answer = dict[str, Any]
"""A title, HTML, and commands for a terminal that tell more."""


class BusyError(Exception):
    """Too many readers ask for details at the same time."""


class Asked:
    """The details of nodes and pods, read with one login."""

    def __init__(self, live: Live, mirror: Mirror, server: ServerConfig, named_namespace: str | None) -> None:
        """Prepare to answer. ``named_namespace`` is the driver's namespace, if the user names it."""
        self._live = live
        self._mirror = mirror
        self._server = server
        self._namespace = named_namespace
        self._turn = asyncio.Lock()
        self._waiting = 0

    def node(self, name: str) -> Answer | None:
        """Return the details of a node that a reader of the page opened.

        The result is None if there is no such node.
        """
        if (view := self._live.views.get(name)) is not None:
            shown = node_details.document(view, page_pieces.letters(self._live, view))
        elif (gone := self._live.gone.get(name)) is not None:
            shown = cluster_view.gone_document(gone)
        else:
            return None
        commands = [f"kubectl describe node {quote(name)}", f"gputopo topo --cluster --node {quote(name)}"]
        return {"title": shown.title, "html": fragment(shown), "commands": commands}

    async def pod(self, namespace: str, name: str) -> Answer | None:
        """Return the details of a pod as ``explain`` has them.

        The result is None if there is no such pod.

        Raises:
            BusyError: Too many readers ask for details at the same time.
        """
        if any(not one or len(one) > _LONGEST or "/" in one or one in (".", "..") for one in (namespace, name)):
            return None
        if self._waiting >= MOST_AT_ONCE:
            raise BusyError
        self._waiting += 1
        try:
            async with self._turn:
                return await self._explained(namespace, name)
        finally:
            self._waiting -= 1

    async def _explained(self, namespace: str, name: str) -> Answer | None:
        try:
            pod = await self._mirror.get(PODS, name, namespace=namespace, type=Pod)
        except (ApiError, Unreachable) as error:
            if isinstance(error, ApiError) and error.not_found:
                return None
            said = str(cluster_reading.refused(error, self._server, PODS, namespace=namespace))
            return {"title": "This pod cannot be read", "html": fragment(_troubles((said,))), "commands": []}
        about = subject(pod)
        head = explain_document.head(about)
        driver = await installation.read(self._mirror, self._server, self._namespace)
        judged = await verdict(self._mirror, self._server, pod, self._live.scene.policies, driver)
        rest = explain_document.rest(judged)
        first = Section(blocks=(*installation.notes(driver.absence), *head.sections[0].blocks))
        shown = Document(title=head.title, sections=(first, *rest.sections, *_troubles(judged.unread).sections))
        where = f"{quote(name)} -n {quote(namespace)}"
        commands = [f"kubectl describe pod {where}", f"gputopo explain {where}"]
        return {"title": shown.title, "html": fragment(shown), "commands": commands}


def _troubles(said: tuple[str, ...]) -> Document:
    lines = tuple(Cell(one, Tone.WARNING) for one in said)
    sections = (Section(title="What could not be read", blocks=(Notes(lines=lines),)),) if lines else ()
    return Document(title="", sections=sections)
