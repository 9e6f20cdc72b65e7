"""Starts a control plane, has a benchmark measure inside, and leaves nothing behind."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from dradriver.errors import DriverError
from tests.cluster import ClusterError, Unavailable, why_not
from tests.cluster.nodeless import Nodeless
from tests.paths import REPO

RESULTS: Final = "results.json"  # in the control plane's folder


def outside(module: str, arguments: Sequence[str], *, name: str, version: str | None, json: Path | None) -> int:
    """Run a module next to a control plane, whose name and version are the first of its arguments.

    Returns:
        Its exit status.
    """
    if reason := why_not():
        print(f"left out, {module}: {reason}")
        return 0
    signal.signal(signal.SIGTERM, _end)
    plane = Nodeless(name, version)
    with plane.running():
        # Whoever enters other mounts stands in their root.
        command = [*plane.enter(), "env", f"--chdir={REPO}", sys.executable, "-m", module]
        try:
            return subprocess.run([*command, plane.version, *arguments], check=False).returncode
        finally:
            if json is not None and (results := plane.folder / RESULTS).exists():
                shutil.copy(results, json)


def start(main: Callable[[list[str]], int]) -> NoReturn:
    """End this process with what a benchmark returns for its command line, or with what keeps it from running."""
    try:
        sys.exit(main(sys.argv[1:]))
    except Unavailable as error:
        sys.exit(f"no control plane here: {error}")
    except ClusterError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def inside(
    main: Callable[[Nodeless, argparse.Namespace], Coroutine[Any, Any, int | None]],
    parse: Callable[[list[str]], argparse.Namespace],
) -> NoReturn:
    """End this process with what the measurements return, or with what is wrong with the cluster.

    Args:
        main: Measures on a control plane, as the command line asks for.
        parse: Reads the command line after the control plane's version.
    """
    wanted = parse(sys.argv[2:])
    if wanted.profile is not None:
        wanted.profile.mkdir(parents=True, exist_ok=True)
    try:
        sys.exit(asyncio.run(main(Nodeless(wanted.name, sys.argv[1]), wanted)))
    except Exception as error:
        found = causes(error)
        if not all(isinstance(cause, (ClusterError, DriverError)) for cause in found):
            raise
        sys.exit("\n".join(map(str, found)))


def causes(error: Exception) -> list[Exception]:
    """Return what task groups were told of, or the error itself."""
    if isinstance(error, ExceptionGroup):
        return [cause for each in error.exceptions for cause in causes(each)]
    return [error]


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def say(text: str) -> None:
    """Print lines at once."""
    print(text, flush=True)
