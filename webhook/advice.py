"""Warnings about what harms a GPU pod but does not forbid it."""

from __future__ import annotations

from typing import Final

from webhook import pods

# Tokens that NCCL knows, compared without case (NCCL 2.30, graph/tuning.cc). Since 2.24 any other fails the init.
_TOKENS: Final = {
    "NCCL_ALGO": ("Ring", "Tree", "CollnetChain", "CollnetDirect", "NVLS", "NVLSTree", "PAT"),
    "NCCL_PROTO": ("LL", "LL128", "Simple"),
}
_HARMFUL: Final = {
    "NCCL_TOPO_FILE": "NCCL_TOPO_FILE: a file of another machine hides the real links of these GPUs; remove it",
    "NVIDIA_VISIBLE_DEVICES": "NVIDIA_VISIBLE_DEVICES: may add GPUs that belong to other pods; remove it",
    "CUDA_VISIBLE_DEVICES": "CUDA_VISIBLE_DEVICES: may hide GPUs that the pod was given; remove it",
}
_HIDDEN: Final = ("void", "none", "")  # values of NVIDIA_VISIBLE_DEVICES that add no GPU


def warnings(pod: pods.Object) -> list[str]:
    """Return a warning for each variable or setting that spoils what the driver does, in pod order."""
    found: list[str] = []
    for container in (*pods.items(pod["spec"], "initContainers"), *pods.items(pod["spec"], "containers")):
        where = f"container {container['name'][:63]!r}: "
        if (container.get("securityContext") or {}).get("privileged"):
            found.append(where + "privileged: it sees every GPU of the node, not only its own")
        env = pods.items(container, "env")
        found += [where + text for v in env if (text := _about(v["name"], v.get("value") or ""))]
    return found


def _about(name: str, value: str) -> str | None:
    if name in _TOKENS:
        known = [token.lower() for token in _TOKENS[name]]
        bad = [token for token in _tokens(value) if token.lower() not in known]
        shown = ", ".join(repr(token[:24]) for token in bad[:3])
        return f"{name}: NCCL has no {shown}, and will not start; it has {', '.join(_TOKENS[name])}" if bad else None
    if name == "NVIDIA_VISIBLE_DEVICES" and value.lower() in _HIDDEN:
        return None
    return _HARMFUL.get(name)


def _tokens(value: str) -> list[str]:
    """Split ``ring,tree`` or ``allreduce:^tree;broadcast:ring`` into its tokens."""
    lists = [part.rpartition(":")[2].strip().removeprefix("^") for part in value.split(";")]
    return [token.strip() for part in lists for token in part.split(",") if token.strip()]
