"""What this process keeps while NVML's library is initialised: open sessions, handles of GPUs and answers.

The library counts sessions (nvml.h, nvmlInit_v2), and whoever begins one while another is open gets what that one sees.
So a handle is good for all of them until the last ends, whatever becomes of its GPU: that of a lost one says so. The
handle of a MIG device is none of these: it ends with the device (nvmlDeviceGetMigDeviceHandleByIndex). Answers may be
wrong at times, so they also end when readings ask for facts anew (``failed_queries.Answers``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from dradriver.node.vendors.nvidia.discovery.nvml_interface import Handle

T = TypeVar("T")

_sessions: Final[list[object]] = []  # only appended to and removed from, so that threads need no lock
_handles: Final[dict[str, Handle]] = {}
_answers: Final[dict[tuple[str, int], tuple[object, object]]] = {}


def begun(session: object) -> None:
    """Note a session of NVML's library after the library was told of it."""
    _sessions.append(session)


def ended(session: object) -> bool:
    """Note that a session of NVML's library ends before it is told; return whether it was open."""
    if session not in _sessions:
        return False
    _sessions.remove(session)
    if not _sessions:
        _handles.clear()
        forget()
    return True


def sessions() -> tuple[object, ...]:
    """Return the sessions of NVML's library that are open."""
    return tuple(_sessions)


def keep(uuid: str, gpu: Handle) -> None:
    """Keep the handle of a GPU for the sessions of NVML's library."""
    _handles[uuid] = gpu


def handle(uuid: str) -> Handle | None:
    """Return a GPU's handle that is kept over sessions of NVML's library; None if the GPU never said who it is."""
    return _handles.get(uuid)


def forget() -> None:
    """Forget all answers that are kept over sessions of NVML's library. Handles stay."""
    _answers.clear()


def answer(what: str, gpu: Handle, state: object, ask: Callable[[], T]) -> T:
    """Return what a GPU answered in its present state in these library sessions; it is asked if it never was.

    Args:
        what: The question.
        gpu: Whom it is for.
        state: What the answer holds in: another one is forgotten.
        ask: Asks.

    Raises:
        NvmlError: It failed; nothing is kept.
    """
    key = what, ctypes.cast(cast("Any", gpu), ctypes.c_void_p).value or 0
    known = _answers.get(key)
    if known is not None and known[0] == state:
        return cast("T", known[1])
    fresh = ask()
    _answers[key] = state, fresh
    return fresh
