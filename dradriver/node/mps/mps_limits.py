"""The limits that an MPS daemon and its servers set for clients: this module sets them and reads them back.

``daemon`` calls it. An MPS daemon starts servers, and clients are programs that connect to a server. A server takes the
daemon's limits when it starts, and applies its limits to clients that connect later. So both the daemon and its servers
must have the limits.

Root in a container can change both limits, and can answer in the daemon's place. So this code does not trust answers
and always sets each limit again. For limits of 1 GiB or more, some drivers answer in whole GiB, so a correct answer
does not prove the limit. Source: NVIDIA's MPS documentation, "Legacy MPS v2 Interface".
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
    """A limit that the daemon can set and print.

    Attributes:
        command: The name of the limit in the daemon's commands, which begin with ``get_`` or ``set_``.
        device: The GPU, as the commands name it; empty if the commands do not name a GPU.
        value: The value, as the commands write it.
        text: The limit in words.
        shown: The answers that confirm the value.
    """

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
    """Set every limit of an MPS daemon and its servers again; return the limits that had other values.

    A server may answer without a value. Then the server has ended, or its driver does not know the command. The limits
    with which the server started then stay.

    Args:
        ask: Sends a line to the daemon and returns the daemon's answer.
        gpu: The GPU's uuid.
        server: The limits to set.

    Raises:
        SetupError: The daemon does not answer, or does not accept a limit.
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
    """Return number and unit at the end of a daemon's answer; None without a number."""
    match = _AMOUNT.fullmatch(said[-200:])
    return (float(match[1]), match[2]) if match else None
