"""``gputopo`` against the API server of a cluster in memory, as a user runs it."""

from __future__ import annotations

import asyncio
import contextvars
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from dradriver.cli.main import main
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.apistore import Store
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.installed import install


class Terminal(CliRunner):
    """A runner of commands whose standard output is a terminal."""

    @contextmanager
    def isolation(self, *arguments: Any, **options: Any) -> Iterator[tuple[BytesIO, BytesIO, BytesIO]]:
        with super().isolation(*arguments, **options) as streams:
            sys.stdout.isatty = lambda: True  # type: ignore[method-assign]
            yield streams


class CommandLine:
    """The command, with a kubeconfig for its API server.

    Attributes:
        api: The server.
        kubeconfig: The file.
    """

    def __init__(self, api: FakeApiServer, folder: Path, *, namespace: str = "default") -> None:
        self.api = api
        self.kubeconfig = folder / "config"
        context = {"cluster": "c", "user": "u", "namespace": namespace}
        document = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": context}],
            "clusters": [{"name": "c", "cluster": {"server": api.config.url}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(document))

    async def run(self, command: str, *arguments: str, **options: Any) -> Result:
        """Run a command about the cluster, as a process of its own: it knows nothing that a test has bound."""
        line = [*command.split(), "--kubeconfig", str(self.kubeconfig), *arguments]

        def process() -> Result:
            return contextvars.Context().run(CliRunner().invoke, main, line, **options)

        return await asyncio.to_thread(process)

    async def data(self, command: str, *arguments: str) -> Any:
        """Run it for JSON that is whole, with nothing on standard error, and return that."""
        result = await self.run(command, *arguments, "-o", "json")
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return json.loads(result.stdout)


@asynccontextmanager
async def command_line(store: Store, folder: Path, *, namespace: str = "default") -> AsyncIterator[CommandLine]:
    """Serve a store, in which the chart is installed, and give the command that reads it."""
    install(store)
    async with FakeApiServer(store=store, token="secret") as api:
        yield CommandLine(api, folder, namespace=namespace)


async def run_all(cluster: GpuCluster) -> None:
    """Let the controller and the scheduler of a cluster do all they can, for a command to look at."""
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
