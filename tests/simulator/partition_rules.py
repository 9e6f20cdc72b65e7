"""Who may have which GPUs by the policies files of a story, told by their words alone: nobody is placed elsewhere."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from dradriver.api.policies.fields import Gpus
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Tenant
from dradriver.api.slices import resource_slices
from dradriver.topology.machine import Gpu

_T = TypeVar("_T")

SEEN_S: Final = 75.0  # until a process that saw nothing of nodes has seen their labels
BROUGHT_S: Final = 5.0  # until the kubelet has brought a file
FOLLOWED_S: Final = 12.0  # until every process has read a file that changed, and written what it had decided before


class Partitions:
    """The policies files and the label ``pool`` of nodes, over time.

    Attributes:
        told: Called with each file when it changes.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.told: Callable[[Policies], None] = lambda _: None
        self._now = now
        self._files: list[tuple[float, Mapping[str, Tenant]]] = [(float("-inf"), {})]
        self._pools: dict[str, list[tuple[float, str]]] = {}
        self._machines: dict[str, list[tuple[float, Sequence[Gpu]]]] = {}

    @property
    def file(self) -> Policies:
        """What the newest file says."""
        return Policies(tenants=dict(self._files[-1][1]))

    def write(self, tenants: Mapping[str, Tenant]) -> None:
        """Change the file."""
        self._files.append((self._now(), tenants))
        self.told(self.file)

    def label(self, node: str, pool: str) -> None:
        """Note the label ``pool`` of a node."""
        self._pools.setdefault(node, [(float("-inf"), "")]).append((self._now(), pool))

    def read(self, node: str, gpus: Sequence[Gpu]) -> None:
        """Note the GPUs of a node, whose numbers shift when one is lost."""
        self._machines.setdefault(node, []).append((self._now(), gpus))

    def open(self, namespace: str, node: str, gpu: Gpu) -> bool:
        """Return whether workloads of a namespace may be placed on a GPU now."""
        return _may(self._files[-1][1], namespace, node, self._pools.get(node, [(0.0, "")])[-1][1], gpu)

    def were_open(self, namespace: str, node: str, gpu: Gpu, since: float) -> bool:
        """Return whether a process could believe that of a GPU when it decided what it asked for at a time."""
        files = _lately(self._files, since - FOLLOWED_S)
        pools = _lately(self._pools.get(node, [(0.0, "")]), since - SEEN_S)
        return any(_may(tenants, namespace, node, pool, gpu) for tenants in files for pool in pools)

    def outside(self, namespace: str, taken: Collection[tuple[str, str]], since: float) -> list[str]:
        """Return which GPUs of those that are taken, by node and device, a namespace could not have.

        Args:
            namespace: Whose they are.
            taken: The GPUs.
            since: When they were asked for.
        """
        return [
            f"{node}/{device}"
            for node, device in sorted(taken)
            if not any(
                resource_slices.device_name(gpu.uuid) == device and self.were_open(namespace, node, gpu, since)
                for gpus in _lately(self._machines.get(node, []), since - SEEN_S)
                for gpu in gpus
            )
        ]


def _may(tenants: Mapping[str, Tenant], namespace: str, node: str, pool: str, gpu: Gpu) -> bool:
    mine = next((tenant for tenant in tenants.values() if namespace in tenant.namespaces), None)
    owner = next((t for _, t in sorted(tenants.items()) if t.exclusive and _of(t.partition, node, pool, gpu)), None)
    if owner is not None and owner is not mine:
        return False
    return mine is None or mine.partition is None or _of(mine.partition, node, pool, gpu)


def _of(rule: Gpus | None, node: str, pool: str, gpu: Gpu) -> bool:
    if rule is None or (rule.nodes and node not in rule.nodes) or (rule.numbers and gpu.index not in rule.numbers):
        return False
    if any((key, value) != ("pool", pool) for key, value in rule.node_selector.items()):
        return False
    return not rule.products or any(fnmatch.fnmatchcase(gpu.product, product) for product in rule.products)


def _lately(entries: Sequence[tuple[float, _T]], since: float) -> list[_T]:
    """Return what was so at any time since then."""
    ended = [at for at, _ in entries[1:]] + [float("inf")]
    return [value for (_, value), end in zip(entries, ended, strict=True) if end >= since]
