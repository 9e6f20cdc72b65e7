"""Warns about settings of a GPU pod that undo the driver's work. The pod is admitted all the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from dradriver.topology.vendors import VENDORS
from webhook import pod_view

MOST_BYTES: Final = 1 << 17  # of JSON: so much of a pod's environment is looked at

# Tokens that NCCL knows, compared without case (NCCL 2.30, graph/tuning.cc). Since 2.24 any other fails the init.
_TOKENS: Final = {
    "NCCL_ALGO": ("Ring", "Tree", "CollnetChain", "CollnetDirect", "NVLS", "NVLSTree", "PAT"),
    "NCCL_PROTO": ("LL", "LL128", "Simple"),
}
_INJECTING: Final = tuple(name for vendor in VENDORS.values() for name in vendor.injects)
_HIDING: Final = tuple(name for vendor in VENDORS.values() for name in vendor.hides)
_HARMFUL: Final = {
    "NCCL_TOPO_FILE": "NCCL_TOPO_FILE: a topology file of another machine hides the real links of these GPUs. Remove "
    "it.",
    **{name: f"{name}: this variable can add GPUs that belong to other pods. Remove it." for name in _INJECTING},
    **{name: f"{name}: this variable can hide GPUs that the pod has. Remove it." for name in _HIDING},
}
# Values by which NCCL gives up NVLink: P2P is direct access between GPUs, by NVLink or PCI (NCCL user guide).
_WITHOUT_P2P: Final = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("loc", "0")}
_HIDDEN: Final = ("void", "none", "")  # values of NVIDIA_VISIBLE_DEVICES and the like that add no GPU
_LOOKED_AT: Final = frozenset((*_TOKENS, *_HARMFUL, *_WITHOUT_P2P))


class _EnvVar(msgspec.Struct, frozen=True, gc=False):
    name: str
    value: str | None = None


_ENV: Final = msgspec.json.Decoder(list[_EnvVar] | None)


def warnings(pod: pod_view.Pod) -> list[str]:
    """Return a warning for each setting of a pod that undoes the driver's work, in pod order.

    Of all environments together, at most ``MOST_BYTES`` bytes are read. An environment that is larger than the rest of
    this limit is skipped.

    Raises:
        WordError: A container's environment is invalid.
    """
    texts: list[str] = []
    left = MOST_BYTES
    for container in (*pod.init_containers, *pod.containers):
        where = f"container {container.name[:63]!r}: "
        if container.security_context is not None and container.security_context.privileged:
            texts.append(where + "privileged: a privileged container sees all GPUs of the node.")
        size = len(memoryview(container.env))
        if size <= left and not pod_view.same(container.env, pod_view.ABSENT):
            left -= size
            texts += [where + text for text in _about_env(container)]
    return texts


def _about_env(container: pod_view.Container) -> Iterator[str]:
    for variable in pod_view.decode(_ENV, container.env, "env: ") or ():
        if variable.name in _LOOKED_AT:
            text = _about(variable.name, variable.value or "")
            if text is not None:
                yield text


def _about(name: str, value: str) -> str | None:
    if name in _TOKENS:
        known = [token.lower() for token in _TOKENS[name]]
        bad = [token for token in _tokens(value) if token.lower() not in known]
        shown = ", ".join(repr(token[:24]) for token in bad[:3])
        return (
            f"{name}: NCCL does not know {shown} and fails to start. Allowed: {', '.join(_TOKENS[name])}."
            if bad
            else None
        )
    if name in _WITHOUT_P2P:
        off = value.strip().lower() in _WITHOUT_P2P[name]
        return f"{name}: with {value.strip()} NCCL does not use NVLink between these GPUs. Remove it." if off else None
    if name in _INJECTING and value.lower() in _HIDDEN:
        return None
    return _HARMFUL.get(name)


def _tokens(value: str) -> list[str]:
    """Return the single names in the value of an NCCL variable such as ``NCCL_ALGO``.

    For example, ``ring`` and ``tree`` from ``ring,tree``, or ``tree`` and ``ring`` from
    ``allreduce:^tree;broadcast:ring``.
    """
    lists = [part.rpartition(":")[2].strip().removeprefix("^") for part in value.split(";")]
    return [token.strip() for part in lists for token in part.split(",") if token.strip()]
