"""What can go wrong with the test cluster."""

from pathlib import Path


class ClusterError(Exception):
    """A part of the cluster failed; the message names it and its log."""


class Unavailable(Exception):  # noqa: N818  # an answer rather than an error
    """This machine cannot run the cluster; the message is the reason in one line."""


def last_lines(log: Path, count: int = 15) -> str:
    """Returns the end of a log for an error message, empty if there is none."""
    try:
        with log.open("rb") as data:
            data.seek(max(0, log.stat().st_size - 64 * 1024))
            lines = data.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line[:400] for line in lines[-count:])
