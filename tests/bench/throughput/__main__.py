"""`python -m tests.bench.throughput`: starts a control plane, measures inside, and leaves nothing behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from types import FrameType

from tests.bench.throughput import options
from tests.cluster import ClusterError, Unavailable, why_not
from tests.cluster.nodeless import Nodeless
from tests.paths import REPO


def main(arguments: list[str]) -> int:
    """Measure and return the exit status."""
    asked = options.parse(arguments)
    if reason := why_not():
        print(f"left out, throughput on a control plane: {reason}")
        return 0
    signal.signal(signal.SIGTERM, _end)
    plane = Nodeless(asked.name)
    with plane.running():
        # Whoever enters other mounts stands in their root.
        command = [*plane.enter(), "env", f"--chdir={REPO}", sys.executable, "-m", "tests.bench.throughput.inside"]
        try:
            return subprocess.run([*command, plane.version, *arguments], check=False).returncode
        finally:
            if asked.json is not None and (results := plane.folder / options.RESULTS).exists():
                shutil.copy(results, asked.json)


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Unavailable as error:
        sys.exit(f"no control plane here: {error}")
    except ClusterError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
