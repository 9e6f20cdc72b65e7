"""What an MPS daemon, and each of its servers, gives clients at most: read, set whatever that says, and read back.

The daemon's own limits are those of servers that start later; a server took them when it started, and gives them to
clients that come later. Root of a container can change both, and can answer in the daemon's place: no text is trusted.
From 1 GiB on some drivers show whole GiB alone, so what is shown as it should be is not known to be so.
Source: NVIDIA's MPS documentation, "Legacy MPS v2 Interface".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from dradriver.node.errors import SetupError
from dradriver.node.mps.mps_files import Server

_AMOUNT: Final = re.compile(r"(?:.*[^0-9.])?([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([MG]?)(?:i?B)?", re.ASCII | re.DOTALL)
_SERVER: Final = re.compile(r"\b[1-9][0-9]{0,9}\b", re.ASCII)
_MOST_SERVERS: Final = 16


class _Limit(NamedTuple):
    """A limit: the end of its commands' names, what they name, its value, and the amounts that say so."""

    command: str
    device: str
    value: str
    text: str
    shown: tuple[tuple[float, str], ...]

    def get(self, server: str) -> str:
        return " ".join(filter(None, (f"get_{self._of(server)}", server, self.device)))

    def set(self, server: str) -> str:
        return " ".join(filter(None, (f"set_{self._of(server)}", server, self.device, self.value)))

    def _of(self, server: str) -> str:
        return self.command if server else f"default_{self.command}"


def hold(ask: Callable[[str], str], gpu: str, server: Server) -> list[str]:
    """Set every limit of an MPS daemon again; return which of them were seen to differ.

    A server that says no amount has ended, or its driver does not know the question: what it started with stands.

    Args:
        ask: Returns what the daemon answers to a line.
        gpu: The GPU's uuid.
        server: What is wanted.

    Raises:
        SetupError: The daemon does not answer, or does not take a limit.
    """
    wrong: list[str] = []
    if wanted := _wanted(gpu, server):
        for limit in wanted:
            wrong += _hold(ask, limit, "")  # of servers that start from now on

        # And of each server that runs.
        for pid in _SERVER.findall(ask("get_server_list"))[:_MOST_SERVERS]:
            for limit in wanted:
                wrong += _hold(ask, limit, pid)
    return wrong


def _hold(ask: Callable[[str], str], limit: _Limit, server: str) -> list[str]:
    before = ask(limit.get(server))
    if server and _amount(before) is None:
        return []
    ask(limit.set(server))
    if _amount(before) in limit.shown:
        return []
    said = ask(limit.get(server))
    if _amount(said) in limit.shown or (server and _amount(said) is None):
        return [f"{limit.get(server)}: {before[:200]!r}"]
    raise SetupError(f"nvidia-cuda-mps-control does not keep to {limit.text}: {said[:200]!r}")


def _wanted(gpu: str, server: Server) -> list[_Limit]:
    limits = []
    if (memory := server.memory_mib) is not None:
        shown = (float(memory), "M"), (float(memory >> 10), "G")
        limits.append(_Limit("device_pinned_mem_limit", gpu, f"{memory}M", f"a limit of {memory}M", shown))
    if (share := server.thread_percentage) is not None:
        text, shown_share = f"{share} % of the threads", ((float(share), ""),)
        limits.append(_Limit("active_thread_percentage", "", str(share), text, shown_share))
    return limits


def _amount(said: str) -> tuple[float, str] | None:
    """Return the amount at the end of what was said, and its unit; None where there is none."""
    match = _AMOUNT.fullmatch(said[-200:])
    return (float(match[1]), match[2]) if match else None
