"""What the node agent publishes, how soon and how often: ``python -m tests.bench.publishing``.

How long a fresh process takes until its slices are on the API server (fakes of API server and kubelet, so this is the
agent's own time), and how many slice writes an hour of readings of a busy, healthy machine costs, and one of a machine
with an NVLink that comes and goes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import yaml

from dradriver.kube.resources import RESOURCE_SLICES
from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from tests.bench import compiled
from tests.fakes import nvml
from tests.fakes.hardware import Server, cdi_specification
from tests.fakes.node import NODE, NodeUnderTest, a_node, eventually
from tests.fakes.publishing import PER_HOUR, READING_S, Noise, Published
from tests.paths import REPO

_TIMES = 5


def main() -> int:
    """Print the figures as JSON."""
    logging.disable(logging.ERROR)
    found = {
        "start_to_published_s": {
            "simulated": asyncio.run(_started(lambda _: ["--discovery=simulated", "--simulated-default=dgx-h100"])),
            "nvml": asyncio.run(_started(_on_hardware)),
        },
        "slice_writes_an_hour": {"idle": _hour(), "noisy": _hour(noisy=True), "an NVLink flaps": _hour(flaps=True)},
    }
    print(json.dumps(found, indent=2))
    return 0


async def _started(options: Callable[[Path], list[str]]) -> float:
    """Return the median time from the start of a process to its slices, in seconds."""
    times = []
    for _ in range(_TIMES):
        with tempfile.TemporaryDirectory() as folder:
            async with a_node() as node:
                times.append(await _start(node, options(Path(folder))))
    return round(statistics.median(times), 2)


async def _start(node: NodeUnderTest, options: list[str]) -> float:
    cluster = {"name": "c", "cluster": {"server": node.api.config.url}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {
        "clusters": [cluster],
        "contexts": [context],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    file = node.root / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    words = [sys.executable, "-m", "dradriver", "node", f"--node-name={NODE}", "--health-port=0", *options]
    words += [f"--kubelet-root={node.root}", f"--cdi-root={node.cdi}", f"--kubeconfig={file}"]
    environment = compiled.environment()
    start = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *words, cwd=REPO, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await eventually(lambda: node.api.all(RESOURCE_SLICES), within_s=60)
        return time.perf_counter() - start
    finally:
        process.terminate()
        await process.wait()


def _on_hardware(folder: Path) -> list[str]:
    server = Server("dgx-h100", folder)
    server.sys.file("etc/cdi/nvidia.json", cdi_specification(server.machine))
    os.environ |= server.environment()
    return ["--discovery=nvml", f"--driver-root={nvml.compiled()}", f"--host-root={server.sys.root}"]


def _hour(*, noisy: bool = False, flaps: bool = False) -> int:
    """Return the slice writes of an hour, after the first."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server("dgx-h100", Path(folder))
        with patch.dict(os.environ, server.environment()):
            found = Hardware(driver_root=nvml.compiled(), host_root=server.sys.root)
            published, noise = Published(found), Noise(server)
            published.reading(after_s=0)
            for reading in range(PER_HOUR):
                if noisy:
                    noise.step()
                if flaps:
                    server.table["nvmlDeviceGetNvLinkState 2 5"] = str(int(reading % 5 > 1))
                    server.environment()
                published.reading(after_s=READING_S)
            found.close()
            return published.writes - 1


if __name__ == "__main__":
    sys.exit(main())
