"""``python -m dradriver mps``: the command line of the process that runs MPS control daemons."""

from __future__ import annotations

import argparse
import asyncio
import functools
import time
from pathlib import Path
from typing import Final

from dradriver.process import options

LOOK_S: Final = 0.2
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin:/opt/bin"
HANGS_S: Final = 120.0  # longer than any look at a daemon takes that is not stuck in the driver


class Options(options.Common):
    """The values of the command-line options."""

    state_dir: Path
    driver_root: Path


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command-line options of the MPS main program."""
    made = options.parser(
        "python -m dradriver mps",
        "Runs the MPS control daemons of one node, as its agent wants them. Its end is the end of their clients.",
        health_port=8084,
    )
    made.add_argument(
        "--state-dir",
        type=Path,
        default=Path("/var/lib/kubelet/plugins/gpu.topology"),
        help="the agent's. Default: %(default)s",
    )
    made.add_argument(
        "--driver-root",
        metavar="DIR",
        type=Path,
        required=True,
        help="root of the file system that holds the NVIDIA driver and its programs",
    )
    return made


def main(argv: list[str]) -> int:
    """Run the MPS main program until a signal ends it, and return its exit status."""
    args = parser().parse_args(argv, namespace=Options())
    from dradriver.process import run as process  # --help costs nothing

    return process.start(run(args.state_dir, args.driver_root, health_port=args.health_port), args)


async def run(state_dir: Path, driver_root: Path | None, *, health_port: int, path: str = PATH) -> None:
    """Run the MPS daemons that the node agent requests, until cancelled.

    There is one daemon for each shared GPU. The agent writes its requests as files. The supervisor starts, checks and
    ends the daemons.

    Args:
        state_dir: Folder of the node agent.
        driver_root: Root of the file system with the driver's programs; None for this process's own.
        health_port: TCP port that serves health.
        path: Folders in which programs are searched, as in the variable ``PATH``.

    Raises:
        OSError: The health port is taken, or the id of this boot cannot be read.
    """
    from dradriver.node.boot import boot_id
    from dradriver.node.mps.daemon import Daemon
    from dradriver.node.mps.mps_files import MpsFolder
    from dradriver.node.mps.supervisor import Supervisor
    from dradriver.node.threads import Thread
    from dradriver.process.health_server import serve_health

    supervisor = Supervisor(
        MpsFolder(state_dir / "mps", boot=boot_id()),
        lambda gpu, folder: Daemon(gpu, folder, root=driver_root, path=path),
    )
    # A call of a daemon may hang in the driver. So each daemon has a thread of its own, and files are read in another.
    files_thread, daemon_threads = Thread("mps"), dict[str, Thread]()
    last_checks: dict[str, tuple[asyncio.Task[None], float]] = {}  # by daemon: its last check, and when that began
    last_read_s = time.monotonic()

    def is_alive() -> bool:
        return time.monotonic() - last_read_s < HANGS_S

    async with serve_health(health_port, ready=is_alive, alive=is_alive), asyncio.TaskGroup() as group:
        try:
            while True:
                # 1. Read which daemons are wanted. If that takes too long, this process counts as hanging.
                wanted_daemons = await files_thread.run(supervisor.wanted)
                last_read_s = time.monotonic()
                # 2. Check each daemon. If its last check is not over after ``HANGS_S``, it hangs: the agent is told.
                for name, wanted_daemon in wanted_daemons.items():
                    last_check, began_at = last_checks.get(name, (None, 0.0))
                    if last_check is None or last_check.done():
                        thread = daemon_threads.setdefault(name, Thread(f"mps {name}"))
                        look = functools.partial(supervisor.look, name, wanted_daemon)
                        last_checks[name] = group.create_task(thread.run(look)), last_read_s
                    elif last_read_s - began_at > HANGS_S:
                        await files_thread.run(functools.partial(supervisor.hangs, name, wanted_daemon))
                await asyncio.sleep(LOOK_S)
        finally:
            supervisor.leave()
