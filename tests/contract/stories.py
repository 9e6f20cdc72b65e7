"""Stories of the chart's controller and webhook, told by a process beside a control plane without nodes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator

from tests import needs
from tests.bench.throughput import chart
from tests.bench.throughput.driver import Driver
from tests.cluster.errors import last_lines
from tests.cluster.nodeless import Nodeless
from tests.paths import REPO


def tell(module: str, name: str, *, timeout_s: float) -> None:
    """Run ``python -m MODULE NAME`` beside a control plane of that name, and fail as it does."""
    needs.real_cluster()
    plane = Nodeless(name)
    with plane.running():
        command = [*plane.enter(), "env", f"--chdir={REPO}", sys.executable, "-m", module, name]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.asynccontextmanager
async def driver(plane: Nodeless, *settings: str) -> AsyncIterator[None]:
    """Run the controller and the webhook of the chart with these settings; what fails shows the ends of their logs."""
    found = await chart.render(plane.helm, REPO, plane.folder / "helm", *settings)
    made = Driver(REPO, found, plane.folder / "driver", profiles=None)
    await made.prepare(chart.Kubectl(plane.binaries / "kubectl", plane.kubeconfig), plane.kubeconfig)
    async with made.running("webhook", "controller"):
        try:
            yield
        except BaseException:
            for log in sorted((plane.folder / "driver").glob("*.log")):
                sys.stderr.write(f"{log.name}: {last_lines(log)}\n")
            raise
