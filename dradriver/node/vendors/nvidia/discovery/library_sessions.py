"""The objects that this process keeps while NVML's library is initialised: open sessions, GPU handles and answers.

The library counts sessions (nvml.h, nvmlInit_v2). A session that begins while another is open sees the same GPUs. So a
GPU's handle is valid in all sessions until the last session ends. This is true even if the GPU is lost; calls then
return the error "GPU is lost".

Handles of MIG devices are not kept, because they end with the device (nvmlDeviceGetMigDeviceHandleByIndex). Answers may
be wrong at times. So a reading also forgets them at its start if the NVML session is new, or after 60 readings (about
ten minutes). ``failed_queries.Answers.begin`` does this.
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
    """Record an NVML session that the caller has just begun, until ``ended`` is called."""
    _sessions.append(session)


def ended(session: object) -> bool:
    """Record that an NVML session ends, before the caller ends it; return whether the session was open."""
    if session not in _sessions:
        return False
    _sessions.remove(session)
    if not _sessions:
        _handles.clear()
        forget()
    return True


def sessions() -> tuple[object, ...]:
    """Return the open sessions of NVML's library."""
    return tuple(_sessions)


def keep(uuid: str, gpu: Handle) -> None:
    """Keep the handle of a GPU until the last session of NVML's library ends."""
    _handles[uuid] = gpu


def handle(uuid: str) -> Handle | None:
    """Return the kept handle of the GPU with this uuid; None if there is none."""
    return _handles.get(uuid)


def forget() -> None:
    """Forget all stored answers, so that NVML is asked again. GPU handles are not forgotten."""
    _answers.clear()


def answer(what: str, gpu: Handle, state: object, ask: Callable[[], T]) -> T:
    """Return the stored answer to a question about a GPU, or ask and store it.

    Args:
        what: The name of the question.
        gpu: The GPU's handle.
        state: The GPU's present state. An answer that was given in another state is not used.
        ask: Asks the question.

    Raises:
        NvmlError: The question failed; nothing is stored.
    """
    key = what, ctypes.cast(cast("Any", gpu), ctypes.c_void_p).value or 0
    known = _answers.get(key)
    if known is not None and known[0] == state:
        return cast("T", known[1])
    fresh = ask()
    _answers[key] = state, fresh
    return fresh
